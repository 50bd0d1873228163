"""Tables of a result as HTML, small enough for a cell of a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import islice

from rich.table import Table
from rich.text import Text

_ROWS = 12
"""Rows of a table that are shown."""


def as_html(parts: Iterable[Table | Text]) -> str:
    """Return `parts` as one block of HTML without scripts and styles of its own; long tables end after twelve rows."""
    return f"<div>{''.join(_table(part) if isinstance(part, Table) else _line(part) for part in parts)}</div>"


def preformatted(text: str) -> str:
    """Return `text` as HTML that keeps its lines."""
    return f"<pre>{escape(text)}</pre>"


def _line(text: Text) -> str:
    return f"<p>{escape(text.plain)}</p>"


def _table(table: Table) -> str:
    left = table.row_count - _ROWS
    more = f"<p>and {left:,} more rows; to_dict() has them all</p>" if left > 0 else ""
    return f"<table>{''.join(_rows(table))}</table>{more}"


def _rows(table: Table) -> Iterator[str]:
    if table.title:
        yield f'<caption style="text-align:left"><b>{escape(str(table.title))}</b></caption>'
    yield f"<tr>{''.join(_cell('th', column.header, 'left') for column in table.columns)}</tr>"
    for row in islice(zip(*(column.cells for column in table.columns), strict=True), _ROWS):
        cells = (_cell("td", cell, column.justify) for cell, column in zip(row, table.columns, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"


def _cell(tag: str, content: object, align: str) -> str:
    return f'<{tag} style="text-align:{align}">{escape(str(content))}</{tag}>'
