"""The trade of fit as files: a picture, a page with the picture and the table, and the table alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2
from pathlib import Path

from onnxtile.report.colors import EDGE
from onnxtile.report.format import Format, RenderOptions
from onnxtile.report.svg import RENDERER, Style, element, embedded, mark_text, number, picture, png, text, ticks
from onnxtile.report.table import ResultJson
from onnxtile.report.tables import COLUMNS, curve_rows
from onnxtile.system.text import as_csv, as_json

KIB = 1024
_LEFT, _WIDE, _HIGH = 50, 450, 95
"""Points: the left edge, the width and the height of a diagram."""
_APART = 24
"""Points between two diagrams."""
_GRID: Style = {"stroke": "#bbb", "stroke_width": 0.4}
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
:root {{ color-scheme: light; }}
body {{ font: 14px/1.5 sans-serif; margin: 2em auto; max-width: 60em; color: #222; background: #fff; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 2px 12px; text-align: right; border-bottom: 1px solid #ddd; }}
</style></head><body>
<h1>{title}</h1>
{picture}
<table><tr>{head}</tr>
{rows}
</table>
</body></html>
"""


@dataclass(frozen=True)
class CurveMark:
    """A point of a curve: an arena in KiB, a height, whether it is hollow, and what a pointer over it shows."""

    arena: float
    height: float
    is_hollow: bool = False
    said: str = ""


@dataclass(frozen=True)
class Diagram:
    """Heights from 0 to `most` over arenas from 2**`low` to 2**`high` KiB, on a logarithmic axis; it begins at the height `top`."""

    label: str
    low: int
    high: int
    most: float
    top: float
    tall: float = _HIGH

    @classmethod
    def of_marks(cls, label: str, marks: Sequence[CurveMark], top: float, tall: float = _HIGH) -> Diagram:
        """Return the diagram in which all of `marks` are."""
        low = floor(log2(min(mark.arena for mark in marks)))
        high = max(ceil(log2(max(mark.arena for mark in marks))), low + 1)
        most = max(1.0, *(mark.height for mark in marks))
        step = ticks(0, most, 4)[1]
        return cls(label, low, high, ceil(most / step) * step, top, tall)

    @property
    def bottom(self) -> float:
        """The height of the axis of arenas."""
        return self.top + self.tall

    def place(self, mark: CurveMark) -> tuple[float, float]:
        """Return where `mark` is, in points."""
        across = _LEFT + _WIDE * (log2(mark.arena) - self.low) / (self.high - self.low)
        return across, self.bottom - self.tall * mark.height / self.most

    def grid(self) -> Iterator[str]:
        """Yield the lines of the grid, with the numbers of the heights and the label of these."""
        for height in ticks(0, self.most, 4):
            _, y = self.place(CurveMark(1.0, height))
            yield element("line", x1=_LEFT, y1=y, x2=_LEFT + _WIDE, y2=y, **_GRID)
            yield text(_LEFT - 5, y, mark_text(height), middle=8, text_anchor="end")
        for power in range(self.low, self.high + 1):
            x, _ = self.place(CurveMark(2.0**power, 0))
            yield element("line", x1=x, y1=self.top, x2=x, y2=self.bottom, **_GRID)
        yield text(10, self.top + self.tall / 2, self.label, upright=True, middle=8, text_anchor="middle")

    def arenas(self, label: str) -> Iterator[str]:
        """Yield the numbers of the arenas below the diagram, and their label."""
        for power in range(self.low, self.high + 1):
            x, _ = self.place(CurveMark(2.0**power, 0))
            yield text(x, self.bottom + 12, mark_text(2.0**power), text_anchor="middle")
        yield text(_LEFT + _WIDE / 2, self.bottom + 26, label, text_anchor="middle")

    def curve(self, marks: Sequence[CurveMark], color: str = EDGE) -> Iterator[str]:
        """Yield a line through `marks`, and a circle for each."""
        line = " ".join(f"{number(x)},{number(y)}" for x, y in map(self.place, marks))
        yield element("polyline", points=line, fill="none", stroke=color)
        for mark in marks:
            x, y = self.place(mark)
            titles = [element("title", escape(mark.said))] if mark.said else []
            fill = "#fff" if mark.is_hollow else color
            yield element("circle", *titles, cx=x, cy=y, r=2.3, fill=fill, stroke=color)


