"""Quantised islands: DequantizeLinears, one product, and a QuantizeLinear where that is the only reader of its result.

Their tiles add up the stored bytes in int32, and scale and quantize each finished block once, as onnxruntime's QLinearConv, QLinearMatMul
and QGemm do, into which it fuses such nodes. Run one by one, the nodes multiply floats, which round otherwise: a result may then be one
step of quantization off where its exact value lies within that rounding of the border between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Contraction, Parameter, Requantize, TensorOperand
from onnxtile.tiling.operators.convolutions import channel_bias, integer_convolution
from onnxtile.tiling.operators.products import integer_gemm, integer_product, parameter
from onnxtile.tiling.tileable import BYTES, TilingFacts

_ROUNDING = 1e-6
"""How far the scale of a bias may be from the product of the other two scales, relative to it: some digits of float32."""
_PLAIN = {"axis", "saturate"}
"""The attributes of DequantizeLinear and QuantizeLinear that leave float32 and one scale for a tensor or for an index of an axis."""


@dataclass(frozen=True)
class _StoredFactor:
    """A factor as it is stored: its bytes, scale and zero point, and the DequantizeLinear that reads them."""

    node: ir.Node
    value: ir.Value
    scale: ir.Value
    zero: ir.Value | None


def island_of(node: ir.Node, facts: TilingFacts) -> Contraction | None:
    """Return the integer contraction of the island around `node`; None where there is none that tiles can make."""
    if node.domain or node.op_type not in {"Conv", "Gemm", "MatMul"}:
        return None
    factors = [_stored(value, facts, BYTES) for value in node.inputs[:2]]
    left, right = factors if len(factors) == 2 else (None, None)
    if left is None or right is None:
        return None
    try:
        return _restated(node, facts, left, right)
    except NotApplicable:
        return None


def _stored(value: ir.Value | None, facts: TilingFacts, types: set[ir.DataType]) -> _StoredFactor | None:
    """Return what a DequantizeLinear reads to make `value`, in float32; None where none makes it, or from other types."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "DequantizeLinear" or not node.attributes.keys() <= _PLAIN:
        return None
    stored, scale, *zero = node.inputs
    if stored is None or scale is None or node.domain or facts.shapes.dtype(scale) is not ir.DataType.FLOAT:
        return None
    return (
        _StoredFactor(node, stored, scale, zero[0] if zero else None) if facts.shapes.dtype(stored) in types else None
    )


def _restated(node: ir.Node, facts: TilingFacts, left: _StoredFactor, right: _StoredFactor) -> Contraction:
    """Return the contraction. Raises NotApplicable where scales, bias or attributes do not allow it."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    stored = None if bias is None else _stored(bias, facts, {ir.DataType.INT32})
    if bias is not None and stored is None:
        raise NotApplicable("its bias is not stored in int32")
    added = None if stored is None else stored.value
    factors, zeros = (left.value, right.value), (left.zero, right.zero)
    if node.op_type == "Conv":
        found = integer_convolution(node, facts, factors, zeros)
        found = replace(found, bias=channel_bias(added, found, facts))
    elif node.op_type == "Gemm":
        if {node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")} != {1.0}:
            raise NotApplicable("it multiplies by alpha or beta")
        found = integer_gemm(node, facts, factors, zeros, added)
    else:
        found = integer_product(node, facts, factors, zeros)
    scales = [
        parameter(node, left.scale, None, found, facts),
        parameter(node, right.scale, _along_columns(right, found.right, facts), found, facts),
    ]
    read = () if stored is None else _bias_scale(node, stored, scales, found, facts)
    made = _quantizing(node.outputs[0], facts)
    requantize = Requantize(scales[0], scales[1], None, None, ir.DataType.FLOAT)
    if made is not None:
        y_scale, y_zero = (parameter(node, value, None, found, facts) for value in made.inputs[1:] if value is not None)
        requantize = replace(requantize, y_scale=y_scale, y_zero=y_zero, dtype=y_zero.dtype)
    before = [factor.node for factor in (left, right, stored) if factor is not None]
    island = (*dict.fromkeys(before), node, *([] if made is None else [made]))
    return replace(found, requantize=requantize, island=island, read=(*found.read, *read))


def _along_columns(factor: _StoredFactor, operand: TensorOperand, facts: TilingFacts) -> TensorOperand | None:
    """Return `operand` where it has a scale for each of its columns. Raises NotApplicable where the scales lie along another axis."""
    if facts.dims(factor.scale) in {(), (1,)}:
        return None
    axis = factor.node.attributes.get_int("axis", 1) % len(operand.dims)
    if operand.axes[1] is None or axis != operand.stored_axis(1):
        raise NotApplicable("its weights have scales along another axis than their columns")
    return operand


def _bias_scale(
    node: ir.Node, bias: _StoredFactor, scales: Sequence[Parameter], found: Contraction, facts: TilingFacts
) -> tuple[Parameter, ...]:
    """Return the parameters of the bias. Raises NotApplicable where its scale is not known to be the product of the other two."""
    scale = parameter(node, bias.scale, found.right, found, facts)
    zero = None if bias.zero is None else Parameter(bias.zero, facts.dims(bias.zero), ir.DataType.INT32, True)
    held = [*scales, scale, *([] if zero is None else [zero])]
    if not all(one.value in facts.constants for one in held):
        raise NotApplicable("the scale of its bias is not a constant")
    a, b, c = (facts.constants.array(one.value).astype(np.float64) for one in (*scales, scale))
    if not np.allclose(a * b, c, rtol=_ROUNDING, atol=0):
        raise NotApplicable("the scale of its bias is not the product of the other two")
    if zero is not None and facts.constants.array(zero.value).any():
        raise NotApplicable("its bias has a zero point")
    return (scale,) if zero is None else (scale, zero)


def _quantizing(value: ir.Value, facts: TilingFacts) -> ir.Node | None:
    """Return the QuantizeLinear to bytes that is the only reader of `value`; None where there is another reader, or another node."""
    readers = [use.node for use in value.uses()]
    if len(readers) != 1 or value.is_graph_output():
        return None
    (node,) = readers
    inside = node.graph is not None and value.producer() is not None and node.graph is value.producer().graph  # type: ignore[union-attr]
    if node.op_type != "QuantizeLinear" or node.domain or not inside or not node.attributes.keys() <= _PLAIN:
        return None
    scale, zero = (*node.inputs[1:], None)[:2]
    if scale is None or zero is None or facts.shapes.dtype(zero) not in BYTES:
        return None
    # The tiles stand where the product stood, before any node that could compute these.
    there = all(one in facts.constants or one.producer() is None for one in (scale, zero))
    single = facts.dims(scale) in {(), (1,)} and facts.shapes.dtype(scale) is ir.DataType.FLOAT
    return node if there and single else None
