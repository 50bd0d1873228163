"""Write a pattern for chosen nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxtile.fusion import author
from onnxtile.model.constants import Constants
from onnxtile.model.load import Source, load
from onnxtile.query.match import Matcher, compiled
from onnxtile.result import VerbResult
from onnxtile.verbs.stage import Progress, silent


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


def draft_pattern(
    model: Source, nodes: Sequence[str], name: str = "MyMetaOp", *, progress: Progress = silent
) -> PatternDraft:
    """Write the query for the nodes called `nodes` (a node without a name is called by its first output).

    Raises UsageError where a node is not there, or they are not connected.
    """
    progress("reading the model")
    graph = load(model)
    constants = Constants(graph)
    query = author.write_query(author.find_nodes(graph, nodes), constants)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    matches = Matcher(graph, constants).find(compiled(query, known))
    return PatternDraft(name, query, author.pattern_file(name, query), len(matches))
