"""The plan as CSV with MiniMalloc's columns: id, lower, upper (half-open life in steps), size and offset (bytes); where buffers lie
in several arenas, which MiniMalloc does not know, also the arena. Time is unrolled: what the bodies of a node hold stands in the place of
their workspace, each body with steps of its own, so that the file is a whole problem.

The rows are rectangles: each part of a buffer with parts is a row of its own. The columns part_of and part_start then name the buffer and
its byte at which the part begins.

(https://github.com/google/minimalloc, "Input format".)
"""

from __future__ import annotations

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import flat, owners, pieces
from onnxtile.system.text import as_csv


def _write(given: PlanJson, _options: RenderOptions) -> bytes:
    plan = flat(given)
    several = len({buffer["arena"] for buffer in plan["buffers"]}) > 1
    own = owners(plan)
    names = {buffer["name"] for buffer in own}
    in_parts = any(buffer.get("parts") for buffer in own)
    columns = ["id", "lower", "upper", "size", "offset", *["arena"] * several, *["part_of", "part_start"] * in_parts]
    rows: list[list[object]] = [[*columns]]
    for buffer in own:
        for number, piece in enumerate(pieces(buffer)):
            life, address = (piece["first"], piece["last"] + 1), [buffer["arena"]] * several
            name, whole = buffer["name"], ["", ""]
            if piece is not buffer:
                name, whole = _new_id(f"{name}#{number}", names), [name, piece["offset"] - buffer["offset"]]
            rows.append([name, *life, piece["size"], piece["offset"], *address, *whole * in_parts])
    return as_csv(rows)


def _new_id(name: str, taken: set[str]) -> str:
    """Return `name`, with a mark behind it for each time that it is `taken`, and add it to these."""
    while name in taken:
        name += "#"
    taken.add(name)
    return name


FORMAT = Format("csv", ".csv", _write, "a problem and its solution in the columns of MiniMalloc")
