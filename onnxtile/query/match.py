"""Finds the matches of a query in a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.modules import dotted, module_path, shared_path
from onnxtile.model.node_kinds import dequantises
from onnxtile.model.opset import Opsets
from onnxtile.model.topology import bodies_of
from onnxtile.operators.node_view import Dims
from onnxtile.query.graph import Beyond, Surroundings, Vertex, identify, is_constant
from onnxtile.query.language import ANY_NODE, PRODUCER, Edge, Node, parse
from onnxtile.query.names import OpType, in_any_domain, meanings, require_known
from onnxtile.query.program import (
    Accept,
    Check,
    Follow,
    Forget,
    Fork,
    Goto,
    Grown,
    Instruction,
    Jump,
    Mark,
    Measure,
    Program,
    Return,
    Stop,
    compile_query,
)
from onnxtile.query.tests import LateShapes, TestContext, Unchanged, holds
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import QueryError

# The backtracking machine that runs a program at one root.
#
# No recursion, and every step is counted: a search ends, if need be with an error that says so.


MAX_NODES = 10_000
"""Vertices in one match; a query that takes in more says too little."""


@dataclass(frozen=True)
class MatchFailure:
    """The point at which a way through the program ended: the instruction at `place`, at vertex `at` (None: at the root).

    `matched` are the vertices taken in until then, in the order of the query; `looked_at` those that it only looks at.
    """

    root: Vertex
    place: int
    instruction: Instruction
    at: Vertex | None
    matched: tuple[Vertex, ...]
    looked_at: tuple[Vertex, ...]
    bound: Mapping[str, Vertex]


@dataclass(frozen=True)
class Match:
    """A subgraph that a query describes: its root, all its vertices in the order of the query, and its anchors.

    Constants are vertices too: a node, or an initializer (an `onnx_ir.Value`). `root` and `vertices` are nodes or values; `anchors` has
    those with a name in the query.
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
            "module": dotted(shared_path(module_path(node.name, node.metadata_props) for node in self.nodes)),
            "nodes": [identify(vertex) for vertex in self.vertices],
            "anchors": {key: identify(vertex) for key, vertex in self.anchors.items()},
        }


class _Choice(NamedTuple):
    """What to try when the search comes back: a place in the program, or a vertex to adopt there.

    With a number of matches in `until`, it counts only as long as no more are found: then a greedier way has led to one.
    """

    place: int
    at: Vertex | None
    stack: Any
    log: int
    adopt: Beyond | None
    until: int | None


_FAIL = -1


