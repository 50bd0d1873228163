"""The plan as CSV with MiniMalloc's columns: id, lower, upper (half-open life in steps), size and offset (bytes).

(https://github.com/google/minimalloc, "Input format".)
"""

from __future__ import annotations

import csv
import io

from onnxtile.report.format import Format, Options, Plan
from onnxtile.report.layout import owners


def _write(plan: Plan, _options: Options) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "lower", "upper", "size", "offset"])
    for buffer in owners(plan):
        life = (buffer["first"], buffer["last"] + 1)
        writer.writerow([buffer["name"], *life, buffer["size"], buffer["offset"]])
    return text.getvalue().encode()


FORMAT = Format("csv", ".csv", _write)
