"""A contraction: the one form in which tile sees every operator that it cuts; and the plug-ins that state an operator as one.

It adds up products of the elements of two operands, `left` and `right`, over K. A matrix product has rows M, columns N and a kernel of 1.
A convolution has the pixels of the output as M and the output channels of a group as N; its K are the input channels of a group
times the elements of the kernel, and its groups are so many products side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from dataclasses import field, replace
from math import prod
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxtile.model.binding import Unbound, binding
from onnxtile.operators.node_view import Dim, Dims, KnownConstants, NotApplicable, ReasonCode, given_input
from onnxtile.operators.reads import SlidingAxis
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import HALVES

# Element types of factors and sums, and the numbers that they hold.

FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, *HALVES}
INTEGERS = {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
"""With `FLOATS`, the element types that MatMul takes (https://onnx.ai/onnx/operators/onnx__MatMul.html)."""
BYTES = {ir.DataType.INT8, ir.DataType.UINT8}
"""The element types of quantized factors."""


def normal_range(dtype: ir.DataType) -> tuple[float, float]:
    """Return the least and the largest positive number that `dtype`, a float, holds to its full precision."""
    info = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    return float(info.smallest_normal), float(info.max)


def as_scalar(factor: float, dtype: ir.DataType) -> Array:
    """Return `factor` in `dtype`, without dimensions."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.asarray(factor, np.float32).astype(dtype.numpy()))


FIRST_OPSET = 7
"""Before it, Gemm and Add broadcast only where an attribute says so, and onnxruntime promises nothing."""


# Sizes of tensors, known and unknown.

WITHIN = "within the limits"
"""The reason why a node that no limit asks to be cut is left as it is."""


def broadcast(first: Dims, second: Dims) -> Dims:
    """Return the dimensions that two batches broadcast to, as in numpy. Raises NotApplicable where they do not."""
    rank = max(len(first), len(second))
    pairs = zip(*((1,) * (rank - len(dims)) + dims for dims in (first, second)), strict=True)
    return tuple(_broadcast(a, b, first, second) for a, b in pairs)


def times_sign(dims: Dims) -> str:
    """Return dimensions as a reader sees them: 3×seq×8."""
    return "×".join("?" if dim is None else str(dim) for dim in dims)


def _broadcast(a: Dim, b: Dim, first: Dims, second: Dims) -> Dim:
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
class ReadTensor:
    """A tensor that a node reads: a scale, a zero point, or one of the tensors below.

    `value` is the tensor, `dims` its sizes, `dtype` its element type; `constant` says whether its elements are known.
    """

    value: ir.Value
    dims: Dims
    dtype: ir.DataType
    constant: bool

    @property
    def held(self) -> tuple[ir.DataType, Dims]:
        """The element type and the dimensions of the value itself."""
        return self.dtype, self.dims


@dataclass(frozen=True)
class Bias(ReadTensor):
    """A tensor that is added to the whole result, `beta` times; its dimensions broadcast to the result.

    `value`, `dims`, `dtype` and `constant` are as in ReadTensor.
    """

    beta: float = 1.0


@dataclass(frozen=True)
class PackedFactor:
    """The bytes of MatMulNBits' B, of `dims` (N, blocks of K, bytes of a block): elements of `bits` bits, and a scale for each block.

    `block` counts the elements of a block, which lie along K. `scales` has a number for each block, `zeros` a zero point or None.
    """

    dims: tuple[int, int, int]
    bits: int
    block: int
    scales: ReadTensor
    zeros: ReadTensor | None

    @property
    def packs_zeros(self) -> bool:
        """Whether zero points are packed into bytes as the elements are."""
        return self.zeros is not None and self.zeros.dtype is ir.DataType.UINT8

    @property
    def zeros_along(self) -> int:
        """The zero points of a column, or the bytes that hold them."""
        return -(-self.dims[1] * self.bits // 8) if self.packs_zeros else self.dims[1]

    @property
    def parameters(self) -> tuple[ReadTensor, ...]:
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
class TensorOperand(ReadTensor):
    """An operand: a matrix, a vector, or a batch of matrices along the axes before the last two.

    `dims` and `axes` are those that the contraction reads, so after a transposition where there is one. The rows of `left` lie along M, its
    columns along K; the rows of `right` lie along K, its columns along N. One without axes is a single number. `value`, `dtype` and
    `constant` are as in ReadTensor. `transposed` says that the contraction reads the matrices turned over. `zero` is the zero point that is
    taken off each element: a single one without axes, or one for each column. `dequantize` is the DequantizeLinear that makes a constant
    operand from initializers, so that its blocks can stay quantized. `packed` says how the value holds fewer bits than a byte, or a scale
    for each block.
    """

    axes: Axes = (None, None)
    transposed: bool = False
    zero: TensorOperand | None = None
    dequantize: ir.Node | None = field(default=None, compare=False, repr=False)
    packed: PackedFactor | None = None

    @property
    def is_single(self) -> bool:
        """Whether it is one number for all."""
        return self.axes == (None, None)

    @property
    def element_bytes(self) -> float:
        """The bytes that one element takes, with its part of a scale and a zero point."""
        return self.dtype.itemsize if self.packed is None else self.packed.element_bytes

    @property
    def held(self) -> tuple[ir.DataType, Dims]:
        """The element type and the dimensions of the value itself."""
        return (self.dtype, self.stored) if self.packed is None else (ir.DataType.UINT8, self.packed.dims)

    @property
    def stored(self) -> Dims:
        """The dimensions of the value itself, of elements that are not packed."""
        return self.dims[::-1] if self.transposed else self.dims

    def stored_axis(self, side: int) -> int:
        """Return the axis of the value itself along which rows (side 0) or columns (side 1) lie. A vector has one of the two."""
        axis = self.axes[side]
        assert axis is not None
        return len(self.dims) - 1 - axis if self.transposed else axis

    @property
    def batch(self) -> Dims:
        """The dimensions before the matrix or vector."""
        return self.dims[: -sum(axis is not None for axis in self.axes)]

    def size(self, side: int) -> Dim:
        """Return the number of rows (side 0) or columns (side 1); 1 where the operand is a vector that lacks them."""
        axis = self.axes[side]
        return 1 if axis is None else self.dims[axis]


@dataclass(frozen=True)
class Requantize:
    """The steps from an int32 sum to the result: times alpha · a_scale · b_scale / y_scale, plus a zero point, in `dtype`.

    Without y_scale and y_zero the result is a float. `a_scale`, `b_scale` and `y_scale` are scales, `y_zero` is the zero point, `alpha` a
    factor.
    """

    a_scale: ReadTensor
    b_scale: ReadTensor
    y_scale: ReadTensor | None
    y_zero: ReadTensor | None
    dtype: ir.DataType
    alpha: float = 1.0

    @property
    def scales(self) -> list[ReadTensor]:
        """The scales that there are."""
        return [scale for scale in (self.a_scale, self.b_scale, self.y_scale) if scale is not None]

    @property
    def parameters(self) -> list[ReadTensor]:
        """The scales, and the zero point of the result."""
        return self.scales if self.y_zero is None else [*self.scales, self.y_zero]


@dataclass(frozen=True)
class Contraction:
    """`groups` contractions side by side: alpha · left · right + bias, in `dtype`.

    `sliding` are the axes of the output that make up M, and `row_axes` where they lie in the result. `channels` is K over the elements of
    the kernel, `filters` is N; both count one group. `batches` are the dimensions of the batch of left, right and result. `left` and
    `right` are the operands, `dims` the dimensions of the result. `row_axes` has for each of `sliding` its axis in the result; None where
    the left operand is a vector, and the result has no rows. `column_axis` is the axis of N in the result; None where the right operand is
    a vector. With `windows` a tile reads windows of `left`, which lie along the same axes as the rows of the result and may overlap. With
    `groups_in_k` the groups of `right` lie along its K, as in ConvTranspose, else along its N. `letters` are the names of the operands in
    the names of their blocks. `alpha` is a factor. `bias` is added by one Add to the whole result, or to each finished block where that is
    requantized. `tile_bias` is the third input of the last tile of each sum: one element for each column. `tile` is the operator of each
    tile, in `tile_domain`. `units` are the elements along K and N that have one scale, so that nothing cuts them apart. `requantize` has
    the steps from an int32 sum to the result. `sums` is the element type in which partial sums are added; None where it is `dtype`.
    `island` are the nodes that the tiles replace, in order, where more than one makes the result. `read` are tensors that the original
    nodes read, and the tiles do not. `attributes` are those of each tile, without the number of groups and the padding; `padding` has the
    padding of the whole node. `free` returns the bytes of the arena that no tensor takes while the node runs; 0 where they are not known.
    """

    left: TensorOperand
    right: TensorOperand
    dims: Dims
    row_axes: tuple[int | None, ...]
    column_axis: int | None
    dtype: ir.DataType
    sliding: tuple[SlidingAxis, ...]
    channels: Dim
    filters: Dim
    batches: tuple[Dims, Dims, Dims]
    groups: int = 1
    windows: bool = False
    groups_in_k: bool = False
    letters: tuple[str, str] = ("a", "b")
    alpha: float = 1.0
    bias: Bias | None = None
    tile_bias: TensorOperand | None = None
    tile: str = "MatMul"
    tile_domain: str = ""
    units: tuple[int, int] = (1, 1)
    requantize: Requantize | None = None
    sums: ir.DataType | None = None
    island: tuple[ir.Node, ...] = field(default=(), compare=False, repr=False)
    read: tuple[ReadTensor, ...] = ()
    attributes: tuple[ir.Attr, ...] = field(default=(), compare=False)
    padding: tuple[ir.Attr, ...] = field(default=(), compare=False)
    free: Callable[[], int] = field(default=int, compare=False, repr=False)

    @property
    def result_dtype(self) -> ir.DataType:
        """The element type of the result, and of each finished block."""
        return self.dtype if self.requantize is None else self.requantize.dtype

    @property
    def tensors(self) -> list[ReadTensor]:
        """The two factors, their zero points, the biases, the scales, and what only the original nodes read."""
        operands = [self.left, self.right, self.left.zero, self.right.zero, self.tile_bias, self.bias]
        scales = [] if self.requantize is None else self.requantize.parameters
        return [*(operand for operand in operands if operand is not None), *scales, *self.read]

    @property
    def values(self) -> list[ir.Value]:
        """The values of all these."""
        return [tensor.value for tensor in self.tensors]

    @property
    def axes(self) -> tuple[int | None, ...]:
        """The axes of the result that are cut: those of the rows, and that of the columns."""
        return *self.row_axes, self.column_axis

    @property
    def matrices(self) -> bool:
        """Whether factors and result are matrices, so that Gemm could make a tile."""
        return self.right.packed is None and all(
            len(dims) == 2 for dims in (self.left.dims, self.right.dims, self.dims)
        )

    @property
    def adds_bias(self) -> bool:
        """Whether the bias is read at all: with beta = 0 Gemm does not read it."""
        return self.bias is not None and self.bias.beta != 0.0

    @property
    def left_axes(self) -> tuple[int | None, ...]:
        """For each of `sliding` its axis in the value of `left`; None for a vector."""
        if self.windows:
            return self.row_axes
        return (None if self.left.axes[0] is None else self.left.stored_axis(0),)

    @property
    def kernel(self) -> int:
        """The elements of the kernel, which no cut goes through."""
        return prod(axis.kernel for axis in self.sliding)

    @property
    def m(self) -> Dim:
        """The rows of a product, the pixels of a convolution's output; None unless all its sizes are known."""
        if len(self.sliding) == 1:
            return self.sliding[0].out
        sizes = [axis.out for axis in self.sliding if isinstance(axis.out, int)]
        return prod(sizes) if len(sizes) == len(self.sliding) else None

    @property
    def k(self) -> Dim:
        """The products that are added up to one element of the result."""
        return self.channels * self.kernel if isinstance(self.channels, int) else self.channels

    @property
    def n(self) -> Dim:
        """The columns of a product, the output channels of a group of a convolution."""
        return self.filters


def matrix_product(
    a: TensorOperand,
    b: TensorOperand,
    dims: Dims,
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


def _with_size(operand: TensorOperand, side: int, size: Dim) -> TensorOperand:
    axis = operand.axes[side]
    if axis is None or operand.dims[axis] == size:
        return operand
    return replace(operand, dims=(*operand.dims[:axis], size, *operand.dims[axis + 1 :]))


# The facts of a model that a plug-in may ask for.

FreeAt: TypeAlias = Callable[[ir.Node], int]
"""Returns the bytes of the arena that no tensor takes while a node runs, before any node is tiled."""


def none_known(_: ir.Node) -> int:
    """Return 0, where the free bytes of the arena are not known."""
    return 0


@dataclass(frozen=True)
class TilingFacts:
    """The facts that a plug-in may ask for; nothing in them changes the model."""

    shapes: Shapes = field(repr=False)
    constants: KnownConstants = field(repr=False)
    opset: int
    unbound: Unbound
    """The sizes of the model's inputs that can be bound; inference may invent other symbols."""
    free: FreeAt = none_known
    """The bytes of the arena that are free while a node runs."""

    def dims(self, value: ir.Value) -> Dims:
        """Return the dimensions of `value`; a symbol only where all its words can be bound. Raises NotApplicable for an unknown rank."""
        dims = self.shapes.dims(value)
        if dims is None:
            raise NotApplicable(
                self.unbound.once_bound(f"the shape of {value.name!r} is not known"), ReasonCode.UNKNOWN_SIZE
            )
        return tuple(self._dim(dim) for dim in dims)

    def known_dims(self, value: ir.Value) -> tuple[int, ...]:
        """Return the dimensions of `value`. Raises NotApplicable, with the dimension to bind, where one is not known."""
        dims = self.dims(value)
        sizes = tuple(dim for dim in dims if isinstance(dim, int))
        if len(sizes) < len(dims):
            raise self.unknown(value, next(i for i, dim in enumerate(dims) if not isinstance(dim, int)))
        return sizes

    def unknown(self, value: ir.Value, axis: int) -> NotApplicable:
        """Return why `axis` of `value`, whose size is not known, cannot be cut, with the dimension to bind."""
        dim = (self.shapes.dims(value) or ())[axis]
        bindable = self.unbound.bindable(dim)
        if bindable:
            bind = binding(bindable)
            reason = f"axis {axis} of {value.name!r} has the size {dim!r}: bind it with {bind}"
            return NotApplicable(reason, ReasonCode.UNKNOWN_SIZE, bind=bind)
        reason = self.unbound.once_bound(f"the size of axis {axis} of {value.name!r} is not known")
        return NotApplicable(reason, ReasonCode.UNKNOWN_SIZE)

    def can_bind(self, value: ir.Value, axis: int) -> bool:
        """Return whether symbols of the model's inputs decide `axis` of `value`."""
        return bool(self.unbound.bindable((self.shapes.dims(value) or ())[axis]))

    def _dim(self, dim: Dim) -> Dim:
        if not isinstance(dim, str):
            return dim
        if dim.isdecimal():
            return int(dim)
        return dim if self.unbound.covers(dim) else None

    def dtype(
        self, value: ir.Value, operator: str = "MatMul", taken: Set[ir.DataType] = FLOATS | INTEGERS
    ) -> ir.DataType:
        """Return the element type of `value`. Raises NotApplicable where it is unknown or `operator` does not take it."""
        dtype = self.shapes.dtype(value)
        if dtype is None:
            raise NotApplicable(f"the element type of {value.name!r} is not known", ReasonCode.UNKNOWN_SIZE)
        if dtype not in taken:
            raise NotApplicable(
                f"{operator} does not take the element type {dtype.name.lower()}", ReasonCode.ELEMENT_TYPE
            )
        return dtype

    def operand(self, value: ir.Value, dtype: ir.DataType, axes: Axes, *, transposed: bool = False) -> TensorOperand:
        """Return `value` as an operand, read transposed or as it is. Raises NotApplicable for an unknown rank."""
        dims = self.dims(value)
        dims = dims[::-1] if transposed else dims
        return TensorOperand(value, dims, dtype, value in self.constants, axes, transposed)

    def require_dtype(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Raise NotApplicable where `value` is known to have another element type than `dtype`."""
        if self.shapes.dtype(value) not in {None, dtype}:
            raise NotApplicable(
                f"{value.name!r} has another element type than {dtype.name.lower()}", ReasonCode.ELEMENT_TYPE
            )


class Tileable(ABC):
    """An operator that tile can cut: one instance in one file of onnxtile/tiling/operators."""

    name: str
    """The operator's type."""
    domain: str = ""
    """Its domain, empty for ONNX's own."""
    windows: bool = False
    """Whether its tiles read windows, as a convolution does. Such operators are cut only where the limits request it."""

    @abstractmethod
    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction that `node` computes. Raises NotApplicable with the reason where it cannot be cut."""


def required_input(node: ir.Node, index: int) -> ir.Value:
    """Return input `index` of `node`. Raises NotApplicable where it is missing."""
    value = given_input(node, index)
    if value is None:
        raise NotApplicable(f"its input {index} is missing")
    return value


def require_factor(name: str, factor: float, dtype: ir.DataType) -> None:
    """Raise NotApplicable unless `dtype` holds `factor` to its full precision; an integer type holds 1 only.

    ONNX does not say how a fraction multiplies integers, and a subnormal has lost digits that the original keeps.
    """
    if dtype in INTEGERS:
        if factor != 1.0:
            raise NotApplicable(f"{name} = {factor:g} of an integer product is not defined")
        return
    least, most = normal_range(dtype)
    if factor != 0.0 and not least <= abs(float(as_scalar(factor, dtype))) <= most:
        raise NotApplicable(f"{name} = {factor:g} is out of the range of {dtype.name.lower()}")
