"""The windows of the left operand that the tiles of a convolution read: cut by Slice with their halo and their channels."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.tiling.blocks import Blocks, RuntimeBlocks, WholeBlock
from onnxtile.tiling.cutting import Cutting
from onnxtile.tiling.sliding import InputWindow
from onnxtile.tiling.writer import Writer


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
