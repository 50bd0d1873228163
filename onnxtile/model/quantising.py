"""Nodes that quantise a tensor, nodes that give back floats, and operators that compute on quantised tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.model.walk import main_graphs

QUANTISING, DEQUANTISING = "QuantizeLinear", "DequantizeLinear"

QUANTISING_AT_RUN = "DynamicQuantizeLinear"
INTEGER = frozenset({"ConvInteger", "MatMulInteger"})
"""Operators that sum products of quantised tensors as int32."""

OWN_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""The domains whose operators of these names mean the same."""


@dataclass(frozen=True)
class FloatMeaning:
    """The float operator that an operator on quantised tensors stands for.

    `operands` are the places of its operands, `scaled` those of them that a scale and a zero point follow. All other inputs are scales
    and zero points. From the place `repeated` on, all triples are operands. `columns` is the place of the operand that may have a scale
    for each element of an axis, and the number of that axis (see `axis_of`). `dropped` are attributes that the float operator lacks.
    `result` are the places of the scale and the zero point of the result.
    """

    op_type: str
    operands: tuple[int, ...] = ()
    scaled: frozenset[int] = frozenset()
    repeated: int | None = None
    columns: tuple[int, int] | None = None
    dropped: frozenset[str] = frozenset()
    result: tuple[int, int] = (0, 1)

    def places(self, node: ir.Node) -> Sequence[int]:
        """Return the places of the operands of `node`."""
        return self.operands if self.repeated is None else range(self.repeated, len(node.inputs), 3)

    def is_scaled(self, place: int) -> bool:
        """Return whether a scale and a zero point follow the operand at `place`."""
        return self.repeated is not None or place in self.scaled

    def axis_of(self, node: ir.Node, place: int) -> int | None:
        """Return the axis of the operand of `node` at `place` along which it may have several scales; None where it has one."""
        if self.columns is None or place != self.columns[0]:
            return None
        return 0 if self.columns[1] == 1 and node.attributes.get_int("transB", 0) != 0 else self.columns[1]


def _unary(op_type: str, *dropped: str) -> FloatMeaning:
    return FloatMeaning(op_type, (0,), frozenset({0}), dropped=frozenset(dropped), result=(3, 4))


def _binary(op_type: str, columns: tuple[int, int] | None = None) -> FloatMeaning:
    return FloatMeaning(op_type, (0, 3), frozenset({0, 3}), columns=columns, result=(6, 7))


FLOAT_MEANINGS: Mapping[str, FloatMeaning] = {
    "QGemm": FloatMeaning("Gemm", (0, 3, 6), frozenset({0, 3}), columns=(3, 1), result=(7, 8)),
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _unary("AveragePool", "channels_last"),
    "QLinearConcat": FloatMeaning("Concat", repeated=2),
    "QLinearConv": FloatMeaning("Conv", (0, 3, 8), frozenset({0, 3}), columns=(3, 0), result=(6, 7)),
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool", "channels_last"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearMatMul": _binary("MatMul", (3, -1)),
    "QLinearMul": _binary("Mul"),
    "QLinearReduceMean": _unary("ReduceMean"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearSoftmax": _unary("Softmax", "opset"),
    "QLinearWhere": FloatMeaning("Where", (0, 1, 4), frozenset({1, 4}), result=(7, 8)),
}
"""By operator on quantised tensors, what it means in floats. Those of the domain "" are https://onnx.ai/onnx/operators/, those of
"com.microsoft" are in onnxruntime's docs/ContribOperators.md."""


def quantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a QuantizeLinear."""
    return node is not None and node.op_type == QUANTISING and node.domain in OWN_DOMAINS


def dequantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTISING and node.domain in OWN_DOMAINS


def quantises_at_run(node: ir.Node | None) -> bool:
    """Return whether `node` quantises with a scale that it computes from its operand."""
    return node is not None and node.op_type == QUANTISING_AT_RUN and node.domain in OWN_DOMAINS


def sums_integers(node: ir.Node) -> bool:
    """Return whether `node` is a product of quantised tensors with an int32 result."""
    return node.op_type in INTEGER and node.domain in OWN_DOMAINS


def is_quantised(model: ir.Model) -> bool:
    """Return whether any graph of `model` has a node that quantises or dequantises, or multiplies quantised tensors."""
    return any(
        quantises(node) or dequantises(node) or sums_integers(node) for graph in main_graphs(model) for node in graph
    )
