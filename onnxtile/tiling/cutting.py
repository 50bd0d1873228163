"""How a tensor is cut into blocks: along which axes, and at which places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtile.tiling.contraction import TensorOperand
from onnxtile.tiling.grid import Axis
from onnxtile.tiling.tensors import TensorDims


@dataclass(frozen=True)
class Cutting:
    """An operand with the cuts of its rows and columns. `letters` name the operand and the two axes, as in ("b", "k", "n")."""

    operand: TensorOperand
    rows: Axis
    columns: Axis
    letters: tuple[str, str, str]
    scale: float = 1.0
    """The factor that multiplies the blocks of a constant when they are written."""

    @property
    def is_cut(self) -> bool:
        """Whether there is more than one block, or one that is filled up."""
        return self.rows.is_cut or self.columns.is_cut or self.fills

    @property
    def fills(self) -> bool:
        """Whether zeros fill up the last blocks."""
        return self.rows.fills or self.columns.fills

    def dims(self, row: int | None, column: int | None) -> TensorDims:
        """Return the dimensions of a block; None means the whole side."""
        dims = list(self.operand.dims)
        for axis, cuts, index in zip(self.operand.axes, (self.rows, self.columns), (row, column), strict=True):
            if axis is not None and (cuts.is_cut or cuts.fills):
                dims[axis] = cuts.total if index is None else cuts.width(index)
        return tuple(dims)

    def place(self, row: int, column: int) -> tuple[int, int]:
        """Return the place of a block; 0 along a side that the operand lacks."""
        first, second = self.operand.axes
        return 0 if first is None else row, 0 if second is None else column

    def filling(self, dims: Sequence[int], row: int, column: int) -> list[tuple[int, int]]:
        """Return how many elements fill up a block that has `dims` without them, before and after, along each axis."""
        missing = [(0, 0)] * len(dims)
        for axis, cuts, index in zip(self.operand.axes, (self.rows, self.columns), (row, column), strict=True):
            if axis is not None and cuts.fills:
                missing[axis] = (0, cuts.width(index) - dims[axis])
        return missing

    def slices(self, row: int, column: int) -> tuple[slice, ...]:
        """Return the index of a block in the operand as the product reads it."""
        index = [slice(None)] * len(self.operand.dims)
        for axis, cuts, i in zip(self.operand.axes, (self.rows, self.columns), (row, column), strict=True):
            if axis is not None:
                index[axis] = cuts.stretch(i)
        return tuple(index)


def cut_sides(cutting: Cutting) -> list[int]:
    """Return the sides, 0 rows and 1 columns, along which an operand is cut into several blocks."""
    cuts = (cutting.rows, cutting.columns)
    return [side for side in (0, 1) if cutting.operand.axes[side] is not None and cuts[side].is_cut]


def is_contiguous(dims: TensorDims, axis: int) -> bool:
    """Return whether the parts of a tensor of `dims` along `axis` lie one after another in memory."""
    return all(size == 1 for size in dims[:axis])
