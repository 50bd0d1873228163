"""The operators on bytes that tile cuts: each is a float product whose operands have zero points, with scales around it or without.

Tiles add up stored bytes in int32, to the last bit. The row of an operator (onnxtile.operators.families.quantised) says which product it
means in floats, and where its scales and zero points are. DequantizeLinears, a product, and a QuantizeLinear that alone reads its
result say the same: a quantised island. Each finished block is scaled and quantized once, as onnxruntime's QLinearConv, QLinearMatMul
and QGemm do, into which it fuses such nodes. Run one by one, the nodes of an island multiply floats, which round otherwise: a result may
then be one step of quantization off where its exact value lies within that rounding of the border between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from onnxtile.operators.node_view import MICROSOFT, NotApplicable, ReasonCode
from onnxtile.operators.reads import TensorDims
from onnxtile.operators.row import FloatMeaning
from onnxtile.operators.table import operator_of
from onnxtile.system.dataclass import dataclass
from onnxtile.tiling.contraction import (
    BYTES,
    FLOATS,
    Bias,
    Contraction,
    PackedFactor,
    ReadTensor,
    Requantize,
    TensorOperand,
    Tileable,
    TilingFacts,
    given_input,
    matrix_product,
    required_input,
    times_sign,
)
from onnxtile.tiling.operators.floats import (
    channel_bias,
    gemm_bias,
    gemm_factor,
    matmul_factor,
    product_axes,
    sliding_product,
)

_SINGLE: tuple[TensorDims, ...] = ((), (1,))
"""The dimensions of a single number."""


@dataclass(frozen=True)
class StoredFactor:
    """A factor as it is stored: its bytes, zero point and scale, and in an island the DequantizeLinear that reads them."""

    value: ir.Value
    zero: ir.Value | None
    scale: ir.Value | None = None
    node: ir.Node | None = None


Factors = tuple[StoredFactor, StoredFactor]


class QuantisedProduct(Tileable):
    """https://onnx.ai/onnx/operators/ and, in com.microsoft, https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.

    A has one zero point, B one, or one for each column where it is a matrix; so it is with scales.
    """

    def __init__(self, name: str, *, domain: str = "", windows: bool = False) -> None:
        self.name, self.domain, self.windows = name, domain, windows

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger or ConvInteger; each finished block is scaled and quantized once."""
        row = operator_of(node)
        assert row is not None and isinstance(row.quantised, FloatMeaning)
        meaning = row.quantised
        first, second, *bias = meaning.operands
        if meaning.result is None:
            factors = (
                StoredFactor(required_input(node, slot), given_input(node, slot + 2)) for slot in (first, second)
            )
            left, right = factors
            return integer_product(node, meaning.op_type, facts, (left, right), None)
        if facts.opset < 10:
            raise NotApplicable(
                f"opset {facts.opset} has no MatMulInteger: raise the model to 10 at least", ReasonCode.OPSET
            )
        left, right = (
            StoredFactor(required_input(node, at), required_input(node, at + 2), required_input(node, at + 1))
            for at in (first, second)
        )
        added = given_input(node, bias[0]) if bias else None
        product = integer_product(node, meaning.op_type, facts, (left, right), added)
        assert left.scale is not None and right.scale is not None
        scales = (
            parameter(node, left.scale, None, product, facts),
            parameter(node, right.scale, product.right, product, facts),
        )
        y = [parameter(node, value, None, product, facts) for value in _result(node, meaning.result)]
        requantize = Requantize(*scales, None, None, ir.DataType.FLOAT, node.attributes.get_float("alpha", 1.0))
        if y:
            dtype = facts.dtype(y[1].value, self.name, BYTES)
            requantize = replace(requantize, y_scale=y[0], y_zero=y[1], dtype=dtype)
        return replace(product, requantize=requantize)


MATMUL_INTEGER = QuantisedProduct("MatMulInteger")
CONV_INTEGER = QuantisedProduct("ConvInteger", windows=True)
QLINEAR_MATMUL = QuantisedProduct("QLinearMatMul")
QLINEAR_CONV = QuantisedProduct("QLinearConv", windows=True)
QGEMM = QuantisedProduct("QGemm", domain=MICROSOFT)


