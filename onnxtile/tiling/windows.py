"""The windows of the left operand that the tiles of a convolution read: cut by Slice with their halo, their channels by Split."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxtile.tiling.blocks import Blocks, Cutting, SplitBlocks, WholeBlock
from onnxtile.tiling.sliding import InputWindow
from onnxtile.tiling.tensors import TensorDims
from onnxtile.tiling.writer import Writer, label


def input_windows(writer: Writer, m: int) -> list[InputWindow]:
    """Return the inputs that stretch `m` of M reads along each sliding axis."""
    grid, sliding = writer.grid, writer.contraction.sliding
    stretches = [axis.stretch(index) for axis, index in zip(grid.sliding, grid.along(m), strict=True)]
    return [axis.window(stretch) for axis, stretch in zip(sliding, stretches, strict=True)]


@dataclass
class WindowBlocks(Blocks):
    """The windows of an operand known only when the model runs; each is written when it is first asked for."""

    cutting: Cutting
    writer: Writer
    _windows: dict[int, Blocks] = field(default_factory=dict)
    _sizes: dict[int, ir.Value | list[int]] = field(default_factory=dict)

    def block(self, row: int, column: int) -> ir.Value:
        """Return the channels at `column` of the window that stretch `row` of M reads."""
        if row not in self._windows:
            self._windows[row] = self._cut_channels(*self._sliced(row), row)
        return self._windows[row].block(0, column)

    def _sliced(self, m: int) -> tuple[ir.Value, TensorDims]:
        operand, axes = self.cutting.operand, self.writer.contraction.left_axes
        if not self.writer.grid.cuts_rows:
            return operand.value, operand.dims
        index, dims = {}, list(operand.dims)
        for axis, window in zip(axes, input_windows(self.writer, m), strict=True):
            assert axis is not None
            if window.width != dims[axis]:
                index[axis] = slice(window.start, window.stop)
            dims[axis] = window.width
        if not index:
            return operand.value, tuple(dims)
        name, letter, _ = self.cutting.letters
        place = {letter: m}
        return self.writer.slice((operand.value, operand.dtype), index, name, place, tuple(dims)), tuple(dims)

    def _cut_channels(self, value: ir.Value, dims: TensorDims, m: int) -> Blocks:
        if not self.cutting.columns.is_cut:
            return WholeBlock(value)
        name, letter, channels = self.cutting.letters
        name = label(name, {letter: m}) if self.writer.grid.cuts_rows else name
        operand = replace(self.cutting.operand, value=value, dims=dims, constant=False)
        cutting = replace(self.cutting, operand=operand, letters=(name, letter, channels))
        return SplitBlocks(cutting, self.writer, 1, _sizes=self._sizes)
