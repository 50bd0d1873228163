"""Local verification: each different site alone, the original nodes beside the call that replaces them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.fusion.edge_rows import EdgeDifference
from onnxtile.fusion.record import NodeRecord, Past, Record, past_of
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import draw
from onnxtile.model.node_kinds import RandomNodes, has_seed, holders
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.topology import graphs_in, node_id, nodes_in
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.progress import Progress, counted, silent
from onnxtile.system.runtime import Array
from onnxtile.verification.values import OutputError, compare_values

COUNTS = frozenset({ir.DataType.INT64, ir.DataType.INT32})
"""Element types of shapes and indices."""


@dataclass(frozen=True)
class SiteVerdict(JsonFields):
    """The result of one site run alone; `also` counts further sites that are the same, and were not run.

    `skipped` says why a site could not be run alone, `refused` why onnxruntime does not take what it became. `edges` are the edge rows on
    which a lowered site differs, None where none were run. `call` is the name of the node, `outputs` are the worst differences of its
    results.
    """

    JSON = "call equal outputs also skipped? edges?"

    call: str
    outputs: tuple[OutputError, ...]
    also: int
    skipped: str = ""
    refused: str = ""
    edges: tuple[EdgeDifference, ...] | None = None

    @property
    def equal(self) -> bool:
        """Whether all outputs agree; also where the site could not be run alone."""
        return not self.refused and all(output.equal for output in self.outputs)


def check_sites(
    original: ir.Model, fused: ir.Model, shapes: Shapes, *, progress: Progress = silent
) -> tuple[SiteVerdict, ...]:
    """Run each different call of the last run of fuse beside the nodes of `original` it stands for, on random inputs.

    Constants are fed as they are. `shapes` are those of `original`, all inputs bound. Sites that share function, shapes and
    element types are run once. Raises ModelError where onnxruntime refuses a part.
    """
    sites = _Sites(original, fused, shapes)
    groups: dict[tuple[object, ...], list[tuple[ir.Node, ValuesByName]]] = {}
    for path, graph in _graphs(fused.graph):
        scope = sites.scopes[path]
        for call in (node for node in graph if keys.FUSED in node.metadata_props):
            groups.setdefault(sites.signature(call, scope), []).append((call, scope))
    generator = np.random.default_rng(0)
    different = counted(groups.values(), "verifying each different site", progress)
    return tuple(sites.run(*group[0], len(group) - 1, generator) for group in different)


ValuesByName = ChainMap[str, ir.Value]
"""The values that nodes of a graph can name: its own, before those of the graphs around it."""


def _graphs(graph: ir.Graph) -> Iterator[tuple[tuple[str, ...], ir.Graph]]:
    """Yield `graph` and all bodies in it, each with a path that a fused model shares with its original."""
    for path, inner in graphs_in(graph):
        yield tuple(f"{node_id(node)}.{key}" for node, key in path), inner


class _Sites:
    def __init__(self, original: ir.Model, fused: ir.Model, shapes: Shapes) -> None:
        self._cut = Submodels(original)
        self._cut_fused = Submodels(fused)
        self._past = past_of(fused)
        self._shapes = shapes
        self._constants = Constants(original)
        random = RandomNodes(original, self._constants).themselves
        self._unseeded = holders(original, lambda node: node in random and not has_seed(node))
        self._order = {node: place for place, node in enumerate(nodes_in(original.graph))}
        self.scopes: dict[tuple[str, ...], ValuesByName] = {}
        for path, graph in _graphs(original.graph):
            results = (value for node in graph for value in node.outputs if value.name)
            by_name = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values(), *results)}
            self.scopes[path] = self.scopes[path[:-1]].new_child(by_name) if path else ChainMap(by_name)

    def signature(self, call: ir.Node, scope: ValuesByName) -> tuple[object, ...]:
        """Return the key of a run: all that decides its outcome besides the numbers fed."""
        reads = [None if value is None else scope.get(value.name or "") for value in call.inputs]
        known = tuple(v and (self._shapes.dtype(v), self._shapes.dims(v), v in self._constants) for v in reads)
        return (call.op_identifier(), known)

    def run(self, call: ir.Node, scope: ValuesByName, also: int, generator: np.random.Generator) -> SiteVerdict:
        inputs = list(dict.fromkeys(scope[v.name or ""] for v in call.inputs if v is not None))
        outputs = [scope[v.name] for v in call.outputs if v.name]
        unknown = [v for v in inputs if v not in self._constants and self._shapes.sizes(v) is None]
        if unknown:
            return SiteVerdict(call.name or "", (), also, f"the shape of {unknown[0].name!r} is not known")
        feeds = {v.name or "": self._feed(v, generator) for v in inputs}
        types = {value.name or "": self._type(value) for value in inputs}
        fed = {value: types[value.name or ""] for value in inputs}
        nodes = self._originals(call, scope)
        if any(map(self._unseeded, nodes)):
            return SiteVerdict(call.name or "", (), also, "it draws random numbers without a seed")
        original = self._cut.session(self._cut.of(nodes, fed, outputs))
        try:
            expected = original.run(feeds)
        except ModelError:
            # A shape or an index that the model computes elsewhere cannot be drawn at random.
            computed = [v for v in inputs if v not in self._constants and self._dtype(v) in COUNTS]
            if not computed:
                raise
            reason = f"{computed[0].name!r}, which the model computes, takes no random values"
            return SiteVerdict(call.name or "", (), also, reason)
        fed = {value: types[value.name or ""] for value in call.inputs if value is not None}
        fused = self._cut_fused.of([call], fed, [value for value in call.outputs if value.name])
        got = self._cut_fused.session(fused).run(feeds)
        errors = (compare_values(name, value, got[name]) for name, value in expected.items())
        return SiteVerdict(call.name or "", tuple(errors), also)

    def _originals(self, call: ir.Node, scope: ValuesByName) -> list[ir.Node]:
        """Return the original nodes that `call` stands for, in the order of the file, with the constants it took in."""
        names = _outputs_of(self._past, self._past.record(call))
        makers = {scope[name].producer() for name in names if name in scope}
        return sorted((node for node in makers if node is not None), key=self._order.__getitem__)

    def _feed(self, value: ir.Value, generator: np.random.Generator) -> Array:
        if value in self._constants:
            return self._constants.array(value)
        typed = ir.Value(name=value.name, type=ir.TensorType(self._dtype(value)))
        return draw(generator, typed, lambda _: self._shapes.sizes(value))

    def _dtype(self, value: ir.Value) -> ir.DataType:
        dtype = self._shapes.dtype(value)
        return dtype if dtype is not None else ir.DataType.FLOAT

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        dims = self._constants.array(value).shape if value in self._constants else self._shapes.dims(value)
        return tensor_type(self._dtype(value), dims)


def _outputs_of(past: Past, record: Record) -> Iterator[str]:
    """Yield the names of all values that the nodes of `record` make, those of meta-ops within included."""
    for constant in record.constants:
        if constant.node is not None:
            yield constant.value.name
    for node in record.nodes:
        yield from _outputs_of_node(past, node)


def _outputs_of_node(past: Past, node: NodeRecord) -> Iterator[str]:
    if keys.FUSED in node.metadata:
        yield from _outputs_of(past, past.numbered(node.metadata[keys.FUSED]))
        return
    yield from (value.name for value in node.outputs)
