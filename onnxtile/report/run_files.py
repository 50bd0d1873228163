"""The summary of a run as files of other tools: JUnit's XML for test reports, Markdown for pages such as GitHub's step summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from onnxtile.printable import escaped
from onnxtile.report.run_tables import figure, figures_of, reasons
from onnxtile.report.table import ResultJson


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
