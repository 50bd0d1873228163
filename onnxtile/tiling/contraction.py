"""A contraction: the one form in which tile sees every operator that it cuts.

It adds up products of the elements of two operands, `left` and `right`, over K. A matrix product has rows M, columns N and a kernel of 1.
A convolution has the pixels of the output as M and the output channels of a group as N; its K are the input channels of a group
times the elements of the kernel, and its groups are so many products side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import gcd, lcm, prod
from typing import Protocol

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.reads import AxisSize, SlidingAxis
from onnxtile.tiling.limits import Limits, WindowBounds

# The limits of one contraction, axis by axis.


@dataclass(frozen=True)
class AxisBounds:
    """Bounds and multiples in elements; None means no bound.

    `pixels` bounds the product of all `sliding` axes. `multiples` are for those axes, channels and filters. With `fills`, zeros fill up
    the last stretch of an axis to a multiple.
    """

    pixels: int | None = None
    sliding: tuple[int | None, ...] = (None,)
    channels: int | None = None
    filters: int | None = None
    multiples: tuple[int, int, int] = (1, 1, 1)
    fills: bool = False
    channels_in_all: int | None = None
    """The bound on the input channels of all groups of a tile."""
    filters_in_all: int | None = None

    @classmethod
    def of(cls, limits: Limits, *, kernel: int = 1, rank: int = 1, windows: bool = False) -> AxisBounds:
        """Return the bounds of a contraction with a kernel of so many elements, which slides along `rank` axes.

        Only one that reads `windows` has the limits of windows. A K too small for the kernel leaves no channel.
        """
        window = (limits.window if windows else None) or WindowBounds()
        m, k, n = limits.multiples
        if limits.pad:
            m, k, n = (bound or each for bound, each in zip(limits.bounds, limits.multiples, strict=True))
        channels = None if limits.k is None else limits.k // kernel
        return cls(
            pixels=limits.m,
            sliding=(window.rows, window.columns)[-rank:],
            channels=_lesser(channels, window.channels),
            filters=_lesser(limits.n, window.filters),
            multiples=(m, k // gcd(k, kernel), n),
            fills=limits.pad,
            channels_in_all=window.channels,
            filters_in_all=window.filters,
        )

    def in_units(self, units: tuple[int, int]) -> AxisBounds:
        """Return the bounds with multiples of so many channels and filters, too."""
        m, k, n = self.multiples
        return self if units == (1, 1) else replace(self, multiples=(m, lcm(k, units[0]), lcm(n, units[1])))

    @property
    def quanta(self) -> tuple[int, int, int]:
        """The numbers of elements to a multiple of which zeros fill up the last stretch along sliding axes, K and N."""
        return self.multiples if self.fills else (1, 1, 1)

    def groups(self, groups: int, channels: int, filters: int) -> int:
        """Return how many of `groups`, each of `channels` and `filters`, one tile may have; 1 where a group is cut."""
        pairs = [(self.channels, channels), (self.filters, filters)]
        if any(bound is not None and bound < size for bound, size in pairs):
            return 1
        most = [groups]
        most += [] if self.channels_in_all is None else [self.channels_in_all // channels]
        most += [] if self.filters_in_all is None else [self.filters_in_all // filters]
        return max(min(most), 1)


def _lesser(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


# Sizes of tensors, known and unknown, and the tables of shapes and constants that tiling reads.

TensorDims = tuple[AxisSize, ...]
WITHIN = "within the limits"
"""The reason why a node that no limit asks to be cut is left as it is."""


class ShapeTable(Protocol):
    """Element types and shapes of values, beside the model (onnxtile.shapes.resolve.Shapes)."""

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, None where it is unknown."""

    def dims(self, value: ir.Value) -> TensorDims | None:
        """Return the dimensions: a number, a symbol's name, or None; None as a whole where the rank is unknown."""


def broadcast(first: TensorDims, second: TensorDims) -> TensorDims:
    """Return the dimensions that two batches broadcast to, as in numpy. Raises NotApplicable where they do not."""
    rank = max(len(first), len(second))
    pairs = zip(*((1,) * (rank - len(dims)) + dims for dims in (first, second)), strict=True)
    return tuple(_broadcast(a, b, first, second) for a, b in pairs)


def times_sign(dims: TensorDims) -> str:
    """Return dimensions as a reader sees them: 3×seq×8."""
    return "×".join("?" if dim is None else str(dim) for dim in dims)


