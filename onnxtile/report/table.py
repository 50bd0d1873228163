"""One table: its columns aligned by their content, its form for a narrow terminal, its plain form, and its form for a notebook."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from onnxtile.system.errors import escaped
from onnxtile.system.text import alike

ResultJson: TypeAlias = Mapping[str, Any]

_PATH = re.compile(r"\S*/\S*")
_PARTS = 2
"""Parts of a path that a shortened one keeps at least: a module and its operator."""
_BLANK = re.compile(r"\s+")
_WORD = 30
"""Characters of a word that a narrow table does not break."""
_COLUMNS = 3
"""Columns that a narrow table keeps at least."""
_NUMBER = re.compile(r"[-+]?[\d,.]+(e[-+]\d+)?( B| bytes| [KMGT]iB|%)?|\?")


class FittedTable(Table):
    """A table that shortens the paths in it where a terminal has no room for them; in a pipe it is as wide as it needs to be."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table as it fits `options.max_width`; without lines around its cells, as wide as it is."""
        if self.box is None:
            yield Segment("".join(f"{text}\n" for text in _plain_lines(self)))
            return
        yield from Table.__rich_console__(_fitted(self, options.max_width), console, options)


def _plain_lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table whose columns two blanks part.

    rich takes most of a millisecond for a row, because it measures and wraps each cell several times.
    """
    if table.title:
        yield str(table.title)
    columns = [[str(column.header), *(str(cell) for cell in column.cells)] for column in table.columns]
    padded = [_padded(cells, column.justify) for cells, column in zip(columns, table.columns, strict=True)]
    yield from (line.rstrip() for line in map("  ".join, zip(*padded, strict=True)))


def _padded(cells: Sequence[str], justify: str) -> Iterator[str]:
    """Yield `cells` of one width, with blanks before them where `justify` is "right", else after them."""
    widths = list(map(cell_len, cells))
    widest = max(widths)
    for cell, width in zip(cells, widths, strict=True):
        blank = " " * (widest - width)
        yield blank + cell if justify == "right" else cell + blank


def _fitted(table: Table, width: int) -> Table:
    """Return `table` as it fits `width`: with paths shortened to their ends, then without columns at the right."""
    if _width(table) <= width:
        return table
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    shortened = [endings(column) for column in cells]
    fitted, left_out = _with_cells(table, ([*map(Text, column)] for column in shortened)), []
    if _width(fitted) > width:
        # Without lines between columns there is room for a little more.
        fitted.box, fitted.show_edge, fitted.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
        needs = [min(_longest(column, _BLANK), _WORD) for column in fitted.columns]
        while len(needs) > _COLUMNS and sum(needs) + 2 * len(needs) - 1 > width:
            needs.pop()
        left_out = [str(column.header) for column in fitted.columns[len(needs) :]]
        fitted.columns = fitted.columns[: len(needs)]
        for column, need in zip(fitted.columns, needs, strict=True):
            column.min_width = need
    kept = len(fitted.columns)
    notes = ["… stands for the start of a name"] if shortened[:kept] != cells[:kept] else []
    notes += [f"left out: {', '.join(left_out)}"] if left_out else []
    if notes:
        fitted.caption = Text(f"{'; '.join(notes)}; in a pipe and with --json all is whole", "dim")
    return fitted


def _with_cells(table: Table, cells: Iterable[Sequence[RenderableType]]) -> Table:
    """Return a table that is as `table`, with other `cells`, column by column."""
    copied = FittedTable(title=table.title, title_justify="left", header_style="bold", caption_justify="left")
    for column in table.columns:
        copied.add_column(column.header, justify=column.justify, overflow=column.overflow)
    for row in zip(*cells, strict=True):
        copied.add_row(*row)
    return copied


def _longest(column: Column, separator: re.Pattern[str] | None = None) -> int:
    texts = [str(column.header), *(str(cell) for cell in column.cells)]
    words = (word for text in texts for word in (separator.split(text) if separator else [text]))
    return max(map(cell_len, words), default=0)


def _width(table: Table) -> int:
    """Return how wide a table is without line breaks, with the lines and blanks around its cells."""
    return sum(_longest(column) + 3 for column in table.columns) + 1


def endings(names: Sequence[str]) -> list[str]:
    """Return the paths in `names` by their shortest ends that tell them apart, with "…/" before; a single one stays whole."""
    paths = {name: name.split("/") for name in dict.fromkeys(names) if _PATH.fullmatch(name)}
    if len(paths) < 2:
        return list(names)
    shared = Counter("/".join(parts[at:]) for parts in paths.values() for at in range(len(parts)))
    return [_ending(name, paths[name], shared) if name in paths else name for name in names]


def _ending(name: str, parts: Sequence[str], shared: Mapping[str, int]) -> str:
    """Return the shortest end of a path, of two parts at least, that no other of the paths has."""
    ends = ("/".join(parts[at:]) for at in range(len(parts) - _PARTS, 0, -1))
    shortest = next((end for end in ends if shared[end] == 1), name)
    return f"…/{shortest}" if len(shortest) + 2 < len(name) else name


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table in which columns of numbers are aligned to the right, all others to the left."""
    result = FittedTable(title=line(title, "bold"), title_justify="left", header_style="bold")
    kept: dict[str, _Cell] = {}  # most cells of a long table are equal to others
    shown = [[kept.setdefault(text, _Cell(text)) for text in map(_cell_text, row)] for row in rows]
    for i, column in enumerate(columns):
        numbers = _are_numbers([row[i].text for row in shown])
        result.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in shown:
        result.add_row(*row)
    return result


