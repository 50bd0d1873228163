"""Joins the blocks of the result: by Concat where that copies little, or the arena has room; else by ScatterND into one tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.copies import scatters
from onnxtile.tiling.grid import Axis, TileGrid
from onnxtile.tiling.tensors import TensorDims
from onnxtile.tiling.writer import GridPlace, Writer, label

Numbers: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
"""Numbers of rows."""
LATEST = 2**31
"""An opset that has all operators."""


@dataclass
class TiledResult(ABC):
    """The blocks of the result that are there."""

    writer: Writer
    value: ir.Value | None = None

    @abstractmethod
    def put(self, m: int, at: tuple[int, int], value: ir.Value) -> None:
        """Put in a block: its stretch of M, and its set of groups and stretch of N. After the last one, `value` is the result."""

    def dims(self, m: int, at: tuple[int, int]) -> TensorDims:
        """Return the dimensions of a block, without the zeros that fill it up: its stretch of M, its groups and stretch of N."""
        grid = self.writer.grid
        return block_dims(self.writer, grid.along(m), at[0] * grid.n.count + at[1], filled=False)


def joined(writer: Writer) -> TiledResult:
    """Return the result of `writer` without a block in it."""
    scattered = scatters(writer.contraction, writer.grid, writer.opset)
    return _ScatterResult(writer) if scattered else _ConcatResult(writer)


def nodes_of_any_scatter(blocks: Any) -> Any:
    """Return the most nodes that join so many blocks, a number or an array, by ScatterND."""
    return 3 * blocks


def nodes_of_scatter(contraction: Contraction, grid: TileGrid, opset: int) -> int | None:
    """Return the number of nodes that join the blocks by ScatterND; None where Concat does."""
    if not scatters(contraction, grid, opset):
        return None
    blocks = grid.groups.count * grid.shape[0] * grid.n.count
    row, last = _row(contraction, grid), len(contraction.dims) - 1
    cuts = _last_cuts(contraction, grid)
    size = contraction.dims[last]
    widths = cuts.widths if cuts is not None and cuts.is_cut else [size]
    # The first block has a Pad, and two Reshapes serve all; each other one has an Add and a ScatterND. Rows that are put
    # together first take no more.
    reshaped = sum(width != row for width in widths) * (blocks // len(widths)) - (widths[0] != row)
    return 3 + 2 * (blocks - 1) + reshaped


@dataclass
class _ConcatResult(TiledResult):
    """Blocks put together along N, then along M from its last axis, as soon as they can be."""

    _columns: dict[int, dict[tuple[int, int], ir.Value]] = field(default_factory=dict)
    _rows: dict[int, ir.Value] = field(default_factory=dict)

    def put(self, m: int, at: tuple[int, int], value: ir.Value) -> None:
        """Put in a block: its stretch of M, and its set of groups and stretch of N."""
        grid = self.writer.grid
        pieces = self._columns.setdefault(m, {})
        pieces[at] = value
        if len(pieces) < grid.groups.count * grid.n.count:
            return
        dims = block_dims(self.writer, grid.along(m), None, filled=False)
        place = {"m": m} if grid.cuts_rows else {}
        self._rows[m] = self._concat(
            [pieces[at] for at in sorted(pieces)], self.writer.contraction.column_axis, place, dims
        )
        if len(self._rows) == grid.shape[0]:
            self.value = self._whole()

    def _whole(self) -> ir.Value:
        """Write the Concats along M: rows of a picture from its columns, then the picture from its rows."""
        grid, axes = self.writer.grid, self.writer.contraction.row_axes
        pieces = [self._rows[m] for m in range(grid.shape[0])]
        for position in reversed(range(len(grid.sliding))):
            count = grid.sliding[position].count
            made = []
            for index in range(len(pieces) // count):
                # The stretch of M that comes first says where the piece lies along the axes that are still cut.
                first = index * prod(axis.count for axis in grid.sliding[position:])
                along = (*grid.along(first)[:position], *(None for _ in axes[position:]))
                place = {"row": index} if position else {}
                few = pieces[index * count : (index + 1) * count]
                made.append(
                    self._concat(few, axes[position], place, block_dims(self.writer, along, None, filled=False))
                )
            pieces = made
        return pieces[0]

    def _concat(self, pieces: list[ir.Value], axis: int | None, place: GridPlace, dims: TensorDims) -> ir.Value:
        return self.writer.concat(pieces, axis, place, dims)


@dataclass
class _ScatterResult(TiledResult):
    """Blocks put into one tensor, one after another: it is the first block with zeros around it, until the others overwrite these.

    It is seen as rows as long as all blocks are along the last axis, or a whole part of that. The number of a row is a sum of two terms:
    one is of the column axis, the other of all other axes, so that small constants serve all blocks.
    """

    _places: int = 0
    _terms: dict[tuple[tuple[int, ...], bytes], ir.Value] = field(default_factory=dict)
    _short: dict[int, dict[int, ir.Value]] = field(default_factory=dict)
    """The blocks of each short stretch of M that is not complete yet, by their place along N."""

    def put(self, m: int, at: tuple[int, int], value: ir.Value) -> None:
        """Put in a block: its stretch of M, and its set of groups and stretch of N. After the last one, `value` is the result."""
        grid, contraction = self.writer.grid, self.writer.contraction
        n = at[0] * grid.n.count + at[1]
        self._places += 1
        if self._is_short(m):
            blocks = self._short.setdefault(m, {})
            blocks[n] = value
            if len(blocks) == grid.outputs.count:
                starts, dims = self._range(m, None)
                parts = [blocks[index] for index in sorted(blocks)]
                row = self.writer.concat(parts, contraction.column_axis, {"m": m}, dims)
                self._put(row, (starts, dims), {"m": m})
        else:
            self._put(value, self._range(m, n), {"m": m, "n": n})
        if self._places == grid.outputs.count * grid.shape[0]:
            assert self.value is not None
            self.value = self._reshaped(self.value, "joined", {}, self._sizes)

    def _is_short(self, m: int) -> bool:
        """Return whether all blocks at stretch `m` of M, and a copy of them, take no more than one full block."""
        grid = self.writer.grid
        if not grid.outputs.is_cut or m == 0:
            return False
        full, whole = self._range(0, 0)[1], self._range(m, None)[1]
        return 2 * prod(whole) <= prod(full)

    def _put(self, value: ir.Value, at: tuple[tuple[int, ...], tuple[int, ...]], place: GridPlace) -> None:
        """Put in a block that begins at `at[0]` and has the dimensions `at[1]`."""
        sizes, (starts, dims) = self._sizes, at
        if self.value is None:
            after = [size - start - width for size, start, width in zip(sizes, starts, dims, strict=True)]
            dtype = self.writer.contraction.result_dtype
            whole = self.writer.pad((value, dtype), after, "result", place, sizes, None, before=starts)
            self.value = self._reshaped(whole, "result_rows", {}, (prod(sizes) // self._row, self._row))
        else:
            self.value = self._scattered(self.value, value, at, place)

    def _scattered(
        self, data: ir.Value, block: ir.Value, at: tuple[tuple[int, ...], tuple[int, ...]], place: GridPlace
    ) -> ir.Value:
        dims = at[1]
        shape = (*dims[:-1], dims[-1] // self._row, self._row) if dims[-1] != self._row else dims
        rows = block if shape == dims else self._reshaped(block, "rows", place, shape)
        shape = (*shape[:-1], 1)
        along = self._terms_of(at)
        terms = [
            self._held(numbers, label(f"{name}_places", {axis: place[axis] for axis in (letter,) if axis in place}))
            for numbers, name, letter in zip(along, ("row", "column"), "mn", strict=True)
        ]
        numbers_of = self.writer.node("Add", terms, "places", place, shape, (), ir.DataType.INT64)
        dtype = self.writer.contraction.result_dtype
        dims_of_all = (prod(self._sizes) // self._row, self._row)
        return self.writer.node("ScatterND", [data, numbers_of, rows], "put", place, dims_of_all, (), dtype)

    def _terms_of(self, at: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Numbers]:
        """Return the two terms of the numbers of a block's rows: of all axes but the column axis, and of the column axis.

        The offset of the block is in the term in which it costs the fewest elements in all blocks, or each part of it in its own.
        """
        terms = [self._numbers(at, is_column) for is_column in (False, True)]
        grid = self.writer.grid
        rows, columns = (self._numbers(self._range(0, 0), is_column).size for is_column in (False, True))
        m, n = grid.shape[0], grid.outputs.count
        _, to = min((m * rows + n * columns, 2), (columns + m * n * rows, 0), (rows + m * n * columns, 1))
        if to < len(terms):
            offset = terms[1 - to].flat[0]
            terms = [term + offset if index == to else term - offset for index, term in enumerate(terms)]
        return terms

    def _held(self, numbers: Numbers, stem: str) -> ir.Value:
        """Return the initializer of these numbers; equal ones share it."""
        key = (numbers.shape, numbers.tobytes())
        if key not in self._terms:
            self._terms[key] = self.writer.constant(ir.Tensor(numbers), stem)
        return self._terms[key]

    def _numbers(self, at: tuple[tuple[int, ...], tuple[int, ...]], is_column: bool) -> Numbers:
        """Return what the column axis, or all other axes, add to the numbers of a block's rows; 1 long along the others.

        A block as wide as a row has no axis of rows along the last axis.
        """
        starts, dims = at
        column, last, row = self.writer.contraction.column_axis, len(dims) - 1, self._row
        found = np.zeros((1,) * (last + 2), np.int64)
        for axis, (start, size) in enumerate(zip(starts, dims, strict=True)):
            if (axis == column) is not is_column:
                continue
            step = row if axis == last else 1
            index = np.arange(start // step, (start + size) // step, dtype=np.int64)
            stride = self._strides[axis] if axis != last else row
            found = found + (index * (stride // row)).reshape([-1 if other == axis else 1 for other in range(last + 2)])
        return found.squeeze(last) if dims[-1] == row else found

    def _reshaped(self, value: ir.Value, stem: str, place: GridPlace, dims: TensorDims) -> ir.Value:
        sizes = self.writer.int64s([size for size in dims if isinstance(size, int)], label(f"{stem}_sizes", place))
        return self.writer.node("Reshape", [value, sizes], stem, place, dims, (), self.writer.contraction.result_dtype)

    def _range(self, m: int, n: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where a block begins along each axis, and its dimensions; None is all of N."""
        contraction, grid = self.writer.contraction, self.writer.grid
        starts = [0] * len(contraction.dims)
        axes = (*contraction.row_axes, contraction.column_axis)
        places = (*grid.along(m), n)
        for axis, cuts, index in zip(axes, (*grid.sliding, grid.outputs), places, strict=True):
            if axis is not None and cuts.is_cut and index is not None:
                starts[axis] = cuts.stretch(index).start
        dims = block_dims(self.writer, grid.along(m), n, filled=False)
        return tuple(starts), tuple(size for size in dims if isinstance(size, int))

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(size for size in self.writer.contraction.dims if isinstance(size, int))

    @property
    def _strides(self) -> tuple[int, ...]:
        return tuple(prod(self._sizes[axis + 1 :]) for axis in range(len(self._sizes)))

    @property
    def _row(self) -> int:
        return _row(self.writer.contraction, self.writer.grid)


