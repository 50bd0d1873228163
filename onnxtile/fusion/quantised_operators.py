"""Operators that compute on quantised tensors, and the float operators that they quantise.

The operators of the domain "" are https://onnx.ai/onnx/operators/, those of "com.microsoft" are in onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtile.model.quantising import (
    DEQUANTISING,
    FLOAT_MEANINGS,
    OWN_DOMAINS,
    QUANTISING,
    QUANTISING_AT_RUN,
    FloatMeaning,
    dequantises,
    quantises,
)

QUANTISED_OPERATORS = frozenset({
    *FLOAT_MEANINGS, QUANTISING, DEQUANTISING, QUANTISING_AT_RUN,
    *("MatMulInteger", "ConvInteger", "MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
})  # fmt: skip
"""The names of the operators that a query of floats does not see."""


def float_meaning(node: ir.Node) -> FloatMeaning | None:
    """Return the float operator that `node` stands for; None where it computes on floats, or in another way than that."""
    meaning = FLOAT_MEANINGS.get(node.op_type) if node.domain in OWN_DOMAINS else None
    if meaning is None or node.attributes.get_int("channels_last", 0) != 0:
        return None
    if node.op_type == "QLinearSoftmax" and node.attributes.get_int("opset", 13) < 13:
        # Softmax took all axes from this one on, which is the same for the last one only.
        return meaning if node.attributes.get_int("axis", 1) == -1 else None
    return meaning


def scales_of(node: ir.Node) -> Sequence[ir.Value]:
    """Return the scales and zero points among the inputs of `node`; none of an operator that computes on floats."""
    meaning = float_meaning(node)
    if meaning is None and not quantises(node) and not dequantises(node):
        return ()
    places = (0,) if meaning is None else meaning.places(node)
    return [value for place, value in enumerate(node.inputs) if value is not None and place not in places]
