"""The products that tile cuts: of floats, and of bytes, which are float products whose operands have zero points, with or without scales.

Tiles add up stored bytes in int32, to the last bit. The row of an operator (onnxtile.operators.families.products) says which product it
means in floats, and where its scales and zero points are. DequantizeLinears, a product, and a QuantizeLinear that alone reads its
result say the same: a quantised island. Each finished block is scaled and quantized once, as onnxruntime's QLinearConv, QLinearMatMul
and QGemm do, into which it fuses such nodes. Run one by one, the nodes of an island multiply floats, which round otherwise: a result may
then be one step of quantization off where its exact value lies within that rounding of the border between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from onnxtile.model.topology import only_reader
from onnxtile.operators.node_view import MICROSOFT, Dims, NotApplicable, ReasonCode, given_input
from onnxtile.operators.reads import SlidingAxis, kernel_axes
from onnxtile.operators.table import FloatMeaning, operator_of
from onnxtile.system.dataclass import dataclass
from onnxtile.tiling.contraction import (
    BYTES,
    FLOATS,
    INTEGERS,
    Axes,
    Bias,
    Contraction,
    PackedFactor,
    ReadTensor,
    Requantize,
    TensorOperand,
    Tileable,
    TilingFacts,
    broadcast,
    matrix_product,
    require_factor,
    required_input,
    times_sign,
)


class Gemm(Tileable):
    """https://onnx.ai/onnx/operators/onnx__Gemm.html; C may be absent since opset 11, and broadcasts to (M, N) one way only."""

    name = "Gemm"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product, with the bias where there is one."""
        a, b = (gemm_factor(node, required_input(node, side), side, facts) for side in (0, 1))
        facts.require_dtype(b.value, a.dtype)
        alpha = node.attributes.get_float("alpha", 1.0)
        require_factor("alpha", alpha, a.dtype)
        dims = (a.size(0), b.size(1))
        bias = gemm_bias(node, given_input(node, 2), dims, a.dtype, facts)
        return matrix_product(a, b, dims, (0, 1), a.dtype, alpha=alpha, bias=bias)


GEMM = Gemm()


def gemm_factor(
    node: ir.Node, value: ir.Value, side: int, facts: TilingFacts, taken: Set[ir.DataType] = FLOATS | INTEGERS
) -> TensorOperand:
    """Return `value` as the left (0) or right (1) factor of a Gemm, transposed where `node` says so.

    Raises NotApplicable where it is not a matrix of one of the types `taken`.
    """
    dims = facts.dims(value)
    if len(dims) != 2:
        raise NotApplicable(f"{value.name!r} has {len(dims)} dimensions, Gemm multiplies matrices")
    transposed = bool(node.attributes.get_int(("transA", "transB")[side], 0))
    return facts.operand(value, facts.dtype(value, node.op_type, taken), (0, 1), transposed=transposed)


def gemm_bias(node: ir.Node, value: ir.Value | None, dims: Dims, dtype: ir.DataType, facts: TilingFacts) -> Bias | None:
    """Return `value` as the bias, None where it is missing. Raises NotApplicable where it does not broadcast to `dims`."""
    beta = node.attributes.get_float("beta", 1.0)
    if value is None:
        return None
    if beta != 0.0:
        require_factor("beta", beta, dtype)
    facts.require_dtype(value, dtype)
    sizes = facts.dims(value)
    # Aligned at the last axis, each size must be 1 or the size of the result.
    pairs = list(zip(range(len(sizes))[::-1], sizes[::-1], dims[::-1], strict=False))
    for axis, size, full in pairs:
        if not isinstance(size, int) and (size is None or size != full):
            raise facts.unknown(value, axis)
    if len(sizes) > 2 or any(size not in {1, full} for _, size, full in pairs):
        raise NotApplicable(f"its bias of shape {times_sign(sizes)} does not broadcast to {times_sign(dims)}")
    return Bias(value, sizes, dtype, value in facts.constants, beta)


# MatMul of matrices, vectors and batches of them.


class MatMul(Tileable):
    """https://onnx.ai/onnx/operators/onnx__MatMul.html, which multiplies as numpy.matmul does."""

    name = "MatMul"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. A vector on the left is one row, on the right one column, and the result lacks that axis.

        The axes before the last two are a batch, which broadcasts and is not cut.
        """
        dtype = facts.dtype(required_input(node, 0))
        a, b = (matmul_factor(required_input(node, side), side, facts, dtype) for side in (0, 1))
        return matrix_product(a, b, *product_axes(a, b), dtype)


MATMUL = MatMul()


def product_axes(a: TensorOperand, b: TensorOperand) -> tuple[Dims, Axes]:
    """Return the dimensions of the product of `a` and `b`, and where its rows and columns lie.

    Raises NotApplicable where batches differ.
    """
    rows, columns = ((o.size(side),) if o.axes[side] is not None else () for side, o in enumerate((a, b)))
    batch = broadcast(a.batch, b.batch)
    return batch + rows + columns, (len(batch) if rows else None, len(batch) + len(rows) if columns else None)


def matmul_factor(value: ir.Value, side: int, facts: TilingFacts, dtype: ir.DataType) -> TensorOperand:
    """Return `value`, of elements of `dtype`, as the left (0) or right (1) factor. Raises NotApplicable for a scalar."""
    facts.require_dtype(value, dtype)
    rank = len(facts.dims(value))
    if not rank:
        raise NotApplicable("an operand is a scalar")
    vector: Axes = (None, 0) if side == 0 else (0, None)
    return facts.operand(value, dtype, vector if rank == 1 else (rank - 2, rank - 1))


# Conv and ConvTranspose in one or two dimensions, in groups, depthwise and pointwise.

_PADDING = ("auto_pad", "pads", "output_padding", "output_shape")
_SPATIAL_AXES = (1, 2)


class Conv(Tileable):
    """https://onnx.ai/onnx/operators/onnx__Conv.html and onnx__ConvTranspose.html.

    M are the pixels of the output, K the input channels of a group times the kernel's elements, N the output channels of a group.
    """

    windows = True

    def __init__(self, name: str) -> None:
        self.name = name

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction. Each tile is a node of some groups, rows, columns, input and output channels."""
        x, w = required_input(node, 0), required_input(node, 1)
        dtype = facts.dtype(x, node.op_type, FLOATS)
        facts.require_dtype(w, dtype)
        product = sliding_product(
            node, facts, (x, w), (dtype, dtype, dtype), transposed=node.op_type == CONV_TRANSPOSE.name
        )
        bias = channel_bias(given_input(node, 2), product, dtype, facts)
        operand = None if bias is None else facts.operand(bias.value, dtype, (None, 0))
        return replace(product, tile_bias=operand)


