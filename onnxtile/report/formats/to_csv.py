"""The plan as CSV with MiniMalloc's columns: id, lower, upper (half-open life in steps), size and offset (bytes).

(https://github.com/google/minimalloc, "Input format".)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from onnxtile.report.format import Format


def _render(plan: Mapping[str, Any]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "lower", "upper", "size", "offset"])
    for buffer in plan["buffers"]:
        if buffer.get("alias") is None:
            life = (buffer["first"], buffer["last"] + 1)
            writer.writerow([buffer["name"], *life, buffer["size"], buffer["offset"]])
    return text.getvalue().encode()


FORMAT = Format("csv", ".csv", _render)
