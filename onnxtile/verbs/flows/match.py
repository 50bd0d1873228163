"""match, pattern new and explain: the matches of a query, a query for chosen nodes, and why a pattern did not match."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import onnx_ir as ir

from onnxtile.declare.verb import JsonFields, Outcome, VerbResult, declared, narrowed
from onnxtile.fusion.fuse import FUSED, OVERLAPPED, REFUSED, Fate, FusionRun, PatternResult, Refused
from onnxtile.fusion.pattern import Pattern, chosen_patterns
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.model.topology import node_ids
from onnxtile.operators.table import operator_of
from onnxtile.query.explain import Stopped
from onnxtile.query.explain import explain as explain_program
from onnxtile.query.graph import Vertex, identify
from onnxtile.query.language import ANY_NODE, PRODUCER
from onnxtile.query.match import Match, Matcher, VertexIndex, compiled
from onnxtile.query.program import Program
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.text import unquoted
from onnxtile.verbs.fuse import ExplainOptions, FuseCommand
from onnxtile.verbs.match import DraftOptions, MatchOptions, PatternNewCommand


@dataclass(frozen=True, repr=False)
class MatchResult(VerbResult):
    """The matches of a query.

    `query` is its text, `matches` has the root, the nodes and the anchors of each match, in the order of the graph.
    """

    verb: ClassVar[str] = "match"

    query: str
    matches: tuple[Match, ...]

    @property
    def summary(self) -> str:
        """How often the query matches."""
        return f"{len(self.matches):,} matches of {' '.join(self.query.split())}"


@declared(MatchOptions)
def match(options: MatchOptions) -> MatchResult:
    """Return where `query` matches in `model`; matches may overlap. Raises ModelError and QueryError."""
    query, progress = options.query, options.progress
    progress("reading the model")
    graph = load(options.model)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    program = compiled(query, known)
    return MatchResult(query, tuple(Matcher(graph, Constants(graph)).find(program)))


def run_match(options: MatchOptions) -> Outcome:
    """Do what the command `match` asks for."""
    result = match.from_options(options)
    return Outcome(result, "match", reason=None if result.matches else "no match")


# Write a pattern for chosen nodes.


@dataclass(frozen=True, repr=False)
class PatternDraft(VerbResult):
    """A pattern file for nodes that were chosen, ready to edit, and how often its query matches in their model.

    `name` is that of the pattern, `query` its query, `text` the file, and `matches` how often the query matches.
    """

    verb: ClassVar[str] = "pattern"

    name: str
    query: str
    text: str
    matches: int

    @property
    def summary(self) -> str:
        """The name of the pattern, its query, and how often that matches."""
        return f"{self.name}, {self.matches:,} matches of {' '.join(self.query.split())}"


@declared(DraftOptions)
def draft_pattern(options: DraftOptions) -> PatternDraft:
    """Write the query for the nodes called `nodes` (a node without a name is called by its first output).

    Raises UsageError where a node is not there, or they are not connected.
    """
    nodes, name, progress = options.nodes, options.name, options.progress
    progress("reading the model")
    graph = load(options.model)
    constants = Constants(graph)
    query = write_query(find_nodes(graph, nodes), constants)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    matches = Matcher(graph, constants).find(compiled(query, known))
    return PatternDraft(name, query, pattern_file(name, query), len(matches))


def run_pattern_new(options: PatternNewCommand) -> Outcome:
    """Do what the command `pattern new` asks for."""
    draft = draft_pattern.from_options(narrowed(DraftOptions, options, nodes=options.node_names))
    note = f"the query matches {draft.matches} times in {options.model}"
    return Outcome(draft, "", text=draft.text, note=note)


# The query for nodes that somebody chose: the start of a pattern of one's own.


_TELLING = {"axis", "axes", "perm", "group", "kernel_shape", "to", "approximate", "keepdims", "transA", "transB"}
"""Attributes that say what is computed rather than how large it is."""


@dataclass(frozen=True)
class _QueryEdge:
    """Output `output` of `source` feeds input `input` of `target`."""

    source: ir.Node
    output: int
    target: ir.Node
    input: int


def find_nodes(model: ir.Model, names: Sequence[str]) -> list[ir.Node]:
    """Return the nodes called `names` (a node's name, or its first output's). Raises UsageError for one that is not there."""
    known = {(node.outputs[0].name or "") if node.outputs else "": node for node in model.graph.all_nodes()}
    known |= {name: node for node, name in node_ids(model.graph.all_nodes()).items()}
    missing = [name for name in names if name not in known]
    if missing:
        raise UsageError(f"the model has no node {missing[0]!r}", hint="onnxtile inspect MODEL lists all nodes")
    return [known[name] for name in dict.fromkeys(names)]


def write_query(nodes: Sequence[ir.Node], constants: Constants) -> str:
    """Return a query that matches `nodes`, its root the first of them that no other feeds.

    Edges are exclusive where they are so now, inputs of commutative operators free, constant scalars and telling attributes tests.
    Raises UsageError where the nodes are not connected.
    """
    chosen = list(dict.fromkeys(nodes))
    edges = [edge for node in chosen for edge in _edges_into(node, chosen)]
    fed = {edge.target for edge in edges}
    root = next((node for node in chosen if node not in fed), chosen[0])
    walker = _Walker(edges)
    walks = list(walker.walks(root))
    loose = [node for node in chosen if node not in walker.seen]
    if loose:
        raise UsageError(
            f"{loose[0].name!r} is not connected to the other nodes", hint="name the nodes between them too"
        )
    return _written(walks, constants)


@dataclass
class _Walker:
    """Cuts a connected set of edges into walks, the first from the root, each further one from a node already met."""

    edges: list[_QueryEdge]
    seen: dict[ir.Node, None] = field(default_factory=dict)

    def walks(self, root: ir.Node) -> Iterator[list[tuple[ir.Node, _QueryEdge | None]]]:
        self.seen[root] = None
        yield self._walk(root)
        while start := next((node for node in self.seen if self._way_on(node) is not None), None):
            yield self._walk(start)
        while self.edges:
            edge = self.edges.pop(0)
            yield [(edge.source, None), (edge.target, edge)]

    def _walk(self, start: ir.Node) -> list[tuple[ir.Node, _QueryEdge | None]]:
        walk: list[tuple[ir.Node, _QueryEdge | None]] = [(start, None)]
        while edge := self._way_on(walk[-1][0]):
            self.edges.remove(edge)
            following = edge.target if edge.source is walk[-1][0] else edge.source
            self.seen[following] = None
            walk.append((following, edge))
        return walk

    def _way_on(self, node: ir.Node) -> _QueryEdge | None:
        """Return an edge to a node not met yet, forward if there is one."""
        ahead = (edge for edge in self.edges if edge.source is node and edge.target not in self.seen)
        behind = (edge for edge in self.edges if edge.target is node and edge.source not in self.seen)
        return next(ahead, None) or next(behind, None)


def _edges_into(node: ir.Node, chosen: Collection[ir.Node]) -> Iterator[_QueryEdge]:
    for position, value in enumerate(node.inputs):
        producer = value.producer() if value is not None else None
        if value is not None and producer is not None and producer in chosen:
            yield _QueryEdge(producer, value.index() or 0, node, position)


def _written(walks: list[list[tuple[ir.Node, _QueryEdge | None]]], constants: Constants) -> str:
    places = [node for walk in walks for node, _ in walk]
    anchors = _anchors(places)
    tested: set[ir.Node] = set()
    clauses = []
    for walk in walks:
        text = ""
        for i, (node, edge) in enumerate(walk):
            if edge is not None:
                text += _arrow(edge, forward=edge.source is walk[i - 1][0])
            text += (
                (f"{node.domain}::" if node.domain not in {"", "onnxtile"} else "")
                + node.op_type
                + anchors.get(node, "")
            )
            if node not in tested:
                text += _test(node, constants)
                tested.add(node)
        clauses.append(text)
    return ";\n".join(clauses)


def _anchors(places: list[ir.Node]) -> dict[ir.Node, str]:
    """Return an anchor for each node that occurs more than once."""
    counts: dict[str, int] = {}
    anchors: dict[ir.Node, str] = {}
    for node in dict.fromkeys(places):
        if places.count(node) > 1:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
            anchors[node] = f"#{counts[node.op_type]}"
    return anchors


def _arrow(edge: _QueryEdge, *, forward: bool) -> str:
    sign = "-" if len(edge.source.outputs[edge.output].uses()) == 1 else "~"
    row = operator_of(edge.target)
    free = row is not None and row.commutes and _is_only_one(edge)
    position = "*" if free else "" if edge.input == 0 else str(edge.input)
    if edge.output == 0:
        return f"{sign}{position}>" if forward else f"<{position}{sign}"
    return f"{sign}{edge.output}-{position or 0}>" if forward else f"<{position or 0}-{edge.output}{sign}"


def _is_only_one(edge: _QueryEdge) -> bool:
    """Tell whether the source is the only one of its operator that feeds the target, and so is found whichever input it is."""
    makers = [value.producer() for value in edge.target.inputs if value is not None]
    return sum(maker is not None and maker.op_type == edge.source.op_type for maker in makers) == 1


def _test(node: ir.Node, constants: Constants) -> str:
    tests = []
    known = [value for value in node.inputs if value is not None and value in constants]
    if len(known) == 1:
        array = constants.array(known[0])
        if array.size == 1 and array.dtype.kind in "iuf":
            number = array.reshape(())[()]  # printed as short as its element type allows
            tests.append(f"constant {'==' if float(number).is_integer() else '≈'} {number}")
        else:
            tests.append("constant")
    for name, attribute in sorted(node.attributes.items()):
        if name in _TELLING and not attribute.is_ref():
            value = attribute.value
            shown = f'"{value}"' if isinstance(value, str) else list(value) if isinstance(value, Sequence) else value
            tests.append(f"{name} == {shown}")
    return f"[{' and '.join(tests)}]" if tests else ""


def pattern_file(name: str, query: str) -> str:
    """Return the text of a pattern file with `query` as its only variant. Raises UsageError for a name that is no identifier."""
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot be the name of a meta-op", hint="letters, digits and _ make one")
    return f"name = \"{name}\"\ndoc = \"what it computes, and the paper it comes from\"\n\n[[variants]]\nquery = '''\n{query}'''\n"


# Explains a pattern: the fate of each match, and the reason where it did not match.


TAKEN = "taken"
"""The fate of a match of which an earlier pattern took a node first."""
_RANKS = (FUSED, REFUSED, TAKEN, OVERLAPPED)
"""Fates in the order in which they say what became of a site."""


@dataclass(frozen=True)
class PartialMatch:
    """The furthest that any variant of a pattern got from one root: the variant, counted from 1, and where and why it stopped.

    `variant` is that number, `stopped` the rest.
    """

    variant: int
    stopped: Stopped

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one attempt."""
        return {"variant": self.variant, **self.stopped.to_dict()}


