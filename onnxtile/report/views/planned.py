"""A plan: a table and a memory map in a notebook; every plan format in a file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onnxtile.declare.verb import ResultView, ResultWriter
from onnxtile.report.format import Format, RenderOptions
from onnxtile.report.notebook import as_html
from onnxtile.report.picture import render
from onnxtile.report.plan_tables import for_plan
from onnxtile.system.registry import discover

_MOST_BUFFERS = 400
"""Of a plan whose picture stands in a notebook: some 100 KiB."""


def _html(content: Mapping[str, Any]) -> str:
    tables = as_html(for_plan(content))
    if len(content["buffers"]) > _MOST_BUFFERS or find_spec("matplotlib") is None:
        return tables
    picture = render(content, RenderOptions(names=False), "svg").decode()
    return f"{tables}{picture[picture.index('<svg') :]}"


def _writers() -> Mapping[str, ResultWriter]:
    return {form.suffix: _writer(form) for form in discover("onnxtile.report.formats", Format).values()}


def _writer(form: Format) -> ResultWriter:
    def write(content: Mapping[str, Any], path: Path) -> bytes:
        return form.render(content, RenderOptions(form.title(path)))

    return write


PLAN = ResultView("plan", _html, _writers)
