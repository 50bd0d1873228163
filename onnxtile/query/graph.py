"""The graph as a query sees it: vertices are nodes and constants, edges lead from outputs to inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias, TypeVar

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.topology import node_id
from onnxtile.query.language import Edge

Vertex: TypeAlias = ir.Node | ir.Value
"""A node, or the initializer that is a constant without a node. What a query only looks at may be an input of a graph as well."""

Uses: TypeAlias = Sequence[tuple[ir.Node, int]]
"""The nodes that read a value, each with the position of the input; a node that reads it twice occurs twice."""

_T = TypeVar("_T")


def identify(vertex: Vertex) -> str:
    """Return the name by which results refer to `vertex`."""
    return node_id(vertex) if isinstance(vertex, ir.Node) else (vertex.name or "")


def is_constant(vertex: Vertex, constants: Constants) -> bool:
    """Tell whether `vertex` is a Producer: constant, however it was written."""
    # Asked for the class it mostly is, as `isinstance` is slow to say no to these.
    if isinstance(vertex, ir.Node):
        return bool(vertex.outputs) and all(value in constants for value in vertex.outputs)
    return vertex in constants


def outputs_of(vertex: Vertex) -> Sequence[ir.Value]:
    """Return the values that `vertex` makes."""
    return vertex.outputs if isinstance(vertex, ir.Node) else [vertex]


Beyond: TypeAlias = tuple[Vertex, tuple[ir.Node, ...]]
"""A vertex, and the nodes between, which may change nothing."""

_FURTHEST = 8
"""Nodes in a row that an edge sees through."""


class _Passage(NamedTuple):
    """The `edge` of a query where nodes stand on it: the edge to the first of them, those between two, and the one that leads on."""

    edge: Edge
    to: Edge
    between: Edge
    on: Edge


def _passage(edge: Edge) -> _Passage:
    to = replace(edge, input=0) if edge.forward else replace(edge, output=0)
    on = replace(edge, output=0) if edge.forward else replace(edge, input=0)
    return _Passage(edge, to, replace(edge, output=0, input=0), on)


class Surroundings:
    """What lies around each vertex, remembered as long as the graphs stay as they are. `may_pass` says what an edge may see through."""

    def __init__(self, constants: Constants, may_pass: Callable[[ir.Node], bool]) -> None:
        self._constants = constants
        self._may_pass = may_pass
        self._beyond: dict[int, tuple[_Passage, dict[Vertex, Sequence[Beyond]]]] = {}
        self._passable: tuple[dict[Vertex, bool], dict[Vertex, bool]] = ({}, {})
        self._uses: dict[ir.Value, Uses] = {}
        self._ways: dict[tuple[int, bool], tuple[Edge, dict[Vertex, Sequence[Vertex]]]] = {}
        self._shared_ways: defaultdict[object, dict[Vertex, Sequence[Vertex]]] = defaultdict(dict)
        self._shared_beyond: defaultdict[object, dict[Vertex, Sequence[Beyond]]] = defaultdict(dict)

    def uses(self, value: ir.Value) -> Uses:
        """Return who reads `value`, in the order of input positions."""
        uses = self._uses.get(value)
        if uses is None:
            uses = list(value.uses())
            if len(uses) > 1:
                uses.sort(key=lambda use: use[1])
            self._uses[value] = uses
        return uses

    def along(self, vertex: Vertex, edge: Edge, *, anyone: bool = False) -> Sequence[Vertex]:
        """Return the vertices to which `edge` leads from `vertex`, each once, in the order of outputs and inputs.

        With `anyone`, an input of the graph is one, too, and so is what a body reads from the graph around it.
        """
        # Alternatives take equal edges from the same vertex in turn. An edge is known by its identity, which is quick, and kept.
        known = self._ways.get((id(edge), anyone))
        if known is None:
            known = self._ways[id(edge), anyone] = (edge, self._shared_ways[_direction(edge), anyone])
        ways = known[1]
        vertices = ways.get(vertex)
        if vertices is None:
            vertices = self._consumers(vertex, edge) if edge.forward else self._sources(vertex, edge, anyone=anyone)
            ways[vertex] = vertices = vertices if len(vertices) < 2 else list(dict.fromkeys(vertices))
        return vertices

    def beyond(self, vertex: Vertex, edge: Edge) -> Sequence[Beyond]:
        """Return the vertices to which `edge` leads if the nodes between, which are named with each, change nothing."""
        if not self._is_passable(vertex, forward=edge.forward):
            return ()
        known = self._beyond.get(id(edge))
        if known is None:
            known = self._beyond[id(edge)] = (_passage(edge), self._shared_beyond[_direction(edge)])
        passage, ways = known
        vertices = ways.get(vertex)
        if vertices is None:
            ways[vertex] = vertices = list(self._passing(vertex, passage))
        return vertices

    def _is_passable(self, vertex: Vertex, *, forward: bool) -> bool:
        """Return whether any node next to `vertex` may be seen through."""
        known = self._passable[forward]
        if vertex not in known:
            if forward:
                nodes = (node for value in outputs_of(vertex) for node, index in self.uses(value) if index == 0)
            else:
                read = vertex.inputs if isinstance(vertex, ir.Node) else ()
                makers = (value.producer() for value in read if value is not None)
                nodes = (maker for maker in makers if maker is not None)
            known[vertex] = any(map(self._may_pass, nodes))
        return known[vertex]

    def _passing(self, vertex: Vertex, passage: _Passage) -> Iterator[Beyond]:
        waiting: list[Beyond] = [(vertex, ())]
        while waiting:
            at, passed = waiting.pop(0)
            if passed:
                yield from ((further, passed) for further in self._ways_on(at, passage.on))
            if len(passed) < _FURTHEST:
                nodes = self._ways_on(at, passage.between if passed else passage.to)
                waiting += ((n, (*passed, n)) for n in nodes if isinstance(n, ir.Node) and self._may_pass(n))

    def _ways_on(self, vertex: Vertex, edge: Edge) -> Sequence[Vertex]:
        vertices = self._consumers(vertex, edge) if edge.forward else self._sources(vertex, edge, anyone=True)
        return list(dict.fromkeys(vertices))

    def _consumers(self, vertex: Vertex, edge: Edge) -> Sequence[Vertex]:
        graph = vertex.graph
        consumers: list[Vertex] = []
        for value in _at(outputs_of(vertex), edge.output):
            uses = self.uses(value)
            if edge.exclusive and len(uses) != 1:
                continue
            # What a body captures from the graph around it is read inside, out of this graph's sight, unless it is constant.
            anywhere = value in self._constants or (value is vertex and value.producer() is None)
            inside = value is not vertex
            consumers += (
                node
                for node, index in uses
                if edge.input in {None, index} and (anywhere or (node.graph is graph) == inside)
            )
        return consumers

    def _sources(self, vertex: Vertex, edge: Edge, *, anyone: bool) -> Sequence[Vertex]:
        if not isinstance(vertex, ir.Node):
            return ()
        sources: list[Vertex] = []
        for value in _at(vertex.inputs, edge.input):
            if value is None or (edge.exclusive and len(self.uses(value)) != 1):
                continue
            producer, constant = value.producer(), value in self._constants
            if producer is not None and (producer.graph is vertex.graph or constant):
                if edge.output in {None, value.index()}:
                    sources.append(producer)
            elif (constant or anyone) and edge.output in {None, 0}:
                sources.append(value)
        return sources


def _direction(edge: Edge) -> object:
    """Return what two edges have in common that lead to the same vertices."""
    return edge.forward, edge.output, edge.input, edge.exclusive


def _at(values: Sequence[_T], index: int | None) -> Sequence[_T]:
    return values if index is None else values[index : index + 1]
