"""Writes the products of a layer in zones: block after block of the result, all pieces of one side by side while K goes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxtile.tiling.accumulate import Accumulation, block
from onnxtile.tiling.product import Dims, Product
from onnxtile.tiling.writer import AnyWriter
from onnxtile.tiling.zoned import ZonedGrid

Inputs = Callable[[int, int, int], list[ir.Value | None]]
"""The inputs of the tile at (m, k, n), where m counts the rows of blocks of one zone."""


def multiplied(writer: AnyWriter, grid: ZonedGrid, inputs: Sequence[Inputs], how: Accumulation) -> ir.Value:
    """Write all products and their sums; return the result. `inputs` has those of each zone."""
    product: Product = writer.product
    bands: dict[tuple[int, int], list[ir.Value]] = {}
    for zone, row, pieces in grid.blocks():
        rows = grid.rows[zone]
        blocks = {
            n: block(how, writer, {"z": zone, "m": row, "n": n}, _dims(product, rows.width(row), grid.n.width(n)))
            for n in pieces
        }
        for k in range(grid.k.count):
            for n in pieces:
                blocks[n].multiply(inputs[zone](row, k, n), k)
        bands.setdefault((zone, row), []).extend(made.result() for made in blocks.values())
    return _joined(writer, grid, bands)


def _joined(writer: AnyWriter, grid: ZonedGrid, bands: dict[tuple[int, int], list[ir.Value]]) -> ir.Value:
    """Write the Concats: pieces to bands along N, bands to zones along M, zones to the result along N."""
    product: Product = writer.product
    whole = []
    for at, (rows, zone) in enumerate(zip(grid.rows, grid.zones, strict=True)):
        made = []
        for row in range(rows.count):
            dims = _dims(product, rows.width(row), zone.width)
            made.append(writer.concat(bands[at, row], product.axes[1], {"z": at, "m": row}, dims))
        whole.append(writer.concat(made, product.axes[0], {"z": at}, _dims(product, grid.size, zone.width)))
    return writer.concat(whole, product.axes[1], {}, product.dims)


def _dims(product: Product, m: int, n: int) -> Dims:
    """Return the dimensions of `m` rows and `n` columns of the result."""
    dims = list(product.dims)
    for axis, size in zip(product.axes, (m, n), strict=True):
        assert axis is not None, "a vector has no zones"
        dims[axis] = size
    return tuple(dims)
