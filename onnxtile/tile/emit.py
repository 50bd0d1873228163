"""Writes a product as MatMuls within the limits, Sums of partial sums, and Concats along N, then M.

alpha goes into the blocks of a constant operand where it can without loss, else it multiplies the result. The bias is
added last, by one Add on the whole result: its shape, whatever it is, needs no cut, each element is rounded as in Gemm,
and it costs one node where an Add for each block would cost as many as the result has blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.tile.blocks import BlockCache, Blocks, Cutting, WholeBlock, blocks_of, scaled, times
from onnxtile.tile.grid import Axis, TileGrid
from onnxtile.tile.product import INTEGERS, Bias, ConstantTable, Dims, Product, as_scalar
from onnxtile.tile.writer import Place, Writer


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


def emit(writer: Writer, constants: ConstantTable, cache: BlockCache, graph: ir.Graph) -> ir.Value:
    """Write the tiled product; return its result, which is the output of the last node of `writer`.

    The nodes stand in loop order: M, then N, then K innermost; each Split where its first part is needed, each Sum
    after its last partial sum.
    """
    product, grid = writer.product, writer.grid
    tiles = _cut(writer, constants, cache, graph)
    bands = []
    for m in range(grid.m.count):
        row = [_block(writer, tiles, m, n) for n in range(grid.n.count)]
        place = {"m": m} if grid.m.is_cut else {}
        bands.append(writer.concat(row, product.axes[1], place, _dims(writer, m, None)))
    result = writer.concat(bands, product.axes[0], {}, product.dims)
    if tiles.alpha != 1.0:
        factor = writer.constant(ir.Tensor(as_scalar(tiles.alpha, product.dtype), product.dtype), "alpha_factor")
        result = writer.node("Mul", [result, factor], "alpha", {}, product.dims)
    if product.bias is not None and product.adds_bias:
        addend = _times_beta(writer, product.bias, constants)
        result = writer.node("Add", [result, addend], "bias", {}, product.dims)
    return result


def most_nodes(product: Product, grid: TileGrid) -> int:
    """Return the number of nodes that `emit` writes, at most: whether alpha needs one more is known only from the constants."""
    gm, gk, gn = grid.shape
    sums = 0 if gk == 1 else gm * gn * (gk - 1 if product.dtype in INTEGERS else 1)
    concats = (gm if gn > 1 else 0) + (gm > 1)
    a = 0 if product.a.constant else product.a.transposed + (gm > 1) + (gm if gk > 1 else 0)
    b = 0 if product.b.constant else product.b.transposed + (gn > 1) + (gn if gk > 1 else 0)
    bias = (
        0
        if product.bias is None or not product.adds_bias
        else 1 + (product.bias.beta != 1.0 and not product.bias.constant)
    )
    zeros = product.b.zero is not None and product.b.zero.axes[1] is not None and not product.b.zero.constant and gn > 1
    return zeros + grid.matmuls + sums + concats + a + b + (product.alpha != 1.0) + bias


def _cut(writer: Writer, constants: ConstantTable, cache: BlockCache, graph: ir.Graph) -> _Tiles:
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
    return _Tiles(
        a=blocks_of(a, writer, constants, cache, graph=graph, outer=0),
        b=blocks_of(b, writer, constants, cache, graph=graph, outer=1),
        zeros=zeros,
        alpha=alpha,
    )


def _block(writer: Writer, tiles: _Tiles, m: int, n: int) -> ir.Value:
    """Write one block of the result: its products along K and their sum."""
    dims = _dims(writer, m, n)
    partial_sums = []
    for k in range(writer.grid.k.count):
        inputs = tiles.inputs(m, k, n)
        partial_sums.append(writer.node(writer.product.tile, inputs, "tile", {"m": m, "k": k, "n": n}, dims))
    return _sum(writer, partial_sums, {"m": m, "n": n}, dims)


def _sum(writer: Writer, terms: Sequence[ir.Value], place: Place, dims: Dims) -> ir.Value:
    if len(terms) == 1:
        return terms[0]
    if writer.product.dtype not in INTEGERS:
        return writer.node("Sum", terms, "sum", place, dims)
    # Sum takes no integers in any opset; Add does, and integer addition is exact in any order.
    total = terms[0]
    for k, term in enumerate(terms[1:], start=1):
        total = writer.node("Add", [total, term], "sum", place | {"k": k}, dims)
    return total


def _times_beta(writer: Writer, bias: Bias, constants: ConstantTable) -> ir.Value:
    dtype = writer.product.dtype
    if bias.beta == 1.0:
        return bias.value
    if bias.constant:
        array = times(constants.array(bias.value), bias.beta, dtype)
        return writer.constant(ir.Tensor(array, dtype), "c")
    factor = writer.constant(ir.Tensor(as_scalar(bias.beta, dtype), dtype), "beta_factor")
    return writer.node("Mul", [bias.value, factor], "beta", {}, bias.dims)


def _dims(writer: Writer, m: int, n: int | None) -> Dims:
    """Return the dimensions of the block at (m, n) of the result; None stands for the whole side."""
    dims = list(writer.product.dims)
    for axis, cuts, index in zip(writer.product.axes, (writer.grid.m, writer.grid.n), (m, n), strict=True):
        if axis is not None and index is not None and cuts.is_cut:
            dims[axis] = cuts.width(index)
    return tuple(dims)
