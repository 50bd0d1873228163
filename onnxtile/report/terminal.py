"""A table in a terminal: as wide as that is, with paths shortened to their ends, and without columns for which there is no room."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from onnxtile.report.table import Column, Line, Table, cell_width

_PATH = re.compile(r"\S*/\S*")
_PARTS = 2
"""Parts of a path that a shortened one keeps at least: a module and its operator."""
_BLANK = re.compile(r"\s+")
_WORD = 30
"""Characters of a word that a narrow table does not break."""
_COLUMNS = 3
"""Columns that a narrow table keeps at least."""


def styled(line: Line) -> Text:
    """Return `line` as a terminal shows it."""
    return Text(line.plain, line.style)


def fitted(table: Table, width: int) -> RichTable:
    """Return `table` as it fits `width`: with paths shortened to their ends, then without columns at the right."""
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
    drawn = RichTable(title=styled(table.title), title_justify="left", header_style="bold", caption_justify="left")
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