class Machine:
    """Runs a program at one root after the other, in so many `steps` over all roots. A step is an instruction, or one vertex looked at.

    `around` and `accepts` say what the graph is, `holds` whether a check does, and `changes_nothing` which of the nodes that may change
    nothing do not; `observe` is called where a search that leads to no match ends.
    """

    def __init__(
        self,
        program: Program,
        around: Surroundings,
        accepts: Callable[[Vertex, Node], bool],
        holds: Callable[[Check, Mapping[str, Vertex]], bool],
        changes_nothing: Callable[[ir.Node], bool],
        steps: int,
        observe: Callable[[MatchFailure], None] | None = None,
    ) -> None:
        self._program = program
        self._around = around
        self._accepts = accepts
        self._holds = holds
        self._changes_nothing = changes_nothing
        self._steps_left = steps
        self._observe = observe
        carry_out: Mapping[type, Callable[[Any, int], int]] = {
            Follow: self._step,
            Fork: self._fork,
            Jump: lambda jump, _index: jump.to,
            Goto: self._goto,
            Stop: self._stop,
            Check: self._check,
            Mark: self._mark,
            Return: self._return,
            Measure: self._measure,
            Grown: self._grown,
            Forget: self._forget,
        }
        self._code = [(i, carry_out.get(type(i))) for i in program.instructions]
        self._begins: dict[int, list[tuple[int, Instruction]]] = {}

    def run(self, root: Vertex) -> Iterator[Match]:
        """Yield every match whose first node is `root`, greedy ones first."""
        self._root = root
        self._order: list[Vertex] = []
        self._looked_at: list[Vertex] = []
        self._passed: list[Vertex] = []
        self._named: set[Vertex] = set()
        self._bound: dict[str, Vertex] = {}
        self._log: list[tuple[str | None, Vertex | None]] = []
        self._choices: list[_Choice] = []
        self._found = 0
        self._at: Vertex | None = None
        self._stack: Any = None
        # A search that comes back asks the same of the same vertices again.
        self._ways: dict[tuple[int, Vertex | None], tuple[list[Beyond], int]] = {}
        self._branches: dict[tuple[int, Vertex | None], list[int]] = {}
        index = 0
        while index != _FAIL:
            self._spend(1)
            instruction, carry_out = self._code[index]
            if carry_out is None:
                assert isinstance(instruction, Accept)
                # Where everything could be skipped, nothing matched.
                if self._order:
                    self._spend(len(self._order))
                    self._found += 1
                    yield Match(root, (*self._order, *self._passed), dict(self._bound))
                index = self._resume()
                continue
            following = carry_out(instruction, index)
            if following == _FAIL:
                if self._observe is not None:
                    matched, looked_at, bound = tuple(self._order), tuple(self._looked_at), dict(self._bound)
                    self._observe(MatchFailure(root, index, instruction, self._at, matched, looked_at, bound))
                following = self._resume()
            index = following

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise self._too_open("the search takes too many steps")

    def _too_open(self, what: str) -> QueryError:
        text = self._program.text
        return QueryError(f"{what}: the query leaves too much open", text, (0, len(text)))

    # Instructions: each returns the place of the next, or _FAIL.

    def _step(self, step: Follow, index: int) -> int:
        ways = self._accepted(step, index)
        candidates = [way for way in ways if self._is_free(way[0], step.node)]
        if not candidates:
            return _FAIL
        if len(candidates) > 1:
            # Every consumer that fits makes a match of its own; of several inputs that fit, the first that leads to a match counts.
            until = self._found if step.edge is None or not step.edge.forward else None
            for way in reversed(candidates[1:]):
                self._choices.append(_Choice(index, self._at, self._stack, len(self._log), way, until))
        return self._adopt(candidates[0], step.node, index)

    def _accepted(self, step: Follow, index: int) -> list[Beyond]:
        """Return the vertices to which `step` may lead from here, whatever has matched so far."""
        known = self._ways.get((index, self._at))
        if known is None:
            known = self._ways[index, self._at] = self._accepted_from(self._at, step)
        ways, looked_at = known
        self._spend(looked_at)
        return ways

    def _accepted_from(self, start: Vertex | None, step: Follow) -> tuple[list[Beyond], int]:
        """Return the vertices from `start` that `step` accepts, and how many were looked at; without an edge, the root.

        Beyond nodes that change nothing are further ones; any node at all is the nearest one.
        """
        if start is None or step.edge is None:
            return [(self._root, ())] if self._accepts(self._root, step.node) else [], 1
        nearest, accepts = self._around.along(start, step.edge, anyone=step.node.looked_at), self._accepts
        ways: list[Beyond] = [(vertex, ()) for vertex in nearest if accepts(vertex, step.node)]
        if step.node.type == ANY_NODE and not step.node.looked_at:
            return ways, len(nearest)
        further = self._around.beyond(start, step.edge)
        if further:
            fitting = (way for way in further if self._accepts(way[0], step.node))
            ways += (way for way in fitting if all(map(self._changes_nothing, way[1])))
        return ways, len(nearest) + len(further)

    def _fork(self, fork: Fork, index: int) -> int:
        if fork.soft or self._observe is not None:
            until = self._found if fork.soft else None
            self._choices.append(_Choice(fork.second, self._at, self._stack, len(self._log), None, until))
            return fork.first
        branches = self._open_branches(index)
        for place in reversed(branches[1:]):
            self._choices.append(_Choice(place, self._at, self._stack, len(self._log), None, None))
        return branches[0] if branches else _FAIL

    def _open_branches(self, index: int) -> list[int]:
        """Return where the alternatives of the fork at `index` begin, but those whose first node is none of the neighbours here."""
        branches = self._branches.get((index, self._at))
        if branches is None:
            begins = self._begins.get(index)
            if begins is None:
                instructions = self._program.instructions
                begins = self._begins[index] = [(p, instructions[p]) for p in branch_places(index, instructions)]
            branches = [p for p, first in begins if not isinstance(first, Follow) or self._accepted(first, p)]
            self._branches[index, self._at] = branches
        self._spend(len(branches))
        return branches

    def _goto(self, goto: Goto, index: int) -> int:
        vertex = self._bound.get(goto.node.key or "")
        if vertex is None or not (goto.node.test is None or self._accepts(vertex, goto.node)):
            return _FAIL
        self._at = vertex
        return index + 1

    def _stop(self, stop: Stop, index: int) -> int:
        assert self._at is not None
        further = self._around.along(self._at, to_anyone(stop.edge))
        self._spend(len(further))
        return index + 1 if self._named.issuperset(further) else _FAIL

    def _check(self, check: Check, index: int) -> int:
        return index + 1 if self._holds(check, self._bound) else _FAIL

    def _mark(self, _mark: Mark, index: int) -> int:
        self._stack = (self._at, self._stack)
        return index + 1

    def _return(self, back: Return, index: int) -> int:
        self._at = self._stack[0]
        if not back.keep:
            self._stack = self._stack[1]
        return index + 1

    def _measure(self, _measure: Measure, index: int) -> int:
        self._stack = (len(self._named), self._stack)
        return index + 1

    def _grown(self, _grown: Grown, index: int) -> int:
        before, self._stack = self._stack
        return _FAIL if len(self._named) == before else index + 1

    def _forget(self, forget: Forget, index: int) -> int:
        for key in sorted(forget.anchors & self._bound.keys()):
            self._log.append((key, self._bound.pop(key)))
        return index + 1

    # Where we are

    def _is_free(self, vertex: Vertex, node: Node) -> bool:
        """Return whether `vertex`, which `node` accepts, can stand for it now: it is bound to its anchor, or not in the match yet."""
        bound = self._bound.get(node.key or "") if node.anchor is not None else None
        return vertex not in self._named if bound is None else vertex is bound

    def _adopt(self, way: Beyond, node: Node, index: int) -> int:
        vertex, passed = way
        if not node.looked_at and self._at not in self._looked_at:
            for between in passed:
                if between not in self._named:
                    self._take_in(between, self._passed)
        if vertex not in self._named:
            if len(self._named) == MAX_NODES:
                raise self._too_open(f"a match has more than {MAX_NODES:,} nodes")
            self._take_in(vertex, self._looked_at if node.looked_at else self._order)
        key = node.key
        if key is not None and key not in self._bound:
            self._bound[key] = vertex
            self._log.append((key, None))
        self._at = vertex
        return index + 1

    def _take_in(self, vertex: Vertex, among: list[Vertex]) -> None:
        self._named.add(vertex)
        among.append(vertex)
        self._log.append((None, vertex))

    def _resume(self) -> int:
        """Go back to the last choice that still counts; return the place to go on at, or _FAIL where there is none."""
        while self._choices:
            choice = self._choices.pop()
            if choice.until is None or choice.until == self._found:
                return self._take(choice)
        return _FAIL

    def _take(self, choice: _Choice) -> int:
        while len(self._log) > choice.log:
            key, vertex = self._log.pop()
            if key is None:
                assert vertex is not None
                self._named.discard(vertex)
                lists = (self._order, self._passed, self._looked_at)
                next(vertices for vertices in lists if vertices and vertices[-1] is vertex).pop()
            elif vertex is None:
                del self._bound[key]
            else:
                self._bound[key] = vertex
        self._at, self._stack = choice.at, choice.stack
        if choice.adopt is None:
            return choice.place
        step = self._program.instructions[choice.place]
        assert isinstance(step, Follow)
        return self._adopt(choice.adopt, step.node, choice.place)