def _broadcast(a: AxisSize, b: AxisSize, first: TensorDims, second: TensorDims) -> AxisSize:
    if b in {a, 1}:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise NotApplicable(f"its batches {times_sign(first)} and {times_sign(second)} do not broadcast")
    # A symbol beside a number above 1 is that number or 1; two symbols may each be 1.
    return a if isinstance(a, int) else b if isinstance(b, int) else None


Axes = tuple[int | None, int | None]
"""The axes of a tensor along which a matrix's rows and columns lie; None for a vector, which lacks one of the two."""


@dataclass(frozen=True)
class PackedFactor:
    """The bytes of MatMulNBits' B, of `dims` (N, blocks of K, bytes of a block): elements of `bits` bits, and a scale for each block."""

    dims: tuple[int, int, int]
    bits: int
    block: int
    """The elements of a block, which lie along K."""
    scales: Parameter
    zeros: Parameter | None

    @property
    def packs_zeros(self) -> bool:
        """Whether zero points are packed into bytes as the elements are."""
        return self.zeros is not None and self.zeros.dtype is ir.DataType.UINT8

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The scales, and the zero points where there are some."""
        return (self.scales,) if self.zeros is None else (self.scales, self.zeros)

    @property
    def element_bytes(self) -> float:
        """The bytes that one element takes, with its part of a scale and a zero point."""
        zero = 0.0 if self.zeros is None else self.bits / 8 if self.packs_zeros else self.zeros.dtype.itemsize
        return self.bits / 8 + (self.scales.dtype.itemsize + zero) / self.block

    @property
    def unit(self) -> int:
        """The elements of K that cannot be cut apart: a block, or as many as have their zero points in one byte."""
        return self.block * (8 // self.bits if self.packs_zeros else 1)


@dataclass(frozen=True)
class TensorOperand:
    """An operand: a matrix, a vector, or a batch of matrices along the axes before the last two.

    `dims` and `axes` are those that the contraction reads, so after a transposition where there is one. The rows of `left` lie along M,
    its columns along K; the rows of `right` lie along K, its columns along N.
    """

    value: ir.Value
    dims: TensorDims
    axes: Axes
    transposed: bool
    constant: bool
    dtype: ir.DataType
    zero: TensorOperand | None = None
    """The zero point that is taken off each element: a single one without axes, or one for each column."""
    dequantize: ir.Node | None = field(default=None, compare=False, repr=False)
    """The DequantizeLinear that makes a constant operand from initializers, so that its blocks can stay quantized."""
    packed: PackedFactor | None = None
    """How the value holds the operand, where it has fewer bits than a byte, or a scale for each of its blocks."""

    @property
    def element_bytes(self) -> float:
        """The bytes that one element takes, with its part of a scale and a zero point."""
        return self.dtype.itemsize if self.packed is None else self.packed.element_bytes

    @property
    def held(self) -> tuple[ir.DataType, TensorDims]:
        """The element type and the dimensions of the value itself."""
        return (self.dtype, self.stored) if self.packed is None else (ir.DataType.UINT8, self.packed.dims)

    @property
    def stored(self) -> TensorDims:
        """The dimensions of the value itself."""
        return self.dims[::-1] if self.transposed else self.dims

    def stored_axis(self, side: int) -> int:
        """Return the axis of the value itself along which rows (side 0) or columns (side 1) lie. A vector has one of the two."""
        axis = self.axes[side]
        assert axis is not None
        return len(self.dims) - 1 - axis if self.transposed else axis

    @property
    def batch(self) -> TensorDims:
        """The dimensions before the matrix or vector."""
        return self.dims[: -sum(axis is not None for axis in self.axes)]

    def size(self, side: int) -> AxisSize:
        """Return the number of rows (side 0) or columns (side 1); 1 where the operand is a vector that lacks them."""
        axis = self.axes[side]
        return 1 if axis is None else self.dims[axis]


@dataclass(frozen=True)
class Bias:
    """A tensor that is added to the whole result, `beta` times; its dimensions broadcast to the result."""

    value: ir.Value
    dims: TensorDims
    beta: float
    constant: bool


@dataclass(frozen=True)
class Parameter:
    """A scale or a zero point of a result."""

    value: ir.Value
    dims: TensorDims
    dtype: ir.DataType
    constant: bool


@dataclass(frozen=True)
class Requantize:
    """The steps from an int32 sum to the result: times alpha · a_scale · b_scale / y_scale, plus a zero point, in `dtype`.

    Without y_scale and y_zero the result is a float.
    """

    a_scale: Parameter
    b_scale: Parameter
    y_scale: Parameter | None
    y_zero: Parameter | None
    dtype: ir.DataType
    alpha: float = 1.0

    @property
    def scales(self) -> list[Parameter]:
        """The scales that there are."""
        return [scale for scale in (self.a_scale, self.b_scale, self.y_scale) if scale is not None]

    @property
    def parameters(self) -> list[Parameter]:
        """The scales, and the zero point of the result."""
        return self.scales if self.y_zero is None else [*self.scales, self.y_zero]


@dataclass(frozen=True)
class Contraction:
    """`groups` contractions side by side: alpha · left · right + bias, in `dtype`.

    `sliding` are the axes of the output that make up M, and `row_axes` where they lie in the result. `channels` is K over the elements of
    the kernel, `filters` is N; both count one group. `batches` are the dimensions of the batch of left, right and result.
    """

    left: TensorOperand
    right: TensorOperand
    dims: TensorDims
    """The dimensions of the result."""
    row_axes: tuple[int | None, ...]
    """For each of `sliding` its axis in the result; None where the left operand is a vector, and the result has no rows."""
    column_axis: int | None
    """The axis of N in the result; None where the right operand is a vector."""
    dtype: ir.DataType
    sliding: tuple[SlidingAxis, ...]
    channels: AxisSize
    filters: AxisSize
    batches: tuple[TensorDims, TensorDims, TensorDims]
    groups: int = 1
    windows: bool = False
    """Whether a tile reads windows of `left`, which lie along the same axes as the rows of the result, and may overlap."""
    groups_in_k: bool = False
    """Whether the groups of `right` lie along its K, as in ConvTranspose; along its N otherwise."""
    letters: tuple[str, str] = ("a", "b")
    """The names of the operands in the names of their blocks."""
    alpha: float = 1.0
    bias: Bias | None = None
    """The bias that one Add adds to the whole result; to each finished block where that is requantized."""
    tile_bias: TensorOperand | None = None
    """The bias that the first tile of each sum takes as its third input: one element for each column."""
    tile: str = "MatMul"
    """The operator that each tile is."""
    tile_domain: str = ""
    units: tuple[int, int] = (1, 1)
    """The elements along K and N that cannot be cut apart, since they have one scale."""
    requantize: Requantize | None = None
    sums: ir.DataType | None = None
    """The element type in which partial sums are added; None where it is `dtype`."""
    island: tuple[ir.Node, ...] = field(default=(), compare=False, repr=False)
    """The nodes that the tiles replace, in order, where more than one makes the result: DequantizeLinears, a product, QuantizeLinear."""
    read: tuple[Parameter, ...] = ()
    """Parameters that the original nodes read, and the tiles do not."""
    attributes: tuple[ir.Attr, ...] = field(default=(), compare=False)
    """The attributes of each tile, save the number of groups, and how it is padded."""
    padding: tuple[ir.Attr, ...] = field(default=(), compare=False)
    """The attributes that say how the whole node is padded."""
    free: Callable[[], int] = field(default=int, compare=False, repr=False)
    """Returns the bytes of the arena that no tensor takes while the node runs, before it is tiled; 0 where they are not known."""

    @property
    def result_dtype(self) -> ir.DataType:
        """The element type of the result, and of each finished block."""
        return self.dtype if self.requantize is None else self.requantize.dtype

    @property
    def operands(self) -> list[TensorOperand]:
        """The two factors, their zero points, and the bias of the tiles."""
        more = (self.left.zero, self.right.zero, self.tile_bias)
        return [self.left, self.right, *(operand for operand in more if operand is not None)]

    @property
    def values(self) -> list[ir.Value]:
        """The values of the operands, the bias and the scales."""
        bias = [] if self.bias is None else [self.bias.value]
        scales = [] if self.requantize is None else [parameter.value for parameter in self.requantize.parameters]
        return [*(operand.value for operand in self.operands), *bias, *scales, *(one.value for one in self.read)]

    @property
    def matrices(self) -> bool:
        """Whether factors and result are matrices, so that Gemm could make a tile."""
        return self.right.packed is None and all(
            len(dims) == 2 for dims in (self.left.dims, self.right.dims, self.dims)
        )

    @property
    def adds_bias(self) -> bool:
        """Whether the bias is read at all: with beta = 0 Gemm leaves it out, whatever it holds."""
        return self.bias is not None and self.bias.beta != 0.0

    @property
    def left_axes(self) -> tuple[int | None, ...]:
        """For each of `sliding` its axis in the value of `left`; None for a vector."""
        if self.windows:
            return self.row_axes
        return (None if self.left.axes[0] is None else self.left.stored_axis(0),)

    def bounds(self, limits: Limits) -> AxisBounds:
        """Return `limits`, axis by axis."""
        bounds = AxisBounds.of(limits, kernel=self.kernel, rank=len(self.sliding), windows=self.windows)
        return bounds.in_units(self.units)

    @property
    def kernel(self) -> int:
        """The elements of the kernel, which no cut goes through."""
        return prod(axis.kernel for axis in self.sliding)

    @property
    def m(self) -> AxisSize:
        """The rows of a product, the pixels of a convolution's output; None unless all its sizes are known."""
        if len(self.sliding) == 1:
            return self.sliding[0].out
        sizes = [axis.out for axis in self.sliding if isinstance(axis.out, int)]
        return prod(sizes) if len(sizes) == len(self.sliding) else None

    @property
    def k(self) -> AxisSize:
        """The products that are added up to one element of the result."""
        return self.channels * self.kernel if isinstance(self.channels, int) else self.channels

    @property
    def n(self) -> AxisSize:
        """The columns of a product, the output channels of a group of a convolution."""
        return self.filters


