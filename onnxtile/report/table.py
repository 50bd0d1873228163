"""One table: its columns aligned by their content, its plain form, and its form for a notebook."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import escaped
from onnxtile.system.text import alike

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

ResultJson: TypeAlias = Mapping[str, Any]

_NUMBER = re.compile(r"[-+]?[\d,.]+(e[-+]\d+)?( B| bytes| [KMGT]iB|%)?|\?")


@dataclass(frozen=True)
class Line:
    """A line of a report, and the style in which a terminal shows it."""

    plain: str
    style: str = ""

    def __rich__(self) -> Text:
        """Return the line as a terminal shows it."""
        from onnxtile.report.terminal import styled

        return styled(self)

    def __str__(self) -> str:
        return self.plain


@dataclass(frozen=True)
class Column:
    """A column: its head, its cells, and whether these are numbers, which are aligned to the right."""

    header: str
    cells: Sequence[str]
    numbers: bool


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    title: Line
    columns: Sequence[Column]

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.columns[0].cells) if self.columns else 0

    def first(self, count: int) -> Table:
        """Return the table with its first rows alone."""
        return Table(self.title, [Column(c.header, c.cells[:count], c.numbers) for c in self.columns])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table as it fits a terminal."""
        from onnxtile.report.terminal import fitted

        yield fitted(self, options.max_width)


def plain(part: Table | Line) -> Iterator[str]:
    """Yield the lines of `part` as scripts and files want it: as wide as it is, with two blanks between columns."""
    if isinstance(part, Line):
        yield part.plain
        return
    if part.title.plain:
        yield part.title.plain
    padded = [_padded([column.header, *column.cells], column.numbers) for column in part.columns]
    yield from (row.rstrip() for row in map("  ".join, zip(*padded, strict=True)))


def _padded(cells: Sequence[str], numbers: bool) -> Iterator[str]:
    """Yield `cells` of one width, with blanks before `numbers`, and after other texts."""
    widths = list(map(cell_width, cells))
    widest = max(widths)
    for cell, width in zip(cells, widths, strict=True):
        blank = " " * (widest - width)
        yield blank + cell if numbers else cell + blank


def cell_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table in which columns of numbers are aligned to the right, all others to the left."""
    kept: dict[str, str] = {}  # most cells of a long table are equal to others
    shown = [[kept.setdefault(text, text) for text in map(_cell_text, row)] for row in rows]
    cells = [[row[i] for row in shown] for i in range(len(columns))]
    return Table(
        line(title, "bold"), [Column(*column, _are_numbers(column[1])) for column in zip(columns, cells, strict=True)]
    )


Shown: TypeAlias = str | Callable[[ResultJson], object]
"""What a column shows of a row: the field of this name, or what a function makes of the row."""


def table_of(title: str, columns: Mapping[str, Shown], rows: Iterable[ResultJson]) -> Table:
    """Return the table of `rows` with `columns`, by their heads."""
    cells = ([row[shown] if isinstance(shown, str) else shown(row) for shown in columns.values()] for row in rows)
    return table(title, tuple(columns), cells)


def tables_of(title: str, columns: Mapping[str, Shown], rows: Sequence[ResultJson]) -> list[Table | Line]:
    """Return the table of `rows`, as `table_of` does; nothing where there are no rows."""
    return [table_of(title, columns, rows)] if rows else []


def together(rows: Iterable[ResultJson], key: Callable[[ResultJson], object]) -> list[ResultJson]:
    """Return rows of equal `key`, such as those of repeated layers, as one: the first, with their `count`, and `where` they are.

    That is in their modules, or at their nodes where the modules are not known. A row by itself is at its node.
    """
    groups: dict[object, list[ResultJson]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [{**same[0], "count": len(same), "where": _where(same)} for same in groups.values()]


def _where(rows: Sequence[ResultJson]) -> str:
    modules = [row["module"] for row in rows if row.get("module")] if len(rows) > 1 else []
    return places(modules if len(modules) == len(rows) else [row["node"] for row in rows])


def places(names: Iterable[str]) -> str:
    """Return the first of `names`, those that differ in numbers only as one, and how many more there are."""
    return some_of(alike(names), _PLACES)


_PLACES = 2
"""Names of modules or nodes that a cell lists."""


def table_together(title: str, columns: Mapping[str, Shown], rows: Iterable[ResultJson]) -> Table:
    """Return the table of `rows` with `columns`, by their heads; rows that differ in their names only are one, with their count."""

    def cells(row: ResultJson) -> tuple[object, ...]:
        return tuple(row[shown] if isinstance(shown, str) else shown(row) for shown in columns.values())

    shown = together(rows, cells)
    counts: dict[str, Shown] = {"count": "count"} if any(row["count"] > 1 for row in shown) else {}
    return table_of(title, {"where" if counts else "node": "where", **counts, **columns}, shown)


def _are_numbers(cells: Sequence[str]) -> bool:
    """Return whether cells are numbers, some of which may be left out."""
    return any(cells) and all(not cell or _NUMBER.fullmatch(cell) for cell in cells)


def line(text: str, style: str = "") -> Line:
    """Return a line of a report as it is: brackets in it are no marks of style, and nothing in it is obeyed by a terminal."""
    return Line(escaped(text), style)


def counted(count: int, noun: str) -> str:
    """Return "1 node", "2,000 nodes"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def at_sizes(dims: Mapping[str, int]) -> str:
    """Return the sizes of dimensions: "batch=1, seq=128"."""
    return ", ".join(f"{name}={size}" for name, size in dims.items())


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first of `names`, at most so many, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def rest_of(count: int) -> list[Line]:
    """Return the line below the first rows of a table of which `count` more are not shown."""
    return [line(f"and {count:,} more; --json has them all")] if count > 0 else []


