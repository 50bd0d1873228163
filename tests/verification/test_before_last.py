"""Outputs that are flat on noise are compared before their last Sigmoid or Softmax."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.model.load import load
from onnxtile.verification.rounding import judge

HEAD = '<ir_version: 10, opset_import: ["": 17]>\n'


def head(last: str, *, factor: float = 1.0, shift: float = -100.0, pieces: bool = False) -> onnx.ModelProto:
    """Return MatMul, Add and the operator `last`, written as two pieces of rows or as one."""
    body = "p = MatMul(x, w) t = Add(p, shift) "
    body += (
        f"a, b = Split<axis=0>(t) c = {last}(a) d = {last}(b) y = Concat<axis=0>(c, d)" if pieces else f"y = {last}(t)"
    )
    made = onnx.parser.parse_model(f"{HEAD} g (float[4,8] x) => (float[4,3] y) {{ {body} }}")
    random = np.random.default_rng(0)
    weight = (random.standard_normal((8, 3)) * factor).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    made.graph.initializer.append(
        numpy_helper.from_array(np.asarray([shift, 0, 0], np.float32)[: 3 if last == "Softmax" else 1], "shift")
    )
    return made


@pytest.mark.parametrize(("last", "shift"), [("Sigmoid", -100.0), ("Sigmoid", 100.0), ("Softmax", 1000.0)])
def test_a_wrong_model_with_the_same_flat_output_differs(last: str, shift: float) -> None:
    good, wrong = head(last, shift=shift), head(last, shift=shift, factor=1.1)
    for verdict in (onnxtile.verify(good, wrong), judge(load(good), load(wrong))):
        assert not verdict.equal
        assert f"compared before the last {last}" in verdict.outputs[0].reason


def test_pieces_are_compared_before_each_of_their_last_operators() -> None:
    verdict = onnxtile.verify(head("Sigmoid"), head("Sigmoid", pieces=True))
    assert verdict.equal
    assert "compared before the last Sigmoid: the output is flat" in verdict.outputs[0].reason
    assert not onnxtile.verify(head("Sigmoid"), head("Sigmoid", pieces=True, factor=1.1)).equal


def test_an_output_that_tells_something_is_compared_itself() -> None:
    assert onnxtile.verify(head("Sigmoid", shift=0.0), head("Sigmoid", shift=0.0)).outputs[0].reason == ""
    verdict = onnxtile.verify(head("Sigmoid", shift=0.0), head("Sigmoid", shift=0.0, factor=1.1))
    assert not verdict.equal and verdict.outputs[0].reason == ""


def test_models_that_end_in_different_operators_are_compared_by_their_outputs() -> None:
    other = onnx.parser.parse_model(
        f"{HEAD} g (float[4,8] x) => (float[4,3] y) {{ s = Slice(x, a, b, b) y = Mul(s, z) }}"
    )
    for name, array in {"a": np.asarray([0]), "b": np.asarray([3]), "z": np.zeros(1, np.float32)}.items():
        other.graph.initializer.append(numpy_helper.from_array(array, name))
    other.graph.node[0].input[3] = "one"
    other.graph.initializer.append(numpy_helper.from_array(np.asarray([1]), "one"))
    assert onnxtile.verify(head("Sigmoid", shift=-200.0), other).equal
