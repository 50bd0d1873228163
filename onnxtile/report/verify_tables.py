"""The tables of `verify`: every output with its largest difference, and the first value that differs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from onnxtile.report.table import ResultJson, line, reasons, table

_LAYERS = 20
"""Rows of the errors of inner values that are shown; --json has them all."""


def for_verify(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `verify` result."""
    columns = ("output", "max absolute", "max relative", "tolerance", "equal", "worst element", "inputs", "remark")
    rows = [
        (
            *(one["name"], _error(one["max_abs"]), _error(one["max_rel"]), f"{one['tolerance']:.3g}"),
            *(
                "yes" if one["equal"] else "NO",
                _place(one["where"]),
                one.get("inputs", "") if one["where"] else "",
                one.get("reason", ""),
            ),
        )
        for one in result["outputs"]
    ]
    parts: list[Table | Text] = [table("outputs", columns, rows)]
    parts += [line(f"tolerance: {why}") for why in dict.fromkeys(one["why"] for one in result["outputs"])]
    dims = ", ".join(f"{name}={size}" for name, size in result["dims"].items())
    parts.append(line(f"{_count(result['runs'])}: {', '.join(result['inputs'])}{f' (at {dims})' if dims else ''}"))
    parts += reasons("not compared", result.get("not_compared", {}))
    parts += [line(f"not run on {name}: the first model refuses it ({why})") for name, why in result["skipped"].items()]
    return [*parts, *_bisection(result)]


def _bisection(result: ResultJson) -> list[Table | Text]:
    found = result.get("bisect")
    if found is None:
        return []
    value = found["value"]
    rows = [
        ("value", value["name"]),
        ("node", "not known" if found["node"] is None else f"{found['op']} {found['node']!r}"),
        (
            "node in the first model",
            "not known" if found["original"] is None else f"{found['original_op']} {found['original']!r}",
        ),
        (
            "difference",
            f"{_error(value['max_abs'])}, tolerance {value['tolerance']:.3g} {_place(value['where'])}".strip(),
        ),
        ("rewrite", found["rewrite"]),
        ("equal values before it", found["agreeing"]),
    ]
    return [table("the first value that differs", ("field", "value"), rows), *_layers(found["layers"])]


def _layers(layers: Sequence[ResultJson]) -> list[Table | Text]:
    """Return how far each value is off, from the first on that is off at all."""
    start = next((i for i, layer in enumerate(layers) if layer["max_abs"] != 0), len(layers))
    rows = [
        (
            *(layer["name"], "" if layer["original"] == layer["name"] else layer["original"]),
            *(_error(layer["max_abs"]), _error(layer["max_rel"])),
            *(f"{layer['tolerance']:.3g}", "yes" if layer["equal"] else "NO"),
        )
        for layer in layers[start : start + _LAYERS]
    ]
    columns = ("value", "in the first model", "max absolute", "max relative", "tolerance", "equal")
    parts: list[Table | Text] = [
        table(f"{len(layers):,} values of both, the first {start:,} without error", columns, rows)
    ]
    left = len(layers) - start - len(rows)
    return [*parts, line(f"and {left:,} more; --json has them all")] if left > 0 else parts


def _place(where: ResultJson | None) -> str:
    if where is None:
        return ""
    return f"at {where['index']}: {where['expected']} became {where['got']}"


def _error(size: float | None) -> str:
    """Return a difference; JSON has null for one without bounds."""
    return "∞" if size is None else f"{size:.3g}"


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
