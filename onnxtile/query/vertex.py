"""The graph as a query sees it: vertices are nodes and constants, edges lead from outputs to inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import onnx_ir as ir

from onnxtile.graph import node_id
from onnxtile.model.constants import Constants
from onnxtile.query.syntax import Edge

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


class Surroundings:
    """What lies around each vertex, remembered as long as the graphs stay as they are."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._uses: dict[ir.Value, Uses] = {}
        self._ways: dict[tuple[int, bool], tuple[Edge, dict[Vertex, Sequence[Vertex]]]] = {}

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
        # Alternatives take the same edge from the same vertex in turn. An edge is known by its identity, which is quick, and kept.
        _, ways = self._ways.setdefault((id(edge), anyone), (edge, {}))
        found = ways.get(vertex)
        if found is None:
            found = self._consumers(vertex, edge) if edge.forward else self._sources(vertex, edge, anyone=anyone)
            ways[vertex] = found = found if len(found) < 2 else list(dict.fromkeys(found))
        return found

    def _consumers(self, vertex: Vertex, edge: Edge) -> Sequence[Vertex]:
        graph = vertex.graph
        found: list[Vertex] = []
        for value in _at(outputs_of(vertex), edge.output):
            uses = self.uses(value)
            if edge.exclusive and len(uses) != 1:
                continue
            # What a body captures from the graph around it is read inside, out of this graph's sight, unless it is constant.
            anywhere = value in self._constants or (value is vertex and value.producer() is None)
            inside = value is not vertex
            found += (
                node
                for node, index in uses
                if edge.input in {None, index} and (anywhere or (node.graph is graph) == inside)
            )
        return found

    def _sources(self, vertex: Vertex, edge: Edge, *, anyone: bool) -> Sequence[Vertex]:
        if not isinstance(vertex, ir.Node):
            return ()
        found: list[Vertex] = []
        for value in _at(vertex.inputs, edge.input):
            if value is None or (edge.exclusive and len(self.uses(value)) != 1):
                continue
            producer, constant = value.producer(), value in self._constants
            if producer is not None and (producer.graph is vertex.graph or constant):
                if edge.output in {None, value.index()}:
                    found.append(producer)
            elif (constant or anyone) and edge.output in {None, 0}:
                found.append(value)
        return found


def _at(values: Sequence[_T], index: int | None) -> Sequence[_T]:
    return values if index is None else values[index : index + 1]
