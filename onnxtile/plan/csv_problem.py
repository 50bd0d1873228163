"""Reads a bare problem from CSV with MiniMalloc's columns: id, lower, upper (half-open life) and size, in any order.

(https://github.com/google/minimalloc, "Input format".)
"""

from __future__ import annotations

import csv
import io

from onnxtile.errors import UsageError
from onnxtile.plan.problem import Buffer, Problem

_COLUMNS = ("id", "lower", "upper", "size")


def read_problem(text: str, *, alignment: int = 1, capacity: int | None = None) -> Problem:
    """Return the problem that `text` describes; a column "alignment" is each buffer's own, others are passed over.

    Raises UsageError with the line for a missing column or what is no whole number, an id given twice, a negative size, an empty life.
    """
    rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise UsageError(f"line 1: there is no column {missing[0]!r}", hint=f"the columns are {', '.join(_COLUMNS)}")
    buffers: dict[str, Buffer] = {}
    for row in rows:
        buffer = _buffer(row, rows.line_num)
        if buffer.name in buffers:
            raise UsageError(f"line {rows.line_num}: the id {buffer.name!r} is there twice")
        buffers[buffer.name] = buffer
    return Problem(tuple(buffers.values()), alignment, capacity)


def _buffer(row: dict[str, str | None], line: int) -> Buffer:
    try:
        lower, upper, size = (int(row[name] or "") for name in _COLUMNS[1:])
        own = int(row["alignment"] or "") if row.get("alignment") else None
    except ValueError as error:
        raise UsageError(f"line {line}: lower, upper and size are whole numbers ({error})") from error
    try:
        return Buffer(row["id"] or "", size, lower, upper, own)
    except UsageError as error:
        raise UsageError(f"line {line}: {error}") from error
