"""Reads a problem without a model from CSV, with MiniMalloc's columns in any order: id, lower, upper (half-open live range), size.

Source: https://github.com/google/minimalloc, "Input format".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from operator import ge
from typing import TYPE_CHECKING

from onnxtile.kernels.liveness import LivePart, union
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.system.errors import UsageError
from onnxtile.system.text import text_of, whole

if TYPE_CHECKING:
    from _csv import Reader

_NEEDED = ("id", "lower", "upper", "size")
_OWN = ("alignment", "moved", "pin")
_MEMORY = "memory"
_OF_PARTS = ("part_of", "part_start")
_OPTIONAL = (*_OWN, _MEMORY, *_OF_PARTS)
_OTHER_NAMES = {"buffer": "id", "buffer_id": "id", "begin": "lower", "start": "lower", "end": "upper"}
"""Names that MiniMalloc takes for columns, too; an "end" is the last step of a live range, not the one after it."""
_MOST = 2**53
"""The largest step, and the largest sum of sizes: up to here tools that read numbers as floating point are exact."""

_DIGITS = 30
"""Digits of a number, at most: Python takes long to read very long ones."""


def read_problem(text: str, *, alignment: int = 1) -> Problem:
    """Return the problem in `text`; unknown columns are ignored.

    These optional columns apply to one buffer: "alignment", "moved" (bytes read and written in a run), "pin" (the offset that it must have,
    in bytes), and "memory" (the name of the memory that it must be in). Rows with a name in "part_of" are the parts of one buffer with that
    name, and begin at its byte "start". Raises UsageError, with the line, for a missing or repeated column, or a cell that is not a whole
    number. It does so, too, for a repeated id, a negative size, or an empty live range.
    """
    text = text.removeprefix("\ufeff")
    buffers = _plain(_rows(text))
    if buffers is None:
        rows = _rows(text)
        try:
            buffers = _read(rows)
        except csv.Error as error:
            raise UsageError(f"line {rows.line_num}: not CSV ({error})") from error
    if sum(buffer.size for buffer in buffers) > _MOST:
        raise UsageError(f"the sizes add up to more than {_MOST:,} bytes")
    return Problem(buffers, alignment)


def column(name: str) -> str:
    """Return the usual name of the column `name` of a problem."""
    return _OTHER_NAMES.get(name, name)


def _rows(text: str) -> Reader:
    return csv.reader(io.StringIO(text), skipinitialspace=True)


def _plain(rows: Reader) -> tuple[Buffer, ...] | None:
    """Return the buffers of a complete table with only digits in the needed columns, read column by column in a third of the time.

    None for any other table, which `_read` reads row by row to name the line of a fault.
    """
    try:
        header = next(rows, [])
        table = [row for row in rows if row]
    except csv.Error:
        return None
    names = [name.strip() for name in header]
    if not _OTHER_NAMES.keys().isdisjoint(names):
        return None
    if any(len(row) != len(names) for row in table) or any(
        names.count(name) != (name in _NEEDED) for name in (*_NEEDED, *_OPTIONAL)
    ):
        return None
    columns = dict(zip(names, zip(*table, strict=True), strict=False))
    ids, *texts = (columns.get(name, ()) for name in _NEEDED)
    if len(set(ids)) < len(ids) or not all(ids) or not all(map(_is_plain, texts)):
        return None
    lower, upper, size = (list(map(int, column)) for column in texts)
    if max(upper, default=0) > _MOST or any(map(ge, lower, upper)):
        return None
    return tuple(map(Buffer, map(text_of, ids), size, lower, upper))


def _is_plain(column: Sequence[str]) -> bool:
    digits = "".join(column)
    return digits.isascii() and digits.isdecimal() and all(column) and max(map(len, column)) <= _DIGITS


def _read(rows: Reader) -> tuple[Buffer, ...]:
    given = [name.strip() for name in next(rows, [])]
    header, last = [column(name) for name in given], "end" in given
    for name in _NEEDED:
        if name not in header:
            raise UsageError(f"line 1: missing column {name!r}", hint=f"the columns are {', '.join(_NEEDED)}")
    for name in (*_NEEDED, *_OPTIONAL):
        if header.count(name) > 1:
            raise UsageError(f"line 1: column {name!r} is repeated")
    columns = {name: header.index(name) for name in (*_NEEDED, *_OPTIONAL) if name in header}
    buffers: dict[str, Buffer] = {}
    wholes: dict[str, list[Buffer]] = {}
    for row in rows:
        if not row:
            continue
        cells = {name: row[at] for name, at in columns.items() if at < len(row)}
        buffer = _buffer(cells, rows.line_num, last)
        if cells.get("part_of"):
            wholes.setdefault(text_of(cells["part_of"]), []).append(_moved_to_start(buffer, cells, rows.line_num))
        if buffer.name in buffers:
            raise UsageError(f"line {rows.line_num}: the id {buffer.name!r} is repeated")
        buffers[buffer.name] = buffer
    parts = {part.name for of_whole in wholes.values() for part in of_whole}
    others = [buffer for buffer in buffers.values() if buffer.name not in parts]
    return (*others, *(_whole(name, of_whole) for name, of_whole in wholes.items()))


def _moved_to_start(part: Buffer, cells: dict[str, str], line: int) -> Buffer:
    """Return `part` with its outline in bytes from the start of its buffer."""
    start = _number(cells, "part_start", line)
    if start < 0 or not part.size:
        raise UsageError(f"line {line}: a part must have bytes, from a start of at least 0")
    outline = (LivePart(start, start + part.size, part.lower, part.upper),)
    pin = None if part.pin is None else part.pin - start
    if pin is not None and pin < 0:
        raise UsageError(f"line {line}: the pin of a part is at least its start {start}")
    return replace(part, size=start + part.size, outline=outline, pin=pin)


def _whole(name: str, parts: Sequence[Buffer]) -> Buffer:
    """Return the buffer of `parts`, aligned as the first of them says, with the pin and the memory of the first that has one.

    Raises UsageError for parts with several.
    """
    outline = union(live for part in parts for live in part.outline)
    lower, upper = min(part.lower for part in parts), max(part.upper for part in parts)
    pins = {part.pin for part in parts if part.pin is not None}
    memories = {part.memory for part in parts if part.memory is not None}
    if len(pins) > 1 or len(memories) > 1:
        raise UsageError(f"the parts of {name!r} have pins or memories that differ")
    pin, memory = next(iter(pins), None), next(iter(memories), None)
    size, first = max(part.size for part in parts), parts[0]
    return Buffer(name, size, lower, upper, first.alignment, first.moved, outline, pin=pin, memory=memory)


def _buffer(row: dict[str, str], line: int, is_last: bool) -> Buffer:
    """Return the buffer of `row`; with `is_last` its upper step is the last of its live range."""
    if not row.get("id"):
        raise UsageError(f"line {line}: the id is empty")
    lower, upper, size = (_number(row, name, line) for name in _NEEDED[1:])
    upper += is_last
    numbers = {name: _number(row, name, line) for name in _OWN if row.get(name, "").strip()}
    if lower < 0 or upper > _MOST:
        raise UsageError(f"line {line}: steps must be between 0 and {_MOST:,}")
    try:
        memory = row.get(_MEMORY, "").strip() or None
        pin = numbers.get("pin")
        return Buffer(
            text_of(row["id"]),
            size,
            lower,
            upper,
            numbers.get("alignment"),
            numbers.get("moved"),
            pin=pin,
            memory=memory,
        )
    except UsageError as error:
        raise UsageError(f"line {line}: {error.message}") from error


def _number(row: dict[str, str], name: str, line: int) -> int:
    text = row.get(name, "").strip()
    digits = text[1:] if text.startswith(("+", "-")) else text
    number = whole(digits)
    if number is None:
        raise UsageError(f"line {line}: {name} must be a whole number, not {text!r}")
    return -number if text.startswith("-") else number
