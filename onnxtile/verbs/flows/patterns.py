"""What verbs about patterns do: find the matches of a query, draft a pattern, list what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onnxtile.declare.verb import VerbResult
from onnxtile.fusion import author
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.query.match import Match, Matcher, compiled
from onnxtile.system.errors import invalid

if TYPE_CHECKING:
    from onnxtile.verbs.options.match import MatchOptions
    from onnxtile.verbs.options.pattern_new import DraftOptions


@dataclass(frozen=True, repr=False)
class MatchResult(VerbResult):
    """Finds the matches of a query."""

    verb: ClassVar[str] = "match"

    query: str
    matches: tuple[Match, ...]

    @property
    def summary(self) -> str:
        """How often the query matches."""
        return f"{len(self.matches):,} matches of {' '.join(self.query.split())}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `match`."""
        return {"query": self.query, "matches": [match.to_dict() for match in self.matches]}


def match(options: MatchOptions) -> MatchResult:
    """Match a query as `onnxtile.match` says."""
    query, progress = options.query, options.progress
    progress("reading the model")
    graph = load(options.model)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    program = compiled(query, known)
    return MatchResult(query, tuple(Matcher(graph, Constants(graph)).find(program)))


# List the names that the options take: patterns, planners, orders, limits files, formats.


@dataclass(frozen=True)
class OptionName:
    """One name that an option takes, and a sentence about it."""

    name: str
    summary: str


@dataclass(frozen=True, repr=False)
class OptionNames(VerbResult):
    """All names of one kind, with the option that takes them."""

    verb: ClassVar[str] = "list"

    kind: str
    option: str
    names: tuple[OptionName, ...]

    @property
    def summary(self) -> str:
        """How many names of which kind there are."""
        return f"{len(self.names):,} {self.kind} for {self.option}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `list`."""
        return asdict(self)


def _patterns() -> Iterator[OptionName]:
    from onnxtile.fusion.pattern import LIBRARY, pattern_set, set_names

    for set_name in set_names():
        prefix = "" if set_name == LIBRARY else f"{set_name}/"
        listed = sorted(pattern_set(set_name), key=lambda pattern: pattern.name.casefold())
        yield from (OptionName(f"{prefix}{pattern.name}", pattern.doc) for pattern in listed)


def _planners() -> Iterator[OptionName]:
    from onnxtile.planning.planner import planners

    yield from (OptionName(name, planner.summary) for name, planner in planners().items())


def _orders() -> Iterator[OptionName]:
    from onnxtile.planning.schedule import orders

    yield from (OptionName(name, order.summary) for name, order in orders().items())


def _targets() -> Iterator[OptionName]:
    from onnxtile.tiling.limits import descriptions

    yield from (OptionName(name, doc) for name, doc in descriptions().items())


def _formats() -> Iterator[OptionName]:
    from onnxtile.report.format import Format
    from onnxtile.system.registry import discover

    formats = discover("onnxtile.report.formats", Format).values()
    yield from (OptionName(form.suffix, form.summary) for form in sorted(formats, key=lambda form: form.suffix))


_KINDS: dict[str, tuple[str, Callable[[], Iterator[OptionName]]]] = {
    "patterns": ("fuse --pattern", _patterns),
    "planners": ("plan --planner", _planners),
    "orders": ("plan --order", _orders),
    "targets": ("tile --target", _targets),
    "formats": ("plan --emit", _formats),
}

KINDS = tuple(_KINDS)
"""The kinds of names that `option_names` lists."""


def option_names(kind: str) -> OptionNames:
    """Return the names of a `kind` (one of `KINDS`), sorted as the option shows them. Raises UsageError for an unknown kind."""
    if kind not in _KINDS:
        raise invalid("kind", kind, _KINDS)
    option, found = _KINDS[kind]
    return OptionNames(kind, option, tuple(found()))


def pattern_names() -> list[str]:
    """Return the names of all sets of patterns, and of the patterns of the library."""
    from onnxtile.fusion.pattern import pattern_set, set_names

    return sorted({*set_names(), *(pattern.name for pattern in pattern_set())})


# Write a pattern for chosen nodes.


@dataclass(frozen=True, repr=False)
class PatternDraft(VerbResult):
    """A pattern file for nodes that were chosen, ready to edit, and how often its query matches in their model."""

    verb: ClassVar[str] = "pattern"

    name: str
    query: str
    text: str
    matches: int

    @property
    def summary(self) -> str:
        """The name of the pattern, its query, and how often that matches."""
        return f"{self.name}, {self.matches:,} matches of {' '.join(self.query.split())}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `pattern new`."""
        return dict(vars(self))


def draft_pattern(options: DraftOptions) -> PatternDraft:
    """Write a pattern as `onnxtile.api.draft_pattern` says."""
    nodes, name, progress = options.nodes, options.name, options.progress
    progress("reading the model")
    graph = load(options.model)
    constants = Constants(graph)
    query = author.write_query(author.find_nodes(graph, nodes), constants)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    matches = Matcher(graph, constants).find(compiled(query, known))
    return PatternDraft(name, query, author.pattern_file(name, query), len(matches))
