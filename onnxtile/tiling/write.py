"""Writes a contraction as tiles within the limits, sums of partial sums, and Concats along N, then along M from its last axis.

alpha goes into the blocks of a constant operand where it can without loss, else it multiplies the result. A bias of any shape is
added last, by one Add on the whole result: it needs no cut, each element is rounded as in Gemm, and it costs one node where an Add
for each block would cost as many as the result has blocks. A bias that the tile's own operator takes goes into the last tile of each
sum: beside a large one, each partial sum before it would be rounded to the steps of the bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import field
from functools import cached_property
from math import gcd, prod
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.model.graph_writer import GridPlace, label
from onnxtile.operators.node_view import Dims, KnownConstants
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array
from onnxtile.tiling.blocks import (
    BlockCache,
    Blocks,
    ConstantBlocks,
    PackedBlocks,
    RuntimeBlocks,
    WholeBlock,
    blocks_of,
    input_windows,
    scaled,
    times,
    windows_of,
)
from onnxtile.tiling.contraction import (
    Axes,
    Bias,
    Contraction,
    Requantize,
    TensorOperand,
    as_scalar,
)
from onnxtile.tiling.grid import Axis, Cutting, Nest, TileGrid, is_contiguous, loads
from onnxtile.tiling.limits import Accumulation
from onnxtile.tiling.writer import PartialSums, Writer, additions, fitting, keeps_copies, scatters

# Joins the blocks of the result: by Concat where that copies little, or the arena has room; else by ScatterND into one tensor.

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

    def dims(self, m: int, at: tuple[int, int]) -> Dims:
        """Return the dimensions of a block, without the zeros that fill it up: its stretch of M, its groups and stretch of N."""
        grid = self.writer.grid
        return self.writer.result.block((*grid.along(m), at[0] * grid.n.count + at[1]), filled=False)


NODES_OF_SCATTER = 3
"""The most nodes that join one block by ScatterND."""


def nodes_of_scatter(contraction: Contraction, grid: TileGrid, opset: int) -> int | None:
    """Return the number of nodes that join the blocks by ScatterND; None where Concat does."""
    if not scatters(contraction, grid, opset):
        return None
    blocks = grid.groups.count * grid.shape[0] * grid.n.count
    row, cuts = _row(contraction, grid)
    widths = [contraction.dims[-1]] if cuts is None else cuts.widths
    # The first block has a Pad, and two Reshapes serve all; each other one has an Add and a ScatterND. Rows that are put
    # together first take no more.
    reshaped = sum(width != row for width in widths) * (blocks // len(widths)) - (widths[0] != row)
    return 3 + 2 * (blocks - 1) + reshaped


def _row(contraction: Contraction, grid: TileGrid) -> tuple[int, Axis | None]:
    """Return the elements of a row, and the cuts of the last axis where there are some.

    The elements that begin and end all blocks along the last axis are a whole number of rows apart.
    """
    size, (axes, cuts) = contraction.dims[-1], grid.of_result(contraction)
    assert isinstance(size, int)
    last = next((each for axis, each in zip(axes, cuts, strict=True) if axis == len(contraction.dims) - 1), None)
    if last is None or not last.is_cut:
        return size, None
    return gcd(*(last.stretch(index).stop for index in range(last.count)), size), last


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
        dims = self.writer.result.block((*grid.along(m), None), filled=False)
        position = {"m": m} if grid.cuts_rows else {}
        axis = self.writer.contraction.column_axis
        self._rows[m] = self.writer.concat([pieces[at] for at in sorted(pieces)], axis, position, dims)
        if len(self._rows) == grid.shape[0]:
            self.value = self._whole()

    def _whole(self) -> ir.Value:
        """Write the Concats along M: rows of a picture from its columns, then the picture from its rows."""
        grid, axes = self.writer.grid, self.writer.contraction.row_axes
        pieces = [self._rows[m] for m in range(grid.shape[0])]
        for position in reversed(range(len(grid.sliding))):
            count = grid.sliding[position].count
            joined = []
            for index in range(len(pieces) // count):
                # The stretch of M that comes first says where the piece lies along the axes that are still cut.
                first = index * prod(axis.count for axis in grid.sliding[position:])
                along = (*grid.along(first)[:position], *(None for _ in axes[position:]), None)
                few = pieces[index * count : (index + 1) * count]
                dims = self.writer.result.block(along, filled=False)
                joined.append(self.writer.concat(few, axes[position], {"row": index} if position else {}, dims))
            pieces = joined
        return pieces[0]


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

    def _put(self, value: ir.Value, at: tuple[tuple[int, ...], tuple[int, ...]], position: GridPlace) -> None:
        """Put in a block that begins at `at[0]` and has the dimensions `at[1]`."""
        sizes, (starts, dims) = self._sizes, at
        if self.value is None:
            after = [size - start - width for size, start, width in zip(sizes, starts, dims, strict=True)]
            dtype = self.writer.contraction.result_dtype
            whole = self.writer.pad((value, dtype), after, "result", position, sizes, None, before=starts)
            self.value = self._reshaped(whole, "result_rows", {}, (prod(sizes) // self._row, self._row))
        else:
            self.value = self._scattered(self.value, value, at, position)

    def _scattered(
        self, data: ir.Value, block: ir.Value, at: tuple[tuple[int, ...], tuple[int, ...]], position: GridPlace
    ) -> ir.Value:
        dims = at[1]
        shape = (*dims[:-1], dims[-1] // self._row, self._row) if dims[-1] != self._row else dims
        rows = block if shape == dims else self._reshaped(block, "rows", position, shape)
        shape = (*shape[:-1], 1)
        along = self._terms_of(at)
        terms = [
            self._shared_constant(
                numbers, label(f"{name}_places", {axis: position[axis] for axis in (letter,) if axis in position})
            )
            for numbers, name, letter in zip(along, ("row", "column"), "mn", strict=True)
        ]
        numbers_of = self.writer.node("Add", terms, "places", position, shape, (), ir.DataType.INT64)
        dtype = self.writer.contraction.result_dtype
        dims_of_all = (prod(self._sizes) // self._row, self._row)
        return self.writer.node("ScatterND", [data, numbers_of, rows], "put", position, dims_of_all, (), dtype)

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

    def _shared_constant(self, numbers: Numbers, stem: str) -> ir.Value:
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
        numbers = np.zeros((1,) * (last + 2), np.int64)
        for axis, (start, size) in enumerate(zip(starts, dims, strict=True)):
            if (axis == column) is not is_column:
                continue
            step = row if axis == last else 1
            index = np.arange(start // step, (start + size) // step, dtype=np.int64)
            stride = self._strides[axis] if axis != last else row
            numbers = numbers + (index * (stride // row)).reshape(
                [-1 if other == axis else 1 for other in range(last + 2)]
            )
        return numbers.squeeze(last) if dims[-1] == row else numbers

    def _reshaped(self, value: ir.Value, stem: str, position: GridPlace, dims: Dims) -> ir.Value:
        sizes = self.writer.int64s([size for size in dims if isinstance(size, int)], label(f"{stem}_sizes", position))
        return self.writer.node(
            "Reshape", [value, sizes], stem, position, dims, (), self.writer.contraction.result_dtype
        )

    def _range(self, m: int, n: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where a block begins along each axis, and its dimensions; None is all of N."""
        result, position = self.writer.result, (*self.writer.grid.along(m), n)
        starts = tuple(part.start or 0 for part in result.slices(position))
        dims = result.block(position, filled=False)
        return starts, tuple(size for size in dims if isinstance(size, int))

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(size for size in self.writer.contraction.dims if isinstance(size, int))

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        return tuple(prod(self._sizes[axis + 1 :]) for axis in range(len(self._sizes)))

    @cached_property
    def _row(self) -> int:
        return _row(self.writer.contraction, self.writer.grid)[0]


