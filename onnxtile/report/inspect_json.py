"""An `inspect` result as a JSON file."""

from __future__ import annotations

from onnxtile.json_text import as_json
from onnxtile.report.table import ResultJson


def render(result: ResultJson) -> bytes:
    """Return the file's content."""
    return as_json(result).encode()
