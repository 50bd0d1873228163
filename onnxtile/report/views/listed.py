"""Results that are tables in a notebook and JSON in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from onnxtile.declare.verb import ResultView, ResultWriter
from onnxtile.report import tables
from onnxtile.report.notebook import as_html
from onnxtile.system.text import as_json


def _json(content: Mapping[str, Any], _path: Path) -> bytes:
    return as_json(content).encode()


def _writers() -> Mapping[str, ResultWriter]:
    return {".json": _json}


def _listed(verb: str, tables_for: Callable[[Mapping[str, Any]], list[Table | Text]]) -> ResultView:
    return ResultView(verb, lambda content: as_html(tables_for(content)), _writers)


MATCH = _listed("match", tables.for_match)
FUSE = _listed("fuse", tables.for_fuse)
EXPLAIN = _listed("explain", tables.for_explain)
UNFUSE = _listed("unfuse", tables.for_unfuse)
FIT = _listed("fit", tables.for_fit)
TILE = _listed("tile", tables.for_tile)
CHECK = _listed("check", tables.for_check)
TRACE = _listed("trace", tables.for_trace)
VERIFY = _listed("verify", tables.for_verify)
LIST = _listed("list", tables.for_list)
