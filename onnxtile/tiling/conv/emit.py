"""Writes a convolution as smaller ones: windows of the input by Slice, its channels by Split, partial sums, Concats.

Each tile keeps the strides and dilations and gets the padding that falls to it. The bias goes into the first tile of each sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxtile.tiling.accumulate import Accumulation, Block, additions, block, fitting
from onnxtile.tiling.blocks import BlockCache, Blocks, Cutting, SplitBlocks, WholeBlock, blocks_of
from onnxtile.tiling.conv.grid import ConvGrid
from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.conv.slide import Window
from onnxtile.tiling.grid import Axis, outer_side
from onnxtile.tiling.product import ConstantTable, Dims
from onnxtile.tiling.writer import Place, Writer, label

ConvWriter: TypeAlias = Writer[Convolution, ConvGrid]
_ONE = Axis(1, 1)
_FIRST_SPATIAL = 2
_CHANNEL_AXIS = 1


def emit(
    writer: ConvWriter, constants: ConstantTable, cache: BlockCache, graph: ir.Graph, how: Accumulation
) -> ir.Value:
    """Write the tiled convolution; return its result, which is the output of the last node of `writer`."""
    grid = writer.grid
    parts = _Parts.of(writer, constants, cache, graph)
    picture = _Picture(writer)
    for group in range(grid.groups.count):
        blocks: dict[tuple[int, int], Block] = {}
        for m, k, n in (place[1:] for place in grid.places() if place[0] == group):
            if (m, n) not in blocks:
                place = {"g": group} if grid.groups.is_cut else {}
                place |= {"m": m, "n": n}
                blocks[m, n] = block(fitting(how, writer.product), writer, place, _dims(writer, group, m, n))
            blocks[m, n].multiply(parts.inputs(group, m, k, n), k, parts.attributes(group, m))
            if k == grid.channels.count - 1:
                picture.put(m, (group, n), blocks.pop((m, n)).result())
    assert picture.result is not None
    return picture.result


def count_nodes(
    layer: Convolution, counts: tuple[Any, tuple[Any, ...], Any, Any], order: str, how: Accumulation
) -> Any:
    """Return the number of nodes of a convolution cut into so many sets of groups and stretches of pixels, K and N; arrays for arrays."""
    groups, spatial, gk, gn = counts
    pixels = prod(spatial[1:], start=spatial[0])
    tiles = groups * pixels * gk * gn
    sums = groups * pixels * gn * additions(how, gk, layer)
    windows = (pixels > 1) * pixels + (groups * gk > 1) * pixels
    concats = (groups * gn > 1) * pixels + (spatial[-1] > 1) * (pixels // spatial[-1]) + (pixels > spatial[-1]) * 1
    weights = 0
    if not layer.w.constant:
        rows, columns = (gn, groups * gk) if layer.transposed else (groups * gn, gk)
        outer, inner = (rows, columns) if _outer(order) == 0 else (columns, rows)
        weights = (outer > 1) * 1 + (inner > 1) * outer
    bias = 0 if layer.bias is None or layer.bias.constant else (groups * gn > 1) * 1
    return tiles + sums + windows + concats + weights + bias


def most_nodes(layer: Convolution, grid: ConvGrid, how: Accumulation) -> int:
    """Return the number of nodes that `emit` writes."""
    spatial = tuple(axis.count for axis in grid.spatial)
    counts = (grid.groups.count, spatial, grid.channels.count, grid.filters.count)
    return int(count_nodes(layer, counts, grid.order, how))


def _outer(order: str) -> int:
    """Return which side of the weights the outer loop walks: 0 output channels, their rows, 1 input channels."""
    return 1 - outer_side(order, "kn")


@dataclass
class _Parts:
    """The operands of one site in pieces, each written when it is first asked for."""

    writer: ConvWriter
    w: Blocks
    bias: Blocks | None
    _inputs: dict[int, Blocks] = field(default_factory=dict)
    _sizes: dict[int, ir.Value | list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, writer: ConvWriter, constants: ConstantTable, cache: BlockCache, graph: ir.Graph) -> _Parts:
        """Return the pieces of weights and bias, constants cut beforehand."""
        layer, grid = writer.product, writer.grid
        rows, columns = (grid.filters, grid.inputs) if layer.transposed else (grid.outputs, grid.channels)
        w = Cutting(layer.w, rows, columns, ("w", "n", "k"))
        bias = None
        if layer.bias is not None:
            cutting = Cutting(layer.bias, _ONE, grid.outputs, ("bias", "k", "n"))
            bias = blocks_of(cutting, writer, constants, cache, graph=graph, outer=1)
        return cls(writer, blocks_of(w, writer, constants, cache, graph=graph, outer=_outer(grid.order)), bias)

    def inputs(self, group: int, m: int, k: int, n: int) -> list[ir.Value | None]:
        """Return the inputs of the tile at (group, m, k, n): its window, its weights, and in the first of a sum its bias."""
        grid = self.writer.grid
        at_k, at_n = group * grid.channels.count + k, group * grid.filters.count + n
        w = self.w.block(n, at_k) if self.writer.product.transposed else self.w.block(at_n, k)
        inputs: list[ir.Value | None] = [self._window(m).block(0, at_k), w]
        if self.bias is not None and k == 0:
            inputs.append(self.bias.block(0, at_n))
        return inputs

    def attributes(self, group: int, m: int) -> list[ir.Attr]:
        """Return the attributes of a tile."""
        layer, grid = self.writer.product, self.writer.grid
        groups = ir.AttrInt64("group", grid.groups.width(group))
        if not grid.cuts_pixels:
            return [groups, *layer.attributes, *layer.padding]
        windows = self._windows(m)
        pads = ir.AttrInt64s("pads", [w.before for w in windows] + [w.after for w in windows])
        extra = [w.extra for w in windows]
        more = [ir.AttrInt64s("output_padding", extra)] if any(extra) else []
        return [groups, *layer.attributes, pads, *more]

    def _windows(self, m: int) -> list[Window]:
        pixels = self.writer.grid.pixels(m)
        return [slide.window(part) for slide, part in zip(self.writer.product.slides, pixels, strict=True)]

    def _window(self, m: int) -> Blocks:
        """Return the input of tile `m`, with its channels in pieces."""
        if m not in self._inputs:
            self._inputs[m] = self._cut_channels(*self._sliced(m), m)
        return self._inputs[m]

    def _sliced(self, m: int) -> tuple[ir.Value, Dims]:
        layer, grid = self.writer.product, self.writer.grid
        if not grid.cuts_pixels:
            return layer.x.value, layer.x.dims
        windows = self._windows(m)
        index = {
            axis: slice(window.start, window.stop)
            for axis, window in enumerate(windows, _FIRST_SPATIAL)
            if window.width != layer.x.dims[axis]
        }
        dims = (*layer.x.dims[:_FIRST_SPATIAL], *(window.width for window in windows))
        if not index:
            return layer.x.value, dims
        return self.writer.slice((layer.x.value, layer.dtype), index, "x", {"m": m}, dims), dims

    def _cut_channels(self, value: ir.Value, dims: Dims, m: int) -> Blocks:
        layer, grid = self.writer.product, self.writer.grid
        if not grid.inputs.is_cut:
            return WholeBlock(value)
        name = label("x", {"m": m}) if grid.cuts_pixels else "x"
        operand = replace(layer.x, value=value, dims=dims, constant=False)
        cutting = Cutting(operand, _ONE, grid.inputs, (name, "m", "k"))
        return SplitBlocks(cutting, self.writer, 1, _sizes=self._sizes)


@dataclass
class _Picture:
    """The blocks of the result that are there, put together along channels, then columns, then rows as soon as they can be."""

    writer: ConvWriter
    result: ir.Value | None = None
    _channels: dict[int, dict[tuple[int, int], ir.Value]] = field(default_factory=dict)
    _pixels: dict[int, ir.Value] = field(default_factory=dict)

    def put(self, m: int, at: tuple[int, int], value: ir.Value) -> None:
        """Put in a block: its pixels, and its set of groups and output channels."""
        grid = self.writer.grid
        pieces = self._channels.setdefault(m, {})
        pieces[at] = value
        if len(pieces) < grid.groups.count * grid.filters.count:
            return
        dims = _dims(self.writer, None, m, None)
        self._pixels[m] = self._concat((pieces[at] for at in sorted(pieces)), _CHANNEL_AXIS, {"m": m}, dims)
        if len(self._pixels) == grid.shape[0]:
            self.result = self._whole()

    def _whole(self) -> ir.Value:
        grid, dims = self.writer.grid, self.writer.product.dims
        columns = grid.spatial[-1].count
        last = len(dims) - 1
        bands = []
        for row in range(grid.shape[0] // columns):
            first = row * columns
            high = _dims(self.writer, None, first, None)
            pieces = [self._pixels[m] for m in range(first, first + columns)]
            bands.append(self._concat(pieces, last, {"row": row}, (*high[:-1], dims[-1])))
        return self._concat(bands, last - 1, {}, dims)

    def _concat(self, pieces: Iterable[ir.Value], axis: int, place: Place, dims: Dims) -> ir.Value:
        return self.writer.concat(list(pieces), axis, place, dims)


def _dims(writer: ConvWriter, group: int | None, m: int, n: int | None) -> Dims:
    """Return the dimensions of a block of the result; without group and n it has all channels."""
    layer, grid = writer.product, writer.grid
    dims = list(layer.dims)
    if group is not None and n is not None:
        dims[_CHANNEL_AXIS] = grid.outputs.width(group * grid.filters.count + n)
    for axis, (cuts, part) in enumerate(zip(grid.spatial, grid.pixels(m), strict=True), _FIRST_SPATIAL):
        if cuts.is_cut:
            dims[axis] = part.stop - part.start
    return tuple(dims)
