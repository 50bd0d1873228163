"""The view of each verb: tables in a notebook, of a plan also a picture; in a file the JSON, or what the ending selects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onnxtile.declare.verb import ResultView, ResultWriter
from onnxtile.report import curve_files
from onnxtile.report.format import Format, RenderOptions
from onnxtile.report.inspect_tables import to_csv
from onnxtile.report.svg import embedded
from onnxtile.report.table import as_html, preformatted
from onnxtile.report.tables import tables_called
from onnxtile.system.registry import discover
from onnxtile.system.text import as_json

_MOST_BUFFERS = 400
"""Of a plan whose picture stands in a notebook: some 100 KiB."""

_JSON = Format("json", ".json", lambda content, _options: as_json(content).encode())
_TOML = Format("toml", ".toml", lambda content, _options: str(content["text"]).encode())
_NODES = Format("csv", ".csv", lambda content, _options: to_csv(content))


def _writers(formats: Iterable[Format], title: str) -> Mapping[str, ResultWriter]:
    return {form.suffix: _writer(form, title) for form in formats}


def _writer(form: Format, title: str) -> ResultWriter:
    def write(content: Mapping[str, Any], path: Path) -> bytes:
        return form.render(content, RenderOptions(path.name.removesuffix(form.suffix) or title))

    return write


def _listed(verb: str, formats: Iterable[Format] = (_JSON,)) -> ResultView:
    return ResultView(verb, lambda content: as_html(tables_called(verb, content)), lambda: _writers(formats, verb))


def _plan(content: Mapping[str, Any]) -> str:
    html = as_html(tables_called("plan", content))
    if len(content["buffers"]) > _MOST_BUFFERS:
        return html
    from onnxtile.report.formats.pictures import SVG

    return f"{html}{embedded(SVG.render(content, RenderOptions(names=False)))}"


MATCH = _listed("match")
FUSE = _listed("fuse")
EXPLAIN = _listed("explain")
UNFUSE = _listed("unfuse")
FIT = _listed("fit")
RUN = _listed("run")
TILE = _listed("tile")
CHECK = _listed("check")
TRACE = _listed("trace")
VERIFY = _listed("verify")
LIST = _listed("list")
INSPECT = _listed("inspect", (_NODES, _JSON))
CURVE = _listed("curve", curve_files.FORMATS)
PATTERN = ResultView(
    "pattern", lambda content: preformatted(content["text"]), lambda: _writers((_JSON, _TOML), "pattern")
)
PLAN = ResultView("plan", _plan, lambda: _writers(discover("onnxtile.report.formats", Format).values(), "plan"))
