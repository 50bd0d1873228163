"""Tables in Markdown: printed row by row, and put into a page between marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "benchmarks.md"


def head(columns: Sequence[str], texts: int = 1) -> str:
    """Return the first two lines of a table whose columns hold numbers, but for the first `texts`."""
    return f"| {' | '.join(columns)} |\n|{'---|' * texts}{'---:|' * (len(columns) - texts)}"


def line(cells: Iterable[object]) -> str:
    """Return a row."""
    return f"| {' | '.join(map(str, cells))} |"


def show(first: str, rows: Iterable[str], *, mark: str = "", page: Path = DOCS) -> None:
    """Print a table as its rows come; with `mark`, it replaces that of the page between "begin of" and "end of" it."""
    print(first, flush=True)
    lines = [first]
    for row in rows:
        print(row, flush=True)
        lines.append(row)
    if mark:
        begin, end = (f"<!-- {word} of the table of {mark} -->\n" for word in ("begin", "end"))
        before, rest = page.read_text("utf-8").split(begin)
        whole = "".join(f"{one}\n" for one in lines)
        page.write_text(f"{before}{begin}{whole}{end}{rest.split(end)[1]}", "utf-8")