def _result(node: ir.Node, positions: tuple[int, int]) -> list[ir.Value]:
    """Return scale and zero point of the result of `node`; nothing where it leaves them out, and is a float."""
    values = [value for value in (given_input(node, position) for position in positions) if value is not None]
    if len(values) == 1:
        raise NotApplicable("it has only one of the scale and the zero point of its result")
    return values


def integer_product(
    node: ir.Node, op_type: str, facts: TilingFacts, factors: Factors, added: ir.Value | None
) -> Contraction:
    """Return the product that `op_type` with the attributes of `node` makes of bytes less their zero points, plus an int32 bias.

    Raises NotApplicable where it cannot be cut so.
    """
    left, right = (factor.value for factor in factors)
    if op_type == "Conv":
        types = [facts.dtype(value, node.op_type, BYTES) for value in (left, right)]
        product = sliding_product(node, facts, (left, right), (types[0], types[1], ir.DataType.INT32))
        product = replace(product, tile="ConvInteger", bias=channel_bias(added, product, ir.DataType.INT32, facts))
        return _with_convolution_zeros(product, factors, facts)
    if op_type == "Gemm":
        a, b = (gemm_factor(node, value, side, facts, BYTES) for side, value in enumerate((left, right)))
    else:
        types = [facts.dtype(value, node.op_type, BYTES) for value in (left, right)]
        a, b = (matmul_factor(value, side, facts, types[side]) for side, value in enumerate((left, right)))
    a, b = (replace(o, zero=_zero_point(o, side, factors[side].zero, facts)) for side, o in enumerate((a, b)))
    dims, axes = product_axes(a, b)
    bias = gemm_bias(node, added, dims, ir.DataType.INT32, facts)
    return matrix_product(a, b, dims, axes, ir.DataType.INT32, bias=bias, tile="MatMulInteger")


def _zero_point(operand: TensorOperand, side: int, value: ir.Value | None, facts: TilingFacts) -> TensorOperand | None:
    """Return `value` as the zero point of the left (0) or right (1) factor, None where it is missing.

    Raises NotApplicable unless it is a single number, or for the right factor one for each column.
    """
    if value is None:
        return None
    dims = facts.dims(value)
    if side == 1 and dims not in _SINGLE and dims == (operand.size(1),):
        return facts.operand(value, operand.dtype, (None, 0))
    if dims not in _SINGLE:
        raise NotApplicable(f"its zero point {value.name!r} of shape {times_sign(dims)} is not a single number")
    return facts.operand(value, operand.dtype, (None, None))


def _with_convolution_zeros(product: Contraction, factors: Factors, facts: TilingFacts) -> Contraction:
    """Return a convolution with the zero points of its factors.

    Raises NotApplicable where one is not a single number: onnxruntime has no kernel for others.
    """
    left = replace(product.left, zero=_zero_point(product.left, 0, factors[0].zero, facts))
    value, w = factors[1].zero, product.right
    array = facts.constants.array(value) if value is not None and value in facts.constants else None
    if value is not None and array is not None and not array.any():
        # The node reads a zero point of 0, its tiles do not.
        return replace(product, left=left, read=(facts.operand(value, w.dtype, (None, None)),))
    if value is not None and array is not None and (array == array.flat[0]).all():
        # All zero points are equal: tiles read the first.
        zero: TensorOperand | None = facts.operand(value, w.dtype, (None, None))
    else:
        zero = _zero_point(w, 1, value, facts)
    if zero is not None and not zero.is_single:
        raise NotApplicable(f"its weights have a zero point for each output channel, {zero.value.name!r}")
    return replace(product, left=left, right=replace(w, zero=zero))


def parameter(
    node: ir.Node, value: ir.Value, columns: TensorOperand | None, product: Contraction, facts: TilingFacts
) -> ReadTensor:
    """Return a scale or zero point: a single number, or with `columns` one for each. Raises NotApplicable for any other."""
    dims, constant = facts.dims(value), value in facts.constants
    parameter = ReadTensor(value, dims, facts.dtype(value, node.op_type, {ir.DataType.FLOAT, *BYTES}), constant)
    if columns is not None and dims == (columns.size(1),) and columns.axes[1] is not None:
        return parameter
    if dims not in _SINGLE:
        raise NotApplicable(f"its parameter {value.name!r} of shape {times_sign(dims)} is not a single number")
    if dims == (1,) and not constant and not product.dims:
        raise NotApplicable(f"its parameter {value.name!r} is a vector, and the result is a single number")
    return parameter


# Quantised islands.

