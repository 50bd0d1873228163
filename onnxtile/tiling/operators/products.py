"""Gemm, MatMul and their kin as contractions: of floats, of integers, quantised, and with weights in blocks."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import (
    Axes,
    Bias,
    Contraction,
    PackedFactor,
    Parameter,
    Requantize,
    TensorDims,
    TensorOperand,
    broadcast,
    matrix_product,
    times_sign,
)
from onnxtile.tiling.tileable import BYTES, FLOATS, INTEGERS, Tileable, TilingFacts, require_factor, required_input


class Gemm(Tileable):
    """https://onnx.ai/onnx/operators/onnx__Gemm.html; C may be absent since opset 11, and broadcasts to (M, N) one way only."""

    name = "Gemm"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product, with the bias where there is one."""
        a = gemm_factor(node, 0, "transA", facts)
        b = gemm_factor(node, 1, "transB", facts)
        dtype = facts.dtype(a.value)
        facts.require_dtype(b.value, dtype)
        alpha = node.attributes.get_float("alpha", 1.0)
        require_factor("alpha", alpha, dtype)
        dims = (a.size(0), b.size(1))
        added = bias(node, node.inputs[2] if len(node.inputs) > 2 else None, dims, dtype, facts)
        return matrix_product(a, b, dims, (0, 1), dtype, alpha=alpha, bias=added)


def gemm_factor(node: ir.Node, index: int, attribute: str, facts: TilingFacts) -> TensorOperand:
    """Return input `index` as a factor, transposed where `attribute` says so. Raises NotApplicable where it is not a matrix."""
    return matrix_factor(node, required_input(node, index), attribute, facts)


def matrix_factor(
    node: ir.Node, value: ir.Value, attribute: str, facts: TilingFacts, taken: Set[ir.DataType] = FLOATS | INTEGERS
) -> TensorOperand:
    """Return `value` as a factor, transposed where `attribute` of `node` says so. Raises NotApplicable where it is not a matrix."""
    dims = facts.dims(value)
    if len(dims) != 2:
        raise NotApplicable(f"{value.name!r} has {len(dims)} dimensions, Gemm multiplies matrices")
    transposed = bool(node.attributes.get_int(attribute, 0))
    return TensorOperand(
        value,
        dims[::-1] if transposed else dims,
        (0, 1),
        transposed,
        value in facts.constants,
        facts.dtype(value, node.op_type, taken),
    )


def bias(
    node: ir.Node, value: ir.Value | None, dims: TensorDims, dtype: ir.DataType, facts: TilingFacts
) -> Bias | None:
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
            raise NotApplicable(facts.unknown(value, axis))
    if len(sizes) > 2 or any(size not in {1, full} for _, size, full in pairs):
        raise NotApplicable(f"its bias of shape {times_sign(sizes)} does not broadcast to {times_sign(dims)}")
    return Bias(value, sizes, beta, value in facts.constants)


GEMM = Gemm()


# MatMul of matrices, vectors and batches of them.


class MatMul(Tileable):
    """https://onnx.ai/onnx/operators/onnx__MatMul.html, which multiplies as numpy.matmul does."""

    name = "MatMul"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. A vector on the left is one row, on the right one column, and the result lacks that axis.

        The axes before the last two are a batch, which broadcasts and is not cut.
        """
        dtype = facts.dtype(required_input(node, 0))
        a, b = (factor(required_input(node, side), side, facts, dtype) for side in (0, 1))
        return matrix_product(a, b, *placed(a, b), dtype)


def placed(a: TensorOperand, b: TensorOperand) -> tuple[TensorDims, Axes]:
    """Return the dimensions of the product of `a` and `b`, and where its rows and columns lie.

    Raises NotApplicable where batches differ.
    """
    rows, columns = ((o.size(side),) if o.axes[side] is not None else () for side, o in enumerate((a, b)))
    batch = broadcast(a.batch, b.batch)
    return batch + rows + columns, (len(batch) if rows else None, len(batch) + len(rows) if columns else None)


def factor(value: ir.Value, side: int, facts: TilingFacts, dtype: ir.DataType) -> TensorOperand:
    """Return `value`, of elements of `dtype`, as the left (0) or right (1) factor. Raises NotApplicable for a scalar."""
    facts.require_dtype(value, dtype)
    dims = facts.dims(value)
    if not dims:
        raise NotApplicable("an operand is a scalar")
    last = len(dims) - 1
    axes: Axes = (last - 1, last)
    if last == 0:
        axes = (None, 0) if side == 0 else (0, None)
    return TensorOperand(value, dims, axes, transposed=False, constant=value in facts.constants, dtype=dtype)


MATMUL = MatMul()


# MatMulInteger: (A - zero point) · (B - zero point) of bytes, in int32; partial sums add up to the last bit.


class MatMulInteger(Tileable):
    """https://onnx.ai/onnx/operators/onnx__MatMulInteger.html, with one zero point for A and one, or one a column, for B."""

    name = "MatMulInteger"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger with the zero points that belong to it."""
        zeros = tuple(node.inputs[index] if len(node.inputs) > index else None for index in (2, 3))
        return integer_product(node, facts, (required_input(node, 0), required_input(node, 1)), (zeros[0], zeros[1]))


def integer_product(
    node: ir.Node,
    facts: TilingFacts,
    factors: tuple[ir.Value, ir.Value],
    zeros: tuple[ir.Value | None, ir.Value | None],
) -> Contraction:
    """Return the product of two values of bytes, less their zero points. Raises NotApplicable where `node` cannot be cut so."""
    types = [facts.dtype(value, node.op_type, BYTES) for value in factors]
    a, b = (factor(value, side, facts, types[side]) for side, value in enumerate(factors))
    a, b = (replace(o, zero=zero_point(o, side, zeros[side], facts)) for side, o in enumerate((a, b)))
    return matrix_product(a, b, *placed(a, b), ir.DataType.INT32, tile="MatMulInteger")


def zero_point(operand: TensorOperand, side: int, value: ir.Value | None, facts: TilingFacts) -> TensorOperand | None:
    """Return `value` as the zero point of the left (0) or right (1) factor, None where it is missing.

    Raises NotApplicable unless it is a single number, or for the right factor one for each column.
    """
    if value is None:
        return None
    dims = facts.dims(value)
    axes: Axes = (None, None)
    if side == 1 and dims not in {(), (1,)} and dims == (operand.size(1),):
        axes = (None, 0)
    elif dims not in {(), (1,)}:
        raise NotApplicable(f"its zero point {value.name!r} of shape {times_sign(dims)} is not a single number")
    return TensorOperand(value, dims, axes, transposed=False, constant=value in facts.constants, dtype=operand.dtype)


MATMUL_INTEGER = MatMulInteger()


# com.microsoft's MatMulNBits: a MatMul by weights of few bits, with a scale for each block of K.

_SIZES = {"K", "N"}
_TYPES = {2: ir.DataType.UINT2, 4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class MatMulNBits(Tileable):
    """https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits."""

    name = "MatMulNBits"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulNBits of whole blocks of K, whose weights, scales and zero points stay as stored."""
        a = factor(required_input(node, 0), 0, facts, facts.dtype(required_input(node, 0), self.name, FLOATS))
        b = _packed(node, facts)
        product = matrix_product(a, b, *placed(a, b), a.dtype, bias=_bias(node, b, facts), tile=self.name)
        attributes = tuple(attribute for name, attribute in node.attributes.items() if name not in _SIZES)
        how = b.packed
        assert how is not None
        return replace(
            product, tile_domain=self.domain, attributes=attributes, units=(how.unit, 1), read=how.parameters
        )


