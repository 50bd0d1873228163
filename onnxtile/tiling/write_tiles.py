"""Writes a contraction as tiles within the limits, sums of partial sums, and Concats along N, then along M from its last axis.

alpha goes into the blocks of a constant operand where it can without loss, else it multiplies the result. A bias of any shape is
added last, by one Add on the whole result: it needs no cut, each element is rounded as in Gemm, and it costs one node where an Add
for each block would cost as many as the result has blocks. A bias that the tile's own operator takes goes into the first tile of each sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.tiling.accumulate import Accumulation, PartialSums, additions, fitting, partial_sums
from onnxtile.tiling.blocks import BlockCache, Blocks, PackedBlocks, WholeBlock, blocks_of, scaled, times
from onnxtile.tiling.contraction import Bias, Contraction, TensorOperand
from onnxtile.tiling.copies import keeps_copies
from onnxtile.tiling.cost import loads
from onnxtile.tiling.cutting import Cutting, is_contiguous
from onnxtile.tiling.element_types import as_scalar
from onnxtile.tiling.grid import Axis, TileGrid
from onnxtile.tiling.join import LATEST, block_dims, joined, nodes_of_scatter
from onnxtile.tiling.requantize import EACH, ONCE, BlockRequantizer
from onnxtile.tiling.tensors import ConstantTable
from onnxtile.tiling.windows import WindowBlocks, input_windows
from onnxtile.tiling.writer import Writer

_ONE = Axis(1, 1)


def write_tiles(
    writer: Writer,
    constants: ConstantTable,
    cache: BlockCache,
    graph: ir.Graph,
    how: Accumulation = Accumulation.CHAIN,
) -> ir.Value:
    """Write the tiled contraction; return its result, which is the output of the last node of `writer`.

    The nodes are in loop order, with K innermost unless the grid differs. Each Split comes before the first use of a part, each sum
    after its last partial sum, each Concat after its last block.
    """
    contraction, grid = writer.contraction, writer.grid
    cut = _CutOperands.of(writer, constants, cache, graph)
    how_quantized = contraction.requantize
    quantizer = None if how_quantized is None else BlockRequantizer.of(writer, how_quantized, constants)
    result = joined(writer)
    way = fitting(how, contraction)
    blocks: dict[tuple[int, int, int], PartialSums] = {}
    added: Counter[tuple[int, int, int]] = Counter()
    for group, m, k, n in grid.places():
        at = (group, m, n)
        if at not in blocks:
            place = ({"g": group} if grid.groups.is_cut else {}) | {"m": m, "n": n}
            dims = block_dims(writer, grid.along(m), group * grid.n.count + n)
            blocks[at] = partial_sums(way, writer, place, dims)
        inputs = cut.inputs((group, m, k, n), is_first=not added[at])
        blocks[at].multiply(inputs, k, cut.attributes((group, m, k, n)))
        added[at] += 1
        if added[at] == grid.k.count:
            block = blocks.pop(at)
            made = block.result()
            if quantizer is not None:
                made = quantizer.finish(made, (m, group * grid.n.count + n), block.place, block.dims)
            result.put(m, (group, n), writer.cut_off(made, block.place, block.dims, result.dims(m, (group, n))))
    assert result.value is not None
    return _finished(writer, result.value, cut.alpha, constants)


def _finished(writer: Writer, value: ir.Value, alpha: float, constants: ConstantTable) -> ir.Value:
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
    return int(count_nodes(contraction, counts, grid.order, how, fills=grid.fills, joins=joins, once=once))


def count_nodes(
    contraction: Contraction,
    counts: tuple[Any, tuple[Any, ...], Any, Any],
    order: str,
    how: Accumulation,
    *,
    fills: bool = False,
    joins: Any = None,
    once: bool = False,
) -> Any:
    """Return that number for so many stretches of groups, sliding axes, K and N, numbers or arrays; with `fills`, zeros fill some up.

    With `once`, each block of an operand is copied once.
    """
    groups, sliding, gk, gn = counts
    gm = prod(sliding[1:], start=sliding[0])
    tiles = groups * gm * gk * gn
    sums = groups * gm * gn * additions(how, gk, contraction)
    columns, last = groups * gn, sliding[-1]
    concats = (columns > 1) * gm + (last > 1) * (gm // last) + (gm > last) * 1
    joining = concats if joins is None else np.where(gm * columns > 1, joins, 0)
    each = {"m": gm, "k": gk, "n": gn}
    blocks = (gm * gk, gk * gn)
    reads = [
        groups * (n if once else loads(operand, order, each)) for operand, n in zip(("mk", "kn"), blocks, strict=True)
    ]
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
        # Each block of a quantized constant has a DequantizeLinear of its own.
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
    def of(cls, writer: Writer, constants: ConstantTable, cache: BlockCache, graph: ir.Graph) -> _CutOperands:
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
            WindowBlocks(a, writer) if contraction.windows else blocks(a),
            blocks(b),
            (
                _single(writer, contraction.left.zero, constants),
                _single(writer, contraction.right.zero, constants) or along_n(contraction.right.zero, f"{other}_zero"),
            ),
            along_n(contraction.tile_bias, "bias"),
            alpha,
        )

    def inputs(self, place: tuple[int, int, int, int], *, is_first: bool) -> list[ir.Value | None]:
        """Return the inputs of a tile: its factors, then the bias in the first tile of a sum, or zero points up to the last there is."""
        grid = self.writer.grid
        group, m, k, n = place
        at_k, at_n = group * grid.k.count + k, group * grid.n.count + n
        in_k = self.writer.contraction.groups_in_k
        left = self.left.block(m, at_k)
        right = self.right.block(at_k, n) if in_k else self.right.block(k, at_n)
        more = list(self.zeros) if self.bias is None else [self.bias if is_first else None]
        while more and more[-1] is None:
            more.pop()
        values = (None if blocks is None else blocks.block(0, at_n) for blocks in more)
        packed = self.right.parameters(k, at_n) if isinstance(self.right, PackedBlocks) else []
        return [left, right, *packed, *values]

    def attributes(self, place: tuple[int, int, int, int]) -> list[ir.Attr]:
        """Return the attributes of a tile at (group, m, k, n), among them the padding that falls to it."""
        contraction, grid = self.writer.contraction, self.writer.grid
        group, m, k, n = place
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


def _single(writer: Writer, zero: TensorOperand | None, constants: ConstantTable) -> Blocks | None:
    """Return a zero point that is a single number, or many equal ones; None where there is none, or one for each column."""
    if zero is None or zero.axes != (None, None):
        return None
    if zero.dims in {(), (1,)}:
        return WholeBlock(zero.value)
    return WholeBlock(writer.constant(ir.Tensor(constants.array(zero.value).flat[0]), "zero"))


def _times_beta(writer: Writer, bias: Bias, constants: ConstantTable) -> ir.Value:
    dtype = writer.contraction.dtype
    if bias.beta == 1.0:
        return bias.value
    if bias.constant:
        array = times(constants.array(bias.value), bias.beta, dtype)
        return writer.constant(ir.Tensor(array, dtype), "c")
    factor = writer.constant(ir.Tensor(as_scalar(bias.beta, dtype), dtype), "beta_factor")
    return writer.node("Mul", [bias.value, factor], "beta", {}, bias.dims)