_LISTED = 5
"""Names that a line lists."""


def reasons(text: str, reason_of: Mapping[str, str]) -> list[Line]:
    """Return a line for each different reason in `reason_of`: the `text`, the names that have the reason, and the reason."""
    lines = []
    for reason in dict.fromkeys(reason_of.values()):
        names = [name for name, other in reason_of.items() if other == reason]
        lines.append(line(f"{text}: {some_of(names, _LISTED)}: {reason}"))
    return lines


_MOST_ROWS = 60
"""Rows of a table, at most, that a screen shows."""


def short(part: Table | Line) -> list[Table | Line]:
    """Return `part` for a screen: of a table its first 60 rows, and a line that says how to see the others."""
    if not isinstance(part, Table) or part.row_count <= _MOST_ROWS:
        return [part]
    left = part.row_count - _MOST_ROWS
    return [part.first(_MOST_ROWS), line(f"and {left:,} more; in a pipe (| less) and with --json there are all")]


def _cell_text(cell: object) -> str:
    if cell is None:
        return "?"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else escaped(str(cell))


# Tables as HTML, small enough for a cell of a notebook.

_NOTEBOOK_ROWS = 12
"""Rows of a table that are shown in a notebook."""


def as_html(parts: Iterable[Table | Line]) -> str:
    """Return `parts` as one block of HTML without scripts and styles; long tables end after twelve rows."""
    return f"<div>{''.join(_table_html(part) if isinstance(part, Table) else _line_html(part) for part in parts)}</div>"


def preformatted(text: str) -> str:
    """Return `text` as HTML that keeps its lines."""
    return f"<pre>{escape(text)}</pre>"


def _line_html(text: Line) -> str:
    return f"<p>{escape(text.plain)}</p>"


def _table_html(table: Table) -> str:
    left = table.row_count - _rows_shown(table)
    more = f"<p>and {left:,} more rows; to_dict() has them all</p>" if left > 0 else ""
    return f"<table>{''.join(_rows_html(table))}</table>{more}"


def _rows_shown(table: Table) -> int:
    """Return how many rows are shown: one more than usual where it is the last, as a line about it takes as much room."""
    return _NOTEBOOK_ROWS + (table.row_count == _NOTEBOOK_ROWS + 1)


def _rows_html(table: Table) -> Iterator[str]:
    if table.title.plain:
        yield f'<caption style="text-align:left"><b>{escape(table.title.plain)}</b></caption>'
    yield f"<tr>{''.join(_cell_html('th', column.header, 'left') for column in table.columns)}</tr>"
    for row in islice(zip(*(column.cells for column in table.columns), strict=True), _rows_shown(table)):
        cells = (
            _cell_html("td", cell, "right" if column.numbers else "left")
            for cell, column in zip(row, table.columns, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"


def _cell_html(tag: str, content: object, align: str) -> str:
    return f'<{tag} style="text-align:{align}">{escape(str(content))}</{tag}>'
