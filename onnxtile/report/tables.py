"""Results as tables for a terminal; in a pipe the same tables come as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from onnxtile.report.fit_tables import for_curve, for_fitted
from onnxtile.report.fuse_tables import for_lowered
from onnxtile.report.inspect_tables import for_inspect, for_trace
from onnxtile.report.layout import live_line
from onnxtile.report.plan_tables import for_arena_run, for_check, for_plan
from onnxtile.report.run_tables import for_run
from onnxtile.report.table import ResultJson, line, plain, reasons, table
from onnxtile.report.tile_tables import for_tiled
from onnxtile.report.verify_tables import for_verify
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

_REASONS = 20


def for_match(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `match` result."""
    rows = [
        (m["root"], " ".join(m["nodes"][1:]), " ".join(f"{k}={v}" for k, v in m["anchors"].items()))
        for m in result["matches"]
    ]
    return [table(f"{len(rows)} matches", ("root", "further nodes", "anchors"), rows) if rows else line("no match")]


def for_list(result: ResultJson) -> list[Table | Text]:
    """Return the table of a `list` result."""
    rows = [(choice["name"], choice["summary"]) for choice in result["names"]]
    return [table(f"{len(rows)} {result['kind']}, for {result['option']}", ("name", "meaning"), rows)]


def for_fuse(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `fuse` result."""
    found = [p for p in result["patterns"] if p["matches"] or p["refused"]]
    rows = [(p["name"], p["matches"], p["fused"], len(p["refused"])) for p in found]
    title = f"{result['nodes_before']} nodes became {result['nodes_after']}"
    refused = [(p["name"], r["root"], r["reason"]) for p in result["patterns"] for r in p["refused"]]
    columns = ("pattern", "matches", "fused", "refused")
    tables: list[Table | Text] = [table(title, columns, rows) if rows else line(title)]
    none = len(result["patterns"]) - len(found)
    if none:
        tables.append(line(f"{none} pattern{'s' * (none > 1)} matched nothing (--explain NAME says why)"))
    if refused:
        tables.append(table("matches not fused", ("pattern", "root", "reason"), refused))
    arena = result.get("arena")
    if arena:
        tables.append(line(f"arena: {arena['before']:,} bytes node by node, {arena['after']:,} bytes with meta-ops"))
    return [*tables, *for_lowered(result), *_verdict(result)]


def for_explain(result: ResultJson) -> list[Table | Text]:
    """Return the tables of an explanation: what became of each match, and why partial matches stopped, the nearest first."""
    shown = result["reasons"][:_REASONS]
    rows = [(r["nodes"], r["variant"], " ".join(r["part"].split()), r["reason"], _first(r["roots"])) for r in shown]
    columns = ("nodes matched", "variant", "stopped at", "reason", "roots")
    parts: list[Table | Text] = [line(f"{result['pattern']}: {len(result['matches'])} matches, {_fates(result)}")]
    if result["earlier"]:
        parts.append(line(_ran_before(result["earlier"])))
    left_alone = [m for m in result["matches"] if m["fate"] != "fused"]
    if left_alone:
        told = [(m["root"], m["variant"], m["fate"], m["detail"]) for m in left_alone]
        parts.append(table("matches that were not fused", ("root", "variant", "fate", "why"), told))
    if rows:
        parts.append(table("partial matches, the nearest first", columns, rows))
        parts += [
            line(f"variant {one['variant']} needs {', '.join(one['missing'])}, which the model does not have")
            for one in result["beginnings"]
            if one["missing"]
        ]
    left = len(result["reasons"]) - len(shown)
    if left:
        parts.append(line(f"{left} more reasons of partial matches that got less far; --json has them all"))
    return parts if rows or result["matches"] else [*parts, _without_roots(result)]


def _ran_before(earlier: Sequence[ResultJson]) -> str:
    """Return which patterns ran before the one that is explained, in their order, and how many meta-ops each made."""
    made = [f"{one['name']} ({one['fused']} fused)" for one in earlier if one["fused"]]
    none = len(earlier) - len(made)
    rest = [f"{none} pattern{'s' * (none > 1)} that fused nothing"] if none else []
    return f"ran before it: {', '.join([*made, *rest])}"


def _first(roots: Sequence[str]) -> str:
    """Return the first of some roots, and how many more there are."""
    return roots[0] if len(roots) == 1 else f"{roots[0]} and {len(roots) - 1} more"


def _fates(result: ResultJson) -> str:
    """Return how many matches had which fate."""
    counts = Counter(match["fate"] for match in result["matches"])
    return ", ".join(f"{counts[fate]} {fate}" for fate in ("fused", *sorted(counts.keys() - {"fused"})))


def _without_roots(result: ResultJson) -> Table | Text:
    """Return the operators with which each variant begins, where the model has no node of them left."""
    rows = [
        (one["variant"], " or ".join(one["operators"]), _taken(one), _counted(one["others"]))
        for one in result["beginnings"]
    ]
    names = " or ".join(dict.fromkeys(name for one in result["beginnings"] for name in one["operators"]))
    return table(f"no {names} to begin with", ("variant", "begins with", "in the model", "other operators"), rows)


def _taken(beginning: ResultJson) -> str:
    """Return how many nodes a variant could begin with, if earlier patterns had not taken them."""
    return f"{beginning['taken']}, taken by {', '.join(beginning['takers'])}" if beginning["taken"] else "none"


def _counted(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in nodes.items()) or "none"


def for_unfuse(result: ResultJson) -> list[Table | Text]:
    """Return the tables of an `unfuse` result."""
    return [table("unfused", ("meta-op", "calls"), result["unfused"].items()), *_verdict(result)]


def for_fit(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `fit` result."""
    curve = for_curve(result) if result["curve"] else []
    return [*curve, *for_fitted(result), *_verdict(result), *for_arena_run((result["verdict"] or {}).get("arena"))]


def for_tile(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `tile` result."""
    return [*for_tiled(result), *_verdict(result)]


def for_demo(result: ResultJson) -> list[Table | Text]:
    """Return the tables of the demo: a row for each model, its live bytes as a line, and the commands that do the same."""
    stages, folder = result["stages"], result["folder"]
    columns = ("model", "nodes", "meta-ops", "tiles", "activations", "arena", "with insides", "max error")
    rows = [
        (
            *(one["model"], one["nodes"], one["meta_ops"] or "", one["tiles"] or ""),
            *(readable(one["activations"]), readable(one["arena"]), readable(one["arena_with_insides"])),
            f"{one['error']:.2g}",
        )
        for one in stages
    ]
    top = max(one["arena"] for one in stages)
    lines = [(one["model"], live_line(one["live"], top), readable(one["arena"])) for one in stages]
    last = stages[-1]["file"].removesuffix(".onnx")
    commands = [
        *(one["command"] for one in stages if one["command"]),
        f"plan {last}.onnx --emit plan.html",
        f"verify {stages[0]['file']} {last}.planned.onnx",
    ]
    return [
        table("a small vision transformer: fused, then tiled, each planned and verified", columns, rows),
        line("activations: bytes without sharing; arena: bytes with sharing, where a kernel does each whole meta-op"),
        line("with insides: the arena where the nodes inside meta-ops run one by one, and hold their tensors there"),
        line("max error: largest relative difference of an output from the original's"),
        line(""),
        table("live bytes from the first step to the last, at one scale", ("model", "live bytes", "arena"), lines),
        line(f"Files are in {folder}/. To look into the arena, open in a browser:"),
        line(f"  {folder}/{last}.plan.html"),
        line("The same, step by step, in that folder:"),
        *(line(f"  onnxtile {command}") for command in commands),
    ]


def _verdict(result: ResultJson) -> list[Table | Text]:
    verdict = result.get("verdict")
    if verdict is None:
        return [line("not verified")]
    worst = max((output["max_rel"] or 0.0 for output in verdict["outputs"]), default=0.0)
    alone = len(result.get("sites") or ())
    each = max((site.get("runs", 1) for site in result.get("sites") or ()), default=1)
    often = f", {each} runs each" if each > 1 else ""
    sites = f", and {alone} different site by itself{often}" if alone == 1 else ""
    sites = f", and {alone} different sites by themselves{often}" if alone > 1 else sites
    dims = ", ".join(f"{name}={size}" for name, size in verdict["dims"].items())
    where = f" at {dims}" if dims else ""
    # What stands as equal for a reason of its own says so: its relative error alone would look like a mistake.
    explained = [o for o in verdict["outputs"] if o["equal"] and o.get("reason")]
    left, count = verdict.get("not_compared", {}), len(verdict["outputs"])
    compared = f" in {count:,} of {count + len(left):,} outputs" if left else ""
    notes = [f"{o['name']} is off by {o['max_abs'] or 0.0:.2g}: {o['reason']}" for o in explained]
    summary = f"verified{compared}: {verdict['runs']} runs{where}{sites}; worst relative error {worst:.2g}"
    return [*(line(text) for text in (summary, *notes)), *reasons("not compared", left)]
