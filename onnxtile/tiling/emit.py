"""Writes a product as MatMuls within the limits, sums of partial sums, and Concats along N, then M.

alpha goes into the blocks of a constant operand where it can without loss, else it multiplies the result. The bias is
added last, by one Add on the whole result: its shape, whatever it is, needs no cut, each element is rounded as in Gemm,
and it costs one node where an Add for each block would cost as many as the result has blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxtile.tiling.accumulate import Accumulation, Block, additions, block, fitting
from onnxtile.tiling.blocks import BlockCache, Blocks, Cutting, WholeBlock, blocks_of, scaled, times
from onnxtile.tiling.grid import Axis, TileGrid, outer_side
from onnxtile.tiling.product import Bias, ConstantTable, Dims, Operand, Product, as_scalar
from onnxtile.tiling.requantize import MOST_NODES as QUANTIZED
from onnxtile.tiling.requantize import requantize
from onnxtile.tiling.writer import Writer

ProductWriter: TypeAlias = Writer[Product, TileGrid]


@dataclass(frozen=True)
class _Tiles:
    """The cut operands of one site, and what is left to multiply the result by."""

    a: Blocks
    b: Blocks
    zeros: tuple[Blocks | None, Blocks | None]
    alpha: float

    def inputs(self, m: int, k: int, n: int) -> list[ir.Value | None]:
        """Return the inputs of the tile at (m, k, n): its factors, then their zero points up to the last there is."""
        zeros: list[ir.Value | None] = [None if zero is None else zero.block(0, n) for zero in self.zeros]
        while zeros and zeros[-1] is None:
            zeros.pop()
        return [self.a.block(m, k), self.b.block(k, n), *zeros]


def emit(
    writer: ProductWriter,
    constants: ConstantTable,
    cache: BlockCache,
    graph: ir.Graph,
    how: Accumulation = Accumulation.SUM,
) -> ir.Value:
    """Write the tiled product; return its result, which is the output of the last node of `writer`.

    The nodes stand in loop order, K innermost unless the grid says otherwise; each Split where its first part is needed,
    each sum as soon as its partial sums are there, each Concat along N after the last block of its rows.
    """
    product = writer.product
    tiles = _cut(writer, constants, cache, graph)
    filled = _dims(writer, None, None)
    result = writer.concat(_bands(writer, tiles, fitting(how, product)), product.axes[0], {}, filled)
    result = writer.cut_off(result, filled)
    if tiles.alpha != 1.0:
        factor = writer.constant(ir.Tensor(as_scalar(tiles.alpha, product.dtype), product.dtype), "alpha_factor")
        result = writer.node("Mul", [result, factor], "alpha", {}, product.dims)
    if product.bias is not None and product.adds_bias:
        addend = _times_beta(writer, product.bias, constants)
        result = writer.node("Add", [result, addend], "bias", {}, product.dims)
    if product.requantize is not None:
        result = requantize(writer, result, product.requantize, constants)
    return result


def most_nodes(product: Product, grid: TileGrid, how: Accumulation = Accumulation.SUM) -> int:
    """Return the number of nodes that `emit` writes, at most: whether alpha needs one more is known only from the constants."""
    filled = sum(any(x.fills for x in axes) for axes in ((grid.m, grid.k), (grid.k, grid.n), (grid.m, grid.n)))
    return int(count_nodes(product, grid.shape, grid.order, how)) + filled


def count_nodes(product: Product, counts: tuple[Any, Any, Any], order: str, how: Accumulation) -> Any:
    """Return that number for products cut into `counts` stretches along M, K and N, numbers or arrays, which nothing fills up."""
    gm, gk, gn = counts
    sums = gm * gn * additions(how, gk, product)
    concats = (gn > 1) * gm + (gm > 1) * 1
    a = _splits(product.a, (gm, gk), outer_side(order, "mk"))
    b = _splits(product.b, (gk, gn), outer_side(order, "kn"))
    return gm * gk * gn + sums + concats + a + b + _once(product, gn)


def _once(product: Product, gn: Any) -> Any:
    """Return how many nodes the whole result takes, and zero points that are cut, at most."""
    beta = product.bias is not None and product.bias.beta != 1.0 and not product.bias.constant
    columns = product.b.zero is not None and product.b.zero.axes[1] is not None and not product.b.zero.constant
    quantized = 0 if product.requantize is None else QUANTIZED
    once = quantized + (product.alpha != 1.0) + (1 + beta if product.adds_bias else 0)
    return (gn > 1) * columns + once


def _splits(operand: Operand, counts: tuple[Any, Any], outer: int) -> Any:
    """Return how many nodes cut an operand into as many rows and columns of blocks as `counts` says."""
    if operand.constant:
        return 0
    first, second = counts[outer], counts[1 - outer]
    return operand.transposed + (first > 1) * 1 + (second > 1) * first


def _cut(writer: ProductWriter, constants: ConstantTable, cache: BlockCache, graph: ir.Graph) -> _Tiles:
    """Return the cut operands."""
    product, grid, alpha = writer.product, writer.grid, writer.product.alpha
    a = Cutting(product.a, grid.m, grid.k, ("a", "m", "k"))
    b = Cutting(product.b, grid.k, grid.n, ("b", "k", "n"))
    if alpha != 1.0 and (folded := scaled(b, alpha, constants, product.dtype)) is not None:
        b, alpha = folded, 1.0
    elif alpha != 1.0 and (folded := scaled(a, alpha, constants, product.dtype)) is not None:
        a, alpha = folded, 1.0
    zeros: tuple[Blocks | None, Blocks | None] = (None, None)
    if product.a.zero is not None:
        zeros = (WholeBlock(product.a.zero.value), None)
    if product.b.zero is not None:
        cutting = Cutting(product.b.zero, Axis(1, 1), grid.n, ("b_zero", "k", "n"))
        zeros = (zeros[0], blocks_of(cutting, writer, constants, cache, graph=graph, outer=1))
    left = blocks_of(a, writer, constants, cache, graph=graph, outer=outer_side(grid.order, "mk"))
    right = blocks_of(b, writer, constants, cache, graph=graph, outer=outer_side(grid.order, "kn"))
    return _Tiles(left, right, zeros, alpha)


def _bands(writer: ProductWriter, tiles: _Tiles, how: Accumulation) -> list[ir.Value]:
    """Write all products and their sums; return the bands of rows of the result."""
    grid = writer.grid
    blocks: dict[tuple[int, int], Block] = {}
    rows: dict[int, dict[int, ir.Value]] = {m: {} for m in range(grid.m.count)}
    bands: dict[int, ir.Value] = {}
    for m, k, n in grid.places():
        if (m, n) not in blocks:
            blocks[m, n] = block(how, writer, {"m": m, "n": n}, _dims(writer, m, n))
        blocks[m, n].multiply(tiles.inputs(m, k, n), k)
        if k < grid.k.count - 1:
            continue
        rows[m][n] = blocks.pop((m, n)).result()
        if len(rows[m]) == grid.n.count:
            place = {"m": m} if grid.m.is_cut else {}
            bands[m] = writer.concat(list(rows[m].values()), writer.product.axes[1], place, _dims(writer, m, None))
    return list(bands.values())


def _times_beta(writer: ProductWriter, bias: Bias, constants: ConstantTable) -> ir.Value:
    dtype = writer.product.dtype
    if bias.beta == 1.0:
        return bias.value
    if bias.constant:
        array = times(constants.array(bias.value), bias.beta, dtype)
        return writer.constant(ir.Tensor(array, dtype), "c")
    factor = writer.constant(ir.Tensor(as_scalar(bias.beta, dtype), dtype), "beta_factor")
    return writer.node("Mul", [bias.value, factor], "beta", {}, bias.dims)


def _dims(writer: ProductWriter, m: int | None, n: int | None) -> Dims:
    """Return the dimensions of the block at (m, n) of the result; None stands for the whole side."""
    dims = list(writer.product.dims)
    for axis, cuts, index in zip(writer.product.axes, (writer.grid.m, writer.grid.n), (m, n), strict=True):
        if axis is not None and (cuts.is_cut or cuts.fills):
            dims[axis] = cuts.total if index is None else cuts.width(index)
    return tuple(dims)
