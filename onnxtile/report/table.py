"""One table: its columns aligned by what they hold, and its plain form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from rich.table import Table
from rich.text import Text

from onnxtile.printable import escaped

ResultJson: TypeAlias = Mapping[str, Any]

_NUMBER = re.compile(r"[-+]?[\d,.]+(e[-+]\d+)?( B| bytes)?|\?")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table in which columns of numbers are aligned to the right, all others to the left."""
    made = Table(title=line(title, "bold"), title_justify="left", header_style="bold")
    shown = [[_shown(cell) for cell in row] for row in rows]
    for i, column in enumerate(columns):
        numbers = bool(shown) and all(_NUMBER.fullmatch(row[i]) for row in shown)
        made.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in shown:
        made.add_row(*(Text(cell) for cell in row))
    return made


def line(text: str, style: str = "") -> Text:
    """Return a line of a report as it is: brackets in it are no marks of style, and nothing in it is obeyed by a terminal."""
    return Text(escaped(text), style)


def short(part: Table | Text, most: int = 60) -> list[Table | Text]:
    """Return `part` for a screen: of a table its first `most` rows, and a line that says how to see the others."""
    if not isinstance(part, Table) or part.row_count <= most:
        return [part]
    made = Table(title=part.title, title_justify="left", header_style="bold")
    for column in part.columns:
        made.add_column(column.header, justify=column.justify, overflow=column.overflow)
    for row in islice(zip(*(column.cells for column in part.columns), strict=True), most):
        made.add_row(*row)
    return [made, line(f"and {part.row_count - most:,} more; in a pipe (| less) and with --json there are all")]


def plain(part: Table | Text) -> Table | Text:
    """Return `part` without the lines around its cells, as scripts and files want it."""
    if isinstance(part, Table):
        part.box = None
        part.pad_edge = False
    return part


def _shown(cell: object) -> str:
    if cell is None:
        return "?"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else escaped(str(cell))
