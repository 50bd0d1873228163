"""The tables of a run of a pipeline: a row a model, and why each that failed did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from onnxtile.report.table import ResultJson, line, table

_FIGURES = {"nodes": ",", "fused": ",", "tiles": ",", "arena": ",", "error": ".1e"}
_NONE = {"arena": "unplanned", "error": "∞"}
"""By figure, the word for None: an arena without some tensors has no size, an error without a bound is infinite."""


def for_run(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `run` result."""
    used = [name for name in _FIGURES if any(name in model["figures"] for model in result["models"])]
    rows = [
        (model["model"], "passed" if model["passed"] else "FAILED", *(_figure(model["figures"], name) for name in used))
        for model in result["models"]
    ]
    parts: list[Table | Text] = [table(f"pipeline {result['pipeline']}", ("model", "", *used), rows)]
    failures = [(model["model"], reason) for model in result["models"] for reason in _reasons(model)]
    if failures:
        parts.append(table("failed", ("model", "reason"), failures))
    parts.append(line(f"{result['passed']} passed, {result['failed']} failed"))
    return parts


def _figure(figures: Mapping[str, Any], name: str) -> str:
    if name not in figures:
        return ""
    return _NONE[name] if figures[name] is None else format(figures[name], _FIGURES[name])


def _reasons(model: Mapping[str, Any]) -> list[str]:
    budgets = [one for one in model["budgets"] if not one["met"]]
    lines = [f"{one['budget']}: {_judged(one)}, and is to be {_bound(one)}" for one in budgets]
    return [model["error"], *lines] if model["error"] else lines


def _judged(budget: Mapping[str, Any]) -> str:
    value, figure = budget["value"], budget["budget"].removeprefix("max_")
    return _NONE.get(figure, "None") if value is None else _shown(value)


def _bound(budget: Mapping[str, Any]) -> str:
    """Return the limit of a budget in words: "at least" or "at most", by the name of the budget."""
    word = {"min": "at least ", "max": "at most "}.get(budget["budget"].partition("_")[0], "")
    return f"{word}{_shown(budget['limit'])}"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
