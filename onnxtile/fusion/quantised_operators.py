"""Operators that compute on quantised tensors, and the float operators that they quantise.

The operators of the domain "" are https://onnx.ai/onnx/operators/, those of "com.microsoft" are in onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.model.quantising import DEQUANTISING, OWN_DOMAINS, QUANTISING, QUANTISING_AT_RUN, dequantises, quantises


@dataclass(frozen=True)
class FloatMeaning:
    """The float operator that an operator on quantised tensors stands for.

    `operands` are the places of its operands, `scaled` those of them that a scale and a zero point follow. All other inputs are scales
    and zero points. From the place `repeated` on, all triples are operands. `columns` is the place of the operand that may have a scale
    for each element of an axis, and the number of that axis. `dropped` are attributes that the float operator lacks.
    """

    op_type: str
    operands: tuple[int, ...] = ()
    scaled: frozenset[int] = frozenset()
    repeated: int | None = None
    columns: tuple[int, int] | None = None
    dropped: frozenset[str] = frozenset()

    def places(self, node: ir.Node) -> Sequence[int]:
        """Return the places of the operands of `node`."""
        return self.operands if self.repeated is None else range(self.repeated, len(node.inputs), 3)


def _unary(op_type: str, *dropped: str) -> FloatMeaning:
    return FloatMeaning(op_type, (0,), frozenset({0}), dropped=frozenset(dropped))


def _binary(op_type: str, columns: tuple[int, int] | None = None) -> FloatMeaning:
    return FloatMeaning(op_type, (0, 3), frozenset({0, 3}), columns=columns)


_MEANINGS: Mapping[str, FloatMeaning] = {
    "QGemm": FloatMeaning("Gemm", (0, 3, 6), frozenset({0, 3}), columns=(3, 1)),
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _unary("AveragePool", "channels_last"),
    "QLinearConcat": FloatMeaning("Concat", repeated=2),
    "QLinearConv": FloatMeaning("Conv", (0, 3, 8), frozenset({0, 3}), columns=(3, 0)),
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool", "channels_last"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearMatMul": _binary("MatMul", (3, -1)),
    "QLinearMul": _binary("Mul"),
    "QLinearReduceMean": _unary("ReduceMean"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearSoftmax": _unary("Softmax", "opset"),
    "QLinearWhere": FloatMeaning("Where", (0, 1, 4), frozenset({1, 4})),
}

QUANTISED_OPERATORS = frozenset({
    *_MEANINGS, QUANTISING, DEQUANTISING, QUANTISING_AT_RUN,
    *("MatMulInteger", "ConvInteger", "MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
})  # fmt: skip
"""The names of the operators that a query of floats does not see."""


def float_meaning(node: ir.Node) -> FloatMeaning | None:
    """Return the float operator that `node` stands for; None where it computes on floats, or in another way than that."""
    meaning = _MEANINGS.get(node.op_type) if node.domain in OWN_DOMAINS else None
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
