"""match and pattern new: the matches of a query, and a query for chosen nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from typing import ClassVar

import onnx_ir as ir

from onnxtile.declare.option import declared, narrowed
from onnxtile.declare.verb import Outcome, VerbResult
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.model.topology import node_ids
from onnxtile.operators.table import operator_of
from onnxtile.query.match import Match, Matcher, compiled
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.verbs.match import DraftOptions, MatchOptions, PatternNewCommand


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
