"""The backtracking machine that runs a program at one root.

No recursion, and every step is counted: a search ends, if need be with an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnxtile.errors import QueryError
from onnxtile.query.program import (
    Accept,
    Check,
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
    Step,
    Stop,
)
from onnxtile.query.syntax import Edge, Node
from onnxtile.query.vertex import Vertex

Neighbours: TypeAlias = Callable[[Vertex, Edge], Iterator[Vertex]]
Accepts: TypeAlias = Callable[[Vertex, Node], bool]
Holds: TypeAlias = Callable[[Check, Mapping[str, Vertex]], bool]

MAX_NODES = 10_000
"""Vertices in one match; a query that takes in more says too little."""


@dataclass(frozen=True)
class Failure:
    """The point at which a search gave up: at vertex `at` (None: at the root), in `instruction`, after `matched` vertices."""

    instruction: Instruction
    at: Vertex | None
    matched: tuple[Vertex, ...]
    bound: Mapping[str, Vertex]


@dataclass(frozen=True)
class Found:
    """A match: its vertices in the order in which the query names them, and what each anchor is bound to."""

    vertices: tuple[Vertex, ...]
    bound: Mapping[str, Vertex]


@dataclass
class Budget:
    """Steps that a search may still take, over all roots."""

    steps: int


@dataclass(frozen=True)
class _Choice:
    """What to try when the search comes back: a place in the program, or a vertex to adopt there."""

    place: int
    at: Vertex | None
    stack: Any
    log: int
    adopt: Vertex | None
    soft: bool


_FAIL = -1


class Machine:
    """Runs a program at one root after the other.

    `neighbours`, `accepts` and `holds` say what the graph is; `observe` hears of failures.
    """

    def __init__(
        self,
        program: Program,
        neighbours: Neighbours,
        accepts: Accepts,
        holds: Holds,
        budget: Budget,
        observe: Callable[[Failure], None] | None = None,
    ) -> None:
        self._program = program
        self._neighbours = neighbours
        self._accepts = accepts
        self._holds = holds
        self._budget = budget
        self._observe = observe

    def run(self, root: Vertex) -> Iterator[Found]:
        """Yield every match whose first node is `root`, greedy ones first."""
        self._root = root
        self._order: list[Vertex] = []
        self._members: set[Vertex] = set()
        self._bound: dict[str, Vertex] = {}
        self._log: list[tuple[str | None, Vertex | None]] = []
        self._choices: list[_Choice] = []
        self._at: Vertex | None = None
        self._stack: Any = None
        place = 0
        while True:
            self._spend()
            instruction = self._program.instructions[place]
            if isinstance(instruction, Accept):
                yield Found(tuple(self._order), dict(self._bound))
                # What only a less greedy way would find is not wanted any more.
                self._choices = [choice for choice in self._choices if not choice.soft]
                following = _FAIL
            else:
                following = self._execute(instruction, place)
                if following == _FAIL and self._observe is not None:
                    self._observe(Failure(instruction, self._at, tuple(self._order), dict(self._bound)))
            if following == _FAIL:
                if not self._choices:
                    return
                following = self._resume(self._choices.pop())
            place = following

    def _spend(self) -> None:
        self._budget.steps -= 1
        text = self._program.query.text
        if self._budget.steps < 0:
            raise QueryError("the search takes too many steps: the query leaves too much open", text, (0, len(text)))
        if len(self._order) > MAX_NODES:
            raise QueryError(
                f"a match has more than {MAX_NODES:,} nodes: the query leaves too much open", text, (0, len(text))
            )

    def _execute(self, instruction: Instruction, place: int) -> int:
        """Carry out one instruction; return the place of the next, or _FAIL."""
        match instruction:
            case Step():
                return self._step(instruction, place)
            case Fork():
                self._choices.append(
                    _Choice(instruction.second, self._at, self._stack, len(self._log), None, instruction.soft)
                )
                return instruction.first
            case Jump():
                return instruction.to
            case Goto():
                return self._goto(instruction, place)
            case Stop():
                return self._stop(instruction, place)
            case Check():
                return place + 1 if self._holds(instruction, self._bound) else _FAIL
            case _:
                return self._keep_books(instruction, place)

    def _keep_books(self, instruction: Instruction, place: int) -> int:
        match instruction:
            case Mark():
                self._stack = (self._at, self._stack)
            case Return():
                self._at = self._stack[0]
                if not instruction.keep:
                    self._stack = self._stack[1]
            case Measure():
                self._stack = (len(self._order), self._stack)
            case Grown():
                before, self._stack = self._stack
                if len(self._order) == before:
                    return _FAIL
            case Forget():
                for key in sorted(instruction.anchors & self._bound.keys()):
                    self._log.append((key, self._bound.pop(key)))
            case _:
                raise AssertionError(instruction)
        return place + 1

    def _step(self, step: Step, place: int) -> int:
        ways = [self._root] if self._at is None or step.edge is None else self._neighbours(self._at, step.edge)
        candidates = [vertex for vertex in ways if self._fits(vertex, step.node)]
        if not candidates:
            return _FAIL
        # Every consumer that fits makes a match of its own; of several inputs that fit, the first that leads to a match counts.
        soft = step.edge is None or not step.edge.forward
        for vertex in reversed(candidates[1:]):
            self._choices.append(_Choice(place, self._at, self._stack, len(self._log), vertex, soft))
        return self._adopt(candidates[0], step.node, place)

    def _fits(self, vertex: Vertex, node: Node) -> bool:
        bound = self._bound.get(node.key) if node.key is not None else None
        if bound is not None:
            return vertex is bound
        return vertex not in self._members and self._accepts(vertex, node)

    def _adopt(self, vertex: Vertex, node: Node, place: int) -> int:
        if vertex not in self._members:
            self._members.add(vertex)
            self._order.append(vertex)
            self._log.append((None, vertex))
        if node.key is not None and node.key not in self._bound:
            self._bound[node.key] = vertex
            self._log.append((node.key, None))
        self._at = vertex
        return place + 1

    def _goto(self, goto: Goto, place: int) -> int:
        vertex = self._bound.get(goto.node.key or "")
        if vertex is None:
            return _FAIL
        self._at = vertex
        return place + 1

    def _stop(self, stop: Stop, place: int) -> int:
        assert self._at is not None
        # `$` asks what is there, not whether it is there alone.
        edge = Edge(stop.edge.forward, stop.edge.output, stop.edge.input, exclusive=False, span=stop.edge.span)
        further = any(vertex not in self._members for vertex in self._neighbours(self._at, edge))
        return _FAIL if further else place + 1

    def _resume(self, choice: _Choice) -> int:
        while len(self._log) > choice.log:
            key, vertex = self._log.pop()
            if key is None:
                self._members.discard(self._order.pop())
            elif vertex is None:
                del self._bound[key]
            else:
                self._bound[key] = vertex
        self._at, self._stack = choice.at, choice.stack
        if choice.adopt is None:
            return choice.place
        step = self._program.instructions[choice.place]
        assert isinstance(step, Step)
        return self._adopt(choice.adopt, step.node, choice.place)
