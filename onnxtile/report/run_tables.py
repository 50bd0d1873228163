"""The tables of a run of a pipeline: a row a model, and why each that failed did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from onnxtile.report.table import Line, ResultJson, Table, line, table, tables_of
from onnxtile.report.table import reasons as lines_of
from onnxtile.system.errors import escaped

_FIGURES = {"nodes": ",", "fused": ",", "tiles": ",", "arena": ",", "error": ".1e"}
_NONE = {"arena": "unplanned", "error": "∞"}
"""By figure, the word for None: an arena without some tensors has no size, an error without a bound is infinite."""
_WORDS = {
    **{"min": "at least ", "max": "at most ", "baseline.fused": "at least ", "baseline.arena": "at most "},
    **{"baseline.tiles": "at most ", "baseline.nodes": "at most "},
}
"""By budget, or the beginning of its name: whether the limit is a least or a most."""


def for_run(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `run` result."""
    used = figures_of(result["models"])
    rows = [
        (model["model"], "passed" if model["passed"] else "FAILED", *(figure(model["figures"], name) for name in used))
        for model in result["models"]
    ]
    parts: list[Table | Line] = [table(f"pipeline {result['pipeline']}", ("model", "", *used), rows)]
    for model in result["models"]:
        parts += lines_of(f"not compared in {model['model']}", model["figures"].get("not_compared", {}))
    failures = [{**model, "reason": reason} for model in result["models"] for reason in reasons(model)]
    parts += tables_of("failed", {"model": "model", "reason": "reason"}, failures)
    parts.append(line(f"{result['passed']} passed, {result['failed']} failed"))
    return parts


def figures_of(models: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the figures that any of `models` has, in the order of the columns."""
    known = {name for model in models for name in model["figures"]}
    return [name for name in _FIGURES if name in known]


def figure(figures: Mapping[str, Any], name: str) -> str:
    """Return the text of a figure; empty where there is none."""
    if name not in figures:
        return ""
    return _NONE[name] if figures[name] is None else format(figures[name], _FIGURES[name])


def reasons(model: Mapping[str, Any]) -> list[str]:
    """Return why a model failed: its error, and each budget that it does not meet."""
    budgets = [budget for budget in model["budgets"] if not budget["met"]]
    lines = [
        f"{budget['budget']}: {_value_text(budget)}, and is to be {_bound(budget)}"
        + (f" ({budget['cause']})" if budget.get("cause") else "")
        for budget in budgets
    ]
    return [model["error"], *lines] if model["error"] else lines


def _value_text(budget: Mapping[str, Any]) -> str:
    value, figure = budget["value"], budget["budget"].removeprefix("max_").removeprefix("baseline.")
    return _NONE.get(figure, "None") if value is None else _number_text(value)


def _bound(budget: Mapping[str, Any]) -> str:
    """Return the limit of a budget in words: "at least" or "at most", by the name of the budget."""
    name = budget["budget"]
    word = _WORDS.get(name, _WORDS.get(name.partition("_")[0], ""))
    return f"{word}{_number_text(budget['limit'])}"


def _number_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# The summary of a run as files of other tools: JUnit's XML for test reports, Markdown for pages such as GitHub's step summary.


def to_junit(result: ResultJson) -> bytes:
    """Return the summary as JUnit XML: a test case for each model, with the reasons of its failure."""
    models = result["models"]
    failed = str(sum(not model["passed"] for model in models))
    suite = ElementTree.Element(
        "testsuite", name=result["pipeline"], tests=str(len(models)), failures=failed, errors="0"
    )
    for model in models:
        case = ElementTree.SubElement(suite, "testcase", classname=result["pipeline"], name=escaped(model["model"]))
        lines = [escaped(line) for line in reasons(model)]
        if not model["passed"]:
            ElementTree.SubElement(case, "failure", message=lines[0] if lines else "failed").text = "\n".join(lines)
        ElementTree.SubElement(case, "system-out").text = "\n".join(_figures(model))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _figures(model: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {figure(model['figures'], name)}" for name in figures_of([model])]


def to_markdown(result: ResultJson) -> bytes:
    """Return the summary as Markdown: a table with a row for each model, and the reasons of those that failed."""
    models = result["models"]
    used = figures_of(models)
    lines = [
        f"## {_cell(result['pipeline'])}: {result['passed']} passed, {result['failed']} failed",
        "",
        f"| model | result | {' | '.join(used)} |" if used else "| model | result |",
        f"|---|---|{'---:|' * len(used)}",
    ]
    for model in models:
        cells = [_cell(model["model"]), "passed" if model["passed"] else "**failed**"]
        lines.append(f"| {' | '.join([*cells, *(figure(model['figures'], name) for name in used)])} |")
    failures = [(model["model"], reason) for model in models for reason in reasons(model)]
    if failures:
        lines += ["", *(f"- {_cell(model)}: {_cell(reason)}" for model, reason in failures)]
    return ("\n".join(lines) + "\n").encode()


def _cell(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    shown = escaped(text)
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|~&" else letter for letter in shown)