@dataclass(frozen=True)
class StopReason(JsonFields):
    """Partial matches that stopped for one reason at one part of the query: how many nodes each matched, and their roots.

    `reason` is that of the first; the others differ from it in names only.
    """

    variant: int
    nodes: int
    part: str
    reason: str
    roots: tuple[str, ...]


@dataclass(frozen=True)
class Beginning(JsonFields):
    """The operators with which a match of a variant, counted from 1, begins, and how many nodes of these the model has.

    `taken` counts further nodes of them, which are inside calls of the patterns in `takers`. `others` counts the nodes of the other
    operators that the query names, of those that the model has. `missing` are operators that every match needs and the model lacks.
    `variant` is that number; `operators` begin the match, `nodes` counts their nodes.
    """

    variant: int
    operators: tuple[str, ...]
    nodes: int
    taken: int
    takers: tuple[str, ...]
    others: Mapping[str, int]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cause(JsonFields):
    """Why the pattern made no meta-op at sites: how many these are, the reason, and the root of the first."""

    sites: int
    reason: str
    first: str


@dataclass(frozen=True, repr=False)
class Explanation(VerbResult):
    """Why a pattern did not match where it might have: the partial match of each root that got furthest, the nearest to a match first.

    `matches` says what became of each match: those of the model as the earlier patterns left it, and those that they took nodes of.
    `earlier` has the patterns that ran before this one, in their order, and how many meta-ops each made.

    - `pattern`: its name.
    - `fused`: how many meta-ops it made.
    - `refused`: matches that no meta-op may replace, each with the reason.
    - `attempts`: partial matches, the one that got furthest first.
    - `beginnings`: what each query begins with, and how many nodes of the model do.
    - `already`: nodes that do the work of the whole meta-op, by operator.
    """

    verb: ClassVar[str] = "explain"
    JSON = "pattern fused refused attempts reasons matches beginnings earlier already causes repeated"

    pattern: str
    fused: int
    refused: tuple[Refused, ...]
    attempts: tuple[PartialMatch, ...]
    matches: tuple[Fate, ...]
    beginnings: tuple[Beginning, ...]
    earlier: tuple[tuple[str, int], ...] = ()
    already: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of nodes whose operator does the work of the whole meta-op by itself, by operator."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why sites are no meta-op of the pattern, the commonest reason first; each site counts once.

        A match at the root of another, or among the nodes of those that were fused, is no further site.
        """
        groups: dict[str, list[str]] = {}
        for operator, nodes in self.already.items():
            groups[f"already one node: {operator}"] = list(nodes)
        in_calls = {vertex for match in self.matches if match.fate == FUSED for vertex in match.vertices}
        seen = {match.root for match in self.matches if match.fate == FUSED}
        shown: dict[str, str] = {}
        for match in sorted(self.matches, key=lambda site: _RANKS.index(site.fate)):
            if match.root in seen or in_calls.issuperset(match.vertices):
                continue
            seen.add(match.root)
            reason = match.detail if match.fate == TAKEN else f"{match.fate}: {match.detail}"
            groups.setdefault(shown.setdefault(unquoted(reason), reason), []).append(match.root)
        causes = (Cause(len(roots), reason, roots[0]) for reason, roots in groups.items())
        return tuple(sorted(causes, key=lambda cause: -cause.sites))

    @property
    def repeated(self) -> int:
        """How many matches overlap fused ones, and have no node outside them."""
        in_calls = {vertex for match in self.matches if match.fate == FUSED for vertex in match.vertices}
        return sum(match.fate == OVERLAPPED and in_calls.issuperset(match.vertices) for match in self.matches)

    @property
    def summary(self) -> str:
        """How many matches of the pattern there are, and how many of them were fused."""
        return f"{self.pattern}: {len(self.matches):,} matches, {self.fused:,} fused, {len(self.attempts):,} attempts stopped"

    @property
    def reasons(self) -> tuple[StopReason, ...]:
        """The attempts with equal reasons together, the nearest to a match first."""
        groups: dict[tuple[int, int, str, str], list[Stopped]] = {}
        for attempt in self.attempts:
            stopped = attempt.stopped
            key = (attempt.variant, len(stopped.nodes), stopped.part, unquoted(stopped.reason))
            groups.setdefault(key, []).append(stopped)
        return tuple(
            StopReason(variant, nodes, part, same[0].reason, tuple(stopped.root for stopped in same))
            for (variant, nodes, part, _), same in groups.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `fuse --explain`."""
        return {**super().to_dict(), "earlier": [{"name": name, "fused": fused} for name, fused in self.earlier]}