def with_quantized(contraction: Contraction, limits: Limits) -> Contraction:
    """Return `contraction` with the DequantizeLinear of each operand that one makes from initializers.

    Where it has a scale for each block, the right operand is cut between blocks, or, within limits smaller than a block, as floats.
    """
    bias, right = contraction.tile_bias, _quantized(contraction.right)
    units = _units(right)
    bounds = contraction.bounds(limits)
    pairs = zip(units, (bounds.channels, bounds.filters), strict=True)
    if units != (1, 1) and (limits.pad or any(bound is not None and bound < unit for unit, bound in pairs)):
        right, units = contraction.right, (1, 1)
    left = _quantized(contraction.left)
    return replace(
        contraction,
        left=left if _units(left) == (1, 1) else contraction.left,
        right=right,
        tile_bias=None if bias is None else _quantized(bias),
        units=units if right.packed is None else contraction.units,
    )


def _quantized(operand: TensorOperand) -> TensorOperand:
    node = operand.value.producer() if operand.constant else None
    if node is None or node.op_type != "DequantizeLinear" or node.domain:
        return operand
    held = all(value is not None and value.is_initializer() for value in node.inputs)
    return replace(operand, dequantize=node) if held else operand


def _units(operand: TensorOperand) -> tuple[int, int]:
    """Return how many elements along rows and columns have one scale in common, where these are more than one and fewer than all."""
    node = operand.dequantize
    size = 0 if node is None else node.attributes.get_int("block_size", 0)
    if node is None or not size:
        return 1, 1
    axis = node.attributes.get_int("axis", 1) % len(operand.dims)
    sides = [side for side in (0, 1) if operand.axes[side] is not None and operand.stored_axis(side) == axis]
    return (size if sides == [0] else 1), (size if sides == [1] else 1)


