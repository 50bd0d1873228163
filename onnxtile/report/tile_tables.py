"""The tables of `tile`: the tiled nodes, their tiles, the arena before and after, and the nodes left as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from onnxtile.report.table import ResultJson, line, table

_NAMES = 3
"""Names of nodes that are left as they are for one reason; --json has them all."""


def for_tiled(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `tile` result, without the verdict of its runs."""
    rows = [
        (t["node"], t["op"], t["m"], t["k"], t["n"], "×".join(map(str, t["grid"])), t["matmuls"])
        for t in result["tiled"]
    ]
    title = f"{result['nodes_before']} nodes became {result['nodes_after']}"
    columns = ("node", "operator", "M", "K", "N", "grid", "tiles")
    tables: list[Table | Text] = [table(title, columns, rows) if rows else line(title)]
    tables += _experts(result.get("experts", ()))
    tables += _choices(result["tiled"])
    if result.get("peaks"):
        peaks = [(way, peak["layers"], peak["model"]) for way, peak in result["peaks"].items()]
        ways = ("accumulate", "inside tiled layers", "whole model")
        tables.append(table("bytes that live at once, by how partial sums are added", ways, peaks))
    return [*tables, *_skipped(result["skipped"]), *_opset(result), *_arena(result), *_warnings(result)]


def _experts(experts: Sequence[ResultJson]) -> list[Table | Text]:
    """Return the mixtures of experts, each a sum over stretches of the inner axis of its experts."""
    columns = ("node", "operator", "experts", "width", "inner", "step", "tiles")
    rows = [tuple(one[key] for key in ("node", "op", *columns[2:])) for one in experts]
    return [table("mixtures of experts", columns, rows)] if rows else []


def _skipped(skipped: Iterable[ResultJson]) -> list[Table | Text]:
    """Return the nodes that are left as they are, grouped by reason, the most common first."""
    groups: dict[str, list[str]] = {}
    for node in skipped:
        groups.setdefault(node["reason"], []).append(node["node"])
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = [(len(names), reason, _names(names)) for reason, names in ordered]
    return [table("left as they are", ("nodes", "reason", "which"), rows)] if rows else []


def _names(names: list[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def _arena(result: ResultJson) -> list[Table | Text]:
    arena = result.get("arena")
    if not arena:
        return []
    if arena["before"] is None or arena["after"] is None:
        return [line(f"arena: {arena['reason']}")]
    change = f" ({arena['after'] / arena['before'] - 1:+.1%})" if arena["before"] else ""
    return [line(f"arena: {arena['before']:,} bytes before, {arena['after']:,} bytes after{change}")]


def _opset(result: ResultJson) -> list[Table | Text]:
    opset = result.get("opset")
    if not opset or opset["before"] == opset["after"]:
        return []
    return [line(f"opset: {opset['before']} before, {opset['after']} after, for ScatterND")]


def _warnings(result: ResultJson) -> list[Table | Text]:
    return [line(f"warning: {text}") for text in result.get("warnings") or ()]


def _choices(tiled: Iterable[ResultJson]) -> list[Table | Text]:
    """Return the tiles chosen within a memory, and the other choices of the layer that moves most; nothing without a choice."""
    chosen = [t for t in tiled if t.get("choice")]
    if not chosen:
        return []
    rows = [
        (t["node"], *_choice(t["choice"]), _rounded(t["choice"]["lower_bound"]), _ratio(t["choice"]["ratio"]))
        for t in chosen
    ]
    columns = ("tile", "loops", "nodes", "bytes held", "bytes moved")
    most = max(chosen, key=lambda t: t["choice"]["bytes_moved"])
    return [
        table("tiles chosen", ("node", *columns, "lower bound", "ratio"), rows),
        table(f"nodes against bytes: {most['node']}", columns, [_choice(c) for c in most["choice"]["trade"]]),
    ]


def _choice(choice: ResultJson) -> tuple[str, str, int, int, int]:
    tile = "×".join(map(str, choice["tile"]))
    return tile, choice["order"], choice["nodes"], choice["held"], choice["bytes_moved"]


def _rounded(size: float | None) -> str:
    return "" if size is None else f"{size:,.0f}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"
