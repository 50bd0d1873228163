"""What differs between matrix products and convolutions: how they are examined, counted and written."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxtile.tiling.accumulate import Accumulation
from onnxtile.tiling.blocks import BlockCache
from onnxtile.tiling.conv.emit import emit as emit_convolution
from onnxtile.tiling.conv.emit import most_nodes as most_convolution_nodes
from onnxtile.tiling.conv.examine import examine as examine_convolution
from onnxtile.tiling.conv.grid import ConvGrid
from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.emit import emit as emit_product
from onnxtile.tiling.emit import most_nodes as most_product_nodes
from onnxtile.tiling.layers import Cuts, Layer
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.product import ConstantTable, Facts
from onnxtile.tiling.sites import Candidate
from onnxtile.tiling.sites import examine as examine_product
from onnxtile.tiling.writer import Writer


def examine(name: str, node: ir.Node, layer: Layer, limits: Limits, facts: Facts, how: Accumulation) -> Candidate:
    """Return the choices for a layer. Raises NotTiled where it cannot be cut, Infeasible where no tile is within the limits."""
    if isinstance(layer, Convolution):
        return examine_convolution(name, node, layer, limits, facts, how)
    return examine_product(name, node, layer, limits, facts, how)


def most_nodes(layer: Layer, grid: Cuts, how: Accumulation = Accumulation.SUM) -> int:
    """Return the number of nodes that a layer becomes, at most."""
    if isinstance(layer, Convolution):
        assert isinstance(grid, ConvGrid)
        return most_convolution_nodes(layer, grid, how)
    assert not isinstance(grid, ConvGrid)
    return most_product_nodes(layer, grid, how)


def emit(
    writer: Writer[Any, Any], constants: ConstantTable, cache: BlockCache, graph: ir.Graph, how: Accumulation
) -> ir.Value:
    """Write a layer; return its result, which is the output of the last node of `writer`."""
    write = emit_convolution if isinstance(writer.product, Convolution) else emit_product
    return write(writer, constants, cache, graph, how)
