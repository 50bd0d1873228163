"""A matrix product as tile sees it, whatever operator it stands in, and the plug-ins that see it so."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxtile.runtime import Array

Axes = tuple[int | None, int | None]
"""The axes of a tensor along which a matrix's rows and columns lie; None for a vector, which lacks one of the two."""

FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
INTEGERS = {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
"""Together the element types that MatMul takes (https://onnx.ai/onnx/operators/onnx__MatMul.html)."""

FIRST_OPSET = 7
"""Before it, Gemm and Add broadcast only where an attribute says so, and onnxruntime promises nothing."""


class ShapeTable(Protocol):
    """What is known of values beside the model (onnxtile.model.shapes.Shapes)."""

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, None where it is unknown."""

    def dims(self, value: ir.Value) -> tuple[int | str | None, ...] | None:
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
    """A factor of the product. `dims` and `axes` are those that the product reads, so after a transposition where there is one."""

    value: ir.Value
    dims: tuple[int, ...]
    axes: Axes
    transposed: bool
    constant: bool

    @property
    def stored(self) -> tuple[int, ...]:
        """The dimensions of the value itself."""
        return self.dims[::-1] if self.transposed else self.dims

    def size(self, side: int) -> int:
        """Return the number of rows (side 0) or columns (side 1); 1 where the operand is a vector that lacks them."""
        axis = self.axes[side]
        return 1 if axis is None else self.dims[axis]


@dataclass(frozen=True)
class Bias:
    """What is added last, `beta` times; its dimensions broadcast to those of the product."""

    value: ir.Value
    dims: tuple[int, ...]
    beta: float
    constant: bool


@dataclass(frozen=True)
class Product:
    """alpha · A · B + beta · C, in `dtype`. `dims` and `axes` are those of the result."""

    a: Operand
    b: Operand
    dims: tuple[int, ...]
    axes: Axes
    dtype: ir.DataType
    alpha: float = 1.0
    bias: Bias | None = None

    @property
    def values(self) -> list[ir.Value]:
        """The operands and the bias."""
        return [self.a.value, self.b.value, *([] if self.bias is None else [self.bias.value])]

    @property
    def adds_bias(self) -> bool:
        """Whether the bias is read at all: with beta = 0 Gemm leaves it out, whatever it holds."""
        return self.bias is not None and self.bias.beta != 0.0

    @property
    def m(self) -> int:
        """Rows of A and of the result."""
        return self.a.size(0)

    @property
    def k(self) -> int:
        """Columns of A, rows of B: the axis that is summed over."""
        return self.a.size(1)

    @property
    def n(self) -> int:
        """Columns of B and of the result."""
        return self.b.size(1)


@dataclass(frozen=True)
class Facts:
    """What a plug-in may ask about the model; nothing in it changes the model."""

    shapes: ShapeTable = field(repr=False)
    constants: ConstantTable = field(repr=False)
    opset: int
    symbols: frozenset[str]
    """The symbolic dimensions of the model's inputs: those that can be bound; inference may invent others."""

    def sizes(self, value: ir.Value) -> tuple[int, ...]:
        """Return the dimensions of `value`. Raises NotTiled, and says what to bind, where one is not a number."""
        dims = self.shapes.dims(value)
        if dims is None:
            raise NotTiled(f"the shape of {value.name!r} is not known")
        for axis, dim in enumerate(dims):
            if isinstance(dim, int):
                continue
            bindable = [word for word in re.findall(r"\w+", dim or "") if word in self.symbols]
            if not bindable:
                raise NotTiled(f"the size of axis {axis} of {value.name!r} is not known")
            options = " ".join(f"--dim {symbol}=N" for symbol in dict.fromkeys(bindable))
            raise NotTiled(f"axis {axis} of {value.name!r} has the size {dim!r}: bind it with {options}")
        return tuple(dim for dim in dims if isinstance(dim, int))

    def dtype(self, value: ir.Value) -> ir.DataType:
        """Return the element type of `value`. Raises NotTiled where it is unknown or MatMul does not take it."""
        dtype = self.shapes.dtype(value)
        if dtype is None:
            raise NotTiled(f"the element type of {value.name!r} is not known")
        if dtype not in FLOATS | INTEGERS:
            raise NotTiled(f"MatMul does not take the element type {dtype.name.lower()}")
        return dtype


class Tileable(ABC):
    """An operator that tile can cut: one instance in one file of onnxtile/tile/ops."""

    name: str
    """The operator's type in the standard domain."""

    @abstractmethod
    def restate(self, node: ir.Node, facts: Facts) -> Product:
        """Return what `node` computes as a matrix product. Raises NotTiled with the reason where it is none that can be cut."""


def required_input(node: ir.Node, index: int) -> ir.Value:
    """Return input `index` of `node`. Raises NotTiled where it is missing."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise NotTiled(f"its input {index} is missing")
    return value


def require_fit(product: Product) -> Product:
    """Return `product`. Raises NotTiled where the sizes of its factors contradict each other or it has no element."""
    if product.b.size(0) != product.k:
        raise NotTiled(f"its operands do not fit: A has {product.k} columns and B has {product.b.size(0)} rows")
    if 0 in (product.m, product.k, product.n):
        raise NotTiled("a product without elements")
    return product


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