Shown: TypeAlias = str | Callable[[ResultJson], object]
"""What a column shows of a row: the field of this name, or what a function makes of the row."""


def table_of(title: str, columns: Mapping[str, Shown], rows: Iterable[ResultJson]) -> Table:
    """Return the table of `rows` with `columns`, by their heads."""
    cells = ([row[shown] if isinstance(shown, str) else shown(row) for shown in columns.values()] for row in rows)
    return table(title, tuple(columns), cells)


def tables_of(title: str, columns: Mapping[str, Shown], rows: Sequence[ResultJson]) -> list[Table | Text]:
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


class _Cell:
    """The text of a cell as it is, of which rich's form is made when it is drawn: that takes ten times the memory."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __rich__(self) -> Text:
        return Text(self.text)


def _are_numbers(cells: Sequence[str]) -> bool:
    """Return whether cells are numbers, some of which may be left out."""
    return any(cells) and all(not cell or _NUMBER.fullmatch(cell) for cell in cells)


def line(text: str, style: str = "") -> Text:
    """Return a line of a report as it is: brackets in it are no marks of style, and nothing in it is obeyed by a terminal."""
    return Text(escaped(text), style)


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


def rest_of(count: int) -> list[Text]:
    """Return the line below the first rows of a table of which `count` more are not shown."""
    return [line(f"and {count:,} more; --json has them all")] if count > 0 else []


_LISTED = 5
"""Names that a line lists."""


def reasons(text: str, reason_of: Mapping[str, str]) -> list[Text]:
    """Return a line for each different reason in `reason_of`: the `text`, the names that have the reason, and the reason."""
    lines = []
    for reason in dict.fromkeys(reason_of.values()):
        names = [name for name, other in reason_of.items() if other == reason]
        lines.append(line(f"{text}: {some_of(names, _LISTED)}: {reason}"))
    return lines


_MOST_ROWS = 60
"""Rows of a table, at most, that a screen shows."""


def short(part: Table | Text) -> list[Table | Text]:
    """Return `part` for a screen: of a table its first 60 rows, and a line that says how to see the others."""
    if not isinstance(part, Table) or part.row_count <= _MOST_ROWS:
        return [part]
    first_rows = _with_cells(part, ([*islice(column.cells, _MOST_ROWS)] for column in part.columns))
    return [
        first_rows,
        line(f"and {part.row_count - _MOST_ROWS:,} more; in a pipe (| less) and with --json there are all"),
    ]


def plain(part: Table | Text) -> Table | Text:
    """Return `part` without the lines around its cells, as scripts and files want it."""
    if isinstance(part, Table):
        part.box = None
        part.pad_edge = False
    return part


def _cell_text(cell: object) -> str:
    if cell is None:
        return "?"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else escaped(str(cell))


# Tables as HTML, small enough for a cell of a notebook.

_NOTEBOOK_ROWS = 12
"""Rows of a table that are shown in a notebook."""


def as_html(parts: Iterable[Table | Text]) -> str:
    """Return `parts` as one block of HTML without scripts and styles; long tables end after twelve rows."""
    return f"<div>{''.join(_table_html(part) if isinstance(part, Table) else _line_html(part) for part in parts)}</div>"


def preformatted(text: str) -> str:
    """Return `text` as HTML that keeps its lines."""
    return f"<pre>{escape(text)}</pre>"


def _line_html(text: Text) -> str:
    return f"<p>{escape(text.plain)}</p>"


def _table_html(table: Table) -> str:
    left = table.row_count - _rows_shown(table)
    more = f"<p>and {left:,} more rows; to_dict() has them all</p>" if left > 0 else ""
    return f"<table>{''.join(_rows_html(table))}</table>{more}"


def _rows_shown(table: Table) -> int:
    """Return how many rows are shown: one more than usual where it is the last, as a line about it takes as much room."""
    return _NOTEBOOK_ROWS + (table.row_count == _NOTEBOOK_ROWS + 1)


def _rows_html(table: Table) -> Iterator[str]:
    if table.title:
        yield f'<caption style="text-align:left"><b>{escape(str(table.title))}</b></caption>'
    yield f"<tr>{''.join(_cell_html('th', column.header, 'left') for column in table.columns)}</tr>"
    for row in islice(zip(*(column.cells for column in table.columns), strict=True), _rows_shown(table)):
        cells = (_cell_html("td", cell, column.justify) for cell, column in zip(row, table.columns, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"


def _cell_html(tag: str, content: object, align: str) -> str:
    return f'<{tag} style="text-align:{align}">{escape(str(content))}</{tag}>'
