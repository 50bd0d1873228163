"""Reads a bare problem from CSV with MiniMalloc's columns: id, lower, upper (half-open life) and size, in any order.

(https://github.com/google/minimalloc, "Input format".)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from operator import ge
from typing import TYPE_CHECKING

from onnxtile.csv_text import text_of
from onnxtile.errors import UsageError
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.sizes import whole

if TYPE_CHECKING:
    from _csv import Reader

_NEEDED = ("id", "lower", "upper", "size")
_OWN = ("alignment", "moved")
_MOST = 2**53
"""No step and no sum of sizes may be larger: so far every tool that reads JSON or floating-point numbers counts exactly."""

_DIGITS = 30
"""Of a number, at most: longer ones are a mistake, and take Python long."""


def read_problem(text: str, *, alignment: int = 1) -> Problem:
    """Return the problem that `text` describes; other columns are passed over.

    The columns "alignment" and "moved" (bytes read and written in a run) are a buffer's own, where they are there and not empty. Raises
    UsageError with the line for a missing column or what is no whole number, an id given twice, a negative size, an empty life.
    """
    text = text.removeprefix("\ufeff")
    buffers = _plain(_rows(text))
    if buffers is None:
        rows = _rows(text)
        try:
            buffers = _read(rows)
        except csv.Error as error:
            raise UsageError(f"line {rows.line_num}: this is no CSV ({error})") from error
    if sum(buffer.size for buffer in buffers) > _MOST:
        raise UsageError(f"the sizes sum up to more than {_MOST:,} bytes")
    return Problem(buffers, alignment)


def _rows(text: str) -> Reader:
    return csv.reader(io.StringIO(text), skipinitialspace=True)


def _plain(rows: Reader) -> tuple[Buffer, ...] | None:
    """Return the buffers of a table without gaps, which has the needed columns and nothing but digits in them, column by column.

    That takes a third of the time. None where it takes a closer look, if only to say what is wrong.
    """
    try:
        header = next(rows, [])
        table = [row for row in rows if row]
    except csv.Error:
        return None
    names = [name.strip() for name in header]
    if any(len(row) != len(names) for row in table) or any(
        names.count(name) != (name in _NEEDED) for name in (*_NEEDED, *_OWN)
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
    header = [name.strip() for name in next(rows, [])]
    for name in _NEEDED:
        if name not in header:
            raise UsageError(f"line 1: there is no column {name!r}", hint=f"the columns are {', '.join(_NEEDED)}")
    for name in (*_NEEDED, *_OWN):
        if header.count(name) > 1:
            raise UsageError(f"line 1: there are two columns {name!r}")
    columns = {name: header.index(name) for name in (*_NEEDED, *_OWN) if name in header}
    buffers: dict[str, Buffer] = {}
    for row in rows:
        if not row:
            continue
        buffer = _buffer({name: row[at] for name, at in columns.items() if at < len(row)}, rows.line_num)
        if buffer.name in buffers:
            raise UsageError(f"line {rows.line_num}: the id {buffer.name!r} is there twice")
        buffers[buffer.name] = buffer
    return tuple(buffers.values())


def _buffer(row: dict[str, str], line: int) -> Buffer:
    if not row.get("id"):
        raise UsageError(f"line {line}: there is no id")
    lower, upper, size = (_number(row, name, line) for name in _NEEDED[1:])
    own = {name: _number(row, name, line) for name in _OWN if row.get(name, "").strip()}
    if lower < 0 or upper > _MOST:
        raise UsageError(f"line {line}: steps are counted from 0 to {_MOST:,} at most")
    try:
        return Buffer(text_of(row["id"]), size, lower, upper, **own)
    except UsageError as error:
        raise UsageError(f"line {line}: {error}") from error


def _number(row: dict[str, str], name: str, line: int) -> int:
    text = row.get(name, "").strip()
    digits = text[1:] if text.startswith(("+", "-")) else text
    number = whole(digits)
    if number is None:
        raise UsageError(f"line {line}: {name} is a whole number, not {text!r}")
    return -number if text.startswith("-") else number
