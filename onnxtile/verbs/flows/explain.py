"""Explains a pattern: the fate of each match, and the reason where it did not match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar

from onnxtile.declare.option import declared, narrowed
from onnxtile.declare.verb import JsonFields, Outcome, VerbResult
from onnxtile.fusion.fuse import FUSED, OVERLAPPED, REFUSED, Fate, FusionRun, PatternResult, Refused
from onnxtile.fusion.pattern import Pattern, chosen_patterns
from onnxtile.model.load import load
from onnxtile.query.explain import Stopped
from onnxtile.query.explain import explain as explain_program
from onnxtile.query.graph import Vertex, identify
from onnxtile.query.match import Match, Matcher, VertexIndex, required_nodes
from onnxtile.query.program import Program
from onnxtile.query.syntax import ANY_NODE, PRODUCER
from onnxtile.system.dataclass import dataclass
from onnxtile.system.text import unquoted
from onnxtile.verbs.fuse import ExplainOptions, FuseCommand

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
        for match in sorted(self.matches, key=lambda one: _RANKS.index(one.fate)):
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
    found = ((one.roots[0].type, [identify(match.root) for match in matcher.find(one)]) for one in wanted.operators)
    already = {operator: tuple(nodes) for operator, nodes in found if nodes}
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
    inside = _NodesInside(VertexIndex(list(owners), matcher.constants), owners)
    beginnings = tuple(_beginning(i + 1, program, matcher.index(), inside) for i, program in enumerate(wanted.programs))
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


@dataclass(frozen=True)
class _NodesInside:
    """The nodes inside calls, and the pattern and call of each."""

    index: VertexIndex
    owners: Mapping[Vertex, tuple[str, str]]


def _beginning(variant: int, program: Program, index: VertexIndex, inside: _NodesInside) -> Beginning:
    roots = tuple(dict.fromkeys(node.type for node in program.roots))
    named = dict.fromkeys(node.type for node in program.query.nodes)
    others = {name: len(index.of(name)) for name in named if name not in {*roots, ANY_NODE, PRODUCER}}
    nodes = {vertex for name in roots for vertex in index.of(name)}
    taken = dict.fromkeys(vertex for name in roots for vertex in inside.index.of(name))
    takers = tuple(dict.fromkeys(inside.owners[vertex][0] for vertex in taken))
    there = {name: count for name, count in others.items() if count}
    needed = (node.types for node in required_nodes(program.instructions))
    missing = (" or ".join(types) for types in needed if not _are_there(types, index))
    return Beginning(variant, roots, len(nodes), len(taken), takers, there, tuple(dict.fromkeys(missing)))


def _are_there(types: Iterable[str], index: VertexIndex) -> bool:
    return any(name in {ANY_NODE, PRODUCER} or index.of(name) for name in types)