def drawn(diagrams: Sequence[Diagram], parts: Iterable[str]) -> bytes:
    """Return a file of SVG with `parts`, as large as `diagrams` need it."""
    return picture(_LEFT + _WIDE + 20, diagrams[-1].bottom + 34, parts)


def _svg(result: ResultJson, options: RenderOptions) -> bytes:
    """Return extra work, nodes and copied bytes over the arenas, one diagram above the other; estimates are hollow."""
    points = result["curve"]
    macs = points[0]["macs"]
    heights = {
        "extra MACs, %": [100 * (point["macs"] / macs - 1) if macs else 0.0 for point in points],
        "nodes": [point["nodes"] for point in points],
        "copied, KiB": [point["copied"] / KIB for point in points],
    }
    parts = [text(_LEFT, 15, options.title, font_weight="bold")]
    diagrams: list[Diagram] = []
    for label, column in heights.items():
        marks = [_mark(point, height) for point, height in zip(points, column, strict=True)]
        diagrams.append(Diagram.of_marks(label, marks, diagrams[-1].bottom + _APART if diagrams else 28))
        parts += [*diagrams[-1].grid(), *diagrams[-1].curve(marks)]
    parts += diagrams[-1].arenas("arena, KiB (hollow points: estimated)")
    return drawn(diagrams, parts)


def _mark(point: ResultJson, height: float) -> CurveMark:
    description = f"arena {point['arena']:,} bytes, {point['macs']:,} MACs, {point['nodes']:,} nodes, {point['copied']:,} bytes copied"
    return CurveMark(max(point["arena"], 1) / KIB, height, point["estimated"], description)


def _png(result: ResultJson, options: RenderOptions) -> bytes:
    return png(_svg(result, options))


def _html(result: ResultJson, options: RenderOptions) -> bytes:
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{_cell_text(cell)}</td>' for cell in row)}</tr>" for row in curve_rows(result)
    )
    drawing = embedded(_svg(result, options))
    return _PAGE.format(title=escape(options.title), picture=drawing, head=head, rows=rows).encode()


def _markdown(result: ResultJson, _options: RenderOptions) -> bytes:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---:|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(map(_cell_text, row))} |" for row in curve_rows(result)]
    return ("\n".join(lines) + "\n").encode()


def _csv(result: ResultJson, _options: RenderOptions) -> bytes:
    columns = list(result["curve"][0])
    return as_csv([columns, *([_plain(point[column]) for column in columns] for point in result["curve"])])


def _json(result: ResultJson, _options: RenderOptions) -> bytes:
    return as_json(result).encode()


def _cell_text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else escape(str(cell))


def _plain(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


FORMATS = (
    Format("curve-csv", ".csv", _csv, "one row for each point; sizes are in bytes"),
    Format("curve-html", ".html", _html, "a page with the picture and the table; it needs no other file", picture=True),
    Format("curve-json", ".json", _json, "the JSON of the trade"),
    Format("curve-md", ".md", _markdown, "the table in Markdown"),
    Format("curve-png", ".png", _png, "the trade as an image", picture=True, needs=RENDERER),
    Format("curve-svg", ".svg", _svg, "the trade as a vector image", picture=True),
)
ENDINGS = tuple(form.suffix for form in FORMATS)


def require_drawable(path: Path) -> None:
    """Raise UsageError where `path` is an image whose format needs a package that is not installed."""
    for form in FORMATS:
        if form.suffix == path.suffix:
            form.require()
