"""An `inspect` result as a JSON file."""

from __future__ import annotations

import json

from onnxtile.report.table import Result


def render(result: Result) -> bytes:
    """Return the file's content."""
    return (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode()
