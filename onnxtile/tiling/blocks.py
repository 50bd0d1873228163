"""The blocks of one operand: cut when the model is written where it is constant, by Split when it runs where it is not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxtile.model.graph_writer import GridPlace, label
from onnxtile.operators.node_view import KnownConstants
from onnxtile.operators.reads import InputWindow
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import PackedFactor, TensorOperand, as_scalar, normal_range
from onnxtile.tiling.grid import Axis, Cutting, is_contiguous
from onnxtile.tiling.writer import Writer

BlockKey = tuple[ir.Value, bool, float, Axis, Axis, ir.Graph, int]
BlockCache = dict[BlockKey, dict[tuple[int, int], ir.Value]]
"""Blocks by the constant they were cut from and how, so that every site that cuts it so uses the same initializers."""


class Blocks(ABC):
    """Gives the value that holds a block, and writes the nodes that make it at its first use."""

    @abstractmethod
    def block(self, row: int, column: int) -> ir.Value:
        """Return the value of the block at (row, column)."""


@dataclass(frozen=True)
class WholeBlock(Blocks):
    """An operand that is its own only block."""

    value: ir.Value

    def block(self, row: int, column: int) -> ir.Value:  # noqa: ARG002 - there is one place only
        """Return the operand itself."""
        return self.value


@dataclass
class CutBlocks(Blocks):
    """Blocks that are kept once they are written; copies only where the arena has room for all of them."""

    are_copies: ClassVar[bool] = False
    cutting: Cutting
    writer: Writer
    made: dict[tuple[int, int], ir.Value] = field(default_factory=dict)

    def block(self, row: int, column: int) -> ir.Value:
        """Return the value of the block at (row, column). A copy is written again where another one was asked for in between."""
        position = self.position(row, column)
        if position not in self.made:
            if self.are_copies and not self.writer.keeps_copies:
                self.made.clear()
            self.made[position] = self.write(position)
        return self.made[position]

    @abstractmethod
    def write(self, position: tuple[int, int]) -> ir.Value:
        """Write the block at a row and a column."""

    def position(self, row: int, column: int) -> tuple[int, int]:
        """Return the place that the block is kept at."""
        return self.cutting.position(row, column)

    @property
    def operand(self) -> TensorOperand:
        """The operand that is cut."""
        return self.cutting.operand

    def in_grid(self, position: tuple[int, int]) -> GridPlace:
        """Return the place of a block in the grid."""
        return dict(zip(self.cutting.letters[1:], position, strict=True))


@dataclass
class ConstantBlocks(CutBlocks):
    """Blocks that are cut from a constant, and multiplied where there is a factor, only when they are saved."""

    read: Callable[[], Array] = field(kw_only=True)
    fill: int = 0

    def write(self, position: tuple[int, int]) -> ir.Value:
        """Write the initializer that holds the block."""
        dims = self.cutting.read.block(position)
        return self.writer.cut(
            partial(self._cut, position),
            self.operand.dtype,
            dims,
            label(self.cutting.letters[0], self.in_grid(position)),
        )

    def _cut(self, position: tuple[int, int]) -> Array:
        array, cuts, scale = self.read(), self.cutting.read, self.cutting.scale
        view = (array.T if self.operand.transposed else array)[cuts.slices(position)]
        missing = cuts.filling(position)
        if any(missing):
            view = np.pad(view, [(0, after) for after in missing], constant_values=self.fill)
        return view if scale == 1.0 else times(view, scale, self.operand.dtype)


@dataclass
class QuantizedBlocks(CutBlocks):
    """Blocks of a quantized constant: its initializer is cut when it is saved, and each block has its DequantizeLinear.

    A scale and a zero point for each index of one axis, or for so many of them, are cut along that axis; single ones serve all blocks.
    """

    node: ir.Node = field(kw_only=True)
    _parameters: dict[tuple[int, tuple[tuple[int, int], ...]], ir.Value] = field(default_factory=dict)

    def write(self, position: tuple[int, int]) -> ir.Value:
        """Write the DequantizeLinear that makes the block."""
        name, at, slices = self.cutting.letters[0], self.in_grid(position), self.cutting.read.slices(position)
        quantized = self._constant(self.node.inputs[0], slices, f"{label(name, at)}_quantized")
        rest = [self._parameter(index, at, slices) for index in range(1, len(self.node.inputs))]
        attributes = [attribute for key, attribute in self.node.attributes.items() if key != "axis"]
        attributes += [] if self._axis is None else [ir.AttrInt64("axis", self._axis)]
        dims = self.cutting.read.block(position)
        return self.writer.node("DequantizeLinear", [quantized, *rest], name, at, dims, attributes, self.operand.dtype)

    @property
    def _axis(self) -> int | None:
        """The axis of the blocks that has several scales; None where one scale serves all."""
        scale, rank = self.node.inputs[1], len(self.operand.dims)
        single = scale is None or scale.const_value is None or scale.const_value.size == 1
        if single and not self._together:
            return None
        axis = self.node.attributes.get_int("axis", 1) % rank
        return rank - 1 - axis if self.operand.transposed else axis

    @property
    def _together(self) -> int:
        """The elements along that axis that have a scale in common; 0 where each index has its own."""
        return self.node.attributes.get_int("block_size", 0)

    def _parameter(self, index: int, position: GridPlace, slices: tuple[slice, ...]) -> ir.Value:
        """Return the part of the scale or zero point, input `index`, that belongs to a block."""
        value, axis = self.node.inputs[index], self._axis
        assert value is not None
        parts: tuple[slice, ...] = () if axis is None else (slices[axis],)
        if self._together:
            parts = tuple(_units(part, self._together) if along == axis else part for along, part in enumerate(slices))
        if all(part == slice(None) for part in parts):
            return value
        key = index, tuple((part.start or 0, part.stop or 0) for part in parts)
        if key not in self._parameters:
            name = f"{label(self.cutting.letters[0], position)}_{('', 'scale', 'zero_point')[index]}"
            self._parameters[key] = self._constant(value, parts, name)
        return self._parameters[key]

    def _constant(self, value: ir.Value | None, parts: tuple[slice, ...], stem: str) -> ir.Value:
        assert value is not None and value.const_value is not None
        tensor = value.const_value
        turned = self.operand.transposed and len(parts) > 1
        sizes = tensor.shape.numpy()[::-1] if turned else tensor.shape.numpy()

        def cut() -> Array:
            array = self.writer.reader.array(tensor)
            return np.ascontiguousarray((array.T if turned else array)[parts])

        return self.writer.cut(cut, tensor.dtype, _widths(sizes, parts), stem)


@dataclass
class PackedBlocks(CutBlocks):
    """Blocks of MatMulNBits' B, with the scales and zero points that belong to them, cut from initializers when they are saved."""

    how: PackedFactor = field(kw_only=True)
    _parameters: dict[tuple[str, int, int], ir.Value] = field(default_factory=dict)

    def write(self, position: tuple[int, int]) -> ir.Value:
        """Write the packed elements of the block."""
        return self._part(self.operand.value, "", self.how.dims, position)

    def parameters(self, row: int, column: int) -> list[ir.Value]:
        """Return the scales of the block, and its zero points where there are some."""
        stems, columns = ("_scales", "_zero_points"), self.how.dims[0]
        values = []
        for parameter, stem, along in zip(
            self.how.parameters, stems, (self.how.dims[1], self.how.zeros_along), strict=False
        ):
            key = stem, row, column
            if key not in self._parameters:
                self._parameters[key] = self._part(parameter.value, stem, (columns, along), (row, column))
            values.append(self._parameters[key])
        return values

    def attributes(self, row: int, column: int) -> list[ir.Attr]:
        """Return the attributes that say how large the block is."""
        k, n = self.cutting.read.block((row, column))
        assert isinstance(k, int) and isinstance(n, int)
        return [ir.AttrInt64("K", k), ir.AttrInt64("N", n)]

    def _part(self, value: ir.Value, stem: str, dims: tuple[int, ...], position: tuple[int, int]) -> ir.Value:
        tensor = value.const_value
        assert tensor is not None
        if not self.cutting.is_cut:
            return value
        rows, columns = self.cutting.read.slices(position)
        # Entries along K are blocks, or bytes of their zero points.
        parts = (columns, _units(rows, self.how.block * -(-self.how.dims[1] // dims[1])))
        shape = (*_widths(dims, parts), *dims[2:])
        flat = (prod(shape),) if len(tensor.shape) == 1 else shape

        def cut() -> Array:
            return np.ascontiguousarray(self.writer.reader.array(tensor).reshape(dims)[parts]).reshape(flat)

        name = label(self.cutting.letters[0], self.in_grid(position)) + stem
        return self.writer.cut(cut, tensor.dtype, flat, name)


def _units(elements: slice, each: int) -> slice:
    """Return the range of units, of so many elements each, that belong to a range of elements, which begins where a unit does."""
    if elements == slice(None):
        return elements
    return slice(elements.start // each, -(-elements.stop // each))


def _widths(sizes: Sequence[int], parts: tuple[slice, ...]) -> tuple[int, ...]:
    """Return the sizes of the first axes when they are cut to these ranges."""
    return tuple(len(range(size)[part]) for size, part in zip(sizes, parts, strict=False))


@dataclass
class RuntimeBlocks(CutBlocks):
    """Blocks of a value known only when the model runs.

    Along an axis on which they lie one after another in memory, a Split gives them all, which takes no copy. Any other block is a copy:
    a Slice makes it for the tiles that read it next to each other, so that one copy is alive at a time; once, where the arena has room.
    """

    are_copies = True
    _panels: list[ir.Value] = field(default_factory=list)

    def write(self, position: tuple[int, int]) -> ir.Value:
        """Write the block: cut, then transposed, then filled up."""
        operand, name = self.operand, self.cutting.letters[0]
        sides, missing = self.cutting.read.sides, self.cutting.read.filling(position)
        at = {self.cutting.letters[1 + side]: position[side] for side in sides}
        value = self._cut(position, at, f"{name}_stored" if operand.transposed or any(missing) else name)
        if operand.transposed:
            dims = self.cutting.read.block(position, filled=False)
            perm = ir.AttrInt64s("perm", (1, 0))
            value = self.writer.node("Transpose", [value], f"transpose_{name}", at, dims, [perm], operand.dtype)
        if any(missing):
            zero = operand.zero.value if operand.zero is not None and operand.zero.is_single else None
            dims = self.cutting.read.block(position)
            value = self.writer.pad((value, operand.dtype), missing, f"pad_{name}", at, dims, zero)
        return value

    def _cut(self, position: tuple[int, int], at: GridPlace, stem: str) -> ir.Value:
        """Return the elements of a block, in the order in which the value stores them."""
        stored, value = self.cutting.stored, self.operand.value
        sides = stored.sides
        split = next((side for side in sides if is_contiguous(stored.dims, stored.axes[side] or 0)), None)
        if split is not None:
            self._panels = self._panels or self._split(split)
            value = self._panels[position[split]]
            sides.remove(split)
        if not sides:
            return value
        slices = stored.slices(position)
        index = {axis: slices[axis] for axis in (stored.axes[side] for side in sides) if axis is not None}
        return self.writer.slice((value, self.operand.dtype), index, stem, at, stored.block(position, filled=False))

    def _split(self, side: int) -> list[ir.Value]:
        """Write the Split along `side`, whose parts lie one after another."""
        stored, (name, *letters) = self.cutting.stored, self.cutting.letters
        axis = stored.axes[side]
        assert axis is not None
        positions = [[index if other == side else None for other in (0, 1)] for index in range(stored.cuts[side].count)]
        blocks = enumerate(stored.block(position, filled=False) for position in positions)
        parts = [(label(name, {letters[side]: index}), dims) for index, dims in blocks]
        value, sizes = (self.operand.value, self.operand.dtype), f"{name}_{letters[side]}_sizes"
        return self.writer.split(value, axis, f"split_{name}", parts, sizes)


def blocks_of(
    cutting: Cutting, writer: Writer, constants: KnownConstants, cache: BlockCache, *, graph: ir.Graph
) -> Blocks:
    """Return the blocks of an operand that is used in `graph`."""
    operand = cutting.operand
    if operand.is_single:
        return WholeBlock(operand.value)
    if operand.packed is not None:
        return PackedBlocks(cutting, writer, how=operand.packed)
    if not cutting.is_cut and not operand.transposed and cutting.scale == 1.0:
        return WholeBlock(operand.value)
    if not operand.constant:
        return RuntimeBlocks(cutting, writer)
    if operand.dequantize is not None and cutting.scale == 1.0 and not cutting.fills:
        return QuantizedBlocks(cutting, writer, node=operand.dequantize)
    key = (operand.value, operand.transposed, cutting.scale, cutting.rows, cutting.columns, graph)
    # The zero point is subtracted from the filling too, so filling with the zero point itself gives zeros.
    zero = operand.zero if cutting.fills and operand.zero is not None and operand.zero.is_single else None
    fill = 0 if zero is None or zero.value not in constants else int(constants.array(zero.value).reshape(()))
    held = operand.value.const_value
    read = partial(constants.array, operand.value) if held is None else partial(writer.reader.array, held)
    return ConstantBlocks(cutting, writer, cache.setdefault((*key, fill), {}), read=read, fill=fill)


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
class WindowBlocks(CutBlocks):
    """The windows of an operand known only when the model runs, for the tiles that read one next to each other."""

    are_copies = True

    def position(self, row: int, column: int) -> tuple[int, int]:
        """Return the stretch of M, and that of the channels."""
        return row, column

    def write(self, position: tuple[int, int]) -> ir.Value:
        """Write the channels at a column of the window that a stretch of M reads."""
        operand, (m, column), at = self.operand, position, self.in_grid(position)
        if not self.cutting.columns.is_cut:
            del at[self.cutting.letters[2]]
        slices, dims = self.cutting.read.slices((0, column)), list(self.cutting.read.block((0, column)))
        index = {1: slices[1]} if self.cutting.columns.is_cut else {}
        for axis, window in zip(self.writer.contraction.left_axes, input_windows(self.writer, m), strict=True):
            assert axis is not None
            if window.width != dims[axis]:
                index[axis] = slice(window.start, window.stop)
            dims[axis] = window.width
        if not index:
            return operand.value
        return self.writer.slice((operand.value, operand.dtype), index, self.cutting.letters[0], at, tuple(dims))


def windows_of(cutting: Cutting, writer: Writer) -> Blocks:
    """Return the parts of the left operand of a convolution that its tiles read: windows, or channels where no window is cut."""
    if writer.grid.cuts_rows:
        return WindowBlocks(cutting, writer)
    return RuntimeBlocks(cutting, writer) if cutting.columns.is_cut else WholeBlock(cutting.operand.value)