def to_anyone(edge: Edge) -> Edge:
    """Return `edge` as `$` means it: it asks what is there, not whether it is there alone."""
    return replace(edge, exclusive=False)


def branch_places(index: int, instructions: Sequence[Instruction]) -> list[int]:
    """Return where the alternatives begin between which the fork at `index` chooses."""

    def end(fork: Fork) -> int:
        """Return where the alternatives meet again: each but the last ends with a jump there."""
        last = instructions[fork.second - 1]
        assert isinstance(last, Jump)
        return last.to

    fork = first = instructions[index]
    assert isinstance(first, Fork)
    places: list[int] = []
    while isinstance(fork, Fork) and not fork.soft and end(fork) == end(first):
        places.append(fork.first)
        index, fork = fork.second, instructions[fork.second]
    return [*places, index]


# The vertices of a model by operator, and those with which a match of a program can begin.


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
        vertices: list[Vertex] = []
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
            vertices += (value for value in graph.initializers.values() if value in self._constants)
            vertices += nodes
            todo += reversed(bodies)
        return vertices


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

    def vertices_of(self, type_: str) -> Sequence[Vertex]:
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
            return [*inputs, *self.vertices_of(*types)]
        roots = {vertex for type_ in types for vertex in self.vertices_of(type_)}
        return [*inputs, *(vertex for vertex in self.vertices if vertex in roots)]

    def _from_outside(self) -> list[Vertex]:
        """Return what nodes read that no node of their graph makes, in the order of the first readers: inputs, and what bodies capture."""
        nodes = [node for node in self._operators if isinstance(node, ir.Node)]
        read = ((node, value) for node in nodes for value in node.inputs if value is not None)
        return list(dict.fromkeys(v for node, v in read if v not in self._constants and _is_from_outside(node, v)))


