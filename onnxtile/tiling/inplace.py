"""Writes one node as its tiles, in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onnxtile.tiling.accumulate import fitting
from onnxtile.tiling.blocks import BlockCache
from onnxtile.tiling.constant_reader import ConstantReader
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.names import Names
from onnxtile.tiling.options import TilingPolicy
from onnxtile.tiling.prune import prune
from onnxtile.tiling.result import SkippedNode, TiledNode
from onnxtile.tiling.sites import TileSite
from onnxtile.tiling.tensors import ConstantTable, NoConstants
from onnxtile.tiling.wrap import wrap
from onnxtile.tiling.write_tiles import write_tiles
from onnxtile.tiling.writer import Writer


@dataclass(frozen=True)
class Writing:
    """The model, names, constants and options that all sites of one model are written with."""

    model: ir.Model
    names: Names
    constants: ConstantTable
    options: TilingPolicy
    cache: BlockCache = field(default_factory=dict)
    reader: ConstantReader = field(default_factory=ConstantReader)
    bodies: frozenset[ir.Graph] = frozenset()
    """The graphs of local functions."""
    replaced: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """The results of nodes that are gone, and those that took their places: a site that waits still knows the former."""

    def constants_in(self, graph: ir.Graph) -> ConstantTable:
        """Return which values are constant for a node of `graph`."""
        return NoConstants() if graph in self.bodies else self.constants


def emitted(site: TileSite, writing: Writing) -> tuple[Writer, ir.Value]:
    """Return the nodes that replace the node of `site`, and its result, the output of the last node; the graph is not changed."""
    graph = site.node.graph
    assert isinstance(graph, ir.Graph)
    opset = writing.model.graph.opset_imports.get("", 0)
    writer = Writer(site.name, site.node.op_type, site.contraction, site.grid, opset, writing.names, writing.reader)
    constants = writing.constants_in(graph)
    _fold(site.contraction, constants)
    result = write_tiles(writer, constants, writing.cache, graph, writing.options.accumulate)
    for node in writer.nodes:
        for place, value in enumerate(node.inputs):
            if value in writing.replaced:
                node.replace_input_with(place, writing.replaced[value])
    return writer, result


def rewrite(site: TileSite, writing: Writing, originals: tuple[onnx.NodeProto, ...] = ()) -> TiledNode | SkippedNode:
    """Replace the node of `site` in its graph; `originals` are the nodes as they were, where they have changed."""
    node, graph = site.node, site.node.graph
    if not isinstance(graph, ir.Graph):
        return SkippedNode(site.name, "it was the constant operand of a tiled node only, and is gone")
    writer, result = emitted(site, writing)
    replaced = site.contraction.island or (node,)
    originals = originals or tuple(ir.to_proto(one) for one in replaced)
    written, constants_left = writer.nodes, writer.constants
    if graph in writing.bodies:
        _insert_constants(graph, constants_left)
        constants_left = []
    elif writing.options.wrap:
        call, constants_left = wrap(writing.model, writer, result)
        written, result = [call], call.outputs[0]
    for constant in constants_left:
        graph.register_initializer(constant)
    graph.insert_before(node, written)
    _take_over(replaced[-1], written[-1], result)
    writing.replaced[replaced[-1].outputs[0]] = result
    read = _remove(replaced, node)
    prune((*site.contraction.values, *read), writing.constants_in(graph))
    return report(site, writing, originals, tuple(writer.nodes), len(writer.nodes))


def _remove(nodes: Sequence[ir.Node], product: ir.Node) -> list[ir.Value]:
    """Remove `nodes` from the last to the first, those before `product` only where nothing reads them; return what they read."""
    read = []
    after = nodes[nodes.index(product) :]
    for node in reversed(nodes):
        if node not in after and any(value.uses() or value.is_graph_output() for value in node.outputs):
            continue
        read += [value for value in node.inputs if value is not None]
        assert node.graph is not None
        node.graph.remove(node, safe=True)
    return read


def report(
    site: TileSite, writing: Writing, originals: tuple[onnx.NodeProto, ...], made: tuple[ir.Node, ...], count: int
) -> TiledNode:
    """Return the report on the node of `site`."""
    how = fitting(writing.options.accumulate, site.contraction)
    return TiledNode(
        site.name, site.node.op_type, site.contraction, site.grid, originals, made, how, site.chosen, nodes=count
    )


def _insert_constants(graph: ir.Graph, constants: Sequence[ir.Value]) -> None:
    """Write `constants` as nodes, since a function has no initializers, before all others: any of these may share them."""
    nodes = [
        ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], outputs=[value], name=value.name)
        for value in constants
        if value.const_value is not None
    ]
    graph.insert_before(graph[0], nodes)


def _fold(contraction: Contraction, constants: ConstantTable) -> None:
    """Compute the constants of `contraction` that operators make, before those operators are tiled themselves."""
    for value in contraction.values:
        if value in constants and value.producer() is not None:
            constants.array(value)


def describe(old: ir.Node, last: ir.Node, result: ir.Value) -> None:
    """Give `last`, which makes `result`, the type, shape, documentation and metadata of `old` and its output."""
    value = old.outputs[0]
    result.type, result.shape, result.doc_string = (
        value.type or result.type,
        value.shape or result.shape,
        value.doc_string,
    )
    result.metadata_props.update(value.metadata_props)
    result.meta.update(value.meta)
    last.doc_string = old.doc_string
    last.metadata_props.update(
        {key: text for key, text in old.metadata_props.items() if key not in last.metadata_props}
    )


def _take_over(old: ir.Node, last: ir.Node, result: ir.Value) -> None:
    """Replace the output of `old` by `result`, the output of `last`, under the same name."""
    describe(old, last, result)
    old.outputs[0].replace_all_uses_with(result, replace_graph_outputs=True)
    result.name = old.outputs[0].name
