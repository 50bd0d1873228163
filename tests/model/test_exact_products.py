"""Products of stored integers: sums as integers have them, also where the processor's own saturate."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxtile.model import exact_products
from onnxtile.model.exact_products import exact_session, sums_saturate, unsigned_products
from onnxtile.system.runtime import Array, Session

LEFT = np.full((8, 64), 255, np.uint8)
RIGHT = np.where(np.arange(64 * 16).reshape(64, 16) % 7 == 0, -128, 127).astype(np.int8)
SUMS = LEFT.astype(np.int32) @ RIGHT.astype(np.int32)
HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "local" : 1]>'
CUT = ", int64[1] zero = {0}, int64[1] four = {4}"

PRODUCTS = {
    "constant": ("g (uint8[8,64] a) => (int32[8,16] y) { y = MatMulInteger(a, w) }", SUMS),
    "fed": ("g (uint8[8,64] a, int8[64,16] w) => (int32[8,16] y) { y = MatMulInteger(a, w) }", SUMS),
    "zero points": (
        "g (uint8[8,64] a) => (int32[8,16] y) <uint8 p = {3}, int8 q = {-5}> { y = MatMulInteger(a, w, p, q) }",
        (LEFT.astype(np.int32) - 3) @ (RIGHT.astype(np.int32) + 5),
    ),
    "twice": (
        "g (uint8[8,64] a) => (int32[8,16] y) { u = MatMulInteger(a, w) v = MatMulInteger(a, w) y = Add(u, v) }",
        2 * SUMS,
    ),
    "cut": (
        f"g (uint8[8,64] a) => (int32[8,4] y) <int64[1] one = {{1}}{CUT}> {{ c = Slice(w, zero, four, one) y = MatMulInteger(a, c) }}",
        SUMS[:, :4],
    ),
    "of signed operands": (
        "g (int8[8,64] a) => (int32[8,16] y) { y = MatMulInteger(a, w) }",
        np.full((8, 64), -128, np.int32) @ RIGHT.astype(np.int32),
    ),
    "in a body": (
        "g (uint8[8,64] a, bool c) => (int32[8,16] y) { y = If(c) <"
        "then_branch = t () => (int32[8,16] u) { u = MatMulInteger(a, w) },"
        "else_branch = e () => (int32[8,16] v) { v = MatMulInteger(a, w) }> }",
        SUMS,
    ),
    "in a function": (
        "g (uint8[8,64] a) => (int32[8,16] y) { y = local.Twice(a, w) }"
        '<domain: "local", opset_import: ["" : 17]> Twice (s, t) => (u) { u = MatMulInteger(s, t) }',
        SUMS,
    ),
    "scaled": (
        "g (uint8[8,64] a) => (float[8,16] y) <float one = {1.0}> { y = com.microsoft.MatMulIntegerToFloat(a, w, one, one) }",
        SUMS.astype(np.float32),
    ),
    "requantised": (
        "g (uint8[8,64] a) => (uint8[8,16] y) <float s = {1.0}, float t = {16384.0}, uint8 p = {0}, int8 q = {0}, uint8 r = {128}>"
        "{ y = QLinearMatMul(a, s, p, w, s, q, t, r) }",
        np.clip(np.rint(SUMS / 16384) + 128, 0, 255).astype(np.uint8),
    ),
    "of windows": (
        "g (uint8[1,64,1,8] a) => (int32[1,16,1,8] y) { y = ConvInteger(a, k) }",
        SUMS.T[None, :, None],
    ),
}


def parsed(text: str) -> onnx.ModelProto:
    """Return the model of `text`, with the constant factor under the name `w`, or `k` as a kernel of a convolution."""
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    fed = {value.name for value in model.graph.input}
    factors = {"w": RIGHT, "k": np.ascontiguousarray(RIGHT.T)[:, :, None, None]}
    for name, factor in factors.items():
        if name not in fed and re.search(rf"\b{name}\b", text):
            model.graph.initializer.append(numpy_helper.from_array(factor, name))
    return model


def feeds(model: onnx.ModelProto) -> dict[str, Array]:
    signed = any(value.type.tensor_type.elem_type == onnx.TensorProto.INT8 for value in model.graph.input[:1])
    left = LEFT.T[None, :, None] if len(model.graph.input[0].type.tensor_type.shape.dim) == 4 else LEFT
    given = {
        "a": np.full(LEFT.shape, -128, np.int8) if signed else np.ascontiguousarray(left),
        "w": RIGHT,
        "c": np.array(True),
    }
    return {value.name: given[value.name] for value in model.graph.input}


@pytest.mark.parametrize("saturates", [True, None])
@pytest.mark.parametrize("name", PRODUCTS)
def test_sums_are_those_of_integers(name: str, saturates: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor whose sums saturate, and as on this one."""
    if saturates is not None:
        monkeypatch.setattr(exact_products, "sums_saturate", lambda: saturates)
    text, expected = PRODUCTS[name]
    model = parsed(text)
    (result,) = exact_session(model.SerializeToString(), model).run(feeds(model)).values()
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_only_products_of_unlike_types_are_written_anew(name: str) -> None:
    content = parsed(PRODUCTS[name][0]).SerializeToString()
    assert (unsigned_products(content) == content) == (name == "of signed operands")


def test_a_processor_whose_sums_saturate_is_recognised() -> None:
    """By a product without this module, on numbers that saturate."""
    model = parsed(PRODUCTS["constant"][0])
    (result,) = Session(model.SerializeToString()).run(feeds(model)).values()
    assert np.array_equal(result, SUMS) != sums_saturate()
