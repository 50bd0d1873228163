"""The backtracking machine that runs a program at one root.

No recursion, and every step is counted: a search ends, if need be with an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import onnx_ir as ir

from onnxtile.errors import QueryError
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
)
from onnxtile.query.syntax import ANY_NODE, Edge, Node
from onnxtile.query.vertex import Beyond, Vertex


class Neighbours(Protocol):
    """Gives the vertices to which an edge leads from a vertex; with `anyone`, inputs of graphs as well."""

    def __call__(self, vertex: Vertex, edge: Edge, *, anyone: bool = False) -> Sequence[Vertex]:
        """Return the vertices to which `edge` leads from `vertex`."""


FurtherOn: TypeAlias = Callable[[Vertex, Edge], Sequence[Beyond]]
Changes: TypeAlias = Callable[[ir.Node], bool]
Accepts: TypeAlias = Callable[[Vertex, Node], bool]
Holds: TypeAlias = Callable[[Check, Mapping[str, Vertex]], bool]

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
class RawMatch:
    """A match: its vertices in the order in which the query names them, those it sees through, and what each anchor is bound to."""

    vertices: tuple[Vertex, ...]
    bound: Mapping[str, Vertex]


@dataclass
class StepBudget:
    """Steps that a search may still take, over all roots. A step is an instruction, or one vertex looked at."""

    steps: int


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
    """Runs a program at one root after the other.

    `neighbours`, `accepts` and `holds` say what the graph is, `further_on` what lies beyond nodes that may change nothing, and
    `changes_nothing` which of these do not; `observe` is called where a search that leads to no match ends.
    """

    def __init__(
        self,
        program: Program,
        neighbours: Neighbours,
        accepts: Accepts,
        holds: Holds,
        budget: StepBudget,
        further_on: FurtherOn,
        changes_nothing: Changes,
        observe: Callable[[MatchFailure], None] | None = None,
    ) -> None:
        self._program = program
        self._neighbours = neighbours
        self._accepts = accepts
        self._holds = holds
        self._further_on = further_on
        self._changes_nothing = changes_nothing
        self._budget = budget
        self._observe = observe
        carry_out: Mapping[type, Callable[[Any, int], int]] = {
            Follow: self._step,
            Fork: self._fork,
            Jump: self._jump,
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

    def run(self, root: Vertex) -> Iterator[RawMatch]:
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
        place = 0
        while place != _FAIL:
            self._spend(1)
            instruction, carry_out = self._code[place]
            if carry_out is None:
                assert isinstance(instruction, Accept)
                # Where everything could be skipped, nothing matched.
                if self._order:
                    self._spend(len(self._order))
                    self._found += 1
                    yield RawMatch((*self._order, *self._passed), dict(self._bound))
                place = self._resume()
                continue
            following = carry_out(instruction, place)
            if following == _FAIL:
                if self._observe is not None:
                    matched, looked_at, bound = tuple(self._order), tuple(self._looked_at), dict(self._bound)
                    self._observe(MatchFailure(root, place, instruction, self._at, matched, looked_at, bound))
                following = self._resume()
            place = following

    def _spend(self, steps: int) -> None:
        self._budget.steps -= steps
        if self._budget.steps < 0:
            raise self._too_open("the search takes too many steps")

    def _too_open(self, what: str) -> QueryError:
        text = self._program.query.text
        return QueryError(f"{what}: the query leaves too much open", text, (0, len(text)))

    # Instructions: each returns the place of the next, or _FAIL.

    def _step(self, step: Follow, place: int) -> int:
        if self._at is None or step.edge is None:
            ways: Sequence[Vertex] = [self._root]
        else:
            ways = self._neighbours(self._at, step.edge, anyone=step.node.looked_at)
        self._spend(len(ways))
        candidates: list[Beyond] = [(vertex, ()) for vertex in ways if self._fits(vertex, step.node)]
        candidates += self._seen_through(step)
        if not candidates:
            return _FAIL
        if len(candidates) > 1:
            # Every consumer that fits makes a match of its own; of several inputs that fit, the first that leads to a match counts.
            until = self._found if step.edge is None or not step.edge.forward else None
            for way in reversed(candidates[1:]):
                self._choices.append(_Choice(place, self._at, self._stack, len(self._log), way, until))
        return self._adopt(candidates[0], step.node, place)

    def _seen_through(self, step: Follow) -> list[Beyond]:
        """Return the vertices that fit beyond nodes that change nothing; any node at all is the nearest one."""
        if self._at is None or step.edge is None or (step.node.type == ANY_NODE and not step.node.looked_at):
            return []
        ways = self._further_on(self._at, step.edge)
        self._spend(len(ways))
        fitting = (way for way in ways if self._fits(way[0], step.node))
        return [way for way in fitting if all(map(self._changes_nothing, way[1]))]

    def _fork(self, fork: Fork, _place: int) -> int:
        until = self._found if fork.soft else None
        self._choices.append(_Choice(fork.second, self._at, self._stack, len(self._log), None, until))
        return fork.first

    def _jump(self, jump: Jump, _place: int) -> int:
        return jump.to

    def _goto(self, goto: Goto, place: int) -> int:
        vertex = self._bound.get(goto.node.key or "")
        if vertex is None or not self._passes_test(vertex, goto.node):
            return _FAIL
        self._at = vertex
        return place + 1

    def _stop(self, stop: Stop, place: int) -> int:
        assert self._at is not None
        further = self._neighbours(self._at, to_anyone(stop.edge))
        self._spend(len(further))
        return place + 1 if self._named.issuperset(further) else _FAIL

    def _check(self, check: Check, place: int) -> int:
        return place + 1 if self._holds(check, self._bound) else _FAIL

    def _mark(self, _mark: Mark, place: int) -> int:
        self._stack = (self._at, self._stack)
        return place + 1

    def _return(self, back: Return, place: int) -> int:
        self._at = self._stack[0]
        if not back.keep:
            self._stack = self._stack[1]
        return place + 1

    def _measure(self, _measure: Measure, place: int) -> int:
        self._stack = (len(self._named), self._stack)
        return place + 1

    def _grown(self, _grown: Grown, place: int) -> int:
        before, self._stack = self._stack
        return _FAIL if len(self._named) == before else place + 1

    def _forget(self, forget: Forget, place: int) -> int:
        for key in sorted(forget.anchors & self._bound.keys()):
            self._log.append((key, self._bound.pop(key)))
        return place + 1

    # Where we are

    def _fits(self, vertex: Vertex, node: Node) -> bool:
        bound = self._bound.get(node.key or "") if node.anchor is not None else None
        if bound is not None:
            return vertex is bound and self._passes_test(vertex, node)
        return vertex not in self._named and self._accepts(vertex, node)

    def _passes_test(self, vertex: Vertex, node: Node) -> bool:
        return node.test is None or self._accepts(vertex, node)

    def _adopt(self, way: Beyond, node: Node, place: int) -> int:
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
        return place + 1

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
                next(one for one in lists if one and one[-1] is vertex).pop()
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