_ROUNDING = 1e-6
"""How far the scale of a bias may be from the product of the other two scales, relative to it: some digits of float32."""
_PLAIN = {"axis", "saturate"}
"""The attributes of DequantizeLinear and QuantizeLinear that leave float32 and one scale for a tensor or for an index of an axis."""


def island_of(node: ir.Node, facts: TilingFacts) -> Contraction | None:
    """Return the integer contraction of the island around `node`; None where there is none that tiles can make."""
    if node.domain or node.op_type not in {"Conv", "Gemm", "MatMul"}:
        return None
    left, right = (_stored(given_input(node, slot), facts, BYTES) for slot in (0, 1))
    if left is None or right is None:
        return None
    try:
        return _restated(node, facts, left, right)
    except NotApplicable:
        return None


def _stored(value: ir.Value | None, facts: TilingFacts, types: set[ir.DataType]) -> StoredFactor | None:
    """Return what a DequantizeLinear reads to make `value`, in float32; None where none makes it, or from other types."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain or not node.attributes.keys() <= _PLAIN:
        return None
    stored, scale = node.inputs[:2]
    if stored is None or scale is None or facts.shapes.dtype(scale) is not ir.DataType.FLOAT:
        return None
    return StoredFactor(stored, given_input(node, 2), scale, node) if facts.shapes.dtype(stored) in types else None


def _restated(node: ir.Node, facts: TilingFacts, left: StoredFactor, right: StoredFactor) -> Contraction:
    """Return the contraction. Raises NotApplicable where scales, bias or attributes do not allow it."""
    bias = given_input(node, 2)
    stored = _stored(bias, facts, {ir.DataType.INT32})
    if bias is not None and stored is None:
        raise NotApplicable("its bias is not stored in int32")
    if {node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")} != {1.0}:
        raise NotApplicable("it multiplies by alpha or beta")
    product = integer_product(node, node.op_type, facts, (left, right), None if stored is None else stored.value)
    assert left.scale is not None and right.scale is not None
    scales = (
        parameter(node, left.scale, None, product, facts),
        parameter(node, right.scale, _along_columns(right, product.right, facts), product, facts),
    )
    read = () if stored is None else _bias_scale(node, stored, scales, product, facts)
    quantizing = _quantizing(node.outputs[0], facts)
    requantize = Requantize(*scales, None, None, ir.DataType.FLOAT)
    if quantizing is not None:
        y_scale, y_zero = (parameter(node, required_input(quantizing, slot), None, product, facts) for slot in (1, 2))
        requantize = replace(requantize, y_scale=y_scale, y_zero=y_zero, dtype=y_zero.dtype)
    before = [factor.node for factor in (left, right, stored) if factor is not None and factor.node is not None]
    island = (*dict.fromkeys(before), node, *([] if quantizing is None else [quantizing]))
    return replace(product, requantize=requantize, island=island, read=(*product.read, *read))


def _along_columns(factor: StoredFactor, operand: TensorOperand, facts: TilingFacts) -> TensorOperand | None:
    """Return `operand` where it has a scale for each of its columns. Raises NotApplicable where the scales lie along another axis."""
    assert factor.scale is not None and factor.node is not None
    if facts.dims(factor.scale) in _SINGLE:
        return None
    axis = factor.node.attributes.get_int("axis", 1) % len(operand.dims)
    if operand.axes[1] is None or axis != operand.stored_axis(1):
        raise NotApplicable("its weights have scales along another axis than their columns")
    return operand


def _bias_scale(
    node: ir.Node, bias: StoredFactor, scales: Sequence[ReadTensor], product: Contraction, facts: TilingFacts
) -> tuple[ReadTensor, ...]:
    """Return the parameters of the bias. Raises NotApplicable where its scale is not known to be the product of the other two."""
    assert bias.scale is not None
    scale = parameter(node, bias.scale, product.right, product, facts)
    zero = None if bias.zero is None else ReadTensor(bias.zero, facts.dims(bias.zero), ir.DataType.INT32, True)
    read = (scale,) if zero is None else (scale, zero)
    if not all(tensor.value in facts.constants for tensor in (*scales, *read)):
        raise NotApplicable("the scale of its bias is not a constant")
    a, b, c = (facts.constants.array(tensor.value).astype(np.float64) for tensor in (*scales, scale))
    if not np.allclose(a * b, c, rtol=_ROUNDING, atol=0):
        raise NotApplicable("the scale of its bias is not the product of the other two")
    if zero is not None and facts.constants.array(zero.value).any():
        raise NotApplicable("its bias has a zero point")
    return read


def _quantizing(value: ir.Value, facts: TilingFacts) -> ir.Node | None:
    """Return the QuantizeLinear to bytes that is the only reader of `value`; None where there is another reader, or another node."""
    readers, maker = [use.node for use in value.uses()], value.producer()
    if len(readers) != 1 or value.is_graph_output() or maker is None:
        return None
    (node,) = readers
    inside = node.graph is not None and node.graph is maker.graph
    if node.op_type != "QuantizeLinear" or node.domain or not inside or not node.attributes.keys() <= _PLAIN:
        return None
    scale, zero = given_input(node, 1), given_input(node, 2)
    if scale is None or zero is None or facts.shapes.dtype(zero) not in BYTES:
        return None
    # The tiles stand where the product stood, before any node that could compute these.
    there = all(value in facts.constants or value.producer() is None for value in (scale, zero))
    single = facts.dims(scale) in _SINGLE and facts.shapes.dtype(scale) is ir.DataType.FLOAT
    return node if there and single else None


# com.microsoft's MatMulNBits: a MatMul by weights of few bits, with a scale for each block of K.

_TYPES = {2: ir.DataType.UINT2, 4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class MatMulNBits(Tileable):
    """https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits."""

    name = "MatMulNBits"
    domain = MICROSOFT

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulNBits of whole blocks of K, whose weights, scales and zero points stay as stored."""
        dtype = facts.dtype(required_input(node, 0), self.name, FLOATS)
        a = matmul_factor(required_input(node, 0), 0, facts, dtype)
        b, how = _packed(node, facts)
        product = matrix_product(
            a, b, *product_axes(a, b), dtype, bias=_packed_bias(node, b, dtype, facts), tile=self.name
        )
        attributes = tuple(attribute for name, attribute in node.attributes.items() if name not in {"K", "N"})
        return replace(
            product, tile_domain=self.domain, attributes=attributes, units=(how.unit, 1), read=how.parameters
        )


