"""A pattern that was written for chosen nodes: its text in a notebook; TOML or JSON in a file."""

from __future__ import annotations

from collections.abc import Mapping

from onnxtile.declare.verb import ResultView, ResultWriter
from onnxtile.report.notebook import preformatted
from onnxtile.system.text import as_json


def _writers() -> Mapping[str, ResultWriter]:
    return {
        ".json": lambda content, _path: as_json(content).encode(),
        ".toml": lambda content, _path: str(content["text"]).encode(),
    }


PATTERN = ResultView("pattern", lambda content: preformatted(content["text"]), _writers)
