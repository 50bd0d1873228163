"""The judgement of the whole model: rounding that the original has itself is no mistake, anything else is."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxtile.model.load import load
from onnxtile.verification import judge


def model(scale: float, shift: float = -10.0) -> onnx.ModelProto:
    """Sigmoid(x · w · scale + shift): near 0 float32's sigmoid has steps as large as its results."""
    weight = np.random.default_rng(0).standard_normal((512, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "scale"], ["s"]),
        helper.make_node("Add", ["s", "shift"], ["t"]),
        helper.make_node("Sigmoid", ["t"], ["y"]),
    ]
    constants = {"w": weight, "scale": np.float32(scale), "shift": np.float32(shift)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [8, 512])],
        [helper.make_tensor_value_info("y", 1, [8, 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_rounding_explains_is_no_mistake() -> None:
    verdict = judge(load(model(0.05)), load(model(0.05 * (1 + 2e-7))))
    assert verdict.equal


def test_what_rounding_does_not_explain_is_one() -> None:
    verdict = judge(load(model(0.05)), load(model(0.05 * 1.01)))
    assert not verdict.equal
    assert not judge(load(model(0.05)), load(model(0.05, -9.99))).equal