CONV = Conv("Conv")
CONV_TRANSPOSE = Conv("ConvTranspose")


def sliding_product(
    node: ir.Node,
    facts: TilingFacts,
    factors: tuple[ir.Value, ir.Value],
    types: tuple[ir.DataType, ir.DataType, ir.DataType],
    *,
    transposed: bool = False,
) -> Contraction:
    """Return the convolution of two values with the attributes of `node`, without a bias; `types` are those of both and of the result.

    Raises NotApplicable with the reason where it cannot be cut.
    """
    x, w = factors
    dims, kernel = facts.dims(x), facts.known_dims(w)
    rank = len(dims) - 2
    if rank not in _SPATIAL_AXES:
        raise NotApplicable(f"it slides along {rank} axes: convolutions along one or two are cut")
    if len(kernel) != len(dims):
        raise NotApplicable(f"its weights of shape {times_sign(kernel)} do not fit an input of {len(dims)} dimensions")
    groups = node.attributes.get_int("group", 1)
    if not isinstance(dims[1], int):
        raise facts.unknown(x, 1)
    channels, filters = _channels(kernel, groups, dims[1], transposed=transposed)
    slides = kernel_axes(node, kernel[2:], transposed=transposed)
    sliding = tuple(slide.over(size) for slide, size in zip(slides, dims[2:], strict=True))
    out = (dims[0], groups * filters, *_outputs(node, facts, sliding))
    if any(isinstance(size, int) and size < 1 for size in (*dims, *kernel, *out)):
        raise NotApplicable("a convolution without elements")
    return Contraction(
        left=facts.operand(x, types[0], (None, 1)),
        right=facts.operand(w, types[1], (0, 1) if transposed else (1, 0)),
        dims=out,
        row_axes=tuple(range(2, 2 + rank)),
        column_axis=1,
        dtype=types[2],
        sliding=sliding,
        channels=channels,
        filters=filters,
        batches=((dims[0],), (), (dims[0],)),
        groups=groups,
        windows=True,
        groups_in_k=transposed,
        letters=("x", "w"),
        tile=node.op_type,
        attributes=tuple(a for name, a in node.attributes.items() if name not in {*_PADDING, "group"}),
        padding=tuple(a for name, a in node.attributes.items() if name in _PADDING),
    )


def _channels(kernel: tuple[int, ...], groups: int, channels: int, *, transposed: bool) -> tuple[int, int]:
    """Return the input and output channels of a group. Raises NotApplicable where weights and input do not fit."""
    first, second = kernel[:2]
    inputs = first if transposed else second * groups
    if groups < 1 or first % groups or inputs != channels:
        raise NotApplicable(
            f"its weights of shape {times_sign(kernel)} in {groups} groups do not fit {channels} input channels"
        )
    return (first // groups, second) if transposed else (second, first // groups)


def _outputs(node: ir.Node, facts: TilingFacts, sliding: tuple[SlidingAxis, ...]) -> Dims:
    """Return the sizes of the result along the sliding axes, symbols where the table of shapes has them."""
    table = facts.shapes.dims(node.outputs[0]) or ()
    known = table[2:] if len(table) == 2 + len(sliding) else (None,) * len(sliding)
    return tuple(slide.out if isinstance(slide.out, int) else dim for slide, dim in zip(sliding, known, strict=True))


def channel_bias(value: ir.Value | None, product: Contraction, dtype: ir.DataType, facts: TilingFacts) -> Bias | None:
    """Return the bias of a convolution, None where it is missing. Raises NotApplicable unless it has one number for each channel."""
    if value is None:
        return None
    facts.require_dtype(value, dtype)
    dims, filters = facts.known_dims(value), product.dims[1]
    if dims != (filters,):
        raise NotApplicable(
            f"its bias of shape {times_sign(dims)} is not one number for each of {filters} output channels"
        )
    return Bias(value, dims, dtype, value in facts.constants)


_SINGLE: tuple[Dims, ...] = ((), (1,))
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
    node = only_reader(value)
    if node is None or node.op_type != "QuantizeLinear" or node.domain or not node.attributes.keys() <= _PLAIN:
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
