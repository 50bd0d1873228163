"""The vertices of a model by operator, and at which of them a search for a program must begin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import cache

import onnx
import onnx_ir as ir

from onnxtile import keys
from onnxtile.model.constants import Constants
from onnxtile.model.walk import bodies_of
from onnxtile.query.names import OpType, in_any_domain, meanings
from onnxtile.query.program import Program
from onnxtile.query.required import RequiredNode, required_nodes
from onnxtile.query.syntax import ANY_NODE, PRODUCER
from onnxtile.query.vertex import Surroundings, Vertex, is_constant


class Scan:
    """Lists the vertices of a model, in all its graphs; of a graph that is as it was, the bodies in it are not looked for again.

    The graphs in `closed` are left out.
    """

    def __init__(self, model: ir.Model, constants: Constants, closed: Container[ir.Graph] = ()) -> None:
        self._model = model
        self._constants = constants
        self._closed = closed
        self._graphs: dict[ir.Graph, tuple[list[ir.Node], list[ir.Graph]]] = {}

    def vertices(self) -> list[Vertex]:
        """Return the vertices of the model as it is now, in the order of the file; a body follows the graph that contains it."""
        found: list[Vertex] = []
        functions = (function.graph for function in self._model.functions.values())
        todo = [self._model.graph, *(graph for graph in functions if graph not in self._closed)]
        todo.reverse()
        while todo:
            graph = todo.pop()
            nodes, bodies = self._graphs.get(graph, ([], []))
            current = list(graph)
            if current != nodes:
                nodes, bodies = current, [body for node in current for body in _bodies(node)]
                self._graphs[graph] = nodes, bodies
            found += (value for value in graph.initializers.values() if value in self._constants)
            found += nodes
            todo += reversed(bodies)
        return found


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [body.graph for body in bodies_of(node)] if _may_have_bodies(node.domain, node.op_type) else []


@cache
def _may_have_bodies(domain: str, op_type: str) -> bool:
    """Tell whether an operator may hold graphs; where no schema knows it, it may."""
    try:
        schema = onnx.defs.get_schema(op_type, domain=domain)
    except onnx.defs.SchemaError:
        return True
    kinds = {onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS}
    return any(attribute.type in kinds for attribute in schema.attributes.values())


def _operator(node: ir.Node) -> OpType:
    return (node.domain, keys.meta_op(node.op_type) if node.domain == keys.DOMAIN else node.op_type)


class VertexIndex:
    """All vertices of a model in the order of the file, and those of each operator."""

    def __init__(self, vertices: Sequence[Vertex], constants: Constants) -> None:
        self.vertices = vertices
        self._constants = constants
        self._producers: list[Vertex] | None = None
        self._operators: dict[Vertex, OpType] = {v: _operator(v) for v in vertices if isinstance(v, ir.Node)}
        by_operator: defaultdict[OpType, list[Vertex]] = defaultdict(list)
        for node, operator in self._operators.items():
            by_operator[operator].append(node)
        self._by_operator = by_operator
        self._meanings: dict[str, frozenset[OpType]] = {}

    def matches(self, vertex: Vertex, type_: str) -> bool:
        """Tell whether a node of a query that is called `type_` can stand for `vertex`."""
        if type_ == ANY_NODE:
            return True
        if type_ == PRODUCER:
            return is_constant(vertex, self._constants)
        operator = self._operators.get(vertex)
        return operator is not None and operator in self._meant(type_)

    def of(self, type_: str) -> Sequence[Vertex]:
        """Return the vertices for which a node called `type_` can stand; in the order of the file within each operator."""
        if type_ == ANY_NODE:
            return self.vertices
        if type_ == PRODUCER:
            if self._producers is None:
                self._producers = [vertex for vertex in self.vertices if is_constant(vertex, self._constants)]
            return self._producers
        lists = [self._by_operator[meaning] for meaning in self._meant(type_)]
        return lists[0] if len(lists) == 1 else [vertex for vertices in lists for vertex in vertices]

    def _meant(self, type_: str) -> frozenset[OpType]:
        """Return the operators of the model that `type_` stands for."""
        meant = self._meanings.get(type_)
        if meant is None:
            named = {key for key in self._by_operator if key[1] == type_} if in_any_domain(type_) else set()
            meant = self._meanings[type_] = meanings(type_) & self._by_operator.keys() | named
        return meant

    def roots(self, program: Program) -> Sequence[Vertex]:
        """Return the vertices with which a match of `program` can begin, by their operator, in the order of the file."""
        types = {node.type for node in program.roots}
        inputs = self._from_outside() if any(node.looked_at and node.type == ANY_NODE for node in program.roots) else []
        if len(types) == 1 and len(self._meant(*types)) < 2:
            return [*inputs, *self.of(*types)]
        roots = {vertex for type_ in types for vertex in self.of(type_)}
        return [*inputs, *(vertex for vertex in self.vertices if vertex in roots)]

    def _from_outside(self) -> list[Vertex]:
        """Return what nodes read that no node of their graph makes, in the order of the first readers: inputs, and what bodies capture."""
        nodes = [node for node in self._operators if isinstance(node, ir.Node)]
        read = ((node, value) for node in nodes for value in node.inputs if value is not None)
        return list(dict.fromkeys(v for node, v in read if v not in self._constants and _is_from_outside(node, v)))

    def candidates(self, program: Program, around: Surroundings) -> Sequence[Vertex]:
        """Return those of the roots from which the rarest node that every match has can be reached."""
        required = required_nodes(program.instructions)
        roots = self.roots(program)
        counts = [sum(map(self._count, node.types)) for node in required]
        if not roots or 0 in counts:
            return []
        rarest = min((i for i in range(len(required)) if _path(required, i)), key=counts.__getitem__, default=0)
        if rarest == 0 or 2 * counts[rarest] > len(roots):
            return roots
        reached = self._walk_back(required, rarest, around, limit=4 * len(roots))
        return roots if reached is None else [root for root in roots if root in reached]

    def _count(self, type_: str) -> int:
        # That there are constants goes without saying; to count them would take longer than it saves.
        return len(self.vertices) if type_ == PRODUCER else len(self.of(type_))

    def _walk_back(
        self, required: Sequence[RequiredNode], start: int, around: Surroundings, limit: int
    ) -> set[Vertex] | None:
        """Return the roots from which the node at `start` can be reached; None where that takes more than `limit` steps."""
        here = {vertex for type_ in required[start].types for vertex in self.of(type_)}
        for node, parent in _path(required, start):
            assert node.edge is not None
            back = replace(node.edge, forward=not node.edge.forward)
            before: set[Vertex] = set()
            for vertex in here:
                found = [
                    *around.along(vertex, back, anyone=parent.looked_at),
                    *(b for b, _ in around.beyond(vertex, back)),
                ]
                limit -= 1 + len(found)
                if limit < 0:
                    return None
                before.update(other for other in found if any(self.matches(other, type_) for type_ in parent.types))
            here = before
        return here


def _is_from_outside(node: ir.Node, value: ir.Value) -> bool:
    producer = value.producer()
    return producer is None or producer.graph is not node.graph


def _path(required: Sequence[RequiredNode], start: int) -> list[tuple[RequiredNode, RequiredNode]]:
    """Return the pairs of a node and its parent from `start` to the root; none where nothing certain leads there."""
    pairs: list[tuple[RequiredNode, RequiredNode]] = []
    place = start
    while (parent := required[place].parent) is not None:
        pairs.append((required[place], required[parent]))
        place = parent
    return pairs if place == 0 else []
