"""One table: its columns aligned by their content, its plain form, and its forms for a notebook and for a terminal."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import escaped
from onnxtile.system.text import alike

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable
    from rich.text import Text

ResultJson: TypeAlias = Mapping[str, Any]

_NUMBER = re.compile(r"[-+]?[\d,.]+(e[-+]\d+)?( B| bytes| [KMGT]iB|%)?|\?")
_NARROW = re.compile(r"[\0-\u02ff\u2010-\u2027]*")
"""Texts whose characters take one column each: of Latin languages, and signs such as "×" and "…"."""


@dataclass(frozen=True)
class Line:
    """A line of a report, and the style in which a terminal shows it."""

    plain: str
    style: str = ""

    def __rich__(self) -> Text:
        """Return the line as a terminal shows it."""
        from rich.text import Text  # of the commands, those that write to a terminal alone load rich

        return Text(self.plain, self.style)

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
    if all(map(_NARROW.fullmatch, cells)):
        widest = max(map(len, cells))
        yield from ([cell.rjust(widest) for cell in cells] if numbers else [cell.ljust(widest) for cell in cells])
        return
    widths = list(map(cell_width, cells))
    widest = max(widths)
    for cell, width in zip(cells, widths, strict=True):
        blank = " " * (widest - width)
        yield blank + cell if numbers else cell + blank


def cell_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if _NARROW.fullmatch(text):
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
    return f"<pre>{html.escape(text)}</pre>"


def _line_html(text: Line) -> str:
    return f"<p>{html.escape(text.plain)}</p>"


def _table_html(table: Table) -> str:
    left = table.row_count - _rows_shown(table)
    more = f"<p>and {left:,} more rows; to_dict() has them all</p>" if left > 0 else ""
    return f"<table>{''.join(_rows_html(table))}</table>{more}"


def _rows_shown(table: Table) -> int:
    """Return how many rows are shown: one more than usual where it is the last, as a line about it takes as much room."""
    return _NOTEBOOK_ROWS + (table.row_count == _NOTEBOOK_ROWS + 1)


def _rows_html(table: Table) -> Iterator[str]:
    if table.title.plain:
        yield f'<caption style="text-align:left"><b>{html.escape(table.title.plain)}</b></caption>'
    yield f"<tr>{''.join(_cell_html('th', column.header, 'left') for column in table.columns)}</tr>"
    for row in islice(zip(*(column.cells for column in table.columns), strict=True), _rows_shown(table)):
        cells = (
            _cell_html("td", cell, "right" if column.numbers else "left")
            for cell, column in zip(row, table.columns, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"


def _cell_html(tag: str, content: object, align: str) -> str:
    return f'<{tag} style="text-align:{align}">{html.escape(str(content))}</{tag}>'


# A table in a terminal: as wide as that is, with paths shortened to their ends, and without columns for which there is no room.

_PATH = re.compile(r"\S*/\S*")
_PARTS = 2
"""Parts of a path that a shortened one keeps at least: a module and its operator."""
_BLANK = re.compile(r"\s+")
_WORD = 30
"""Characters of a word that a narrow table does not break."""
_COLUMNS = 3
"""Columns that a narrow table keeps at least."""


def fitted(table: Table, width: int) -> RichTable:
    """Return `table` as it fits `width`: with paths shortened to their ends, then without columns at the right."""
    from rich.box import SIMPLE_HEAD
    from rich.text import Text

    if _width(table) <= width:
        return _drawn(table)
    shortened = Table(table.title, [Column(c.header, endings(c.cells), c.numbers) for c in table.columns])
    drawn, left_out = _drawn(shortened), list[str]()
    if _width(shortened) > width:
        # Without lines between columns there is room for a little more.
        drawn.box, drawn.show_edge, drawn.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
        needs = [min(_longest(column, _BLANK), _WORD) for column in shortened.columns]
        while len(needs) > _COLUMNS and sum(needs) + 2 * len(needs) - 1 > width:
            needs.pop()
        left_out = [column.header for column in shortened.columns[len(needs) :]]
        drawn.columns = drawn.columns[: len(needs)]
        for column, need in zip(drawn.columns, needs, strict=True):
            column.min_width = need
    kept = len(drawn.columns)
    is_whole = [c.cells for c in shortened.columns[:kept]] == [list(c.cells) for c in table.columns[:kept]]
    notes = [] if is_whole else ["… stands for the start of a name"]
    notes += [f"left out: {', '.join(left_out)}"] if left_out else []
    if notes:
        drawn.caption = Text(f"{'; '.join(notes)}; in a pipe and with --json all is whole", "dim")
    return drawn


def _drawn(table: Table) -> RichTable:
    """Return `table` as rich draws it."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=table.title.__rich__(), title_justify="left", header_style="bold", caption_justify="left")
    for column in table.columns:
        drawn.add_column(column.header, justify="right" if column.numbers else "left", overflow="fold")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        drawn.add_row(*map(Text, row))
    return drawn


def _longest(column: Column, separator: re.Pattern[str] | None = None) -> int:
    texts = [column.header, *column.cells]
    words = (word for text in texts for word in (separator.split(text) if separator else [text]))
    return max(map(cell_width, words), default=0)


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
