"""The copies that tiles make of their operands and of their result, and whether the arena has room for them.

A Concat along the first axis that is not 1 takes no copy, since its parts lie one after another in memory. Any other Concat has all its
parts alive beside its result. A ScatterND that overwrites its data takes one block at a time. A block of an operand that does not lie in
one piece is copied by Slice; kept until the last tile reads it, it is copied once.
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from onnxtile.tiling.contraction import Contraction, TensorOperand
from onnxtile.tiling.cost import Workload
from onnxtile.tiling.cutting import is_contiguous
from onnxtile.tiling.grid import TileGrid

SCATTER_OPSET = 11
"""ScatterND came with it."""


def may_scatter(contraction: Contraction, opset: int) -> bool:
    """Return whether ScatterND can join the blocks: where all dimensions are known, of types that onnxruntime's Pad takes."""
    known = all(isinstance(size, int) for size in contraction.dims)
    return opset >= SCATTER_OPSET and contraction.result_dtype is not ir.DataType.BFLOAT16 and known


def scatters(contraction: Contraction, grid: TileGrid, opset: int) -> bool:
    """Return whether Concat would keep more bytes beside its result than one tile holds, and than the arena has free.

    Sizes that are not known count as small.
    """
    if not may_scatter(contraction, opset) or contraction.column_axis is None or None in contraction.row_axes:
        return False
    sizes = (*contraction.left.dims, *contraction.right.dims)
    copied = _joined_bytes(contraction, grid)
    if not copied or not all(isinstance(size, int) for size in sizes):
        return False  # the bytes of a tile are not known
    return bool(copied > Workload.of(contraction).held(*_steps(contraction, grid))) and copied > contraction.free()


def may_copy_result(contraction: Contraction) -> bool:
    """Return whether the arena has room for a copy of the whole result, so that Concat joins blocks of any cuts."""
    sizes = [size for size in contraction.dims if isinstance(size, int)]
    return prod(sizes) * contraction.result_dtype.itemsize <= contraction.free()


def keeps_copies(contraction: Contraction, grid: TileGrid, opset: int) -> bool:
    """Return whether the arena has room for copies of all blocks of both operands, beside that of the result where Concat joins it."""
    operands = (contraction.left, contraction.right)
    if any(not isinstance(size, int) for operand in operands for size in operand.dims):
        return False
    copied = _window_bytes(contraction, grid) + sum(_bytes(one) for one in operands if not one.constant)
    joined = 0 if scatters(contraction, grid, opset) else _joined_bytes(contraction, grid)
    return copied + joined <= contraction.free()


def _joined_bytes(contraction: Contraction, grid: TileGrid) -> int:
    """Return the bytes that a Concat of blocks copies, as far as sizes are known."""
    rows, columns = grid.cuts_rows, grid.outputs.is_cut
    whole = prod(size for size in contraction.dims if isinstance(size, int))
    copied = whole if rows or columns else 0
    (first, *others) = contraction.row_axes
    if rows and not others and first is not None and is_contiguous(contraction.dims, first):
        copied = whole // (grid.rows.size or 1) * (grid.rows.step or 1) if columns else 0
    elif columns and not rows and is_contiguous(contraction.dims, contraction.column_axis or 0):
        copied = 0
    return int(copied * contraction.result_dtype.itemsize)


def _window_bytes(contraction: Contraction, grid: TileGrid) -> int:
    """Return the bytes of all windows of the left operand; 0 where tiles read none."""
    if not contraction.windows:
        return 0
    work = Workload.of(contraction)
    window = work.blocks(*_steps(contraction, grid))[0] * contraction.left.element_bytes
    return int(window) * grid.groups.count * grid.shape[0] * grid.k.count


def _bytes(operand: TensorOperand) -> int:
    return int(prod(size for size in operand.dims if isinstance(size, int)) * operand.element_bytes)


def _steps(contraction: Contraction, grid: TileGrid) -> tuple[int, list[int], int, int]:
    """Return the groups, outputs along each sliding axis, channels and filters of a full tile."""
    work = Workload.of(contraction)
    steps = [axis.step or out for axis, out in zip(grid.sliding, work.outs, strict=True)]
    return grid.groups.step or 1, steps, grid.k.step or work.channels, grid.n.step or work.filters
