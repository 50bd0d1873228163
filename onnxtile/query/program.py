"""From a query to a program for the matcher, as a regular expression is compiled for a backtracking machine.

(R. Cox, "Regular Expression Matching: the Virtual Machine Approach", https://swtch.com/~rsc/regexp/regexp2.html.)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from onnxtile.query.language import (
    ONCE,
    Alternative,
    Clause,
    Edge,
    End,
    Expression,
    Item,
    Node,
    Parallel,
    Query,
    QueryBlock,
    Repeat,
    Sequence,
    Span,
    certain_operators,
    named_operators,
    names_in,
    nodes_of,
    parse,
    parse_condition,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import QueryError, unknown

# Clauses read from their far end, for clauses whose anchor is there: `Relu->Add#1` is `Add#1<-Relu`.


def turned(clause: Clause, text: str) -> Clause:
    """Return `clause` with the same nodes and edges, entered from the other side.

    Raises QueryError for `$` and parallels, which say where to go on, and where a repetition would mean something else.
    """
    match clause:
        case Sequence():
            _require_same_edges(clause, text)
            edges = tuple(replace(edge, forward=not edge.forward) for edge in reversed(clause.edges))
            return Sequence(tuple(_turned_item(item, text) for item in reversed(clause.items)), edges, clause.span)
        case Alternative():
            return replace(clause, branches=tuple(turned(branch, text) for branch in clause.branches))
        case Parallel():
            raise _misplaced(clause, text)
    return _turned_item(clause, text)


def _turned_item(item: Item, text: str) -> Item:
    if isinstance(item, End):
        raise _misplaced(item, text)
    return replace(item, body=turned(item.body, text)) if isinstance(item, QueryBlock) else item


def _misplaced(clause: Parallel | End, text: str) -> QueryError:
    hint = "start the clause with its anchor"
    return QueryError("this cannot stand before the clause's anchor", text, clause.span, hint=hint)


def _require_same_edges(sequence: Sequence, text: str) -> None:
    """Raise QueryError where an item may be skipped, and with it the edge before it, while the other edge is another one."""
    plain = [replace(edge, span=(0, 0)) for edge in sequence.edges]
    for before, item, after in zip(plain, sequence.items[1:], plain[1:], strict=False):
        if not isinstance(item, End) and item.repeat != ONCE and before != after:
            reason = "a repetition before the clause's anchor needs the same edge on both sides"
            raise QueryError(reason, text, item.span, hint="start the clause with its anchor")


_MAX_INSTRUCTIONS = 5_000


@dataclass(frozen=True)
class Follow:
    """Go over `edge` to a vertex that is `node`; without an edge, `node` is the root."""

    edge: Edge | None
    node: Node


@dataclass(frozen=True)
class Stop:
    """Fail if over `edge` there is a vertex that is not in the match."""

    edge: Edge
    span: Span


@dataclass(frozen=True)
class Goto:
    """Go to the vertex that the anchor of `node` is bound to; fail where it is not bound."""

    node: Node


@dataclass(frozen=True)
class Fork:
    """Go on at `first`, and on failure at `second`; where `soft`, `second` counts only if nothing matched by way of `first`."""

    first: int
    second: int
    soft: bool


@dataclass(frozen=True)
class Jump:
    """Go on at `to`."""

    to: int


@dataclass(frozen=True)
class Mark:
    """Remember where we are."""


@dataclass(frozen=True)
class Return:
    """Go back to the last mark, and forget it unless more branches start there.

    With `keep` the mark stays.
    """

    keep: bool


@dataclass(frozen=True)
class Measure:
    """Remember how much has matched."""


@dataclass(frozen=True)
class Grown:
    """Fail unless more has matched than when it was last measured, so that no loop runs on the spot."""


@dataclass(frozen=True)
class Forget:
    """Unbind `anchors`: each round of a repetition binds its own."""

    anchors: frozenset[str]


@dataclass(frozen=True)
class Check:
    """Fail unless `condition` holds of the nodes that the anchors are bound to; `text` is where it was written."""

    condition: Expression
    text: str


@dataclass(frozen=True)
class Accept:
    """Everything matched."""


Instruction: TypeAlias = Follow | Stop | Goto | Fork | Jump | Mark | Return | Measure | Grown | Forget | Check | Accept


@dataclass(frozen=True)
class Program:
    """The text of a query, and the conditions in `where` that its matches fulfil. It is parsed and compiled at its first use.

    A condition is an expression over anchors. `text` is that of the query.
    """

    text: str
    where: tuple[str, ...] = ()

    @cached_property
    def named(self) -> frozenset[str]:
        """The names of all operators in the query, read without a parse."""
        return named_operators(self.text)

    @cached_property
    def certain(self) -> frozenset[str]:
        """The names of some operators that every match has, read without a parse."""
        return certain_operators(self.text)

    @cached_property
    def query(self) -> Query:
        """The clauses of the query. Raises QueryError."""
        return parse(self.text)

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """What the matcher does.

        Raises QueryError for a clause that is not connected to the ones before it, and for a condition that names an anchor which the
        query does not have.
        """
        query, conditions = self.query, [(parse_condition(text), text) for text in self.where]
        _require_members(query)
        _require_anchors(query, conditions)
        compiler = _Compiler(self.text)
        for position, clause in enumerate(query.clauses):
            compiler.clause(clause, first=position == 0)
        for condition, text in conditions:
            compiler.emit(Check(condition, text))
        compiler.emit(Accept())
        return tuple(compiler.instructions)

    @cached_property
    def roots(self) -> tuple[Node, ...]:
        """The nodes of which one must be the root."""
        return _roots(self.instructions)


def compile_query(text: str, where: tuple[str, ...] = ()) -> Program:
    """Return the program of a query, compiled. Raises QueryError."""
    program = Program(text, where)
    assert program.instructions
    return program


def _require_members(query: Query) -> None:
    """Raise QueryError where all nodes are only looked at, or where one anchor is so at one place and in the match at another."""
    nodes = query.nodes
    if nodes and all(node.looked_at for node in nodes):
        reason = "all nodes are only looked at, so nothing would be in the match"
        raise QueryError(reason, query.text, (0, len(query.text)), hint="leave out an '@'")
    first: dict[str, Node] = {}
    for node in nodes:
        if node.key is not None and first.setdefault(node.key, node).looked_at != node.looked_at:
            reason = f"{node.key} is only looked at in one place and in the match in another"
            raise QueryError(reason, query.text, node.span, hint="write '@' at all of them, or at none")


def _require_anchors(query: Query, where: Iterable[tuple[Expression, str]]) -> None:
    """Raise QueryError where a condition names an anchor that the query does not have."""
    anchors = {node.anchor for node in query.nodes if node.anchor is not None}
    for condition, text in where:
        for name in names_in(condition):
            if name.value not in anchors:
                # There is no anchor to name where the query has none.
                hint = (
                    unknown("anchor", name.value, anchors).hint if anchors else "write #name after a node of the query"
                )
                raise QueryError(f"the query has no anchor #{name.value}", text, name.span, hint=hint)


class _Compiler:
    def __init__(self, text: str) -> None:
        self._text = text
        self.instructions: list[Instruction] = []
        self._known: set[str] = set()

    def emit(self, instruction: Instruction) -> int:
        if len(self.instructions) >= _MAX_INSTRUCTIONS:
            raise QueryError(
                "the query is too large once its repetitions are written out", self._text, (0, len(self._text))
            )
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def clause(self, clause: Clause, *, first: bool) -> None:
        """Emit a clause of the query; every clause but the first must start, or end, at an anchor of an earlier one."""
        if first:
            self._clause(clause, None)
        elif isinstance(clause, QueryBlock) and clause.repeat == ONCE:
            self.clause(clause.body, first=False)
        elif isinstance(clause, Parallel):
            for branch in clause.branches:
                self.clause(branch, first=False)
        elif all(node is not None and node.key in self._known for node in _first_nodes(clause)):
            self._clause(_begun(clause), None)
        else:
            self._turned_clause(clause)

    def _turned_clause(self, clause: Clause) -> None:
        """Emit a clause whose anchor comes later: the part before it, turned round, and the part after it."""
        position = _position_of_anchor(clause, self._known)
        if position is None or not isinstance(clause, Sequence):
            reason = "this clause is not connected to the ones before it"
            raise QueryError(reason, self._text, clause.span, hint=self._nearest_anchor(clause))
        before = Sequence(clause.items[: position + 1], clause.edges[:position], clause.span)
        self._clause(turned(before, self._text), None)
        if position + 1 < len(clause.items):
            self._clause(Sequence(clause.items[position:], clause.edges[position:], clause.span), None)

    def _nearest_anchor(self, clause: Clause) -> str:
        """Return the hint for a clause without a known anchor: the known one that is nearest to one of its own."""
        keys = [node.key for node in nodes_of(clause) if node.key is not None]
        near = (match for key in keys for match in difflib.get_close_matches(key, sorted(self._known), n=1))
        anchor = next(near, None)
        return "share an anchor with them" if anchor is None else f"did you mean {anchor}?"

    def _clause(self, clause: Clause, edge: Edge | None) -> None:
        """Emit `clause`, entered over `edge`."""
        match clause:
            case Sequence():
                for item, incoming in zip(clause.items, (edge, *clause.edges), strict=True):
                    self._item(item, incoming)
                self._require_nothing_after_end(clause)
            case Parallel() if edge is None and all(n and n.key in self._known for n in _first_nodes(clause)):
                for branch in clause.branches:
                    self._clause(branch, None)
            case Parallel() if edge is None:
                # At the root there is nothing to start from together: each branch stands for itself.
                self._alternative(Alternative(clause.branches, clause.span), edge)
            case Parallel():
                self._parallel(clause, edge)
            case Alternative():
                self._alternative(clause, edge)
            case Node() | End() | QueryBlock():
                self._item(clause, edge)

    def _require_nothing_after_end(self, sequence: Sequence) -> None:
        for item in sequence.items[:-1]:
            end = _last(item)
            if isinstance(end, End):
                raise QueryError("nothing can follow '$'", self._text, end.span)

    def _item(self, item: Item, edge: Edge | None) -> None:
        if isinstance(item, End):
            if edge is None:
                raise QueryError("'$' needs an edge before it", self._text, item.span)
            self.emit(Stop(edge, item.span))
            return
        if item.repeat == ONCE:
            self._once(item, edge)
        else:
            self._repeated(item, edge, item.repeat)

    def _once(self, item: Node | QueryBlock, edge: Edge | None) -> None:
        if isinstance(item, QueryBlock):
            self._clause(item.body, edge)
        elif edge is None and item.key in self._known:
            self.emit(Goto(item))
        else:
            self.emit(Follow(edge, item))
            if item.key is not None:
                self._known.add(item.key)

    def _repeated(self, item: Node | QueryBlock, edge: Edge | None, repeat: Repeat) -> None:
        keys = frozenset(n.key for n in nodes_of(item) if n.key is not None) - self._known
        # What is repeated at the root has no edge of its own to come back over: the plain one.
        again = edge or Edge(forward=True, output=0, input=0, exclusive=True, span=item.span)
        # The first turn of what may stand at the root any number of times is entered otherwise than the next ones.
        turns = max(repeat.least, 1 if edge is None else 0) if repeat.most is None else repeat.most
        exits: list[int] = []
        for turn in range(turns):
            if turn >= repeat.least:
                exits.append(self.emit(Jump(0)))
            if turn:
                self.emit(Forget(keys))
            self._once(item, again if turn else edge)
        if repeat.most is None:
            exits.append(self._loop(item, again if turns else edge, keys))
        end = len(self.instructions)
        for index in exits:
            self.instructions[index] = Fork(index + 1, end, soft=True)

    def _loop(self, item: Node | QueryBlock, edge: Edge | None, keys: frozenset[str]) -> int:
        """Emit a loop of any number of turns; return the place of the fork that leaves it."""
        top = self.emit(Jump(0))
        self.emit(Measure())
        self.emit(Forget(keys))
        self._once(item, edge)
        self.emit(Grown())
        self.emit(Jump(top))
        return top

    def _alternative(self, clause: Alternative, edge: Edge | None) -> None:
        before = set(self._known)
        ends: list[int] = []
        for position, branch in enumerate(clause.branches):
            self._known = set(before)
            last = position == len(clause.branches) - 1
            fork = None if last else self.emit(Jump(0))
            self._clause(branch, edge)
            if fork is not None:
                ends.append(self.emit(Jump(0)))
                self.instructions[fork] = Fork(fork + 1, len(self.instructions), soft=False)
        # An anchor of any branch may be named later; where its branch was not taken, that clause fails.
        self._known = before | {n.key for n in nodes_of(clause) if n.key is not None}
        for index in ends:
            self.instructions[index] = Jump(len(self.instructions))

    def _parallel(self, clause: Parallel, edge: Edge | None) -> None:
        self.emit(Mark())
        for position, branch in enumerate(clause.branches):
            if position:
                self.emit(Return(keep=position < len(clause.branches) - 1))
            self._clause(branch, edge)


def _first_nodes(clause: Clause) -> Iterator[Node | None]:
    """Yield the nodes with which `clause` can begin; None for `$`."""
    match clause:
        case Node():
            yield clause
        case End():
            yield None
        case QueryBlock():
            yield from _first_nodes(clause.body)
        case Sequence():
            yield from _first_nodes(clause.items[0])
        case Parallel() | Alternative():
            for branch in clause.branches:
                yield from _first_nodes(branch)


def _last(clause: Clause) -> Node | End:
    """Return the last node of `clause`, or its `$`."""
    match clause:
        case QueryBlock():
            return _last(clause.body)
        case Sequence():
            return _last(clause.items[-1])
        case Parallel() | Alternative():
            return _last(clause.branches[-1])
    return clause


def _begun(clause: Clause) -> Clause:
    """Return a later clause whose first item cannot be skipped, as there would be nowhere to go on from."""
    if not isinstance(clause, Sequence) or isinstance(clause.items[0], End):
        return clause
    first = clause.items[0]
    begun = replace(first, repeat=replace(first.repeat, least=max(first.repeat.least, 1)))
    return replace(clause, items=(begun, *clause.items[1:]))


def _position_of_anchor(clause: Clause, known: set[str]) -> int | None:
    """Return the position of the first item of a sequence that is a known anchor."""
    items = clause.items if isinstance(clause, Sequence) else ()
    anchored = (
        i for i, item in enumerate(items) if isinstance(item, Node) and item.key in known and item.repeat == ONCE
    )
    return next(anchored, None)


def _roots(instructions: tuple[Instruction, ...]) -> tuple[Node, ...]:
    """Return the nodes with which a match can begin: the first steps on every way through the forks."""
    roots: list[Node] = []
    todo, seen = [0], set()
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        instruction = instructions[index]
        match instruction:
            case Follow():
                roots.append(instruction.node)
            case Fork():
                todo += [instruction.second, instruction.first]
            case Jump():
                todo.append(instruction.to)
            case Mark() | Measure() | Forget():
                todo.append(index + 1)
            case _:
                pass
    return tuple(roots)
