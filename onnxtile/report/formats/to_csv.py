"""The plan as CSV with MiniMalloc's columns: id, lower, upper (half-open life in steps), size and offset (bytes); where buffers lie
in several arenas, which MiniMalloc does not know, also the arena.

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
    several = len({buffer["arena"] for buffer in plan["buffers"]}) > 1
    writer.writerow(["id", "lower", "upper", "size", "offset", *(["arena"] if several else [])])
    for buffer in owners(plan):
        life, place = (buffer["first"], buffer["last"] + 1), [buffer["arena"]] if several else []
        writer.writerow([buffer["name"], *life, buffer["size"], buffer["offset"], *place])
    return text.getvalue().encode()


FORMAT = Format("csv", ".csv", _write)
