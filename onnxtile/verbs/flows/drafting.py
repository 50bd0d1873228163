"""Write a pattern for chosen nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onnxtile.declare.result import VerbResult
from onnxtile.fusion import author
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.query.match import Matcher, compiled

if TYPE_CHECKING:
    from onnxtile.verbs.options.pattern_new import DraftOptions


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
