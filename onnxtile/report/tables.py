"""Results as tables for a terminal; in a pipe the same tables come as plain text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from onnxtile.report.fit_tables import for_curve, for_fitted
from onnxtile.report.inspect_tables import for_inspect, for_trace
from onnxtile.report.layout import live_line
from onnxtile.report.plan_tables import for_arena_run, for_check, for_firmware, for_plan
from onnxtile.report.run_tables import for_run
from onnxtile.report.table import ResultJson, Shown, counted, line, plain, some_of, table, table_of
from onnxtile.report.verify_tables import for_verdict, for_verify
from onnxtile.report.words import readable

__all__ = [
    "for_check",
    "for_curve",
    "for_demo",
    "for_explain",
    "for_fit",
    "for_fuse",
    "for_inspect",
    "for_list",
    "for_match",
    "for_plan",
    "for_run",
    "for_tile",
    "for_trace",
    "for_unfuse",
    "for_verify",
    "plain",
    "table",
]

# Small results: matches, names, what became of meta-ops, the demo.


def for_match(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `match` result."""
    columns: dict[str, Shown] = {
        "root": "root",
        "further nodes": lambda match: " ".join(match["nodes"][1:]),
        "anchors": lambda match: " ".join(f"{name}={node}" for name, node in match["anchors"].items()),
    }
    found = result["matches"]
    return [table_of(f"{len(found)} matches", columns, found) if found else line("no match")]


def for_list(result: ResultJson) -> list[Table | Text]:
    """Return the table of a `list` result."""
    names = result["names"]
    title = f"{len(names)} {result['kind']}, for {result['option']}"
    return [table_of(title, {"name": "name", "meaning": "summary"}, names)]


def for_unfuse(result: ResultJson) -> list[Table | Text]:
    """Return the tables of an `unfuse` result."""
    return [table("unfused", ("meta-op", "calls"), result["unfused"].items()), *for_verdict(result)]


