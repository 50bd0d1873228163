"""Where a query matches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxtile.model.constants import Constants
from onnxtile.model.load import Source, load
from onnxtile.query.match import Match, Matcher, compiled
from onnxtile.result import VerbResult
from onnxtile.verbs.stage import Progress, silent


@dataclass(frozen=True, repr=False)
class MatchResult(VerbResult):
    """Where a query matches."""

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


def match(model: Source, query: str, *, progress: Progress = silent) -> MatchResult:
    """Return where `query` matches in `model`; matches may overlap. Raises ModelError and QueryError."""
    progress("reading the model")
    graph = load(model)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    program = compiled(query, known)
    return MatchResult(query, tuple(Matcher(graph, Constants(graph)).find(program)))
