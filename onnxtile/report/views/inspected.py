"""The costs of a model: tables in a notebook; JSON, or a CSV row for each node, in a file."""

from __future__ import annotations

from collections.abc import Mapping

from onnxtile.declare.verb import ResultView, ResultWriter
from onnxtile.report import inspect_csv, inspect_json
from onnxtile.report.inspect_tables import for_inspect
from onnxtile.report.notebook import as_html


def _writers() -> Mapping[str, ResultWriter]:
    return {
        ".csv": lambda content, _path: inspect_csv.render(content),
        ".json": lambda content, _path: inspect_json.render(content),
    }


INSPECT = ResultView("inspect", lambda content: as_html(for_inspect(content)), _writers)