# From the int32 sum of a block to its result: plus the bias, scaled, rounded to even, shifted by the zero point, saturated.

ONCE = 7
"""The most nodes that make the factor and cut bias and factor, save what each block takes."""
EACH = 4
"""The most nodes that one block takes."""
_ONE = Axis(1, 1)
_Addend: TypeAlias = tuple[ir.Value, Dims, Array | None]
"""A value that broadcasts to the result, its dimensions, and its elements where they are constant."""


@dataclass(frozen=True)
class BlockRequantizer:
    """Requantizes one finished block after another, so that no more than one of them is in int32.

    onnxruntime's kernels multiply once, by alpha · a_scale · b_scale / y_scale, computed in float32 from the left. So do these nodes,
    and their results are equal to the last bit.
    """

    writer: Writer
    how: Requantize
    bias: Blocks | None
    factor: Blocks
    one: ir.Value | None
    zero: ir.Value | None

    @classmethod
    def from_writer(cls, writer: Writer, how: Requantize, constants: KnownConstants) -> BlockRequantizer:
        """Return the steps for the blocks that `writer` writes."""
        bias = writer.contraction.bias
        one = zero = None
        if how.y_zero is not None:
            one, zero = writer.constant(ir.Tensor(np.ones((), np.float32)), "one"), how.y_zero.value
            if how.y_zero.constant:
                zero = writer.constant(ir.Tensor(constants.array(zero).reshape(())), "y_zero")
        addend = None
        if bias is not None:
            elements = constants.array(bias.value) if bias.constant else None
            addend = _blocks(writer, (bias.value, bias.dims, elements), "bias")
        return cls(writer, how, addend, _blocks(writer, _factor(writer, how, constants), "factor"), one, zero)

    def finish(self, total: ir.Value, at: tuple[int, int], position: GridPlace, dims: Dims) -> ir.Value:
        """Write the steps on the block of `dims` at stretches `at` of rows and columns; return its result."""
        if self.bias is not None:
            total = self.writer.node("Add", [total, self.bias.block(*at)], "bias", position, dims)
        to = ir.AttrInt64("to", int(ir.DataType.FLOAT))
        wide = self.writer.node("Cast", [total], "to_float", position, dims, [to], ir.DataType.FLOAT)
        scaled = self.writer.node("Mul", [wide, self.factor.block(*at)], "scale", position, dims, (), ir.DataType.FLOAT)
        if self.zero is None:
            return scaled
        return self.writer.node(
            "QuantizeLinear", [scaled, self.one, self.zero], "quantize", position, dims, (), self.how.dtype
        )


