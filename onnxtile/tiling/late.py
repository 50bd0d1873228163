"""Tiles that are made when they are written and then freed: one takes kilobytes, and a large model has hundreds of thousands."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from onnxtile.model.stream import Written
from onnxtile.tiling.blocks import BlockCache
from onnxtile.tiling.inplace import Writing, describe, emitted, report, rewrite
from onnxtile.tiling.prune import prune
from onnxtile.tiling.result import SkippedNode, TiledNode
from onnxtile.tiling.sites import TileSite
from onnxtile.tiling.writer import Writer


@dataclass(frozen=True)
class LateSite:
    """A node whose tiles are not made yet. It stays in the graph, without the constants that only it reads."""

    site: TileSite
    writing: Writing
    originals: tuple[onnx.NodeProto, ...]

    @contextmanager
    def __call__(self) -> Iterator[Written]:
        """Make the tiles, the same each time, and let them go afterwards."""
        node, cache = self.site.node, BlockCache()
        writer, result = emitted(self.site, replace(self.writing, names=self.writing.names.apart(), cache=cache))
        describe(node, writer.nodes[-1], result)
        if node.outputs[0].is_graph_output():  # which says it of itself
            result.type = result.shape = result.doc_string = None
            result.metadata_props.clear()
            result.meta.clear()
        result.name = node.outputs[0].name
        del result
        try:
            yield Written(writer.nodes, writer.constants)
        finally:
            _let_go(writer, cache)

    def rewrite(self) -> TiledNode | SkippedNode:
        """Put the tiles into the graph."""
        return rewrite(self.site, self.writing, self.originals)


def _let_go(writer: Writer, cache: BlockCache) -> None:
    """Free the nodes and constants, although a caller may still hold one of the constants."""
    for node in writer.nodes:
        node.resize_inputs(0)
    writer.nodes.clear()
    writer.constants.clear()
    for blocks in cache.values():
        blocks.clear()
    del node
    gc.collect(0)  # a node and its outputs hold each other; the youngest generation holds them


def may_wait(sites: Sequence[TileSite], writing: Writing) -> list[ir.Node]:
    """Return the nodes whose tiles can be made late: of the main graph, whose constants are held and read by no other site.

    Names of new values begin with the unique name of their node, so that no node depends on the others.
    """
    graph, constants = writing.model.graph, writing.constants
    if writing.options.wrap or any(node.op_type == "If" for node in graph.all_nodes()):
        return []  # wrappers are functions of the model; shapes inside branches are removed afterwards
    names = Counter(site.name for site in sites)
    held = [{value for value in site.contraction.values if value in constants} for site in sites]
    readers = Counter(value for values in held for value in values)
    return [
        site.node
        for site, values in zip(sites, held, strict=True)
        if site.node.graph is graph
        and site.node.outputs[0] not in constants
        and names[site.name] == 1
        and not site.contraction.island
        and all(value.is_initializer() and readers[value] == 1 for value in values)
    ]


def defer(site: TileSite, writing: Writing) -> tuple[TiledNode, LateSite]:
    """Take from the graph the constants that only the tiles of `site` need; return the report on the node, and its tiles to make."""
    late = LateSite(site, writing, (ir.to_proto(site.node),))
    with late() as written:
        count = len(written.nodes)
        own = {value for value in site.node.inputs if value in writing.constants}
        own -= {value for node in written.nodes for value in node.inputs if value in own}
    for index, value in enumerate(site.node.inputs):
        if value in own:
            site.node.replace_input_with(index, None)
    prune(site.contraction.values, writing.constants)
    return report(site, writing, late.originals, (), count), late