def _is_from_outside(node: ir.Node, value: ir.Value) -> bool:
    producer = value.producer()
    return producer is None or producer.graph is not node.graph


_STEPS_PER_VERTEX = 20
_STEPS = 1_000_000


def compiled(query: str, known: Collection[str] = ()) -> Program:
    """Return the program of a query's text. Raises QueryError; `known` are operator names beside those of schemas and aliases."""
    require_known(parse(query), known)
    return compile_query(query)


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
        if observe is None and not all(map(index.vertices_of, program.certain)):
            return []
        accepts, steps = self._acceptor(index, program), _STEPS + _STEPS_PER_VERTEX * len(index.vertices)
        machine = Machine(program, around, accepts, self._holds, self.unchanged.does, steps, observe)
        matches: dict[object, Match] = {}
        for root in index.roots(program):
            for match in machine.run(root):
                key = _identity(match)
                matches[key] = min(matches[key], match, key=_names) if key in matches else match
        return list(matches.values())

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
        facts = {node.type: self.facts(program.text, node) for node in tested}

        def accepts(vertex: Vertex, node: Node) -> bool:
            if not index.matches(vertex, node.type):
                return False
            return node.test is None or holds(node.test, vertex, facts[node.type])

        return accepts

    def _holds(self, check: Check, bound: Mapping[str, Vertex]) -> bool:
        return holds(check.condition, bound, self.facts(check.text))


def _identity(match: Match) -> object:
    return (
        match.vertices[0],
        frozenset(match.vertices),
        tuple(sorted((key, id(vertex)) for key, vertex in match.anchors.items())),
    )


def with_rivals(matches: Iterable[Match], constants: Constants) -> list[tuple[Match, Match | None]]:
    """Return `matches`, the longest first, each with the one before it that has a node of it; None where it is chosen.

    The chosen ones share no node; constants may be shared. The choice does not depend on the order of `matches`: of equally long ones the
    root whose name comes first counts. A match of constants only is its own rival: nothing can be chosen of it. Matches may share nodes
    that dequantise: each has its copy.
    """
    taken: dict[Vertex, Match] = {}
    ranked: list[tuple[Match, Match | None]] = []
    for match in sorted(matches, key=lambda m: (-len(m.vertices), _names(m))):
        nodes = [vertex for vertex in match.vertices if not is_constant(vertex, constants)]
        nodes = [other for other in nodes if not (isinstance(other, ir.Node) and dequantises(other))] or nodes
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