@declared(ExplainOptions)
def explain(options: ExplainOptions) -> Explanation:
    """Fuse `model` in memory with `patterns` (the library by default) up to `pattern`, and say where that one stopped, and why.

    `pattern` is a name among `patterns`, or what `fuse` takes for one, which then stands by itself. Raises as `fuse` does.
    """
    pattern, patterns, progress = options.pattern, options.patterns, options.progress
    chosen = chosen_patterns(patterns)
    if pattern not in [candidate.name for candidate in chosen]:
        chosen = chosen_patterns([pattern])
    position = next((i for i, candidate in enumerate(chosen) if candidate.name == pattern), len(chosen) - 1)
    wanted = chosen[position]
    progress("reading the model")
    run = FusionRun(load(options.model), chosen[: position + 1], through=True)
    matcher = run.matcher
    progress("matching")
    might = _matches(matcher, wanted) if position else []
    roots = (
        (query.roots[0].type, [identify(match.root) for match in matcher.find(query)]) for query in wanted.operators
    )
    already = {operator: tuple(nodes) for operator, nodes in roots if nodes}
    *earlier, done = run.apply()
    best: dict[str, PartialMatch] = {}
    for i, program in enumerate(wanted.programs):
        with wanted.located(i):
            stops = explain_program(matcher, program, wanted.name)
        for stopped in stops:
            other = best.get(stopped.root)
            if other is None or len(other.stopped.nodes) < len(stopped.nodes):
                best[stopped.root] = PartialMatch(i + 1, stopped)
    attempts = sorted(best.values(), key=lambda attempt: -len(attempt.stopped.nodes))
    owners = _owners(earlier)
    matches = (*done.fates, *_taken_matches(might, owners))
    inside, index = VertexIndex(list(owners), matcher.constants), matcher.index()
    beginnings = tuple(_beginning(i, program, index, inside, owners) for i, program in enumerate(wanted.programs, 1))
    ran = tuple((result.name, len(result.calls)) for result in earlier)
    return Explanation(wanted.name, len(done.calls), done.refused, tuple(attempts), matches, beginnings, ran, already)


