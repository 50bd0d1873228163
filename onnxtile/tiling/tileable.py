"""The plug-ins that state an operator as a contraction, and the facts of a model that they may ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxtile.model.binding import Unbound, binding
from onnxtile.operators.node_view import KnownConstants, NotApplicable
from onnxtile.operators.reads import AxisSize
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import Contraction, ShapeTable, TensorDims

# Element types of factors and sums, and the numbers that they hold.

FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
"""Floats of 16 bits, whose partial sums may leave their range."""
INTEGERS = {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
"""With `FLOATS`, the element types that MatMul takes (https://onnx.ai/onnx/operators/onnx__MatMul.html)."""
BYTES = {ir.DataType.INT8, ir.DataType.UINT8}
"""The element types of quantized factors."""


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


FIRST_OPSET = 7
"""Before it, Gemm and Add broadcast only where an attribute says so, and onnxruntime promises nothing."""


FreeAt: TypeAlias = Callable[[ir.Node], int]
"""Returns the bytes of the arena that no tensor takes while a node runs, before any node is tiled."""


def none_known(_: ir.Node) -> int:
    """Return 0, where the free bytes of the arena are not known."""
    return 0


@dataclass(frozen=True)
class TilingFacts:
    """The facts that a plug-in may ask for; nothing in them changes the model."""

    shapes: ShapeTable = field(repr=False)
    constants: KnownConstants = field(repr=False)
    opset: int
    unbound: Unbound
    """The sizes of the model's inputs that can be bound; inference may invent other symbols."""
    free: FreeAt = none_known
    """The bytes of the arena that are free while a node runs."""

    def dims(self, value: ir.Value) -> TensorDims:
        """Return the dimensions of `value`; a symbol only where all its words can be bound. Raises NotApplicable for an unknown rank."""
        dims = self.shapes.dims(value)
        if dims is None:
            raise NotApplicable(self.unbound.once_bound(f"the shape of {value.name!r} is not known"))
        return tuple(self._dim(dim) for dim in dims)

    def known_dims(self, value: ir.Value) -> tuple[int, ...]:
        """Return the dimensions of `value`. Raises NotApplicable, with the dimension to bind, where one is not known."""
        dims = self.dims(value)
        sizes = tuple(dim for dim in dims if isinstance(dim, int))
        if len(sizes) < len(dims):
            raise NotApplicable(self.unknown(value, next(i for i, dim in enumerate(dims) if not isinstance(dim, int))))
        return sizes

    def unknown(self, value: ir.Value, axis: int) -> str:
        """Return why `axis` of `value`, whose size is not known, cannot be cut, and the dimension to bind."""
        dim = (self.shapes.dims(value) or ())[axis]
        bindable = self.unbound.bindable(dim)
        if bindable:
            return f"axis {axis} of {value.name!r} has the size {dim!r}: bind it with {binding(bindable)}"
        return self.unbound.once_bound(f"the size of axis {axis} of {value.name!r} is not known")

    def can_bind(self, value: ir.Value, axis: int) -> bool:
        """Return whether symbols of the model's inputs decide `axis` of `value`."""
        return bool(self.unbound.bindable((self.shapes.dims(value) or ())[axis]))

    def _dim(self, dim: AxisSize) -> AxisSize:
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
            raise NotApplicable(f"the element type of {value.name!r} is not known")
        if dtype not in taken:
            raise NotApplicable(f"{operator} does not take the element type {dtype.name.lower()}")
        return dtype

    def require_dtype(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Raise NotApplicable where `value` is known to have another element type than `dtype`."""
        if self.shapes.dtype(value) not in {None, dtype}:
            raise NotApplicable(f"{value.name!r} has another element type than {dtype.name.lower()}")


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
    value = node.inputs[index] if index < len(node.inputs) else None
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
