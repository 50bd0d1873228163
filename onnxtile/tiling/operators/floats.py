"""The operators on floats that tile cuts: Gemm, MatMul, Conv and ConvTranspose; and the products that those on bytes are, too."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.reads import SlidingAxis, TensorDims, kernel_axes
from onnxtile.tiling.contraction import (
    FLOATS,
    INTEGERS,
    Axes,
    Bias,
    Contraction,
    TensorOperand,
    Tileable,
    TilingFacts,
    broadcast,
    given_input,
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


def gemm_bias(
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


def product_axes(a: TensorOperand, b: TensorOperand) -> tuple[TensorDims, Axes]:
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


def _outputs(node: ir.Node, facts: TilingFacts, sliding: tuple[SlidingAxis, ...]) -> TensorDims:
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