def for_fit(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `fit` result."""
    curve = for_curve(result) if result["curve"] else []
    arena = for_arena_run((result["verdict"] or {}).get("arena"))
    return [*curve, *for_fitted(result), *for_verdict(result), *arena, *for_firmware(result.get("firmware"))]


_DEMO: dict[str, Shown] = {
    "model": "model",
    "nodes": "nodes",
    "meta-ops": lambda one: one["meta_ops"] or "",
    "tiles": lambda one: one["tiles"] or "",
    "activations": lambda one: readable(one["activations"]),
    "arena": lambda one: readable(one["arena"]),
    "with insides": lambda one: readable(one["arena_with_insides"]),
    "max error": lambda one: f"{one['error']:.2g}",
}


def for_demo(result: ResultJson) -> list[Table | Text]:
    """Return the tables of the demo: a row for each model, its live bytes as a line, and the commands that do the same."""
    stages, folder = result["stages"], result["folder"]
    top = max(one["arena"] for one in stages)
    live: dict[str, Shown] = {
        "model": "model",
        "live bytes": lambda one: live_line(one["live"], top),
        "arena": lambda one: readable(one["arena"]),
    }
    last = stages[-1]["file"].removesuffix(".onnx")
    commands = [
        *(one["command"] for one in stages if one["command"]),
        f"plan {last}.onnx --emit plan.html",
        f"verify {stages[0]['file']} {last}.planned.onnx",
    ]
    return [
        table_of("a small vision transformer: fused, then tiled, each planned and verified", _DEMO, stages),
        line("activations: bytes without sharing; arena: bytes with sharing, where a kernel does each whole meta-op"),
        line("with insides: the arena where the nodes inside meta-ops run one by one, and hold their tensors there"),
        line("max error: largest relative difference of an output from the original's"),
        line(""),
        table_of("live bytes from the first step to the last, at one scale", live, stages),
        line(f"Files are in {folder}/. To look into the arena, open in a browser:"),
        line(f"  {folder}/{last}.plan.html"),
        line("The same, step by step, in that folder:"),
        *(line(f"  onnxtile {command}") for command in commands),
    ]


# What was fused and lowered, and what was not.


def for_fuse(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `fuse` result."""
    columns: dict[str, Shown] = {
        "pattern": "name",
        "matches": "matches",
        "fused": "fused",
        "refused": lambda pattern: len(pattern["refused"]),
    }
    found = [p for p in result["patterns"] if p["matches"] or p["refused"]]
    title = f"{result['nodes_before']} nodes became {result['nodes_after']}"
    tables: list[Table | Text] = [table_of(title, columns, found) if found else line(title)]
    none = len(result["patterns"]) - len(found)
    if none:
        tables.append(line(f"{counted(none, 'pattern')} matched nothing (--explain NAME says why)"))
    refused = [(p["name"], r["root"], r["reason"]) for p in result["patterns"] for r in p["refused"]]
    if refused:
        tables.append(table("matches not fused", ("pattern", "root", "reason"), refused))
    arena = result.get("arena")
    if arena:
        tables.append(line(f"arena: {arena['before']:,} bytes node by node, {arena['after']:,} bytes with meta-ops"))
    return [*tables, *for_lowered(result), *for_verdict(result)]


def for_lowered(result: ResultJson) -> list[Table | Text]:
    """Return the tables of the calls that `fuse` lowered or left; none where no lowering was asked for."""
    written: dict[tuple[str, str], list[str]] = defaultdict(list)
    left: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for site in result.get("lowered", ()):
        if site.get("operator"):
            operator = ", ".join(filter(None, (site["operator"], site.get("decided"))))
            written[site["meta_op"], operator].append(site["call"])
        else:
            fate = "parts lowered" if site.get("opened") else "kept"
            left[site["meta_op"], fate, site.get("reason", "")].append(site["call"])
    tables: list[Table | Text] = []
    if written:
        rows = [(*key, len(calls)) for key, calls in written.items()]
        tables.append(table("lowered", ("meta-op", "operator", "calls"), rows))
    tables += _on_edge_rows(result)
    if left:
        kept = [(op, fate, len(calls), reason, calls[0]) for (op, fate, reason), calls in left.items()]
        tables.append(table("not lowered as a whole", ("meta-op", "result", "calls", "reason", "first call"), kept))
    not_run = [site for site in result.get("sites", ()) if site.get("skipped")]
    if tables and not_run:
        columns: dict[str, Shown] = {"call": "call", "reason": "skipped"}
        tables.append(table_of("calls not compared by a run of their own", columns, not_run))
    return tables


_EFFECTS = {
    "kinder": "the operator is kinder: a number where the meta-op has none",
    "no number": "NaN and infinity, where no element is a number",
    "beyond range": "rows whose squares leave the range of the type",
    "worse": "other results",
}


def _on_edge_rows(result: ResultJson) -> list[Table | Text]:
    """Return the table of lowered calls that differ on edge rows; none where no call does."""
    differing = Counter(
        (site["meta_op"], site["operator"], _EFFECTS[effect], ", ".join(numbers))
        for site in result.get("lowered", ())
        for effect, numbers in site.get("edges", {}).items()
    )
    rows = [(*key, calls) for key, calls in differing.items()]
    heads = ("meta-op", "operator", "what differs", "edge rows of", "calls")
    return [table("lowered, and different on edge rows", heads, rows)] if rows else []


# Why a pattern stopped.

_REASONS = 20
_PARTIAL: dict[str, Shown] = {
    "nodes matched": "nodes",
    "variant": "variant",
    "stopped at": lambda reason: " ".join(reason["part"].split()),
    "reason": "reason",
    "roots": lambda reason: some_of(reason["roots"], 1),
}
_NOT_FUSED: dict[str, Shown] = {"root": "root", "variant": "variant", "fate": "fate", "why": "detail"}
_BEGINNINGS: dict[str, Shown] = {
    "variant": "variant",
    "begins with": lambda one: " or ".join(one["operators"]),
    "in the model": lambda one: f"{one['taken']}, taken by {', '.join(one['takers'])}" if one["taken"] else "none",
    "other operators": lambda one: _counted(one["others"]),
}
"""What a variant begins with, and how many nodes it could begin with, if earlier patterns had not taken them."""


def for_explain(result: ResultJson) -> list[Table | Text]:
    """Return the tables of an explanation: what became of each match, and why partial matches stopped, the nearest first."""
    shown = result["reasons"][:_REASONS]
    parts: list[Table | Text] = [line(f"{result['pattern']}: {len(result['matches'])} matches, {_fates(result)}")]
    if result["earlier"]:
        parts.append(line(_ran_before(result["earlier"])))
    left_alone = [m for m in result["matches"] if m["fate"] != "fused"]
    if left_alone:
        parts.append(table_of("matches that were not fused", _NOT_FUSED, left_alone))
    if shown:
        parts.append(table_of("partial matches, the nearest first", _PARTIAL, shown))
        parts += [
            line(f"variant {one['variant']} needs {', '.join(one['missing'])}, which the model does not have")
            for one in result["beginnings"]
            if one["missing"]
        ]
    left = len(result["reasons"]) - len(shown)
    if left:
        parts.append(line(f"{left} more reasons of partial matches that got less far; --json has them all"))
    if shown or result["matches"]:
        return parts
    names = " or ".join(dict.fromkeys(name for one in result["beginnings"] for name in one["operators"]))
    return [*parts, table_of(f"no {names} to begin with", _BEGINNINGS, result["beginnings"])]


def _ran_before(earlier: Sequence[ResultJson]) -> str:
    """Return which patterns ran before the one that is explained, in their order, and how many meta-ops each made."""
    made = [f"{one['name']} ({one['fused']} fused)" for one in earlier if one["fused"]]
    none = len(earlier) - len(made)
    rest = [f"{counted(none, 'pattern')} that fused nothing"] if none else []
    return f"ran before it: {', '.join([*made, *rest])}"


def _fates(result: ResultJson) -> str:
    """Return how many matches had which fate."""
    counts = Counter(match["fate"] for match in result["matches"])
    return ", ".join(f"{counts[fate]} {fate}" for fate in ("fused", *sorted(counts.keys() - {"fused"})))


def _counted(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in nodes.items()) or "none"


# The tiled nodes, their tiles, the arena before and after, and the nodes left as they are.

_NAMES = 3
"""Names of nodes that are left as they are for one reason; --json has them all."""

_TILED: dict[str, Shown] = {
    **{"node": "node", "operator": "op", "M": "m", "K": "k", "N": "n"},
    "grid": lambda one: "×".join(map(str, one["grid"])),
    "tiles": "matmuls",
}
_EXPERTS: dict[str, Shown] = {
    **{"node": "node", "operator": "op"},
    **{name: name for name in ("experts", "width", "inner", "step", "tiles")},
}
_CHOICE: dict[str, Shown] = {
    "tile": lambda choice: "×".join(map(str, choice["tile"])),
    "loops": "order",
    "nodes": "nodes",
    "bytes held": "held",
    "bytes moved": "bytes_moved",
}
_CHOSEN: dict[str, Shown] = {
    "node": "node",
    **_CHOICE,
    "lower bound": lambda choice: "" if choice["lower_bound"] is None else f"{choice['lower_bound']:,.0f}",
    "ratio": lambda choice: "" if choice["ratio"] is None else f"{choice['ratio']:.3f}",
}


def for_tile(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `tile` result."""
    title = f"{result['nodes_before']} nodes became {result['nodes_after']}"
    tiled, experts = result["tiled"], result.get("experts")
    tables: list[Table | Text] = [table_of(title, _TILED, tiled) if tiled else line(title)]
    if experts:
        tables.append(table_of("mixtures of experts", _EXPERTS, experts))
    tables += _choices(tiled)
    if result.get("peaks"):
        peaks = [(way, peak["layers"], peak["model"]) for way, peak in result["peaks"].items()]
        ways = ("accumulate", "inside tiled layers", "whole model")
        tables.append(table("bytes that live at once, by how partial sums are added", ways, peaks))
    tables += _skipped(result["skipped"])
    opset = result.get("opset")
    if opset and opset["before"] != opset["after"]:
        tables.append(line(f"opset: {opset['before']} before, {opset['after']} after, for ScatterND"))
    if result.get("arena"):
        tables.append(line(_arena(result["arena"])))
    tables += [line(f"warning: {text}") for text in result.get("warnings") or ()]
    return [*tables, *for_verdict(result)]


def _skipped(skipped: Iterable[ResultJson]) -> list[Table | Text]:
    """Return the nodes that are left as they are, grouped by reason, the most common first."""
    groups: dict[str, list[str]] = {}
    for node in skipped:
        groups.setdefault(node["reason"], []).append(node["node"])
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = [(len(names), reason, some_of(names, _NAMES)) for reason, names in ordered]
    return [table("left as they are", ("nodes", "reason", "which"), rows)] if rows else []


def _arena(arena: ResultJson) -> str:
    if arena["before"] is None or arena["after"] is None:
        return f"arena: {arena['reason']}"
    change = f" ({arena['after'] / arena['before'] - 1:+.1%})" if arena["before"] else ""
    return f"arena: {arena['before']:,} bytes before, {arena['after']:,} bytes after{change}"


def _choices(tiled: Iterable[ResultJson]) -> list[Table | Text]:
    """Return the tiles chosen within a memory, and the other choices of the layer that moves most; nothing without a choice."""
    chosen = [{**one["choice"], "node": one["node"]} for one in tiled if one.get("choice")]
    if not chosen:
        return []
    most = max(chosen, key=lambda choice: choice["bytes_moved"])
    return [
        table_of("tiles chosen", _CHOSEN, chosen),
        table_of(f"nodes against bytes: {most['node']}", _CHOICE, most["trade"]),
    ]