def run(options: FuseCommand) -> Outcome:
    """Do what the command `fuse --explain` asks for."""
    return Outcome(explain.from_options(narrowed(ExplainOptions, options, pattern=options.explain)), "explain")


def _matches(matcher: Matcher, pattern: Pattern) -> list[tuple[int, str, Match]]:
    """Return each match with its variant, counted from 1, and the name of its root, which it loses when it is fused."""
    matches = []
    for i, program in enumerate(pattern.programs):
        with pattern.located(i):
            matches += [(i + 1, identify(match.root), match) for match in matcher.find(program)]
    return matches


def _owners(earlier: Iterable[PatternResult]) -> dict[Vertex, tuple[str, str]]:
    """Return the pattern and the call of each node that is inside one."""
    fused = ((result, fate) for result in earlier for fate in result.fates if fate.fate == FUSED)
    return {vertex: (result.name, fate.detail) for result, fate in fused for vertex in fate.vertices}


def _taken_matches(might: Iterable[tuple[int, str, Match]], owners: Mapping[Vertex, tuple[str, str]]) -> list[Fate]:
    """Return those matches of the model as it was read of which an earlier pattern has a node."""
    fates = []
    for variant, root, match in might:
        owner = next((owners[node] for node in match.nodes if node in owners), None)
        if owner is not None:
            detail = f"taken by {owner[0]}: a node of it is in {owner[1]!r}"
            fates.append(Fate(root, variant, TAKEN, detail, match.vertices))
    return fates


def _beginning(
    variant: int,
    program: Program,
    index: VertexIndex,
    inside: VertexIndex,
    owners: Mapping[Vertex, tuple[str, str]],
) -> Beginning:
    """Return how many nodes of the model, and of those `inside` calls, which have `owners`, a variant could begin with."""
    roots = tuple(dict.fromkeys(node.type for node in program.roots))
    named = dict.fromkeys(node.type for node in program.query.nodes)
    others = {name: len(index.vertices_of(name)) for name in named if name not in {*roots, ANY_NODE, PRODUCER}}
    nodes = {vertex for name in roots for vertex in index.vertices_of(name)}
    taken = dict.fromkeys(vertex for name in roots for vertex in inside.vertices_of(name))
    takers = tuple(dict.fromkeys(owners[vertex][0] for vertex in taken))
    there = {name: count for name, count in others.items() if count}
    missing = (" or ".join(types) for types in program.query.needed if not _are_there(types, index))
    return Beginning(variant, roots, len(nodes), len(taken), takers, there, tuple(dict.fromkeys(missing)))


def _are_there(types: Iterable[str], index: VertexIndex) -> bool:
    return any(name in {ANY_NODE, PRODUCER} or index.vertices_of(name) for name in types)
