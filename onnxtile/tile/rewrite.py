"""Tiles every product of a model: find them all, refuse what would explode, then rewrite the graph in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxtile.collector import collector_paused
from onnxtile.errors import UsageError
from onnxtile.model.dims import free_inputs
from onnxtile.model.save import raise_ir_version
from onnxtile.model.unbound import Unbound
from onnxtile.progress import Progress, counted, silent
from onnxtile.registry import discover
from onnxtile.tile.accumulate import Accumulation, fitting
from onnxtile.tile.blocks import BlockCache
from onnxtile.tile.bodies import Bodies, NothingConstant
from onnxtile.tile.conv.grid import ConvGrid
from onnxtile.tile.copies import Copies
from onnxtile.tile.kinds import emit, examine, most_nodes
from onnxtile.tile.layers import Layer
from onnxtile.tile.limits import Limits
from onnxtile.tile.names import Names
from onnxtile.tile.options import Options
from onnxtile.tile.product import (
    FIRST_OPSET,
    ConstantTable,
    Facts,
    NotTiled,
    ShapeTable,
    Tileable,
)
from onnxtile.tile.prune import prune
from onnxtile.tile.result import SkippedNode, TiledNode, TileResult
from onnxtile.tile.shelf import Shelf
from onnxtile.tile.sites import MOST_NODES, Candidate, Site, choose
from onnxtile.tile.uncut import why_uncut
from onnxtile.tile.wrap import wrap
from onnxtile.tile.writer import Writer


@dataclass(frozen=True)
class _Writing:
    """What all sites of one model are written with."""

    model: ir.Model
    names: Names
    constants: ConstantTable
    options: Options
    cache: BlockCache = field(default_factory=dict)
    shelf: Shelf = field(default_factory=Shelf)
    bodies: frozenset[ir.Graph] = frozenset()
    """The graphs of local functions."""


@collector_paused()
def tile(
    model: ir.Model,
    limits: Limits,
    shapes: ShapeTable,
    constants: ConstantTable,
    options: Options | None = None,
    progress: Progress = silent,
) -> TileResult:
    """Cut every tileable node of `model`, in place, into products within `limits`.

    `shapes` and `constants` describe the model as it comes in. Values keep their names, types and roles; constants that
    only the old nodes used are removed. The IR version becomes 10 at least where anything is tiled, for the marks on the
    nodes. Raises UsageError, before anything is changed, where more than a million nodes would be written.
    """
    options = options or Options()
    names = Names(model)
    facts = Facts(shapes, constants, _opset(model), Unbound.of(free_inputs(model)))
    operators = discover("onnxtile.tile.ops", Tileable)  # type: ignore[type-abstract]
    bodies = Bodies(model, shapes, constants)
    copies = Copies(model, bodies)
    copies.split(lambda node: _is_tileable(node, operators))
    search = _Search(model, limits, facts, names, operators, bodies, options.accumulate)
    found = choose(search.all(), options)
    sites = [site for site in found if isinstance(site, Site)]
    _refuse_explosion(sites, options)
    if sites:
        raise_ir_version(model)
    # From the last node to the first: a constant that is the result of a product may be read while that product still stands.
    done: dict[ir.Node, TiledNode | SkippedNode] = {}
    writing = _Writing(model, names, constants, options, bodies=frozenset(f.graph for f in model.functions.values()))
    for site in counted(sites[::-1], "tiling", progress):
        done[site.node] = _rewrite(site, writing)
    copies.merge()
    reported = [done[entry.node] if isinstance(entry, Site) else entry for entry in found]
    return TileResult(
        tiled=tuple(entry for entry in reported if isinstance(entry, TiledNode)),
        skipped=tuple(entry for entry in reported if isinstance(entry, SkippedNode)),
    )


def _opset(model: ir.Model) -> int:
    return model.graph.opset_imports.get("", 0)


@dataclass(frozen=True)
class _Search:
    """Looks at all nodes of a model, in its order, and changes nothing."""

    model: ir.Model
    limits: Limits
    facts: Facts
    names: Names
    operators: Mapping[str, Tileable]
    bodies: Bodies
    how: Accumulation

    def all(self) -> Iterator[Candidate | SkippedNode]:
        """Yield what can be tiled and what cannot."""
        for node in self.model.graph.all_nodes():
            reason = why_uncut(node)
            if reason is not None:
                yield SkippedNode(self.names.of(node), reason)
            elif _is_tileable(node, self.operators):
                yield self._examine(node, self.facts, self.names.of(node))
        for function in self.model.functions.values():
            for node in function.all_nodes():
                if _is_tileable(node, self.operators):
                    yield self._inside(node, function)

    def _inside(self, node: ir.Node, function: ir.Function) -> Candidate | SkippedNode:
        """Examine a node of a local function: all its inputs come from outside, with the sizes that the calls agree on."""
        overload = f":{function.overload}" if function.overload else ""
        name = f"{function.name}{overload}/{self.names.within(node)}"
        if function.opset_imports.get("", 0) != self.facts.opset:
            return SkippedNode(name, f"it stands inside {function.domain}::{function.name}, which has another opset")
        try:
            facts = replace(self.facts, shapes=self.bodies.of(function), constants=NothingConstant())
        except NotTiled as reason:
            return SkippedNode(name, str(reason))
        return self._examine(node, facts, name)

    def _examine(self, node: ir.Node, facts: Facts, name: str) -> Candidate | SkippedNode:
        if facts.opset < FIRST_OPSET:
            return SkippedNode(name, f"opset {facts.opset} is too old: raise the model to {FIRST_OPSET} at least")
        layer = self.operators[node.op_type]
        try:
            return examine(
                name, node, layer.restate(node, facts), self.limits.of_operator(node.op_type), facts, self.how
            )
        except NotTiled as reason:
            return SkippedNode(name, str(reason))


def _is_tileable(node: ir.Node, operators: Mapping[str, Tileable]) -> bool:
    operator = operators.get(node.op_type)
    return operator is not None and node.domain == operator.domain


def _refuse_explosion(sites: list[Site], options: Options) -> None:
    """Raise UsageError, with what to raise, where tiling would write more than a million nodes."""
    counts = [most_nodes(site.product, site.grid, options.accumulate) for site in sites]
    total = sum(counts)
    if total <= MOST_NODES:
        return
    worst = sites[counts.index(max(counts))]
    raise UsageError(
        f"tiling would write {total:,} nodes, {max(counts):,} of them for {worst.name!r}; the most is {MOST_NODES:,}",
        hint=_what_to_raise(worst),
    )


def _what_to_raise(worst: Site) -> str:
    """Return the limit that makes most of the tiles of a site."""
    counts = dict(zip("mkn", worst.grid.shape, strict=True))
    axis = max("mkn", key=lambda letter: counts[letter])
    if isinstance(worst.grid, ConvGrid):
        return f"raise the limits along {axis.upper()}, which is cut into {counts[axis]} there"
    cuts = getattr(worst.grid, axis)
    return f"raise --max-{axis} (now {cuts.step}), which cuts {cuts.size} into {cuts.count} there"


def _rewrite(site: Site, writing: _Writing) -> TiledNode | SkippedNode:
    """Replace the node of `site` in its graph."""
    node, product = site.node, site.product
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        return SkippedNode(site.name, "it was the constant operand of a tiled node only, and is gone")
    constants: ConstantTable = NothingConstant() if graph in writing.bodies else writing.constants
    _fold(product, constants)
    writer = Writer(site.name, node.op_type, product, site.grid, _opset(writing.model), writing.names, writing.shelf)
    result = emit(writer, constants, writing.cache, graph, writing.options.accumulate)
    original = ir.to_proto(node)
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
    _take_over(node, written[-1], result)
    graph.remove(node, safe=True)
    prune(product.values, constants)
    how = fitting(writing.options.accumulate, product)
    return TiledNode(site.name, node.op_type, product, site.grid, original, tuple(writer.nodes), how, site.chosen)


def _insert_constants(graph: ir.Graph, constants: Sequence[ir.Value]) -> None:
    """Write `constants` as nodes, since a function has no initializers, before all others: any of these may share them."""
    nodes = [
        ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], outputs=[value], name=value.name)
        for value in constants
        if value.const_value is not None
    ]
    graph.insert_before(graph[0], nodes)


def _fold(product: Layer, constants: ConstantTable) -> None:
    """Compute the constants of `product` that operators make, which may be tiled next, while those still stand."""
    for value in product.values:
        if value in constants and value.producer() is not None:
            constants.array(value)


def _take_over(old: ir.Node, last: ir.Node, result: ir.Value) -> None:
    """Let `result`, made by `last`, stand wherever the output of `old` stood, under its name."""
    value = old.outputs[0]
    result.type, result.shape, result.doc_string = (
        value.type or result.type,
        value.shape or result.shape,
        value.doc_string,
    )
    result.metadata_props.update(value.metadata_props)
    result.meta.update(value.meta)
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    result.name = value.name
    last.doc_string = old.doc_string
    last.metadata_props.update(
        {key: text for key, text in old.metadata_props.items() if key not in last.metadata_props}
    )
