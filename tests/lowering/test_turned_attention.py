"""Attention whose scores or weights are transposed, or that has no axis of heads, as one operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.verbs.flows.results import FuseResult

PSA = (
    "t = Transpose <perm = [{turn}]> (q) p = MatMul (t, k) z = Mul (p, scale) w = Softmax <axis = -1> (z)"
    " wt = Transpose <perm = [{turn}]> (w) y = MatMul (v, wt)"
)
PLAIN = "t = Transpose <perm = [0, 2, 1]> (k) p = MatMul (q, t) z = Mul (p, scale) {mask} w = Softmax <axis = -1> (z{m}) y = MatMul (w, v)"
TURNED = (
    "t = Transpose <perm = [0, 1, 3, 2]> (k) p = MatMul (q, t) z = Mul (p, scale)"
    " s = Transpose <perm = [0, 1, 3, 2]> (z) w = Softmax <axis = -1> (s)"
)
MASKED = PLAIN.format(mask="zm = Add (z, mask)", m="m")

FORMS = {
    "V before the weights": (PSA.format(turn="0, 1, 3, 2"), "[1,2,8,5] [1,2,8,7] [1,2,6,7]", "[1,2,6,5]"),
    "V before the weights, no heads": (PSA.format(turn="0, 2, 1"), "[2,8,5] [2,8,7] [2,6,7]", "[2,6,5]"),
    "no heads": (PLAIN.format(mask="", m=""), "[2,5,8] [2,7,8] [2,7,6]", "[2,5,6]"),
    "no heads, a mask": (MASKED, "[2,5,8] [2,7,8] [2,7,6] [5,7]", "[2,5,6]"),
    "no heads, a mask for each batch": (MASKED, "[2,5,8] [2,7,8] [2,7,6] [2,5,7]", "[2,5,6]"),
    "turned scores": (TURNED + " y = MatMul (w, v)", "[1,2,7,8] [1,2,5,8] [1,2,7,6]", "[1,2,5,6]"),
    "turned scores and weights": (
        TURNED + " wt = Transpose <perm = [0, 1, 3, 2]> (w) y = MatMul (v, wt)",
        "[1,2,7,8] [1,2,5,8] [1,2,6,7]",
        "[1,2,6,5]",
    ),
}


def graph(body: str, shapes: str, y: str) -> onnx.ModelProto:
    names = ["q", "k", "v", "mask"]
    given = ", ".join(f"float{shape} {name}" for shape, name in zip(shapes.split(), names, strict=False))
    text = f"<ir_version: 10, opset_import: ['': 17]> g ({given}) => (float{y} y) <float scale = {{0.3}}> {{ {body} }}"
    return onnx.parser.parse_model(text.replace("'", '"'))


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("form", FORMS)
def test_it_becomes_one_operator(form: str, target: str, operators: Callable[[FuseResult], list[str]]) -> None:
    body, shapes, y = FORMS[form]
    result = api.fuse(graph(body, shapes, y), ["ScaledDotProductAttention"], lower=target)
    assert {"onnx": "Attention", "ort": "com.microsoft.MultiHeadAttention"}[target] in operators(result)
    assert not {"Softmax", "MatMul"} & {*operators(result)}
    assert not any(site.skipped for site in result.sites)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_heads_that_are_mixed_stay_a_call(target: str, reasons: Callable[[FuseResult], list[str]]) -> None:
    """Talking heads: no operator mixes the heads."""
    body = (
        "t = Transpose <perm = [0, 1, 3, 2]> (k) p = MatMul (q, t) z = Mul (p, scale) a = Transpose <perm = [0, 2, 3, 1]> (z)"
        " b = MatMul (a, mix) c = Transpose <perm = [0, 3, 1, 2]> (b) w = Softmax <axis = -1> (c)"
        " d = Transpose <perm = [0, 2, 3, 1]> (w) e = MatMul (d, mix) f = Transpose <perm = [0, 3, 1, 2]> (e) y = MatMul (f, v)"
    )
    proto = graph(body, "[1,2,5,8] [1,2,7,8] [1,2,7,6]", "[1,2,5,6]")
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray([[1, 2], [3, 4]], np.float32), "mix"))
    result = api.fuse(proto, ["ScaledDotProductAttention"], lower=target)
    assert "its heads are mixed" in reasons(result)[0]
    assert result.verdict is not None and result.verdict.equal
