"""The trade of fit: a table in a notebook; a picture, a page or a table in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onnxtile.declare.verb import ResultView, ResultWriter
from onnxtile.report.curve_files import WRITERS
from onnxtile.report.fit_tables import for_curve
from onnxtile.report.notebook import as_html
from onnxtile.report.table import ResultJson


def _writers() -> Mapping[str, ResultWriter]:
    return {ending: _writer(ending, write) for ending, write in WRITERS.items()}


def _writer(ending: str, write: Callable[[ResultJson, str], bytes]) -> ResultWriter:
    def written(content: Mapping[str, Any], path: Path) -> bytes:
        return write(content, path.name.removesuffix(ending) or "curve")

    return written


CURVE = ResultView("curve", lambda content: as_html(for_curve(content)), _writers)
