"""A matrix product as tile sees it, whatever operator it stands in, and the plug-ins that see it so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxtile.model.unbound import Unbound, binding
from onnxtile.runtime import Array
from onnxtile.tiling.limits import Limits

Dim = int | str | None
"""A size in elements, the symbols it is made of where it is known only when the model runs, or None where nothing is known."""
Dims = tuple[Dim, ...]
Axes = tuple[int | None, int | None]
"""The axes of a tensor along which a matrix's rows and columns lie; None for a vector, which lacks one of the two."""

FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
"""Floats of 16 bits, whose partial sums may leave their range."""
INTEGERS = {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
"""Together the element types that MatMul takes (https://onnx.ai/onnx/operators/onnx__MatMul.html)."""
BYTES = {ir.DataType.INT8, ir.DataType.UINT8}
"""The element types of quantized factors."""

FIRST_OPSET = 7
"""Before it, Gemm and Add broadcast only where an attribute says so, and onnxruntime promises nothing."""


class ShapeTable(Protocol):
    """What is known of values beside the model (onnxtile.model.shapes.Shapes)."""

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, None where it is unknown."""

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions: a number, a symbol's name, or None; None as a whole where the rank is unknown."""


class ConstantTable(Protocol):
    """Which values are constant, and what they hold (onnxtile.model.constants.Constants)."""

    def __contains__(self, value: ir.Value | None) -> bool: ...

    def array(self, value: ir.Value) -> Array:
        """Return the elements of a constant value, which must not be written to."""


class NotTiled(Exception):
    """Why a node is left as it is; the reason is one line for the user."""


@dataclass(frozen=True)
class Operand:
    """A factor of the product: a matrix, a vector, or a batch of matrices along the axes before the last two.

    `dims` and `axes` are those that the product reads, so after a transposition where there is one.
    """

    value: ir.Value
    dims: Dims
    axes: Axes
    transposed: bool
    constant: bool
    dtype: ir.DataType
    zero: Operand | None = None
    """The zero point that is taken off each element: a single one without axes, or one for each column."""

    @property
    def stored(self) -> Dims:
        """The dimensions of the value itself."""
        return self.dims[::-1] if self.transposed else self.dims

    def stored_axis(self, side: int) -> int:
        """Return the axis of the value itself along which rows (side 0) or columns (side 1) lie. A vector has one of the two."""
        axis = self.axes[side]
        assert axis is not None
        return len(self.dims) - 1 - axis if self.transposed else axis

    @property
    def batch(self) -> Dims:
        """The dimensions before those of the matrix or vector."""
        return self.dims[: -sum(axis is not None for axis in self.axes)]

    def size(self, side: int) -> Dim:
        """Return the number of rows (side 0) or columns (side 1); 1 where the operand is a vector that lacks them."""
        axis = self.axes[side]
        return 1 if axis is None else self.dims[axis]


@dataclass(frozen=True)
class Bias:
    """What is added last, `beta` times; its dimensions broadcast to those of the product."""

    value: ir.Value
    dims: Dims
    beta: float
    constant: bool


@dataclass(frozen=True)
class Parameter:
    """A scale or a zero point of a result."""

    value: ir.Value
    dims: Dims
    dtype: ir.DataType
    constant: bool


@dataclass(frozen=True)
class Requantize:
    """What becomes of an int32 product: times alpha · a_scale · b_scale / y_scale, plus a zero point, in `dtype`.

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
class Product:
    """alpha · A · B + beta · C, in `dtype`. `dims` and `axes` are those of the result; batches broadcast as in numpy."""

    a: Operand
    b: Operand
    dims: Dims
    axes: Axes
    dtype: ir.DataType
    alpha: float = 1.0
    bias: Bias | None = None
    tile: str = "MatMul"
    """The operator that each tile is."""
    requantize: Requantize | None = None
    sums: ir.DataType | None = None
    """The element type in which partial sums are added; None where it is `dtype`."""

    @property
    def result_dtype(self) -> ir.DataType:
        """The element type of the result, which is that of the partial sums unless it is quantized."""
        return self.dtype if self.requantize is None else self.requantize.dtype

    @property
    def values(self) -> list[ir.Value]:
        """The operands, the bias, the zero points and the scales."""
        more = () if self.requantize is None else self.requantize.parameters
        others = (self.bias, self.a.zero, self.b.zero, *more)
        return [self.a.value, self.b.value, *(other.value for other in others if other is not None)]

    @property
    def matrices(self) -> bool:
        """Whether factors and result are matrices, so that Gemm could make a tile."""
        return all(len(dims) == 2 for dims in (self.a.dims, self.b.dims, self.dims))

    @property
    def adds_bias(self) -> bool:
        """Whether the bias is read at all: with beta = 0 Gemm leaves it out, whatever it holds."""
        return self.bias is not None and self.bias.beta != 0.0

    @property
    def m(self) -> Dim:
        """Rows of A and of the result."""
        return self.a.size(0)

    @property
    def k(self) -> Dim:
        """Columns of A, rows of B: the axis that is summed over."""
        return self.a.size(1)

    @property
    def n(self) -> Dim:
        """Columns of B and of the result."""
        return self.b.size(1)


@dataclass(frozen=True)
class Facts:
    """What a plug-in may ask about the model; nothing in it changes the model."""

    shapes: ShapeTable = field(repr=False)
    constants: ConstantTable = field(repr=False)
    opset: int
    unbound: Unbound
    """The sizes of the model's inputs that can be bound; inference may invent other symbols."""

    def dims(self, value: ir.Value) -> Dims:
        """Return the dimensions of `value`; a symbol only where all its words can be bound. Raises NotTiled for an unknown rank."""
        dims = self.shapes.dims(value)
        if dims is None:
            raise NotTiled(self.unbound.once_bound(f"the shape of {value.name!r} is not known"))
        return tuple(self._dim(dim) for dim in dims)

    def unknown(self, value: ir.Value, axis: int) -> str:
        """Return why `axis` of `value`, whose size is no number, cannot be cut, and what to bind."""
        dim = (self.shapes.dims(value) or ())[axis]
        bindable = self.unbound.bindable(dim)
        if bindable:
            return f"axis {axis} of {value.name!r} has the size {dim!r}: bind it with {binding(bindable)}"
        return self.unbound.once_bound(f"the size of axis {axis} of {value.name!r} is not known")

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
        """Return the element type of `value`. Raises NotTiled where it is unknown or `operator` does not take it."""
        dtype = self.shapes.dtype(value)
        if dtype is None:
            raise NotTiled(f"the element type of {value.name!r} is not known")
        if dtype not in taken:
            raise NotTiled(f"{operator} does not take the element type {dtype.name.lower()}")
        return dtype

    def require_dtype(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Raise NotTiled where `value` is known to have another element type than `dtype`."""
        if self.shapes.dtype(value) not in {None, dtype}:
            raise NotTiled(f"{value.name!r} has another element type than {dtype.name.lower()}")


class Tileable(ABC):
    """An operator that tile can cut: one instance in one file of onnxtile/tiling/operators."""

    name: str
    """The operator's type."""
    domain: str = ""
    """Its domain, empty for ONNX's own."""
    slides: bool = False
    """Whether it is a convolution, which is cut only where the limits ask for it."""

    @abstractmethod
    def restate(self, node: ir.Node, facts: Facts) -> Any:
        """Return what `node` computes: a Product, or a Convolution. Raises NotTiled with the reason where it cannot be cut."""


def required_input(node: ir.Node, index: int) -> ir.Value:
    """Return input `index` of `node`. Raises NotTiled where it is missing."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise NotTiled(f"its input {index} is missing")
    return value


def require_fit(product: Product) -> Product:
    """Return `product`, its K a number where either operand knows it.

    Raises NotTiled where the sizes of its factors contradict each other or it has no element.
    """
    ka, kb = product.k, product.b.size(0)
    if isinstance(ka, int) and isinstance(kb, int) and ka != kb:
        raise NotTiled(f"its operands do not fit: A has {ka} columns and B has {kb} rows")
    if 0 in (*product.dims, ka, kb):
        raise NotTiled("a product without elements")
    k = kb if isinstance(kb, int) or ka is None else ka
    return replace(product, a=_with_size(product.a, 1, k), b=_with_size(product.b, 0, k))


def require_known(product: Product, limits: Limits, facts: Facts) -> None:
    """Raise NotTiled, and say what to bind, where a limit holds for an axis whose size is no number."""
    a, b = product.a, product.b
    for axis, sides in enumerate(([(a, 0)], [(a, 1), (b, 0)], [(b, 1)])):
        if not limits.needs_size(axis) or any(isinstance(operand.size(side), int) for operand, side in sides):
            continue
        places = [(operand.value, operand.stored_axis(side)) for operand, side in sides]
        raise NotTiled(facts.unknown(*next((place for place in places if facts.can_bind(*place)), places[0])))


def require_batch(product: Product, facts: Facts) -> None:
    """Raise NotTiled, and say what to bind, where the size of a batch is no number, and so no memory that it takes."""
    for operand in (product.a, product.b):
        for axis, size in enumerate(operand.batch):
            if not isinstance(size, int):
                raise NotTiled(facts.unknown(operand.value, axis))


def require_dtypes(factors: Iterable[Operand], limits: Limits) -> None:
    """Raise NotTiled where the limits do not have the element type of a factor."""
    for operand in factors:
        name = np.dtype(operand.dtype.numpy()).name
        if limits.dtypes is not None and name not in limits.dtypes:
            raise NotTiled(
                f"the limits are for {', '.join(sorted(limits.dtypes))}, and {operand.value.name!r} is {name}"
            )


def require_fillable(product: Product, filled: tuple[bool, bool, bool], facts: Facts) -> None:
    """Raise NotTiled where a tile cannot be filled up with zeros; `filled` says along which of M, K and N it would be."""
    m, k, n = filled
    a, b = product.a, product.b
    axes = [(a, 0, m), (a, 1, k), (b, 0, k), (b, 1, n)]
    if b.zero is not None and b.zero.axes[1] is not None:
        axes.append((b.zero, 1, n))
    for operand, side, fills in axes:
        if fills and operand.axes[side] is None:
            raise NotTiled(f"the vector {operand.value.name!r} cannot be filled up to a matrix")
        if fills and not operand.constant and operand.dtype not in FLOATS and facts.opset < 11:
            raise NotTiled(
                f"opset {facts.opset} cannot fill up {operand.value.name!r}, which is no float: raise the model to 11"
            )
    if not k or a.zero is None:
        return
    # Where both factors are filled up, one of them must be so with its zero point for the product to stay as it is.
    if a.constant and not a.zero.constant:
        raise NotTiled(
            f"{a.value.name!r} cannot be filled up with the zero point {a.zero.value.name!r}: that is no constant"
        )


def broadcast(first: Dims, second: Dims) -> Dims:
    """Return the dimensions that two batches broadcast to, as in numpy. Raises NotTiled where they do not."""
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
        raise NotTiled(f"its batches {times_sign(first)} and {times_sign(second)} do not broadcast")
    # A symbol beside a number above 1 is that number or 1; two symbols may each be 1.
    return a if isinstance(a, int) else b if isinstance(b, int) else None


def _with_size(operand: Operand, side: int, size: Dim) -> Operand:
    axis = operand.axes[side]
    if axis is None or operand.dims[axis] == size:
        return operand
    return replace(operand, dims=(*operand.dims[:axis], size, *operand.dims[axis + 1 :]))


def normal_range(dtype: ir.DataType) -> tuple[float, float]:
    """Return the least and the largest positive number that `dtype`, a float, holds to its full precision."""
    info = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    return float(info.smallest_normal), float(info.max)


def epsilon(dtype: ir.DataType) -> float:
    """Return the distance from 1 to the next larger number of `dtype`, a float."""
    return float(ml_dtypes.finfo(dtype.numpy()).eps)  # type: ignore[no-untyped-call]


def as_scalar(factor: float, dtype: ir.DataType) -> Array:
    """Return `factor` in `dtype`, without dimensions."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.asarray(factor, np.float32).astype(dtype.numpy()))


def require_factor(name: str, factor: float, dtype: ir.DataType) -> None:
    """Raise NotTiled unless `dtype` holds `factor` to its full precision; an integer type holds 1 only.

    ONNX does not say how a fraction multiplies integers, and a subnormal has lost digits that the original keeps.
    """
    if dtype in INTEGERS:
        if factor != 1.0:
            raise NotTiled(f"{name} = {factor:g} of an integer product is not defined")
        return
    least, most = normal_range(dtype)
    if factor != 0.0 and not least <= abs(float(as_scalar(factor, dtype))) <= most:
        raise NotTiled(f"{name} = {factor:g} is out of the range of {dtype.name.lower()}")
