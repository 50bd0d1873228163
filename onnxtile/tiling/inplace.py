"""Writes one node as its tiles, in its place."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import onnx
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.stream import Written
from onnxtile.operators.node_view import KnownConstants, NoConstants
from onnxtile.tiling.accumulate import fitting
from onnxtile.tiling.blocks import BlockCache
from onnxtile.tiling.choose import TileSite
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.limits import TilingPolicy
from onnxtile.tiling.result import SkippedNode, TiledNode
from onnxtile.tiling.write import write_tiles
from onnxtile.tiling.writer import ConstantReader, Names, Writer

# Removes constants without uses.


def prune(values: Iterable[ir.Value], constants: KnownConstants) -> None:
    """Remove from their graphs the `values` that are constant and unused, and the operators that compute them."""
    pending = [value for value in values if value in constants]
    while pending:
        value = pending.pop()
        node, graph = value.producer(), value.graph
        if value.uses() or value.is_graph_output() or graph is None:
            continue
        if value.is_initializer():
            assert value.name is not None
            del graph.initializers[value.name]
        elif node is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            pending.extend(v for v in node.inputs if v is not None)
            graph.remove(node, safe=True)


# A tiled layer in a local function of its own, so that no converter merges its tiles.
#
# The function has the inputs of the tiles: operands, blocks of constants, bias. The sizes for Split, Pad and Slice are Constants inside it,
# since hardware compilers need them inline.

OPSET_VERSION = 1


def wrap(model: ir.Model, writer: Writer, result: ir.Value) -> tuple[ir.Node, list[ir.Value]]:
    """Move the nodes of `writer` into a function of `model`; return its call, and the constants that stay outside."""
    sizes = {value: _constant(value) for value in writer.sizes}
    outer = _read(writer.nodes, sizes)
    inner = {value: _inside(value) for value in outer}
    inner |= {value: node.outputs[0] for value, node in sizes.items()}
    for node in writer.nodes:
        for index, value in enumerate(node.inputs):
            if value in inner:
                node.replace_input_with(index, inner[value])
    body = [*sizes.values(), *writer.nodes]
    name = _name(model, writer)
    opsets = {"": writer.opset, **{node.domain: OPSET_VERSION for node in writer.nodes if node.domain}}
    graph = ir.Graph([inner[value] for value in outer], [result], nodes=body, name=name, opset_imports=opsets)
    function = ir.Function(keys.DOMAIN, name, "", graph=graph, attributes=())
    function.metadata_props[keys.TILE] = mark = writer.mark("layer", {})
    model.functions[function.identifier()] = function
    model.opset_imports.setdefault(keys.DOMAIN, OPSET_VERSION)
    made = ir.Value(name=result.name, type=result.type, shape=result.shape)
    call = ir.Node(
        keys.DOMAIN, name, outer, outputs=[made], name=writer.fresh("layer"), metadata_props={keys.TILE: mark}
    )
    return call, [value for value in writer.constants if value not in sizes]


def _read(nodes: Sequence[ir.Node], sizes: dict[ir.Value, ir.Node]) -> list[ir.Value]:
    """Return the values that `nodes` read from outside, in the order of first use."""
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    return [value for value in read if value not in made and value not in sizes]


def _inside(value: ir.Value) -> ir.Value:
    """Return the input of the function for `value`. It keeps the elements of a constant, since the function is called once."""
    return ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)


def _constant(value: ir.Value) -> ir.Node:
    assert value.const_value is not None
    held = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
    attribute = ir.AttrTensor("value", value.const_value)
    return ir.Node("", "Constant", [], [attribute], outputs=[held], name=value.name)


def _name(model: ir.Model, writer: Writer) -> str:
    """Return a name for the function: the operator and the node, as an identifier."""
    stem = re.sub(r"\W+", "_", f"Tiled_{writer.op}_{writer.site}").strip("_")
    name, number = stem, 1
    while (keys.DOMAIN, name, "") in model.functions:
        number += 1
        name = f"{stem}_{number}"
    return name


@dataclass(frozen=True)
class Writing:
    """The model, names, constants and options that all sites of one model are written with."""

    model: ir.Model
    names: Names
    constants: KnownConstants
    options: TilingPolicy
    cache: BlockCache = field(default_factory=dict)
    reader: ConstantReader = field(default_factory=ConstantReader)
    bodies: frozenset[ir.Graph] = frozenset()
    """The graphs of local functions."""
    replaced: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """The results of nodes that are gone, and those that took their places: a site that waits still knows the former."""

    def constants_in(self, graph: ir.Graph) -> KnownConstants:
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
    result = write_tiles(writer, constants, writing.cache, graph, writing.options.way)
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
    how = fitting(writing.options.way, site.contraction)
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


def _fold(contraction: Contraction, constants: KnownConstants) -> None:
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


# Tiles that are made when they are written and then freed: one takes kilobytes, and a large model has hundreds of thousands.


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