MATMUL_NBITS = MatMulNBits()


def _packed(node: ir.Node, facts: TilingFacts) -> tuple[TensorOperand, PackedFactor]:
    """Return B. Raises NotApplicable where it or its parameters are no initializers, or its rows have another order."""
    values = [required_input(node, 1), required_input(node, 2), *(v for v in node.inputs[3:4] if v is not None)]
    for value in values:
        if value.const_value is None or not value.is_initializer():
            raise NotApplicable(f"its weights or their parameters, {value.name!r}, are not an initializer")
    if given_input(node, 4) is not None:
        raise NotApplicable("its rows have another order (g_idx)")
    k, n, block, bits = (node.attributes.get_int(name, 4) for name in ("K", "N", "block_size", "bits"))
    if bits not in _TYPES or min(k, n, block) < 1:
        raise NotApplicable(f"its weights have {bits} bits in blocks of {block}")
    taken = FLOATS | {ir.DataType.UINT8}
    held, scales, *zeros = (facts.known_dims(value) for value in values)
    parameters = [
        ReadTensor(value, dims, facts.dtype(value, node.op_type, taken), constant=True)
        for value, dims in zip(values[1:], (scales, *zeros), strict=True)
    ]
    dims = (n, -(-k // block), block * bits // 8)
    how = PackedFactor(dims, bits, block, parameters[0], parameters[1] if zeros else None)
    wanted = [dims, dims[:2], *([(n, how.zeros_along)] if zeros else [])]
    for sizes, want in zip((held, scales, *zeros), wanted, strict=True):
        if prod(sizes) != prod(want):
            raise NotApplicable(
                f"its weights or their parameters have the shape {times_sign(sizes)}, not {times_sign(want)}"
            )
    return TensorOperand(values[0], (k, n), _TYPES[bits], True, (0, 1), packed=how), how


def _packed_bias(node: ir.Node, b: TensorOperand, dtype: ir.DataType, facts: TilingFacts) -> Bias | None:
    value = given_input(node, 5)
    if value is None:
        return None
    dims = facts.known_dims(value)
    if dims != (b.size(1),):
        raise NotApplicable(f"its bias of shape {times_sign(dims)} is not one number for each column")
    return Bias(value, dims, dtype, value in facts.constants)