def _blocks(writer: Writer, addend: _Addend, stem: str) -> Blocks:
    """Return the part of a value that broadcasts to the result, for each of its blocks."""
    contraction, grid = writer.contraction, writer.grid
    value, dims, array = _over_pixels(writer, addend, stem)
    rank = len(contraction.dims)
    aligned = (1,) * (rank - len(dims)) + dims

    def axis_of(axis: int | None) -> int | None:
        return None if axis is None or aligned[axis] == 1 else axis - rank + len(dims)

    rows = None if contraction.windows else axis_of(contraction.row_axes[0])
    axes: Axes = (rows, axis_of(contraction.column_axis))
    dtype = value.dtype or contraction.dtype if array is None else ir.DataType.from_numpy(array.dtype)
    operand = TensorOperand(value, dims, dtype, array is not None, axes)
    cutting = Cutting(operand, _ONE if rows is None else grid.rows, grid.outputs, (stem, "m", "n"))
    cut = any(
        axis is not None and (cuts.is_cut or cuts.fills) for axis, cuts in zip(axes, cutting.read.cuts, strict=True)
    )
    if array is None:
        return RuntimeBlocks(cutting, writer) if cut else WholeBlock(value)
    if not cut:
        return WholeBlock(writer.constant(ir.Tensor(array), stem))
    return ConstantBlocks(cutting, writer, read=lambda: array)


def _over_pixels(writer: Writer, addend: _Addend, stem: str) -> _Addend:
    """Return a value with one number for each output channel so that it broadcasts to a convolution's result; others as they are."""
    value, dims, array = addend
    spatial = (1,) * len(writer.contraction.sliding)
    if not writer.contraction.windows or not dims:
        return addend
    if array is not None:
        shaped = array.reshape(-1, *spatial)
        return value, shaped.shape, shaped
    dims = (*dims[:1], *spatial)
    sizes = writer.int64s([-1, *spatial], f"{stem}_sizes")
    dtype = value.dtype or ir.DataType.FLOAT
    return writer.node("Reshape", [value, sizes], f"{stem}_channels", {}, dims, (), dtype), dims, None


