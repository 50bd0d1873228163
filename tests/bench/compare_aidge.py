"""Compares what Eclipse Aidge and onnxtile find, query by query, on the models of the zoo.

    python -m tests.bench.compare_aidge --aidge PYTHON [--zoo FOLDER] [--model NAME ...] [--each N] [--seed N] [--json FILE]

PYTHON is one that has aidge-core, aidge-onnx and aidge-backend-cpu. The queries are the five of `patterns/aidge` that name no meta-op,
and ones generated from the neighbourhoods of real nodes; every query runs on every model in both tools, and what they find is
compared by the root of each match. Each difference is explained, or counted as unexplained: then the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.query.graph import Surroundings, Vertex, identify, is_constant
from onnxtile.query.language import Alternative, Clause, Edge, Node, Parallel, QueryBlock, Sequence, parse
from onnxtile.query.match import Match, Matcher, compiled
from onnxtile.system.errors import QueryError
from tests.bench.choices import written_out
from tests.bench.neighbourhoods import Neighbourhoods

ROOT = Path(__file__).parent.parent.parent
MODELS = (
    *("bert_ts14", "bert-sdpa_dy20", "clip_text_ts14", "dinov2_ts14", "dinov2div_ts14_sim0436", "gpt2_ts14_sim"),
    *("llama_ts14", "qwen3_dy20", "swin_ts14", "t5_encoder_ts14", "vit_dy20", "whisper_encoder_ts14_sim"),
)
TIMEOUT = 5.0
_META_OPS = {"Linear", "ScaledDotProductAttention"}

Found: TypeAlias = "list[dict[str, Any]] | dict[str, str]"
"""Aidge's matches, or its error."""


def main() -> int:
    """Run the comparison and print its tables."""
    options = _options()
    folder = Path(options.zoo)
    with tempfile.TemporaryDirectory() as place:
        cases = [_prepared(folder / f"{name}.onnx", Path(place)) for name in options.model or MODELS]
        types = _ask_all(options.aidge, cases, [])
        queries = dict(_classic())
        for number, (case, answer) in enumerate(zip(cases, types, strict=True)):
            generated = Neighbourhoods(case.proto, answer["types"], options.seed + number).all(options.each)
            queries.update({query: kind for kind, query in generated if query not in queries})
        answers = _ask_all(options.aidge, cases, list(queries))
        tally = Tally()
        for case, answer in zip(cases, answers, strict=True):
            side = Side(case, answer)
            found = zip(queries.items(), answer["results"], strict=True)
            outcomes = [(kind, query, side.compare(query, theirs)) for (query, kind), theirs in found]
            chosen = _found_when_written_out(options.aidge, case, outcomes)
            for kind, query, outcome in outcomes:
                tally.add(kind, case.name, query, outcome.explained(chosen.get(query, set())))
    _write(tally, len(queries), len(cases))
    if options.json:
        Path(options.json).write_text(json.dumps(tally.to_dict(), indent=1))
    return 1 if tally.unexplained() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aidge", required=True, help="a Python that has Aidge")
    parser.add_argument("--zoo", default=str(ROOT.parent / "shared" / "zoo"), help="the folder of the models")
    parser.add_argument("--each", type=int, default=4, help="queries of each kind generated from each model")
    parser.add_argument("--model", action="append", metavar="NAME", help="a model of the folder; 12 by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="where to write every difference")
    return parser.parse_args()


def _classic() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "patterns" / "aidge").glob("*.toml")):
        for variant in tomllib.loads(path.read_text("utf-8"))["variants"]:
            if not any(name in variant["query"] for name in _META_OPS):
                yield variant["query"], "patterns/aidge"
    yield "MatMul->Add", "patterns/aidge"


# Both tools


@dataclass(frozen=True)
class Case:
    """A model of the zoo whose nodes and values have short unique names, which both tools keep."""

    name: str
    path: Path
    proto: onnx.ModelProto


def _prepared(source: Path, folder: Path) -> Case:
    model = onnx.load(source)
    names = {tensor.name: f"w{i}" for i, tensor in enumerate(model.graph.initializer)}
    names |= {value.name: f"x{i}" for i, value in enumerate(model.graph.input) if value.name not in names}
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
        names |= {name: f"n{number}" + (f"_{i}" if i else "") for i, name in enumerate(node.output) if name}
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    graph = model.graph
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    path = folder / source.name
    onnx.save(model, path)
    return Case(source.stem, path, model)


