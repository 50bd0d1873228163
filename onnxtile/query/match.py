"""Finds the matches of a query in a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.opset import Opsets
from onnxtile.model.quantising import dequantises
from onnxtile.model.shapes import Dims, Shapes
from onnxtile.query.evaluate import TestContext, holds
from onnxtile.query.index import Scan, VertexIndex
from onnxtile.query.late_shapes import LateShapes
from onnxtile.query.machine import Machine, MatchFailure, RawMatch, StepBudget
from onnxtile.query.names import require_known
from onnxtile.query.program import Check, Program, compile_query
from onnxtile.query.syntax import ANY_NODE, PRODUCER, Node
from onnxtile.query.unchanged import Unchanged
from onnxtile.query.vertex import Surroundings, Vertex, identify, is_constant

_STEPS_PER_VERTEX = 20
_STEPS = 1_000_000


@dataclass(frozen=True)
class Match:
    """A subgraph that a query describes: its root, all its vertices in the order of the query, and its anchors.

    Constants are vertices too: a node, or an initializer (an `onnx_ir.Value`).
    """

    root: Vertex
    vertices: tuple[Vertex, ...]
    anchors: Mapping[str, Vertex]

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes among the vertices, in the order of the query."""
        return tuple(vertex for vertex in self.vertices if isinstance(vertex, ir.Node))

    def named(self, anchors: Collection[str]) -> Iterator[Vertex]:
        """Yield the vertices whose anchor is one of `anchors`, of any type: of `Add#sum` the anchor is `sum`."""
        yield from (vertex for key, vertex in self.anchors.items() if key.partition("#")[2] in anchors)

    def to_dict(self) -> dict[str, Any]:
        """Return the names of root, vertices and anchors, for JSON."""
        return {
            "root": identify(self.root),
            "nodes": [identify(vertex) for vertex in self.vertices],
            "anchors": {key: identify(vertex) for key, vertex in self.anchors.items()},
        }


def compiled(query: str, known: Collection[str] = ()) -> Program:
    """Return the program of a query's text. Raises QueryError; `known` are operator names beside those of schemas and aliases."""
    from onnxtile.query.parse import parse  # imports lark, which the pattern library does not need

    parsed = parse(query)
    require_known(parsed, known)
    return compile_query(parsed)


class Matcher:
    """Finds programs in one model. What they need to know of it is gathered once.

    Graphs may be edited between two searches, as long as `constants` still holds, `replaced` is called for new values, and
    `refresh` is called after. Nothing is looked for in the graphs in `closed`. `shapes` gives the shapes of `model` as it is now.
    """

    def __init__(
        self,
        model: ir.Model,
        constants: Constants,
        closed: Container[ir.Graph] = (),
        shapes: Callable[[], Shapes] | None = None,
    ) -> None:
        self._model = model
        self._constants = constants
        self._shapes = LateShapes(model, shapes)
        self._opsets = Opsets(model)
        self.unchanged = Unchanged(constants, self._shapes)
        self._scan = Scan(model, constants, closed)
        self.refresh()

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions of `value`, inferred when first asked. Raises ModelError where shapes contradict each other."""
        return self._shapes.dims(value)

    def find(self, program: Program, observe: Callable[[MatchFailure], None] | None = None) -> list[Match]:
        """Return the matches of `program` in all graphs of the model, root by root in the order of the file.

        Matches may overlap. Each way over a `~` edge makes a match of its own; a set of vertices with its anchors is listed once.
        `observe` is called where a search that leads to no match ends. Raises QueryError where the search would take too long.
        """
        index, around = self.index(), self._around
        roots = index.candidates(program, around) if observe is None else index.roots(program)
        budget = StepBudget(_STEPS + _STEPS_PER_VERTEX * len(index.vertices))
        accepts, does = self._acceptor(index, program), self.unchanged.does
        machine = Machine(program, around.along, accepts, self._holds, budget, around.beyond, does, observe)
        found: dict[object, Match] = {}
        for root in roots:
            for one in machine.run(root):
                match, key = Match(root, one.vertices, one.bound), _identity(one)
                found[key] = min(found[key], match, key=_names) if key in found else match
        return list(found.values())

    def refresh(self) -> None:
        """Forget what was gathered of graphs that have been edited since."""
        self._index: VertexIndex | None = None
        self._around = Surroundings(self._constants, self.unchanged.may)

    def index(self) -> VertexIndex:
        """Return the vertices of the model, by operator."""
        if self._index is None:
            self._index = VertexIndex(self._scan.vertices(), self._constants)
        return self._index

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Note that `new` has replaced `old` and has its type."""
        self._shapes.replaced(old, new)

    @property
    def constants(self) -> Constants:
        """The constant values of the model."""
        return self._constants

    def facts(self, text: str, node: Node | None = None) -> TestContext:
        """Return the names that a test in `text` may use; where `node` may stand for any operator, more names are allowed."""
        strict = node is None or node.type not in {ANY_NODE, PRODUCER}
        return TestContext(self._constants, self._shapes, self._opsets, self._model, text, strict, self.unchanged)

    def _acceptor(self, index: VertexIndex, program: Program) -> Callable[[Vertex, Node], bool]:
        tested = (node for node in program.query.nodes if node.test is not None)
        facts = {node.type: self.facts(program.query.text, node) for node in tested}

        def accepts(vertex: Vertex, node: Node) -> bool:
            if not index.matches(vertex, node.type):
                return False
            return node.test is None or holds(node.test, vertex, facts[node.type])

        return accepts

    def _holds(self, check: Check, bound: Mapping[str, Vertex]) -> bool:
        return holds(check.condition, bound, self.facts(check.text))


def _identity(found: RawMatch) -> object:
    return (
        found.vertices[0],
        frozenset(found.vertices),
        tuple(sorted((key, id(vertex)) for key, vertex in found.bound.items())),
    )


def disjoint(matches: Iterable[Match], constants: Constants) -> list[Match]:
    """Return the longest of `matches` that share no node; constants may be shared.

    The choice does not depend on the order of the matches: of equally long ones the root whose name comes first counts.
    """
    return [match for match, before in with_rivals(matches, constants) if before is None]


def with_rivals(matches: Iterable[Match], constants: Constants) -> list[tuple[Match, Match | None]]:
    """Return `matches`, the longest first, each with the one before it that has a node of it, or None where `disjoint` chooses it.

    A match of constants only is its own rival: nothing can be chosen of it. Matches may share nodes that dequantise: each has its copy.
    """
    taken: dict[Vertex, Match] = {}
    ranked: list[tuple[Match, Match | None]] = []
    for match in sorted(matches, key=lambda m: (-len(m.vertices), _names(m))):
        nodes = [vertex for vertex in match.vertices if not is_constant(vertex, constants)]
        nodes = [one for one in nodes if not (isinstance(one, ir.Node) and dequantises(one))] or nodes
        rival = next((taken[node] for node in nodes if node in taken), None if nodes else match)
        if rival is None:
            taken |= dict.fromkeys(nodes, match)
        ranked.append((match, rival))
    return ranked


def _names(match: Match) -> tuple[object, ...]:
    anchors = tuple(sorted((key, _name(vertex)) for key, vertex in match.anchors.items()))
    return (tuple(_name(vertex) for vertex in match.vertices), anchors)


def _name(vertex: Vertex) -> str:
    """Return a name that no other vertex of the graph has: that of its first value."""
    value = next((v for v in vertex.outputs if v.name), None) if isinstance(vertex, ir.Node) else vertex
    return (value.name or "") if value is not None else (vertex.name or "")
