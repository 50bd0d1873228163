"""An `inspect` result as a JSON file."""

from __future__ import annotations

from onnxtile.report.table import ResultJson
from onnxtile.system.text import as_json


def render(result: ResultJson) -> bytes:
    """Return the file's content."""
    return as_json(result).encode()