def matrix_product(
    a: TensorOperand,
    b: TensorOperand,
    dims: TensorDims,
    axes: Axes,
    dtype: ir.DataType,
    *,
    alpha: float = 1.0,
    bias: Bias | None = None,
    tile: str = "MatMul",
) -> Contraction:
    """Return alpha · A · B + bias, of `dims` with rows and columns along `axes`; batches broadcast as in numpy.

    K is a number where either operand knows it. Raises NotApplicable where the sizes of the factors contradict each other or the
    product has no element.
    """
    ka, kb = a.size(1), b.size(0)
    if isinstance(ka, int) and isinstance(kb, int) and ka != kb:
        raise NotApplicable(f"its operands do not fit: A has {ka} columns and B has {kb} rows")
    if 0 in (*dims, ka, kb):
        raise NotApplicable("a product without elements")
    k = kb if isinstance(kb, int) or ka is None else ka
    rows = a.size(0)
    return Contraction(
        left=_with_size(a, 1, k),
        right=_with_size(b, 0, k),
        dims=dims,
        row_axes=(axes[0],),
        column_axis=axes[1],
        dtype=dtype,
        sliding=(SlidingAxis(size=rows, out=rows),),
        channels=k,
        filters=b.size(1),
        batches=(a.batch, b.batch, dims[: len(dims) - sum(axis is not None for axis in axes)]),
        alpha=alpha,
        bias=bias,
        tile=tile,
    )


def _with_size(operand: TensorOperand, side: int, size: AxisSize) -> TensorOperand:
    axis = operand.axes[side]
    if axis is None or operand.dims[axis] == size:
        return operand
    return replace(operand, dims=(*operand.dims[:axis], size, *operand.dims[axis + 1 :]))
