"""The blocks of one operand: cut when the model is written where it is constant, by Split when it runs where it is not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from onnxtile.operators.node_view import KnownConstants
from onnxtile.operators.reads import InputWindow
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import PackedFactor, as_scalar, normal_range
from onnxtile.tiling.grid import Axis, Cutting, cut_sides, is_contiguous
from onnxtile.tiling.writer import Writer, label

BlockKey = tuple[ir.Value, bool, float, Axis, Axis, ir.Graph, int]
BlockCache = dict[BlockKey, dict[tuple[int, int], ir.Value]]
"""Blocks by the constant they were cut from and how, so that every site that cuts it so uses the same initializers."""


class Blocks(ABC):
    """Gives the value that holds a block, and writes the nodes that make it at its first use."""

    @abstractmethod
    def block(self, row: int, column: int) -> ir.Value:
        """Return the value of the block at (row, column)."""


@dataclass(frozen=True)
class ConstantBlocks(Blocks):
    """Blocks that are cut from a constant, and multiplied where there is a factor, only when they are saved."""

    cutting: Cutting
    writer: Writer
    read: Callable[[], Array]
    made: dict[tuple[int, int], ir.Value]
    fill: int = 0

    def block(self, row: int, column: int) -> ir.Value:
        """Return the initializer that holds the block."""
        place = self.cutting.place(row, column)
        if place not in self.made:
            self.made[place] = self._write(*place)
        return self.made[place]

    def _write(self, row: int, column: int) -> ir.Value:
        name, first, second = self.cutting.letters
        shape = ir.Shape(self.cutting.dims(row, column))
        tensor = ir.LazyTensor(partial(self._cut, row, column), self.cutting.operand.dtype, shape)
        return self.writer.constant(tensor, label(name, {first: row, second: column}))

    def _cut(self, row: int, column: int) -> ir.TensorProtocol:
        cut, dtype = self.cutting, self.cutting.operand.dtype
        array = self.read()
        view = (array.T if cut.operand.transposed else array)[cut.slices(row, column)]
        missing = cut.filling(view.shape, row, column)
        if any(after for _, after in missing):
            view = np.pad(view, missing, constant_values=self.fill)
        return ir.Tensor(view if cut.scale == 1.0 else times(view, cut.scale, dtype), dtype)


@dataclass
class QuantizedBlocks(Blocks):
    """Blocks of a quantized constant: its initializer is cut when it is saved, and each block has a DequantizeLinear of its own.

    A scale and a zero point for each index of one axis, or for so many of them, are cut along that axis; single ones serve all blocks.
    """

    cutting: Cutting
    writer: Writer
    node: ir.Node
    _made: dict[tuple[int, int], ir.Value] = field(default_factory=dict)
    _parameters: dict[tuple[int, tuple[tuple[int, int], ...]], ir.Value] = field(default_factory=dict)

    def block(self, row: int, column: int) -> ir.Value:
        """Return the output of the DequantizeLinear that makes the block."""
        if (row, column) not in self._made:
            self._made[row, column] = self._write(row, column)
        return self._made[row, column]

    def _write(self, row: int, column: int) -> ir.Value:
        cut = self.cutting
        name, first, second = cut.letters
        place, dims = {first: row, second: column}, cut.dims(row, column)
        quantized = self._constant(self.node.inputs[0], cut.slices(row, column), f"{label(name, place)}_quantized")
        rest = [self._parameter(at, place, cut.slices(row, column)) for at in range(1, len(self.node.inputs))]
        attributes = [attribute for key, attribute in self.node.attributes.items() if key != "axis"]
        attributes += [] if self._axis is None else [ir.AttrInt64("axis", self._axis)]
        return self.writer.node(
            "DequantizeLinear", [quantized, *rest], name, place, dims, attributes, cut.operand.dtype
        )

    @property
    def _axis(self) -> int | None:
        """The axis of the blocks that has several scales; None where one scale serves all."""
        scale, rank = self.node.inputs[1], len(self.cutting.operand.dims)
        single = scale is None or scale.const_value is None or scale.const_value.size == 1
        if single and not self._together:
            return None
        axis = self.node.attributes.get_int("axis", 1) % rank
        return rank - 1 - axis if self.cutting.operand.transposed else axis

    @property
    def _together(self) -> int:
        """The elements along that axis that have a scale in common; 0 where each index has its own."""
        return self.node.attributes.get_int("block_size", 0)

    def _parameter(self, at: int, place: Mapping[str, int], slices: tuple[slice, ...]) -> ir.Value:
        """Return the part of the scale or zero point, input `at`, that belongs to a block."""
        value, axis = self.node.inputs[at], self._axis
        assert value is not None
        index = () if axis is None else slices if self._together else (slices[axis],)
        if self._together:
            index = tuple(self._scales(part) if along == axis else part for along, part in enumerate(slices))
        if all(part == slice(None) for part in index):
            return value
        key = at, tuple((part.start or 0, part.stop or 0) for part in index)
        if key not in self._parameters:
            name = f"{label(self.cutting.letters[0], dict(place))}_{('', 'scale', 'zero_point')[at]}"
            self._parameters[key] = self._constant(value, index, name)
        return self._parameters[key]

    def _scales(self, elements: slice) -> slice:
        """Return the range of scales of a range of elements, which begins where a scale's do."""
        if elements == slice(None):
            return elements
        return slice(elements.start // self._together, -(-elements.stop // self._together))

    def _constant(self, value: ir.Value | None, index: tuple[slice, ...], stem: str) -> ir.Value:
        assert value is not None and value.const_value is not None
        tensor = value.const_value
        turned = self.cutting.operand.transposed and len(index) > 1
        dims = tensor.shape.numpy()[::-1] if turned else tensor.shape.numpy()
        shape = ir.Shape([len(range(size)[part]) for size, part in zip(dims, index, strict=True)])

        def cut() -> ir.TensorProtocol:
            array = self.writer.reader.array(tensor)
            return ir.Tensor(np.ascontiguousarray((array.T if turned else array)[index]), tensor.dtype)

        return self.writer.constant(ir.LazyTensor(cut, tensor.dtype, shape), stem)


@dataclass
class PackedBlocks(Blocks):
    """Blocks of MatMulNBits' B, with the scales and zero points that belong to them, cut from initializers when they are saved."""

    cutting: Cutting
    writer: Writer
    how: PackedFactor
    _made: dict[tuple[str, int, int], ir.Value] = field(default_factory=dict)

    def block(self, row: int, column: int) -> ir.Value:
        """Return the packed elements of the block."""
        return self._part(self.cutting.operand.value, "", self.how.dims, (row, column))

    def parameters(self, row: int, column: int) -> list[ir.Value]:
        """Return the scales of the block, and its zero points where there are some."""
        columns, blocks, _ = self.how.dims
        found = [self._part(self.how.scales.value, "_scales", (columns, blocks), (row, column))]
        if self.how.zeros is not None:
            along = -(-blocks * self.how.bits // 8) if self.how.packs_zeros else blocks
            found.append(self._part(self.how.zeros.value, "_zero_points", (columns, along), (row, column)))
        return found

    def attributes(self, row: int, column: int) -> list[ir.Attr]:
        """Return the attributes that say how large the block is."""
        sizes = (self.cutting.operand.size(0), self.cutting.operand.size(1))
        k, n = self.cutting.dims(row, column) if self.cutting.is_cut else sizes
        assert isinstance(k, int) and isinstance(n, int)
        return [ir.AttrInt64("K", k), ir.AttrInt64("N", n)]

    def _part(self, value: ir.Value, stem: str, dims: tuple[int, ...], at: tuple[int, int]) -> ir.Value:
        if not self.cutting.is_cut:
            return value
        if (stem, *at) not in self._made:
            name, first, second = self.cutting.letters
            tensor = value.const_value
            assert tensor is not None
            rows, columns = self.cutting.slices(*at)
            index = (columns, self._of_blocks(rows, dims[1]))
            sizes = [len(range(size)[part]) for size, part in zip(dims, index, strict=False)]
            shape = (*sizes, *dims[2:])
            flat = (prod(shape),) if len(tensor.shape) == 1 else shape

            def cut() -> ir.TensorProtocol:
                array = self.writer.reader.array(tensor).reshape(dims)[index]
                return ir.Tensor(np.ascontiguousarray(array).reshape(flat), tensor.dtype)

            made = self.writer.constant(
                ir.LazyTensor(cut, tensor.dtype, ir.Shape(flat)), label(name, {first: at[0], second: at[1]}) + stem
            )
            self._made[(stem, *at)] = made
        return self._made[(stem, *at)]

    def _of_blocks(self, rows: slice, count: int) -> slice:
        """Return which of `count` entries along K belong to the elements in `rows`: blocks, or bytes of their zero points."""
        if rows == slice(None):
            return rows
        _, blocks, _ = self.how.dims
        each = self.how.block * -(-blocks // count)
        return slice(rows.start // each, -(-rows.stop // each))


@dataclass
class RuntimeBlocks(Blocks):
    """Blocks of a value known only when the model runs.

    Along an axis on which they lie one after another in memory, a Split gives them all, which takes no copy. Any other block is a copy:
    a Slice makes it for the tiles that read it next to each other, so that one copy is alive at a time; once, where the arena has room.
    """

    cutting: Cutting
    writer: Writer
    _panels: list[ir.Value] = field(default_factory=list)
    _made: dict[tuple[int, int], ir.Value] = field(default_factory=dict)

    def block(self, row: int, column: int) -> ir.Value:
        """Return the value that holds the block.

        It is written again where another block was asked for in between, and the arena has no room for both.
        """
        place = self.cutting.place(row, column)
        if place not in self._made:
            if not self.writer.keeps_copies:
                self._made.clear()
            self._made[place] = self._filled(place, self._turned(place, self._cut(place)))
        return self._made[place]

    def _cut(self, place: tuple[int, int]) -> ir.Value:
        """Return the elements of a block, in the order in which the value stores them."""
        operand = self.cutting.operand
        value, dims, sides = operand.value, list(operand.stored), cut_sides(self.cutting)
        split = next((side for side in sides if is_contiguous(operand.stored, operand.stored_axis(side))), None)
        if split is not None:
            self._panels = self._panels or self._split(split)
            value = self._panels[place[split]]
            dims[operand.stored_axis(split)] = self._width(split, place[split])
            sides.remove(split)
        if not sides:
            return value
        index = {}
        for side in sides:
            axis = operand.stored_axis(side)
            index[axis] = self._cuts[side].stretch(place[side])
            dims[axis] = self._width(side, place[side])
        part = "_stored" if operand.transposed or self._fills(place) else ""
        return self.writer.slice(
            (value, operand.dtype), index, f"{self.cutting.letters[0]}{part}", self._at(place), tuple(dims)
        )

    def _split(self, side: int) -> list[ir.Value]:
        """Write the Split along `side`, whose parts lie one after another."""
        operand, cuts = self.cutting.operand, self._cuts[side]
        name, letter = self.cutting.letters[0], self.cutting.letters[1 + side]
        widths = [self._width(side, index) for index in range(cuts.count)]
        sizes = self.writer.split_sizes(widths, f"{name}_{letter}_sizes")
        parts = []
        for index, width in enumerate(widths):
            dims = list(operand.stored)
            dims[operand.stored_axis(side)] = width
            parts.append((label(name, {letter: index}), tuple(dims)))
        return self.writer.split(
            (operand.value, operand.dtype), operand.stored_axis(side), sizes, f"split_{name}", {}, parts
        )

    def _turned(self, place: tuple[int, int], value: ir.Value) -> ir.Value:
        if not self.cutting.operand.transposed:
            return value
        dims = [self._width(side, place[side]) for side in (0, 1)]
        perm = ir.AttrInt64s("perm", (1, 0))
        stem = f"transpose_{self.cutting.letters[0]}"
        return self.writer.node(
            "Transpose", [value], stem, self._at(place), tuple(dims), [perm], self.cutting.operand.dtype
        )

    def _filled(self, place: tuple[int, int], value: ir.Value) -> ir.Value:
        after = self._fills(place)
        if not after:
            return value
        operand = self.cutting.operand
        zero = None if operand.zero is None or operand.zero.axes != (None, None) else operand.zero.value
        dims = self.cutting.dims(*place)
        return self.writer.pad(
            (value, operand.dtype), after, f"pad_{self.cutting.letters[0]}", self._at(place), dims, zero
        )

    def _fills(self, place: tuple[int, int]) -> list[int]:
        """Return the elements that fill up a block behind each axis; nothing where it is full."""
        operand = self.cutting.operand
        after = [0] * len(operand.dims)
        for side, axis in enumerate(operand.axes):
            if axis is not None and self._cuts[side].fills:
                after[axis] = self._cuts[side].width(place[side]) - self._width(side, place[side])
        return after if any(after) else []

    def _width(self, side: int, index: int) -> int:
        """Return the elements of a block along `side` that are not filling."""
        size = self.cutting.operand.size(side)
        assert isinstance(size, int)
        return len(range(size)[self._cuts[side].stretch(index)])

    def _at(self, place: tuple[int, int]) -> dict[str, int]:
        """Return the place of a block in the grid, without the sides that are whole."""
        letters = self.cutting.letters[1:]
        return {letters[side]: place[side] for side in cut_sides(self.cutting)}

    @property
    def _cuts(self) -> tuple[Axis, Axis]:
        return self.cutting.rows, self.cutting.columns


@dataclass(frozen=True)
class WholeBlock(Blocks):
    """An operand that is its own only block."""

    value: ir.Value

    def block(self, row: int, column: int) -> ir.Value:  # noqa: ARG002 - there is one place only
        """Return the operand itself."""
        return self.value


def blocks_of(
    cutting: Cutting, writer: Writer, constants: KnownConstants, cache: BlockCache, *, graph: ir.Graph
) -> Blocks:
    """Return the blocks of an operand that is used in `graph`."""
    operand = cutting.operand
    if operand.axes == (None, None):
        return WholeBlock(operand.value)
    if operand.packed is not None:
        return PackedBlocks(cutting, writer, operand.packed)
    if not cutting.is_cut and not operand.transposed and cutting.scale == 1.0:
        return WholeBlock(operand.value)
    if not operand.constant:
        return RuntimeBlocks(cutting, writer)
    if operand.dequantize is not None and cutting.scale == 1.0 and not cutting.fills:
        return QuantizedBlocks(cutting, writer, operand.dequantize)
    key = (operand.value, operand.transposed, cutting.scale, cutting.rows, cutting.columns, graph)
    # The zero point is subtracted from the filling too, so filling with the zero point itself gives zeros.
    zero = operand.zero if cutting.fills and operand.zero is not None and operand.zero.axes == (None, None) else None
    fill = 0 if zero is None or zero.value not in constants else int(constants.array(zero.value).reshape(()))
    held = operand.value.const_value
    read = partial(constants.array, operand.value) if held is None else partial(writer.reader.array, held)
    return ConstantBlocks(cutting, writer, read, cache.setdefault((*key, fill), {}), fill)


def scaled(cutting: Cutting, scale: float, constants: KnownConstants, dtype: ir.DataType) -> Cutting | None:
    """Return `cutting` with its constant multiplied by `scale`; None where it is not a constant or would lose digits.

    Digits are lost where an element would leave the range of normal numbers, upwards or downwards.
    """
    if not cutting.operand.constant:
        return None
    sizes = np.abs(constants.array(cutting.operand.value).astype(np.float64, copy=False))
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)]
    least, most = normal_range(dtype)
    factor = abs(float(as_scalar(scale, dtype)))
    fits = not sizes.size or (sizes.max() * factor <= most and sizes.min() * factor >= least)
    return replace(cutting, scale=scale) if fits else None


def times(array: Array, factor: float, dtype: ir.DataType) -> Array:
    """Return `array` times `factor`, rounded once to `dtype`; half precision is multiplied in float32 as Gemm's kernels do."""
    wide = np.dtype(np.float64 if dtype is ir.DataType.DOUBLE else np.float32)
    product: Array = np.multiply(array.astype(wide, copy=False), np.float32(factor).astype(wide))
    return product.astype(dtype.numpy())


# The windows of the left operand that the tiles of a convolution read: cut by Slice with their halo and their channels.


def input_windows(writer: Writer, m: int) -> list[InputWindow]:
    """Return the inputs that stretch `m` of M reads along each sliding axis."""
    grid, sliding = writer.grid, writer.contraction.sliding
    stretches = [axis.stretch(index) for axis, index in zip(grid.sliding, grid.along(m), strict=True)]
    return [axis.window(stretch) for axis, stretch in zip(sliding, stretches, strict=True)]


@dataclass
class WindowBlocks(Blocks):
    """The windows of an operand known only when the model runs, for the tiles that read one next to each other."""

    cutting: Cutting
    writer: Writer
    _made: dict[tuple[int, int], ir.Value] = field(default_factory=dict)
    _channels: Blocks = field(init=False)

    def __post_init__(self) -> None:
        cut = self.cutting.columns.is_cut
        self._channels = RuntimeBlocks(self.cutting, self.writer) if cut else WholeBlock(self.cutting.operand.value)

    def block(self, row: int, column: int) -> ir.Value:
        """Return the channels at `column` of the window that stretch `row` of M reads."""
        if not self.writer.grid.cuts_rows:
            return self._channels.block(0, column)
        if (row, column) not in self._made:
            if not self.writer.keeps_copies:
                self._made.clear()
            self._made[row, column] = self._sliced(row, column)
        return self._made[row, column]

    def _sliced(self, m: int, column: int) -> ir.Value:
        operand, axes = self.cutting.operand, self.writer.contraction.left_axes
        index, dims = {}, list(operand.dims)
        name, letter, channels = self.cutting.letters
        place = {letter: m}
        if self.cutting.columns.is_cut:
            axis, stretch = operand.stored_axis(1), self.cutting.columns.stretch(column)
            index[axis], dims[axis], place[channels] = stretch, self.cutting.columns.width(column), column
        for spatial, window in zip(axes, input_windows(self.writer, m), strict=True):
            assert spatial is not None
            if window.width != dims[spatial]:
                index[spatial] = slice(window.start, window.stop)
            dims[spatial] = window.width
        if not index:
            return operand.value
        return self.writer.slice((operand.value, operand.dtype), index, name, place, tuple(dims))
