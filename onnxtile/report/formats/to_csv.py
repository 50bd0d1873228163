"""The plan as CSV with MiniMalloc's columns: id, lower, upper (half-open life in steps), size and offset (bytes); where buffers lie
in several arenas, which MiniMalloc does not know, also the arena. Time is unrolled: what the bodies of a node hold stands in the place of
their workspace, each body with steps of its own, so that the file is a whole problem.

(https://github.com/google/minimalloc, "Input format".)
"""

from __future__ import annotations

from onnxtile.csv_text import as_csv
from onnxtile.report.bodies import flat
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import owners


def _write(given: PlanJson, _options: RenderOptions) -> bytes:
    plan = flat(given)
    several = len({buffer["arena"] for buffer in plan["buffers"]}) > 1
    rows: list[list[object]] = [["id", "lower", "upper", "size", "offset", *(["arena"] if several else [])]]
    for buffer in owners(plan):
        life, place = (buffer["first"], buffer["last"] + 1), [buffer["arena"]] if several else []
        rows.append([buffer["name"], *life, buffer["size"], buffer["offset"], *place])
    return as_csv(rows)


FORMAT = Format("csv", ".csv", _write, "a problem and its solution in the columns of MiniMalloc")
