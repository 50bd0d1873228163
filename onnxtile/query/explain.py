"""Partial matches of a query: the part of the query where each stopped, and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.model import keys
from onnxtile.query.graph import Surroundings, Vertex, identify, outputs_of
from onnxtile.query.language import PRODUCER, Edge, Node, Query, Span
from onnxtile.query.match import Matcher, MatchFailure, to_anyone
from onnxtile.query.program import Check, Follow, Goto, Grown, Program, Stop
from onnxtile.query.tests import why_not
from onnxtile.system.dataclass import dataclass

_LISTED = 3


@dataclass(frozen=True)
class Stopped(JsonFields):
    """The best partial match of one root: its nodes in the order of the query, and what kept it from going on.

    `clause` is the clause of the query in which it stopped, `span` the part of the query at fault (characters counted from 0; of the
    condition's text where `clause` is a condition), `part` the text of that, `node` the node at which it stopped. `root` is the name of the
    first node, `nodes` are the names, `reason` is a sentence.
    """

    root: str
    nodes: tuple[str, ...]
    clause: str
    span: Span
    part: str
    node: str
    reason: str


def explain(matcher: Matcher, program: Program, meta_op: str = "") -> list[Stopped]:
    """Return, for each node with which a match could begin but none does, how far the query got; the furthest first.

    Further is who matched more nodes, then who got further in the query. Where the search met a call of `meta_op`, the nodes that it
    looked for are in that call, so nothing is said. Nor is it of a root that a query only looks at (`@.`), where no node followed but
    other roots got further. Raises QueryError where the search would take too long.
    """
    furthest: dict[Vertex, list[MatchFailure]] = {}

    def observe(failure: MatchFailure) -> None:
        if isinstance(failure.instruction, Grown):
            return
        failures = furthest.setdefault(failure.root, [])
        if failures and len(failures[0].matched) < len(failure.matched):
            failures.clear()
        if not failures or len(failures[0].matched) == len(failure.matched):
            failures.append(failure)

    matched = {match.root for match in matcher.find(program, observe)}
    explainer = _Explainer(matcher, program)
    left = [
        failures
        for root, failures in furthest.items()
        if root not in matched and not any(explainer.meets(failure, meta_op) for failure in failures)
    ]
    begun = [failures for failures in left if failures[0].matched or not failures[0].looked_at]
    if begun or matched or len(left) < len(furthest):
        left = begun
    best = [(max(failures, key=lambda failure: failure.place), failures) for failures in left]
    best.sort(key=lambda pair: (-len(pair[0].matched), -pair[0].place))
    return [explainer.stopped(failure, failures) for failure, failures in best]


class _Explainer:
    def __init__(self, matcher: Matcher, program: Program) -> None:
        self._matcher = matcher
        self._program = program
        self._index = matcher.index()
        self._around = Surroundings(matcher.constants, matcher.unchanged.may)

    def stopped(self, failure: MatchFailure, failures: Sequence[MatchFailure]) -> Stopped:
        """Return the reason of `failure`, and the reasons of other continuations that failed at the same node."""
        same = [other for other in failures if other.at is failure.at]
        reasons = dict.fromkeys(self._reason(other) for other in sorted(same, key=lambda other: other.place))
        clause, span, part = _place(failure, self._program.query)
        nodes = tuple(identify(vertex) for vertex in failure.matched)
        at = failure.root if failure.at is None else failure.at
        return Stopped(identify(failure.root), nodes, clause, span, part, identify(at), "; ".join(reasons))

    def meets(self, failure: MatchFailure, meta_op: str) -> bool:
        """Return whether the next node of a partial match would have been a call of `meta_op`."""
        step = failure.instruction
        if not isinstance(step, Follow) or failure.at is None or step.edge is None:
            return False
        ways = self._around.along(failure.at, step.edge, anyone=step.node.looked_at)
        return any(_meta_op(way) == meta_op for way in ways)

    def _reason(self, failure: MatchFailure) -> str:
        instruction = failure.instruction
        match instruction:
            case Follow():
                return self._why_no_step(instruction, failure)
            case Goto():
                return self._why_not_there(instruction.node, failure)
            case Stop():
                return self._why_no_end(instruction, failure)
            case Check():
                reason = why_not(instruction.condition, failure.bound, self._matcher.facts(instruction.text))
                return f"{instruction.text!r} does not hold: {reason}"
            case _:
                raise AssertionError(instruction)

    def _why_not_there(self, node: Node, failure: MatchFailure) -> str:
        vertex = failure.bound.get(node.key or "")
        if vertex is None:
            return f"{node.key} is not in the match: its part of the query was left out"
        return self._why_test_fails(vertex, node)

    def _why_no_end(self, stop: Stop, failure: MatchFailure) -> str:
        assert failure.at is not None
        further = self._around.along(failure.at, to_anyone(stop.edge))
        others = [_told(vertex) for vertex in further if vertex not in {*failure.matched, *failure.looked_at}]
        leads = "leads on to" if stop.edge.forward else "comes from"
        return f"{_told(failure.at)} {leads} {_several(others)}, where '$' says that nothing further is"

    def _why_no_step(self, step: Follow, failure: MatchFailure) -> str:
        if failure.at is None or step.edge is None:
            return self._why_not_this(failure.root, step.node, failure)
        ways = self._around.along(failure.at, step.edge, anyone=step.node.looked_at)
        if ways:
            reasons = dict.fromkeys(self._why_not_this(way, step.node, failure) for way in ways)
            return _several(list(reasons), "; ")
        if self._around.along(failure.at, to_anyone(step.edge)):
            return _several(list(self._others(failure.at, step.edge)), "; ")
        consumers = self._no_consumer if step.edge.forward else self._no_source
        return _several(list(dict.fromkeys(consumers(failure.at, step.edge))), "; ")

    def _why_not_this(self, vertex: Vertex, node: Node, failure: MatchFailure) -> str:
        bound = failure.bound.get(node.key or "")
        if bound is not None and bound is not vertex:
            return f"{node.key} is {_told(bound)}, but here is {_told(vertex)}"
        if bound is None and vertex in failure.matched:
            return f"{_told(vertex)} is in the match already"
        if bound is None and vertex in failure.looked_at:
            return f"{_told(vertex)} is looked at already, by another node of the query"
        if self._index.matches(vertex, node.type):
            return self._why_test_fails(vertex, node)
        wanted = "constant" if node.type == PRODUCER else node.type
        return f"{_told(vertex)} is not {wanted}{_taken(vertex)}"

    def _why_test_fails(self, vertex: Vertex, node: Node) -> str:
        if node.test is None:
            return f"{_told(vertex)} leads nowhere further"
        facts = self._matcher.facts(self._program.query.text, node)
        return f"{_told(vertex)}: {why_not(node.test, vertex, facts)}"

    # Edges that lead nowhere

    def _others(self, vertex: Vertex, edge: Edge) -> Iterator[str]:
        """Yield who else reads the outputs that an exclusive edge asks to go to one place only."""
        for value in self._values(vertex, edge):
            uses = self._around.uses(value)
            if len(uses) > 1:
                readers = list(dict.fromkeys(_told(node) for node, _ in uses))
                times = "" if len(readers) > 1 else f" {len(uses)} times"
                yield f"{_value(value)} is read by {_several(readers)}{times}; '~' allows that"

    def _values(self, vertex: Vertex, edge: Edge) -> list[ir.Value]:
        if edge.forward:
            return [value for i, value in enumerate(outputs_of(vertex)) if edge.output in {None, i}]
        inputs = enumerate(vertex.inputs) if isinstance(vertex, ir.Node) else ()
        return [value for i, value in inputs if value is not None and edge.input in {None, i}]

    def _no_consumer(self, vertex: Vertex, edge: Edge) -> Iterator[str]:
        values = self._values(vertex, edge)
        if not values:
            yield f"{_told(vertex)} has no output {edge.output}" if edge.output else f"{_told(vertex)} has no outputs"
        for value in values:
            uses = self._around.uses(value)
            if not uses:
                yield f"{_value(value)} is {'an output of the graph, and ' if value.is_graph_output() else ''}read by nothing"
            for node, position in uses:
                if edge.input not in {None, position}:
                    yield f"{_told(node)} reads {_value(value)} as input {position}, not {edge.input}"
                else:
                    yield f"{_told(node)}, which reads {_value(value)}, is in a body"

    def _no_source(self, vertex: Vertex, edge: Edge) -> Iterator[str]:
        values = self._values(vertex, edge)
        if not values:
            yield f"{_told(vertex)} has no input {'' if edge.input is None else edge.input}".rstrip()
        for value in values:
            producer = value.producer()
            if producer is None:
                kind = "an input of the graph" if value.is_graph_input() else "not constant"
                yield f"{_value(value)} is {kind}"
            elif edge.output not in {None, value.index()}:
                yield f"{_value(value)} is output {value.index()} of {_told(producer)}, not {edge.output}"
            else:
                yield f"{_value(value)} comes from around this graph"


def _place(failure: MatchFailure, query: Query) -> tuple[str, Span, str]:
    """Return the clause in which a failure happened, and the part of the query at fault, as its span and its text."""
    match failure.instruction:
        case Follow() | Goto():
            span = failure.instruction.node.span
        case Stop():
            span = (failure.instruction.edge.span[0], failure.instruction.span[1])
        case Check():
            return (text := failure.instruction.text), (0, len(text)), text
        case _:
            span = (0, len(query.text))
    around = (c.span for c in query.clauses if c.span[0] <= span[0] and span[1] <= c.span[1])
    start, stop = next(around, (0, len(query.text)))
    return query.text[start:stop], span, query.text[slice(*span)]


def _taken(vertex: Vertex) -> str:
    """Return by which pattern a node was taken that is now a call of a meta-op."""
    meta_op = _meta_op(vertex)
    return f": its nodes were taken by {meta_op}" if meta_op else ""


def _meta_op(vertex: Vertex) -> str | None:
    """Return the meta-op that a node calls; None for another."""
    if not isinstance(vertex, ir.Node) or vertex.domain != keys.DOMAIN:
        return None
    return keys.meta_op(vertex.op_type)


def _told(vertex: Vertex) -> str:
    if isinstance(vertex, ir.Node):
        return f"{vertex.op_type} {identify(vertex)!r}"
    outside = vertex.is_graph_input() or vertex.const_value is None
    return f"{'the input' if outside else 'the constant'} {identify(vertex)!r}"


def _value(value: ir.Value) -> str:
    return f"{value.name!r}"


def _several(words: Sequence[str], between: str = ", ") -> str:
    more = len(words) - _LISTED
    return between.join([*words[:_LISTED], *([f"{more} more"] if more > 0 else [])])