def _packed(node: ir.Node, facts: TilingFacts) -> TensorOperand:
    """Return B. Raises NotApplicable where it or its parameters are no initializers, or its rows have another order."""
    values = [required_input(node, 1), required_input(node, 2), *(v for v in node.inputs[3:4] if v is not None)]
    for value in values:
        if value.const_value is None or not value.is_initializer():
            raise NotApplicable(f"its weights or their parameters, {value.name!r}, are not an initializer")
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        raise NotApplicable("its rows have another order (g_idx)")
    k, n, block, bits = (node.attributes.get_int(name, 4) for name in ("K", "N", "block_size", "bits"))
    if bits not in _TYPES or min(k, n, block) < 1:
        raise NotApplicable(f"its weights have {bits} bits in blocks of {block}")
    blocks = -(-k // block)
    dims = (n, blocks, block * bits // 8)
    scales, *zeros = (Parameter(v, facts.known_dims(v), _dtype(v, facts), constant=True) for v in values[1:])
    how = PackedFactor(dims, bits, block, scales, zeros[0] if zeros else None)
    held = facts.known_dims(values[0])
    along = -(-blocks * bits // 8) if how.packs_zeros else blocks
    wanted = [dims, (n, blocks), *([(n, along)] if zeros else [])]
    for sizes, want in zip((held, *(one.dims for one in how.parameters)), wanted, strict=True):
        if _count(sizes) != _count(want):
            raise NotApplicable(
                f"its weights or their parameters have the shape {times_sign(sizes)}, not {times_sign(want)}"
            )
    return TensorOperand(values[0], (k, n), (0, 1), transposed=False, constant=True, dtype=_TYPES[bits], packed=how)


def _dtype(value: ir.Value, facts: TilingFacts) -> ir.DataType:
    return facts.dtype(value, "MatMulNBits", FLOATS | {ir.DataType.UINT8})


def _count(dims: tuple[int | str | None, ...]) -> int:
    count = 1
    for dim in dims:
        assert isinstance(dim, int)
        count *= dim
    return count


def _bias(node: ir.Node, b: TensorOperand, facts: TilingFacts) -> Bias | None:
    value = node.inputs[5] if len(node.inputs) > 5 else None
    if value is None:
        return None
    dims = facts.known_dims(value)
    if dims != (b.size(1),):
        raise NotApplicable(f"its bias of shape {times_sign(dims)} is not one number for each column")
    return Bias(value, dims, 1.0, value in facts.constants)


MATMUL_NBITS = MatMulNBits()


# QLinearMatMul: a MatMulInteger, scaled and quantized; tiles add up in int32, to the last bit.


class QLinearMatMul(Tileable):
    """https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html, with one scale for A and Y, and one, or one a column, for B."""

    name = "QLinearMatMul"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger; each finished block is scaled and quantized once."""
        factors, zeros = ((required_input(node, first), required_input(node, first + 3)) for first in (0, 2))
        product = integer_product(node, facts, factors, zeros)
        y_zero = parameter(node, required_input(node, 7), None, product, facts)
        dtype = facts.dtype(y_zero.value, self.name, BYTES)
        scales = [
            parameter(node, required_input(node, index), product.right if index == 4 else None, product, facts)
            for index in (1, 4, 6)
        ]
        return replace(product, requantize=Requantize(scales[0], scales[1], scales[2], y_zero, dtype))


def parameter(
    node: ir.Node, value: ir.Value, columns: TensorOperand | None, product: Contraction, facts: TilingFacts
) -> Parameter:
    """Return a scale or zero point: a single number, or with `columns` one for each. Raises NotApplicable for any other."""
    dims, constant = facts.dims(value), value in facts.constants
    known = {ir.DataType.FLOAT, *BYTES}
    parameter = Parameter(value, dims, facts.dtype(value, node.op_type, known), constant)
    if columns is not None and dims == (columns.size(1),) and columns.axes[1] is not None:
        return parameter
    if dims not in {(), (1,)}:
        raise NotApplicable(f"its parameter {value.name!r} of shape {times_sign(dims)} is not a single number")
    if dims == (1,) and not constant and not product.dims:
        raise NotApplicable(f"its parameter {value.name!r} is a vector, and the result is a single number")
    return parameter


QLINEAR_MATMUL = QLinearMatMul()


# com.microsoft's QGemm: a Gemm of bytes with an int32 bias, scaled and, where it has a zero point for that, quantized.


class QGemm(Tileable):
    """https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QGemm."""

    name = "QGemm"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger; the bias is added to each finished block, which is scaled then."""
        if facts.opset < 10:
            raise NotApplicable(f"opset {facts.opset} has no MatMulInteger: raise the model to 10 at least")
        added = node.inputs[6] if len(node.inputs) > 6 else None
        factors, zeros = ((required_input(node, first), required_input(node, first + 3)) for first in (0, 2))
        product = integer_gemm(node, facts, factors, zeros, added)
        a_scale = parameter(node, required_input(node, 1), None, product, facts)
        b_scale = parameter(node, required_input(node, 4), product.right, product, facts)
        quantized = [index < len(node.inputs) and node.inputs[index] is not None for index in (7, 8)]
        if quantized[0] != quantized[1]:
            raise NotApplicable("it has only one of the scale and the zero point of its result")
        values = [required_input(node, index) for index in (7, 8)] if all(quantized) else []
        y = [parameter(node, value, None, product, facts) for value in values]
        y_scale, y_zero = y or (None, None)
        dtype = ir.DataType.FLOAT if y_zero is None else y_zero.dtype
        alpha = node.attributes.get_float("alpha", 1.0)
        return replace(product, requantize=Requantize(a_scale, b_scale, y_scale, y_zero, dtype, alpha))


def integer_gemm(
    node: ir.Node,
    facts: TilingFacts,
    factors: tuple[ir.Value, ir.Value],
    zeros: tuple[ir.Value | None, ir.Value | None],
    added: ir.Value | None,
) -> Contraction:
    """Return the product of two matrices of bytes, less their zero points, plus an int32 bias, transposed as `node` says.

    Raises NotApplicable where it cannot be cut so.
    """
    a, b = (
        matrix_factor(node, value, attribute, facts, BYTES)
        for value, attribute in zip(factors, ("transA", "transB"), strict=True)
    )
    a, b = (replace(o, zero=zero_point(o, side, zeros[side], facts)) for side, o in enumerate((a, b)))
    dims = (a.size(0), b.size(1))
    bias_ = bias(node, added, dims, ir.DataType.INT32, facts)
    return matrix_product(a, b, dims, (0, 1), ir.DataType.INT32, bias=bias_, tile="MatMulInteger")


QGEMM = QGemm()
