"""The tables of `verify`: every output with its largest difference, and the first value that differs; and the verdict of other verbs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from onnxtile.report.table import ResultJson, Shown, at_sizes, line, reasons, rest_of, table, table_of

_LAYERS = 20
"""Rows of the errors of inner values that are shown; --json has them all."""


def for_verdict(result: ResultJson) -> list[Table | Text]:
    """Return the lines about the runs that verified the result of another verb."""
    verdict = result.get("verdict")
    if verdict is None:
        return [line("not verified")]
    worst = max((output["max_rel"] or 0.0 for output in verdict["outputs"]), default=0.0)
    alone = len(result.get("sites") or ())
    each = max((site.get("runs", 1) for site in result.get("sites") or ()), default=1)
    often = f", {each} runs each" if each > 1 else ""
    themselves = "itself" if alone == 1 else "themselves"
    sites = f", and {alone} different site{'s' * (alone > 1)} by {themselves}{often}" if alone else ""
    where = f" at {at_sizes(verdict['dims'])}" if verdict["dims"] else ""
    # An output that is equal for a special reason names it: its relative error alone would look like a mistake.
    explained = [o for o in verdict["outputs"] if o["equal"] and o.get("reason")]
    left, count = verdict.get("not_compared", {}), len(verdict["outputs"])
    compared = f" in {count:,} of {count + len(left):,} outputs" if left else ""
    notes = [f"{o['name']} is off by {o['max_abs'] or 0.0:.2g}: {o['reason']}" for o in explained]
    summary = f"verified{compared}: {verdict['runs']} runs{where}{sites}; worst relative error {worst:.2g}"
    return [*(line(text) for text in (summary, *notes)), *reasons("not compared", left)]


def _error(size: float | None) -> str:
    """Return a difference; JSON has null for one without bounds."""
    return "∞" if size is None else f"{size:.3g}"


def _place(where: ResultJson | None) -> str:
    return "" if where is None else f"at {where['index']}: {where['expected']} became {where['got']}"


_JUDGED: dict[str, Shown] = {
    "max absolute": lambda one: _error(one["max_abs"]),
    "max relative": lambda one: _error(one["max_rel"]),
    "tolerance": lambda one: f"{one['tolerance']:.3g}",
    "equal": lambda one: "yes" if one["equal"] else "NO",
}
_OUTPUTS: dict[str, Shown] = {
    "output": "name",
    **_JUDGED,
    "worst element": lambda one: _place(one["where"]),
    "inputs": lambda one: one.get("inputs", "") if one["where"] else "",
    "remark": lambda one: one.get("reason", ""),
}
_VALUES: dict[str, Shown] = {
    "value": "name",
    "in the first model": lambda one: "" if one["original"] == one["name"] else one["original"],
    **_JUDGED,
}


def for_verify(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `verify` result."""
    parts: list[Table | Text] = [table_of("outputs", _OUTPUTS, result["outputs"])]
    parts += [line(f"tolerance: {why}") for why in dict.fromkeys(one["why"] for one in result["outputs"])]
    dims = f" (at {at_sizes(result['dims'])})" if result["dims"] else ""
    runs = f"{result['runs']} run{'s' * (result['runs'] != 1)}"
    parts.append(line(f"{runs}: {', '.join(result['inputs'])}{dims}"))
    parts += reasons("not compared", result.get("not_compared", {}))
    parts += [line(f"not run on {name}: the first model refuses it ({why})") for name, why in result["skipped"].items()]
    return [*parts, *_bisection(result)]


def _bisection(result: ResultJson) -> list[Table | Text]:
    found = result.get("bisect")
    if found is None:
        return []
    value = found["value"]
    nodes = {"node": (found["node"], found["op"]), "node in the first model": (found["original"], found["original_op"])}
    off = f"{_error(value['max_abs'])}, tolerance {value['tolerance']:.3g} {_place(value['where'])}".strip()
    rows = [
        ("value", value["name"]),
        *((title, "not known" if name is None else f"{op} {name!r}") for title, (name, op) in nodes.items()),
        ("difference", off),
        ("rewrite", found["rewrite"]),
        ("equal values before it", found["agreeing"]),
    ]
    return [table("the first value that differs", ("field", "value"), rows), *_layers(found["layers"])]


def _layers(layers: Sequence[ResultJson]) -> list[Table | Text]:
    """Return how far each value is off, from the first on that is off at all."""
    start = next((i for i, layer in enumerate(layers) if layer["max_abs"] != 0), len(layers))
    title = f"{len(layers):,} values of both, the first {start:,} without error"
    return [table_of(title, _VALUES, layers[start : start + _LAYERS]), *rest_of(len(layers) - start - _LAYERS)]