def _ask_all(python: str, cases: Iterable[Case], queries: list[str]) -> list[dict[str, Any]]:
    def ask(case: Case) -> dict[str, Any]:
        request = json.dumps({"model": str(case.path), "queries": queries, "timeout": TIMEOUT})
        command = [python, str(Path(__file__).with_name("aidge_side.py"))]
        done = subprocess.run(command, input=request, stdout=subprocess.PIPE, text=True, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(ask, cases))


def _found_when_written_out(
    python: str, case: Case, outcomes: Iterable[tuple[str, str, Outcome]]
) -> dict[str, set[str]]:
    """Return the roots that Aidge finds once the choices of a query are written out, for the queries with which it found fewer."""
    open_ = [query for _, query, outcome in outcomes if any(d.only == "onnxtile" for d in outcome.differences)]
    variants = {query: written_out(query) for query in open_}
    (answer,) = _ask_all(python, [case], [text for texts in variants.values() for text in texts])
    results = iter(answer["results"])
    roots: dict[str, set[str]] = {}
    for query, texts in variants.items():
        found = [next(results) for _ in texts]
        roots[query] = {match["root"] for matches in found if isinstance(matches, list) for match in matches}
    return roots


@dataclass(frozen=True)
class Difference:
    """A root that one tool finds and the other does not, and why."""

    root: str
    only: str
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What a query found on a model: how many roots both found, what one of them did, or why it could not be compared."""

    both: int = 0
    differences: tuple[Difference, ...] = ()
    failure: str = ""

    def explained(self, chosen: set[str]) -> Outcome:
        """Return the outcome with a reason for each root that Aidge finds too, once the choices are written out."""
        differences = tuple(
            replace(d, reason=CHOICE) if d.only == "onnxtile" and d.root in chosen else d for d in self.differences
        )
        return replace(self, differences=differences)


CHOICE = "backtracking: Aidge finds it with the quantifier or the input written out"
UNEXPLAINED = "unexplained"
LOOSE = "Aidge: the node of a repeated anchor is another of its type"
INSERTED = "Aidge: an Identity that it inserts after a graph input"


class Side:
    """One model as onnxtile sees it, beside what Aidge answered."""

    def __init__(self, case: Case, answer: dict[str, Any]) -> None:
        model = ir.from_proto(case.proto)
        self._constants = Constants(model)
        self._matcher = Matcher(model, self._constants)
        self._around = Surroundings(self._constants, lambda _: False)
        self._types: dict[str, str] = answer["types"]
        self._inserted = set(answer["inserted"])
        self._vertices = {identify(vertex): vertex for vertex in self._matcher.index().vertices}
        self._known = set(self._types.values())

    def compare(self, query: str, theirs: Found) -> Outcome:
        """Return how far both agree on the roots of `query`."""
        if isinstance(theirs, dict):
            return Outcome(failure=f"Aidge: {_short(theirs['error'])}")
        try:
            ours = self._matcher.find(compiled(query, self._known))
        except QueryError as error:
            return Outcome(failure=f"onnxtile: {error.reason}")
        by_root: dict[str, list[Match]] = {}
        for match in ours:
            by_root.setdefault(identify(match.root), []).append(match)
        found = {match["root"] for match in theirs}
        only_theirs = [
            Difference(root, "Aidge", self._why_only_aidge(query, [m for m in theirs if m["root"] == root]))
            for root in sorted(found - by_root.keys())
        ]
        only_ours = [
            Difference(root, "onnxtile", self._why_only_onnxtile(query, by_root[root]))
            for root in sorted(by_root.keys() - found)
        ]
        return Outcome(len(found & by_root.keys()), (*only_theirs, *only_ours))

    def _why_only_aidge(self, query: str, matches: list[dict[str, Any]]) -> str:
        if all(self._inserted & set(match["nodes"]) for match in matches):
            return INSERTED
        return LOOSE if all(self._breaks_an_edge(query, match["anchors"]) for match in matches) else UNEXPLAINED

    def _breaks_an_edge(self, query: str, anchors: dict[str, str]) -> bool:
        """Tell whether the query demands an edge between two of the nodes that Aidge bound which the graph does not have."""
        for source, edge, target in _anchored_edges(query):
            start, end = (self._vertices.get(anchors.get(key, "")) for key in (source, target))
            if start is not None and end is not None and end not in self._around.along(start, edge):
                return True
        return False

    def _why_only_onnxtile(self, query: str, matches: list[Match]) -> str:
        if all(any(self._is_computed(vertex) for vertex in match.vertices) for match in matches):
            return "a constant that operators compute is a Producer"
        if all(any(self._is_wider(query, vertex) for vertex in match.vertices) for match in matches):
            return "an alias is wider than Aidge's type"
        return UNEXPLAINED

    def _is_computed(self, vertex: Vertex) -> bool:
        if not isinstance(vertex, ir.Node) or vertex.op_type == "Constant":
            return False
        return is_constant(vertex, self._constants)

    def _is_wider(self, query: str, vertex: Vertex) -> bool:
        type_ = self._types.get(identify(vertex), "Producer")
        return "." not in query and type_ not in query


def _anchored_edges(query: str) -> Iterator[tuple[str, Edge, str]]:
    """Yield the edges of a query between two anchored nodes."""
    todo: list[Clause] = list(parse(query).clauses)
    while todo:
        clause = todo.pop()
        match clause:
            case Sequence():
                todo += clause.items
                for left, edge, right in zip(clause.items, clause.edges, clause.items[1:], strict=False):
                    if isinstance(left, Node) and isinstance(right, Node) and left.key and right.key:
                        yield left.key, edge, right.key
            case QueryBlock():
                todo.append(clause.body)
            case Parallel() | Alternative():
                todo += clause.branches
            case _:
                pass


def _short(error: str) -> str:
    return error.partition(":")[0] if error.startswith(("Ill-formed", "Syntax")) else error[:60]


# The tables


class Tally:
    """Counts over all queries and models."""

    def __init__(self) -> None:
        self._rows: dict[str, Counter[str]] = {}
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[str] = Counter()
        self._details: list[dict[str, str]] = []
        self._queries: dict[str, set[str]] = {}

    def add(self, kind: str, model: str, query: str, outcome: Outcome) -> None:
        """Count one query on one model."""
        row = self._rows.setdefault(kind, Counter())
        self._queries.setdefault(kind, set()).add(query)
        if outcome.failure:
            row["not compared"] += 1
            self._failures[outcome.failure] += 1
            self._note(model, query, "", "", outcome.failure)
            return
        row["both"] += outcome.both
        for difference in outcome.differences:
            row[difference.only] += 1
            self._reasons[difference.only, difference.reason] += 1
            self._note(model, query, difference.root, difference.only, difference.reason)

    def _note(self, model: str, query: str, root: str, only: str, reason: str) -> None:
        self._details.append({"model": model, "query": query, "root": root, "only": only, "reason": reason})

    def unexplained(self) -> int:
        """Return how many roots only one of the tools finds for no reason that is known."""
        return sum(count for (_, reason), count in self._reasons.items() if reason == UNEXPLAINED)

    def to_dict(self) -> dict[str, Any]:
        """Return every difference, and the counts over all queries."""
        counts = sum(self._rows.values(), Counter[str]())
        counts["queries"] = sum(map(len, self._queries.values()))
        counts["unexplained"] = self.unexplained()
        return {"counts": dict(counts), "differences": self._details}

    def tables(self) -> Iterator[str]:
        """Yield the lines of the tables, in Markdown."""
        columns = ("both", "Aidge", "onnxtile", "not compared")
        yield "| queries | how many | roots found by both | only by Aidge | only by onnxtile | not compared |"
        yield "|---|---:|---:|---:|---:|---:|"
        total: Counter[str] = Counter()
        for kind, row in self._rows.items():
            total.update(row)
            total["queries"] += len(self._queries[kind])
            yield _row(kind, len(self._queries[kind]), *(row[column] for column in columns))
        yield _row("all", total["queries"], *(total[column] for column in columns))
        yield ""
        yield "| found only by | why | roots |"
        yield "|---|---|---:|"
        for (only, reason), count in sorted(self._reasons.items()):
            yield _row(only, reason, count)
        yield ""
        yield "| not compared | times |"
        yield "|---|---:|"
        for failure, count in self._failures.most_common():
            yield _row(failure, count)


def _row(*cells: object) -> str:
    return f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in cells)} |"


def _write(tally: Tally, queries: int, models: int) -> None:
    lines = [f"{queries} queries on {models} models: {queries * models:,} searches in each tool", "", *tally.tables()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
