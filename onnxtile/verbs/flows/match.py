"""match and pattern new: the matches of a query, and a query for chosen nodes."""

from __future__ import annotations

from typing import ClassVar

from onnxtile.declare.option import declared, narrowed
from onnxtile.declare.verb import Outcome, VerbResult
from onnxtile.fusion import author
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.query.match import Match, Matcher, compiled
from onnxtile.system.dataclass import dataclass
from onnxtile.verbs.match import MatchOptions
from onnxtile.verbs.pattern_new import DraftOptions, PatternNewCommand


@dataclass(frozen=True, repr=False)
class MatchResult(VerbResult):
    """Finds the matches of a query.

    `query` is the text of the query, `matches` has the root, the nodes and the anchors of each match, in the order of the graph.
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
    query = author.write_query(author.find_nodes(graph, nodes), constants)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    matches = Matcher(graph, constants).find(compiled(query, known))
    return PatternDraft(name, query, author.pattern_file(name, query), len(matches))


def run_pattern_new(options: PatternNewCommand) -> Outcome:
    """Do what the command `pattern new` asks for."""
    draft = draft_pattern.from_options(narrowed(DraftOptions, options, nodes=options.node_names))
    note = f"the query matches {draft.matches} times in {options.model}"
    return Outcome(draft, "", text=draft.text, note=note)
