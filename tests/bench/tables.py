"""Tables in Markdown: what a table is, its lines, and a page in which it is replaced between marks."""

from __future__ import annotations

import datetime
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.commands import ROOT
from tests.bench.peers import own_version

DOCS = ROOT / "docs" / "benchmarks.md"
Rows: TypeAlias = Iterator[Sequence[object] | str]
"""The cells of each row; a text stands below the table."""


@dataclass(frozen=True)
class Table:
    """A benchmark: what it shows, its columns, the function that yields its rows, and the options of its command.

    The first `words` columns have words, the others numbers. A benchmark with `models` takes models, as `Subject.of` reads them.
    """

    about: str
    columns: Sequence[str] | Callable[[Namespace], Sequence[str]]
    rows: Callable[[Namespace], Rows]
    words: int = 1
    models: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    page: Path = DOCS

    def show(self, given: Namespace, mark: str = "") -> None:
        """Print the table row by row; with `mark`, it replaces that of its `page` between "begin of" and "end of" it.

        On the page, the texts of the rows and the commit that was measured stand below the table. A table with rows that are kept in a
        file says itself where these were measured.
        """
        columns = self.columns(given) if callable(self.columns) else self.columns
        lines = [head(*columns, words=self.words)]
        below: list[str] = []
        print(lines[0], flush=True)
        for row in self.rows(given):
            text = row if isinstance(row, str) else line(*row)
            print(text, flush=True)
            (below if isinstance(row, str) else lines).append(text.strip())
        if mark:
            if "rows" not in given:
                below.append(f"Measured on {datetime.date.today()} at {own_version()}.")
            lines += ["", *below]
            begin, end = (f"<!-- {word} of the table of {mark} -->\n" for word in ("begin", "end"))
            before, rest = self.page.read_text("utf-8").split(begin)
            table = "".join(f"{text}\n" for text in lines)
            self.page.write_text(f"{before}{begin}{table}{end}{rest.split(end)[1]}", "utf-8")


def head(*columns: str, words: int = 1) -> str:
    """Return the first two lines of a table whose columns hold numbers, but for the first `words`."""
    return f"| {' | '.join(columns)} |\n|{'---|' * words}{'---:|' * (len(columns) - words)}"


def line(*cells: object) -> str:
    """Return a row; whole numbers have commas, other numbers two digits after the point, truths are yes or no."""
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def numbers(text: str) -> list[int]:
    """Return the numbers of a text such as "1000,20000"."""
    return [int(number) for number in text.split(",")]
