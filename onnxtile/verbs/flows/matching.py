"""Finds the matches of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onnxtile.declare.result import VerbResult
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.query.match import Match, Matcher, compiled

if TYPE_CHECKING:
    from onnxtile.verbs.options.match import MatchOptions


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
