"""Sizes of tensors, known and unknown, and the tables of shapes and constants that tiling reads."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir

from onnxtile.runtime import Array

AxisSize = int | str | None
"""A size in elements, the symbols of a size known only when the model runs, or None where nothing is known."""
TensorDims = tuple[AxisSize, ...]
WITHIN = "within the limits"
"""The reason why a node that no limit asks to be cut is left as it is."""


class NotTiled(Exception):
    """Why a node is left as it is; the reason is one line for the user."""


class ShapeTable(Protocol):
    """Element types and shapes of values, beside the model (onnxtile.model.shapes.Shapes)."""

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, None where it is unknown."""

    def dims(self, value: ir.Value) -> TensorDims | None:
        """Return the dimensions: a number, a symbol's name, or None; None as a whole where the rank is unknown."""


class ConstantTable(Protocol):
    """Which values are constant, and the elements of each (onnxtile.model.constants.Constants)."""

    def __contains__(self, value: ir.Value | None) -> bool: ...

    def array(self, value: ir.Value) -> Array:
        """Return the elements of a constant value, which must not be written to."""


class NoConstants:
    """The constants inside a function body, whose weights are inputs of the function: none."""

    def __contains__(self, value: ir.Value | None) -> bool:
        return False

    def array(self, value: ir.Value) -> Array:
        """Raise KeyError."""
        raise KeyError(value.name)


def broadcast(first: TensorDims, second: TensorDims) -> TensorDims:
    """Return the dimensions that two batches broadcast to, as in numpy. Raises NotTiled where they do not."""
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
        raise NotTiled(f"its batches {times_sign(first)} and {times_sign(second)} do not broadcast")
    # A symbol beside a number above 1 is that number or 1; two symbols may each be 1.
    return a if isinstance(a, int) else b if isinstance(b, int) else None