def _row(contraction: Contraction, grid: TileGrid) -> int:
    """Return the elements of a row: those that begin and end all blocks along the last axis are a whole number of rows apart."""
    size, cuts = contraction.dims[-1], _last_cuts(contraction, grid)
    assert isinstance(size, int)
    stops = [cuts.stretch(index).stop for index in range(cuts.count)] if cuts is not None and cuts.is_cut else []
    return gcd(*stops, size)


def _last_cuts(contraction: Contraction, grid: TileGrid) -> Axis | None:
    """Return the cuts of the last axis of the result; None where it is neither of M nor of N."""
    axes = (*contraction.row_axes, contraction.column_axis)
    cuts = zip(axes, (*grid.sliding, grid.outputs), strict=True)
    return next((each for axis, each in cuts if axis == len(contraction.dims) - 1), None)


def block_dims(writer: Writer, along: tuple[int | None, ...], n: int | None, *, filled: bool = True) -> TensorDims:
    """Return the dimensions of a block of the result, at these stretches of the sliding axes and of N in all groups; None is all.

    With `filled`, they count the zeros that fill up the last stretch.
    """
    contraction, grid = writer.contraction, writer.grid
    dims = list(contraction.dims)
    axes = (*contraction.row_axes, contraction.column_axis)
    for axis, cuts, index in zip(axes, (*grid.sliding, grid.outputs), (*along, n), strict=True):
        if axis is None or not (cuts.is_cut or cuts.fills):
            continue
        if filled:
            dims[axis] = cuts.total if index is None else cuts.width(index)
        elif index is not None:
            stretch = cuts.stretch(index)
            dims[axis] = stretch.stop - stretch.start
    return tuple(dims)