def _factor(writer: Writer, how: Requantize, constants: KnownConstants) -> _Addend:
    """Return the factor of each finished block; nodes compute it where a scale is known only when the model runs."""
    if all(scale.constant for scale in how.scales):
        # A single number has no dimensions, so that it fits a result of any rank.
        arrays = (constants.array(scale.value).astype(np.float32, copy=False) for scale in how.scales)
        a, b, *y = (array.reshape(()) if array.size == 1 else array for array in arrays)
        product = np.float32(how.alpha) * a * b if how.alpha != 1.0 else a * b
        array = np.asarray(product / y[0] if y else product, np.float32)
        return how.b_scale.value, array.shape, array
    factor, dims = how.a_scale.value, how.a_scale.dims
    if how.alpha != 1.0:
        alpha = writer.constant(ir.Tensor(np.asarray(how.alpha, np.float32)), "alpha_factor")
        factor = writer.node("Mul", [alpha, factor], "scale_alpha", {}, dims, (), ir.DataType.FLOAT)
    for op, scale, stem in (("Mul", how.b_scale, "scale_ab"), ("Div", how.y_scale, "scale_y")):
        if scale is not None:
            dims = max((dims, scale.dims), key=lambda sizes: (len(sizes), sizes))
            factor = writer.node(op, [factor, scale.value], stem, {}, dims, (), ir.DataType.FLOAT)
    return factor, dims, None


def write_tiles(
    writer: Writer,
    constants: KnownConstants,
    cache: BlockCache,
    graph: ir.Graph,
    how: Accumulation = Accumulation.CHAIN,
) -> ir.Value:
    """Write the tiled contraction; return its result, which is the output of the last node of `writer`.

    The nodes are in loop order, with K innermost unless the grid differs. Each Split comes before the first use of a part, each sum
    after its last partial sum, each Concat after its last block.
    """
    contraction, grid = writer.contraction, writer.grid
    cut = _CutOperands.from_writer(writer, constants, cache, graph)
    how_quantized = contraction.requantize
    quantizer = None if how_quantized is None else BlockRequantizer.from_writer(writer, how_quantized, constants)
    result = (_ScatterResult if scatters(contraction, grid, writer.opset) else _ConcatResult)(writer)
    way = fitting(how, contraction)
    blocks: dict[tuple[int, int, int], PartialSums] = {}
    added: Counter[tuple[int, int, int]] = Counter()
    for group, m, k, n in grid.positions():
        at = (group, m, n)
        if at not in blocks:
            position = ({"g": group} if grid.groups.is_cut else {}) | {"m": m, "n": n}
            dims = writer.result.block((*grid.along(m), group * grid.n.count + n))
            blocks[at] = PartialSums(way, writer, position, dims)
        inputs = cut.inputs((group, m, k, n), is_last=added[at] == grid.k.count - 1)
        blocks[at].multiply(inputs, k, cut.attributes((group, m, k, n)))
        added[at] += 1
        if added[at] == grid.k.count:
            block = blocks.pop(at)
            value = block.result()
            if quantizer is not None:
                value = quantizer.finish(value, (m, group * grid.n.count + n), block.position, block.dims)
            result.put(m, (group, n), writer.cut_off(value, block.position, block.dims, result.dims(m, (group, n))))
    assert result.value is not None
    return _finished(writer, result.value, cut.alpha, constants)


def _finished(writer: Writer, value: ir.Value, alpha: float, constants: KnownConstants) -> ir.Value:
    """Write the steps on the whole result: multiply by `alpha`, add the bias."""
    contraction, result = writer.contraction, value
    if alpha != 1.0:
        factor = writer.constant(ir.Tensor(as_scalar(alpha, contraction.dtype), contraction.dtype), "alpha_factor")
        result = writer.node("Mul", [result, factor], "alpha", {}, contraction.dims)
    if contraction.requantize is None and contraction.bias is not None and contraction.adds_bias:
        addend = _times_beta(writer, contraction.bias, constants)
        result = writer.node("Add", [result, addend], "bias", {}, contraction.dims)
    return result


def most_nodes(
    contraction: Contraction, grid: TileGrid, how: Accumulation = Accumulation.CHAIN, opset: int = LATEST
) -> int:
    """Return the number of nodes that `write_tiles` writes, at most: whether alpha needs one more only the constants decide."""
    counts = (grid.groups.count, tuple(axis.count for axis in grid.sliding), grid.k.count, grid.n.count)
    joins, once = nodes_of_scatter(contraction, grid, opset), keeps_copies(contraction, grid, opset)
    reads = reads_of(counts, None if once else grid.order)
    if grid.outer_order is not None and not once:
        nest, steps = Nest.of_grid(grid), [axis.outer or 1 for axis in (grid.rows, grid.k, grid.n)]
        reads = nest.loads("mk", steps, grid.order), nest.loads("kn", steps, grid.order)
    outer = (grid.k.outer_count, len(grid.k.inside(0)))
    return int(count_nodes(contraction, counts, reads, how, fills=grid.fills, joins=joins, outer=outer))


