"""The graph as a query sees it: vertices are nodes and constants, edges lead from outputs to inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.graph import node_id
from onnxtile.model.constants import Constants
from onnxtile.query.syntax import Edge

Vertex: TypeAlias = ir.Node | ir.Value
"""A node, or the initializer that is a constant without a node."""


def identify(vertex: Vertex) -> str:
    """Return the name by which results refer to `vertex`."""
    return (vertex.name or "") if isinstance(vertex, ir.Value) else node_id(vertex)


def is_constant(vertex: Vertex, constants: Constants) -> bool:
    """Tell whether `vertex` is a Producer: constant, however it was written."""
    if isinstance(vertex, ir.Value):
        return vertex in constants
    return bool(vertex.outputs) and all(value in constants for value in vertex.outputs)


def neighbours(vertex: Vertex, edge: Edge, constants: Constants) -> Iterator[Vertex]:
    """Yield the vertices to which `edge` leads from `vertex`, each once, in the order of outputs and inputs."""
    found = _consumers(vertex, edge) if edge.forward else _sources(vertex, edge, constants)
    yield from dict.fromkeys(found)


def _consumers(vertex: Vertex, edge: Edge) -> Iterator[Vertex]:
    graph = vertex.graph
    for value in _outputs(vertex, edge.output):
        uses = value.uses()
        if edge.exclusive and len(uses) != 1:
            continue
        for node, index in sorted(uses, key=lambda use: use.idx):
            # What a body captures from the graph around it is read inside, out of this graph's sight.
            same = node.graph is graph or isinstance(vertex, ir.Value)
            if same and edge.input in {None, index}:
                yield node


def _sources(vertex: Vertex, edge: Edge, constants: Constants) -> Iterator[Vertex]:
    if isinstance(vertex, ir.Value):
        return
    for index, value in enumerate(vertex.inputs):
        if value is None or edge.input not in {None, index}:
            continue
        if edge.exclusive and len(value.uses()) != 1:
            continue
        producer = value.producer()
        if producer is None:
            if value in constants and edge.output in {None, 0}:
                yield value
        elif edge.output in {None, value.index()} and (producer.graph is vertex.graph or value in constants):
            yield producer


def _outputs(vertex: Vertex, index: int | None) -> list[ir.Value]:
    values = [vertex] if isinstance(vertex, ir.Value) else list(vertex.outputs)
    return values if index is None else values[index : index + 1]
