"""Local verification: each different site alone, the original nodes beside the call that replaces them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import ModelError
from onnxtile.fusion.record import NodeRecord, Past, Record, past_of
from onnxtile.graph import node_id
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import draw
from onnxtile.model.save import MIN_IR_VERSION
from onnxtile.model.shapes import Shapes
from onnxtile.progress import Progress, counted, silent
from onnxtile.runtime import Array
from onnxtile.verification import OutputError, compare_values, session

_COUNTS = {ir.DataType.INT64, ir.DataType.INT32}


@dataclass(frozen=True)
class SiteVerdict:
    """The result of one site run alone; `also` counts further sites that are the same, and were not run.

    `skipped` says why a site could not be run alone, `refused` why onnxruntime does not take what it became.
    """

    call: str
    outputs: tuple[OutputError, ...]
    also: int
    skipped: str = ""
    refused: str = ""

    @property
    def equal(self) -> bool:
        """Whether all outputs agree; also where the site could not be run alone."""
        return not self.refused and all(output.equal for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one site."""
        outputs = [output.to_dict() for output in self.outputs]
        skipped = {"skipped": self.skipped} if self.skipped else {}
        return {"call": self.call, "equal": self.equal, "outputs": outputs, "also": self.also, **skipped}


def check_sites(
    original: ir.Model, fused: ir.Model, shapes: Shapes, *, seed: int = 0, progress: Progress = silent
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
    generator = np.random.default_rng(seed)
    different = counted(groups.values(), "verifying each different site", progress)
    return tuple(sites.run(*group[0], len(group) - 1, generator) for group in different)


ValuesByName = ChainMap[str, ir.Value]
"""The values that nodes of a graph can name: its own, before those of the graphs around it."""


def _graphs(graph: ir.Graph, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ir.Graph]]:
    """Yield `graph` and all bodies in it, each with a path that a fused model shares with its original."""
    yield path, graph
    for node in graph:
        for attribute in node.attributes.values():
            name = f"{node_id(node)}.{attribute.name}"
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _graphs(attribute.as_graph(), (*path, name))
            elif attribute.type == ir.AttributeType.GRAPHS:
                for i, body in enumerate(attribute.as_graphs()):
                    yield from _graphs(body, (*path, f"{name}.{i}"))


class _Sites:
    def __init__(self, original: ir.Model, fused: ir.Model, shapes: Shapes) -> None:
        self._original = original
        self._fused = fused
        self._past = past_of(fused)
        self._shapes = shapes
        self._constants = Constants(original)
        self.scopes: dict[tuple[str, ...], ValuesByName] = {}
        for path, graph in _graphs(original.graph):
            made = (value for node in graph for value in node.outputs if value.name)
            own = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values(), *made)}
            self.scopes[path] = self.scopes[path[:-1]].new_child(own) if path else ChainMap(own)

    def signature(self, call: ir.Node, scope: ValuesByName) -> tuple[object, ...]:
        """Return what decides the outcome of a run besides the numbers fed."""
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
        alone = session(self._part(_originals(self._past, call, scope), inputs, outputs, self._original))
        try:
            expected = alone.run(feeds)
        except ModelError:
            # A shape or an index that the model computes elsewhere cannot be drawn at random.
            computed = [v for v in inputs if v not in self._constants and self._dtype(v) in _COUNTS]
            if not computed:
                raise
            reason = f"{computed[0].name!r}, which the model computes, takes no random values"
            return SiteVerdict(call.name or "", (), also, reason)
        copy = ir.Node(call.domain, call.op_type, call.inputs, overload=call.overload, outputs=_named(call.outputs))
        got = session(self._part([copy], inputs, copy.outputs, self._fused)).run(feeds)
        errors = (compare_values(name, value, got[name]) for name, value in expected.items())
        return SiteVerdict(call.name or "", tuple(errors), also)

    def _feed(self, value: ir.Value, generator: np.random.Generator) -> Array:
        if value in self._constants:
            return self._constants.array(value)
        typed = ir.Value(name=value.name, type=self._type(value))
        return draw(generator, typed, lambda _: self._shapes.sizes(value))

    def _dtype(self, value: ir.Value) -> ir.DataType:
        dtype = self._shapes.dtype(value)
        return dtype if dtype is not None else ir.DataType.FLOAT

    def _type(self, value: ir.Value) -> ir.TensorType:
        return ir.TensorType(self._dtype(value))

    def _part(self, nodes: list[ir.Node], inputs: list[ir.Value], outputs: Any, model: ir.Model) -> ir.Model:
        """Return a model of `nodes` alone, copied; small constants come along as initializers."""
        copies = {value.name or "": self._input(value) for value in inputs}
        read = (value for node in nodes for value in node.inputs if value is not None)
        initializers = [
            _initializer(v) for v in dict.fromkeys(read) if v.name not in copies and v.const_value is not None
        ]
        copies.update({value.name or "": value for value in initializers})
        body = []
        for node in nodes:
            made = _named(node.outputs)
            copies.update({value.name: value for value in made if value.name})
            operands = [None if value is None else copies[value.name or ""] for value in node.inputs]
            attributes = node.attributes.values()
            body.append(ir.Node(node.domain, node.op_type, operands, attributes, overload=node.overload, outputs=made))
        graph = ir.Graph(
            [copies[value.name or ""] for value in inputs],
            [copies[value.name or ""] for value in outputs if value.name],
            nodes=body,
            initializers=initializers,
            opset_imports=dict(model.graph.opset_imports),
            name="site",
        )
        functions = [function.clone() for function in model.functions.values()]
        return ir.Model(graph, ir_version=max(MIN_IR_VERSION, model.ir_version), functions=functions)

    def _input(self, value: ir.Value) -> ir.Value:
        dims = self._constants.array(value).shape if value in self._constants else self._shapes.dims(value)
        return ir.Value(name=value.name, type=self._type(value), shape=None if dims is None else ir.Shape(dims))


def _originals(past: Past, call: ir.Node, scope: ValuesByName) -> list[ir.Node]:
    """Return the original nodes that `call` stands for, in the order of the file, with the constants it took in."""
    names = set(_outputs_of(past, past.record(call)))
    makers = {scope[name].producer() for name in names if name in scope}
    graph = next(node.graph for node in makers if node is not None)
    assert isinstance(graph, ir.Graph)
    return [node for node in graph if node in makers]


def _initializer(value: ir.Value) -> ir.Value:
    tensor = value.const_value
    assert tensor is not None
    return ir.Value(name=value.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=value.shape)


def _named(values: Any) -> list[ir.Value]:
    return [ir.Value(name=value.name) for value in values]


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
