"""The trade of fit as files: a picture, a page with the picture and the table, and the table alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor, log2
from pathlib import Path

from onnxtile.report.fit_tables import COLUMNS, curve_rows
from onnxtile.report.format import Format, RenderOptions
from onnxtile.report.svg import (
    EDGE,
    RENDERER,
    Style,
    as_text,
    element,
    embedded,
    figures,
    filled,
    in_script,
    mark_text,
    number,
    picture,
    png,
    text,
    ticks,
    xml_text,
)
from onnxtile.report.table import ResultJson
from onnxtile.report.words import readable, unit_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.text import as_csv, as_json

KIB = 1024
_LEFT, _WIDE, _HIGH = 50, 450, 95
"""Points: the left edge, the width and the height of a diagram."""
_HIGH_ON_PAGE = 150
_APART = 24
"""Points between two diagrams."""
_FEW_OCTAVES = 2
"""Up to so many times two between the smallest and the largest arena, powers of two are too few marks."""
_MARGIN = 0.08
"""Of an octave, beside the points where these are few."""
_TICKS = 6
_IN_BYTES = ("arena", "bytes copied")
"""Columns of the table."""
_GRID: Style = {"stroke": "#bbb", "stroke_width": 0.4}


@dataclass(frozen=True)
class CurveMark:
    """A point of a curve: an arena in KiB, a height, whether it is hollow, and what a pointer over it shows."""

    arena: float
    height: float
    is_hollow: bool = False
    said: str = ""
    number: int | None = None
    """Its number among the points, by which a page finds it."""


@dataclass(frozen=True)
class Diagram:
    """Heights from 0 to `most` over arenas from 2**`low` to 2**`high` KiB, on a logarithmic axis; it begins at the height `top`."""

    label: str
    low: float
    high: float
    most: float
    top: float
    tall: float = _HIGH

    @classmethod
    def of_marks(cls, label: str, marks: Sequence[CurveMark], top: float, tall: float = _HIGH) -> Diagram:
        """Return the diagram in which all of `marks` are."""
        least, largest = (log2(end(mark.arena for mark in marks)) for end in (min, max))
        if largest - least > _FEW_OCTAVES:
            low, high = float(floor(least)), float(ceil(largest))
        else:
            low, high = least - _MARGIN, largest + _MARGIN
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

    def arena_ticks(self) -> list[float]:
        """Return the arenas in KiB that have a mark: powers of two, or round numbers of a unit where there are few of those."""
        if self.high - self.low > _FEW_OCTAVES:
            return [2.0**power for power in range(ceil(self.low), floor(self.high) + 1)]
        unit = unit_of(round(2.0**self.high * KIB))[0] / KIB
        return [at * unit for at in ticks(2.0**self.low / unit, 2.0**self.high / unit, _TICKS)]

    def grid(self) -> Iterator[str]:
        """Yield the lines of the grid, with the numbers of the heights and the label of these."""
        for height in ticks(0, self.most, 4):
            _, y = self.place(CurveMark(1.0, height))
            yield element("line", x1=_LEFT, y1=y, x2=_LEFT + _WIDE, y2=y, **_GRID)
            yield text(_LEFT - 5, y, mark_text(height), middle=8, text_anchor="end")
        for arena in self.arena_ticks():
            x, _ = self.place(CurveMark(arena, 0))
            yield element("line", x1=x, y1=self.top, x2=x, y2=self.bottom, **_GRID)
        yield text(10, self.top + self.tall / 2, self.label, upright=True, middle=8, text_anchor="middle")

    def arenas(self, label: str) -> Iterator[str]:
        """Yield the numbers of the arenas below the diagram, and their label."""
        for arena in self.arena_ticks():
            x, _ = self.place(CurveMark(arena, 0))
            yield text(x, self.bottom + 12, readable(round(arena * KIB)), text_anchor="middle")
        yield text(_LEFT + _WIDE / 2, self.bottom + 26, label, text_anchor="middle")

    def curve(self, marks: Sequence[CurveMark], color: str = EDGE) -> Iterator[str]:
        """Yield a line through `marks`, and a circle for each."""
        line = " ".join(f"{number(x)},{number(y)}" for x, y in map(self.place, marks))
        yield element("polyline", points=line, fill="none", stroke=color)
        for mark in marks:
            x, y = self.place(mark)
            titles = [element("title", xml_text(mark.said))] if mark.said else []
            hollow: Style = {"fill": "#fff", "class_": "hollow"} if mark.is_hollow else {"fill": color}
            yield element("circle", *titles, cx=x, cy=y, r=2.3, stroke=color, data_point=mark.number, **hollow)


def drawn(diagrams: Sequence[Diagram], parts: Iterable[str]) -> bytes:
    """Return a file of SVG with `parts`, as large as `diagrams` need it."""
    return picture(_LEFT + _WIDE + 20, diagrams[-1].bottom + 34, parts)


def _svg(result: ResultJson, options: RenderOptions) -> bytes:
    """Return extra work, nodes and copied bytes over the arenas, one diagram above the other; estimates are hollow."""
    return _drawn(result, _title(result, options))


def _title(result: ResultJson, options: RenderOptions) -> str:
    """Return the model of a trade; the title of the options where that is not known."""
    return str(result.get("model") or options.title)


def _drawn(result: ResultJson, title: str = "", tall: float = _HIGH) -> bytes:
    """Return the picture, without diagrams in which every point has no height; others are `tall` points high."""
    points = result["curve"]
    macs = points[0]["macs"]
    size, unit = unit_of(max(point["copied"] for point in points))
    heights = {
        "extra MACs, %": [100 * (point["macs"] / macs - 1) if macs else 0.0 for point in points],
        "nodes": [point["nodes"] for point in points],
        f"copied, {unit}": [point["copied"] / size for point in points],
    }
    parts = [text(_LEFT, 15, title, font_weight="bold")] if title else []
    diagrams: list[Diagram] = []
    for label, column in heights.items():
        if not any(column):
            continue
        pairs = enumerate(zip(points, column, strict=True))
        marks = [_mark(number, point, height) for number, (point, height) in pairs]
        top = diagrams[-1].bottom + _APART if diagrams else 28 if title else 10
        diagrams.append(Diagram.of_marks(label, marks, top, tall))
        parts += [*diagrams[-1].grid(), *diagrams[-1].curve(marks)]
    hollow = " (hollow points: estimated)" if any(point["estimated"] for point in points) else ""
    parts += diagrams[-1].arenas(f"arena, logarithmic{hollow}")
    return drawn(diagrams, parts)


def _mark(number: int, point: ResultJson, height: float) -> CurveMark:
    description = f"arena {point['arena']:,} bytes, {point['macs']:,} MACs, {point['nodes']:,} nodes, {point['copied']:,} bytes copied"
    return CurveMark(max(point["arena"], 1) / KIB, height, point["estimated"], description, number)


def _png(result: ResultJson, options: RenderOptions) -> bytes:
    return png(_svg(result, options))


def _html(result: ResultJson, options: RenderOptions) -> bytes:
    """Return the page: the head, the picture, the table, and what the points of both tell and copy."""
    points, title = result["curve"], _title(result, options)
    words = result.get("command") or "onnxtile fit model.onnx"
    head = "".join(f"<th>{as_text(column.removeprefix('bytes '))}</th>" for column in COLUMNS)
    rows = "\n".join(_row(row) for row in curve_rows(result))
    picture = embedded(_drawn(result, tall=_HIGH_ON_PAGE)).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    shown = [{**point, "command": f"{words} --capacity {point['arena']}"} for point in points]
    return filled(
        "curve.html",
        {
            "title": as_text(title),
            "figures": figures(_figures(points)),
            "picture": picture,
            "head": head,
            "rows": rows,
            "data": in_script({"points": shown}),
        },
    )


def _row(cells: Sequence[str | int]) -> str:
    """Return a row of the page, which has bytes in the units of its head; the box at a point has them in full."""
    columns = zip(COLUMNS, cells, strict=True)
    shown = (readable(int(cell)) if column in _IN_BYTES else _cell_text(cell) for column, cell in columns)
    inside = "".join(f"<td>{cell}</td>" for cell in shown)
    return f'<tr>{inside}<td><button title="copy the command that makes this model">copy</button></td></tr>'


def _figures(points: Sequence[ResultJson]) -> Iterator[tuple[str, str]]:
    """Yield the figures of the head: how small the arena becomes, and at which price."""
    first, last = points[0], points[-1]
    is_known = "arena, estimated" if last["estimated"] else "arena"
    yield is_known, f"{readable(first['arena'])} → {readable(last['arena'])}"
    if first["macs"]:
        yield "extra MACs", f"{last['macs'] / first['macs'] - 1:+.1%}"
    free = min(point["arena"] for point in points if point["macs"] <= first["macs"])
    if free != last["arena"]:
        yield "without extra MACs", readable(free)
    yield "nodes", f"{first['nodes']:,} → {last['nodes']:,}"


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
    return f"{cell:,}" if isinstance(cell, int) else as_text(str(cell))


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
NAMED = ".curve"
"""The part of a file name before its ending that marks a file of the trade; a plan has none."""
ENDINGS = tuple(f"{NAMED}{form.suffix}" for form in FORMATS)
"""The endings of files of the trade."""


def require_drawable(path: Path) -> None:
    """Raise UsageError where `path` is an image whose format needs a package that is not installed."""
    for form in FORMATS:
        if form.suffix == path.suffix:
            form.require()