def reads_of(counts: tuple[Any, tuple[Any, ...], Any, Any], order: str | None) -> tuple[Any, Any]:
    """Return how often tiles of one level read another block of left and right operand, of so many stretches; without order, each once."""
    groups, sliding, gk, gn = counts
    gm = prod(sliding[1:], start=sliding[0])
    if order is None:
        return groups * gm * gk, groups * gk * gn
    each = {"m": gm, "k": gk, "n": gn}
    return groups * loads("mk", order, each), groups * loads("kn", order, each)


def count_nodes(
    contraction: Contraction,
    counts: tuple[Any, tuple[Any, ...], Any, Any],
    reads: tuple[Any, Any],
    how: Accumulation,
    *,
    fills: bool = False,
    joins: Any = None,
    outer: tuple[Any, Any] = (1, 1),
) -> Any:
    """Return that number for so many stretches of groups, sliding axes, K and N, numbers or arrays; with `fills`, zeros fill some up.

    `reads` is how often the tiles go on to another block of the left and of the right operand. `outer` are the outer stretches of K, and
    the stretches in a full one.
    """
    groups, sliding, gk, gn = counts
    gm = prod(sliding[1:], start=sliding[0])
    tiles = groups * gm * gk * gn
    sums = groups * gm * gn * additions(how, gk, contraction, outer)
    columns, last = groups * gn, sliding[-1]
    concats = (columns > 1) * gm + (last > 1) * (gm // last) + (gm > last) * 1
    joining = concats if joins is None else np.where(gm * columns > 1, joins, 0)
    left = _cuts(contraction.left, (gm, groups * gk), reads[0], windows=contraction.windows)
    right = _cuts(contraction.right, (groups * gk, gn) if contraction.groups_in_k else (gk, columns), reads[1])
    filling = (reads[0] + reads[1] + gm * columns) if fills else 0
    finishing = 0 if contraction.requantize is None else EACH * gm * columns + ONCE
    return tiles + sums + joining + left + right + filling + finishing + _once(contraction, gm, columns)


def _once(contraction: Contraction, gm: Any, columns: Any) -> Any:
    """Return how many nodes the whole result takes, and zero points and biases that are cut along N, at most."""
    bias = contraction.bias
    beta = bias is not None and bias.beta != 1.0 and not bias.constant
    zero = contraction.right.zero
    cut = [zero] if zero is not None and zero.axes[1] is not None else []
    cut += [] if contraction.tile_bias is None else [contraction.tile_bias]
    whole = (contraction.alpha != 1.0) + (1 + beta if contraction.adds_bias else 0)
    blocks = gm * columns if contraction.requantize is not None and bias is not None and not bias.constant else 0
    return sum(_cuts(operand, (1, columns), gm * columns) for operand in cut) + blocks + whole


def _cuts(operand: TensorOperand, counts: tuple[Any, Any], reads: Any, *, windows: bool = False) -> Any:
    """Return how many nodes cut an operand into as many rows and columns of blocks as `counts` says, at most.

    `reads` is how often the tiles, in their order, go on to another block; each time they do, a Slice copies that one.
    """
    blocks = counts[0] * counts[1]
    if operand.constant and not windows:
        # Each block of a quantized constant has its DequantizeLinear.
        return 0 if operand.dequantize is None else ((blocks > 1) | operand.transposed) * blocks
    cut = [count > 1 for count in counts]
    split = [
        axis is not None and not (windows and side == 0) and is_contiguous(operand.stored, operand.stored_axis(side))
        for side, axis in enumerate(operand.axes)
    ]
    at_once = (cut[0] & split[0]) | (cut[1] & split[1] & np.logical_not(cut[0] if windows else False))
    slices = (cut[0] & (not split[0])) | (cut[1] & (not split[1])) | (cut[0] & cut[1])
    turned = operand.transposed * np.where(cut[0] | cut[1], reads, 1)
    return at_once * 1 + slices * reads + turned


@dataclass(frozen=True)
class _CutOperands:
    """The cut operands of one contraction, and the factor that is left to multiply the result by."""

    writer: Writer
    left: Blocks
    right: Blocks
    zeros: tuple[Blocks | None, Blocks | None]
    bias: Blocks | None
    alpha: float

    @classmethod
    def from_writer(cls, writer: Writer, constants: KnownConstants, cache: BlockCache, graph: ir.Graph) -> _CutOperands:
        """Return the operands, blocks of constants cut when the model is written."""
        contraction, grid, alpha = writer.contraction, writer.grid, writer.contraction.alpha
        name, other = contraction.letters
        rows = _ONE if contraction.windows else grid.rows
        a = Cutting(contraction.left, rows, grid.inputs, (name, "m", "k"))
        in_k = contraction.groups_in_k
        b = Cutting(
            contraction.right,
            grid.inputs if in_k else grid.k,
            grid.n if in_k else grid.outputs,
            (other, "k", "n"),
        )
        if alpha != 1.0 and (folded := scaled(b, alpha, constants, contraction.dtype)) is not None:
            b, alpha = folded, 1.0
        elif alpha != 1.0 and (folded := scaled(a, alpha, constants, contraction.dtype)) is not None:
            a, alpha = folded, 1.0

        def blocks(cutting: Cutting) -> Blocks:
            return blocks_of(cutting, writer, constants, cache, graph=graph)

        def along_n(operand: TensorOperand | None, stem: str) -> Blocks | None:
            return None if operand is None else blocks(Cutting(operand, _ONE, grid.outputs, (stem, "k", "n")))

        return cls(
            writer,
            windows_of(a, writer) if contraction.windows else blocks(a),
            blocks(b),
            (
                _single(writer, contraction.left.zero, constants),
                _single(writer, contraction.right.zero, constants) or along_n(contraction.right.zero, f"{other}_zero"),
            ),
            along_n(contraction.tile_bias, "bias"),
            alpha,
        )

    def inputs(self, position: tuple[int, int, int, int], *, is_last: bool) -> list[ir.Value | None]:
        """Return the inputs of a tile: its factors, then the bias in the last tile of a sum, or zero points up to the last there is."""
        grid = self.writer.grid
        group, m, k, n = position
        at_k, at_n = group * grid.k.count + k, group * grid.n.count + n
        in_k = self.writer.contraction.groups_in_k
        left = self.left.block(m, at_k)
        right = self.right.block(at_k, n) if in_k else self.right.block(k, at_n)
        more = list(self.zeros) if self.bias is None else [self.bias if is_last else None]
        while more and more[-1] is None:
            more.pop()
        values = (None if blocks is None else blocks.block(0, at_n) for blocks in more)
        packed = self.right.parameters(k, at_n) if isinstance(self.right, PackedBlocks) else []
        return [left, right, *packed, *values]

    def attributes(self, position: tuple[int, int, int, int]) -> list[ir.Attr]:
        """Return the attributes of a tile at (group, m, k, n), among them the padding that falls to it."""
        contraction, grid = self.writer.contraction, self.writer.grid
        group, m, k, n = position
        if isinstance(self.right, PackedBlocks):
            return [*contraction.attributes, *self.right.attributes(k, n)]
        if not contraction.windows:
            return []
        groups = ir.AttrInt64("group", grid.groups.width(group))
        if not grid.cuts_rows:
            return [groups, *contraction.attributes, *contraction.padding]
        windows = input_windows(self.writer, m)
        pads = ir.AttrInt64s("pads", [w.before for w in windows] + [w.after for w in windows])
        extra = [w.extra for w in windows]
        more = [ir.AttrInt64s("output_padding", extra)] if any(extra) else []
        return [groups, *contraction.attributes, pads, *more]


def _single(writer: Writer, zero: TensorOperand | None, constants: KnownConstants) -> Blocks | None:
    """Return a zero point that is a single number, or many equal ones; None where there is none, or one for each column."""
    if zero is None or not zero.is_single:
        return None
    if zero.dims in {(), (1,)}:
        return WholeBlock(zero.value)
    return WholeBlock(writer.constant(ir.Tensor(constants.array(zero.value).flat[0]), "zero"))


def _times_beta(writer: Writer, bias: Bias, constants: KnownConstants) -> ir.Value:
    dtype = writer.contraction.dtype
    if bias.beta == 1.0:
        return bias.value
    if bias.constant:
        array = times(constants.array(bias.value), bias.beta, dtype)
        return writer.constant(ir.Tensor(array, dtype), "c")
    factor = writer.constant(ir.Tensor(as_scalar(bias.beta, dtype), dtype), "beta_factor")
    return writer.node("Mul", [bias.value, factor], "beta", {}, bias.dims)
