"""The trade of fit as files: a picture, a page with the picture and the table, and the table alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from importlib.util import find_spec
from math import ceil, floor, log2, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onnxtile.report.colors import EDGE
from onnxtile.report.fit_tables import COLUMNS, curve_rows
from onnxtile.report.table import ResultJson
from onnxtile.system.errors import UsageError
from onnxtile.system.text import as_csv, as_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "onnxtile",
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_KIB = 1024
_LEFT, _WIDE, _HIGH = 70, 600, 130
"""Units of the vector image: the left edge, the width and the height of a panel."""
_GRID = "#bbbbbb"
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


def to_svg(result: ResultJson, title: str) -> bytes:
    """Return the trade as a vector image."""
    return f'<?xml version="1.0" encoding="utf-8"?>\n{_svg(result, title)}\n'.encode()


def to_png(result: ResultJson, title: str) -> bytes:
    """Return the trade as an image. Raises UsageError where matplotlib is not installed."""
    return _picture(result, title)


def to_html(result: ResultJson, title: str) -> bytes:
    """Return a page with the picture and the table; it needs no other file."""
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_shown(cell)}</td>' for cell in row)}</tr>" for row in curve_rows(result))
    page = _PAGE.format(title=escape(title), picture=_svg(result, title), head=head, rows=rows)
    return page.encode()


def to_markdown(result: ResultJson, _title: str) -> bytes:
    """Return the table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---:|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(map(_shown, row))} |" for row in curve_rows(result)]
    return ("\n".join(lines) + "\n").encode()


def to_csv(result: ResultJson, _title: str) -> bytes:
    """Return the points as CSV, one row for each; sizes are in bytes."""
    columns = list(result["curve"][0])
    return as_csv([columns, *([_plain(point[column]) for column in columns] for point in result["curve"])])


def to_json(result: ResultJson, _title: str) -> bytes:
    """Return the JSON of the trade."""
    return as_json(result).encode()


WRITERS: dict[str, Callable[[ResultJson, str], bytes]] = {
    ".csv": to_csv,
    ".html": to_html,
    ".json": to_json,
    ".md": to_markdown,
    ".png": to_png,
    ".svg": to_svg,
}
ENDINGS = tuple(WRITERS)


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else escape(str(cell))


def _plain(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def require_drawable(path: Path) -> None:
    """Raise UsageError where `path` is an image whose format needs a package that is not installed."""
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        raise UsageError(f"{path}: a .png needs matplotlib", hint="pip install 'onnxtile[pictures]', or name an .svg")


def _panels(points: Sequence[ResultJson]) -> list[tuple[str, list[float]]]:
    """Return what is drawn over the arenas: the label and the heights of each panel."""
    macs = points[0]["macs"]
    return [
        ("extra MACs, %", [_percent(one["macs"], macs) for one in points]),
        ("nodes", [one["nodes"] for one in points]),
        ("copied, KiB", [one["copied"] / _KIB for one in points]),
    ]


def _svg(result: ResultJson, title: str) -> str:
    """Return the panels one above the other, as an element of SVG: arenas across on a logarithmic axis, estimates hollow."""
    points = result["curve"]
    arenas = [max(one["arena"] / _KIB, 1 / _KIB) for one in points]
    low, high = floor(log2(min(arenas))), max(ceil(log2(max(arenas))), floor(log2(min(arenas))) + 1)
    across = [_LEFT + _WIDE * (log2(arena) - low) / (high - low) for arena in arenas]
    ticks = [(_LEFT + _WIDE * (n - low) / (high - low), 2.0**n) for n in range(low, high + 1)]
    parts = [f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(title)}</text>']
    for number, (label, heights) in enumerate(_panels(points)):
        top = 40 + number * (_HIGH + 30)
        most = _round_up(max(*heights, 1))
        down = [top + _HIGH * (1 - height / most) for height in heights]
        parts += [_level(top + _HIGH * (1 - part / 4), most * part / 4) for part in range(5)]
        parts += [
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + _HIGH}" stroke="{_GRID}" stroke-width="0.5"/>'
            for x, _ in ticks
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{EDGE}"/>')
        parts += map(_mark, across, down, points)
        parts.append(
            f'<text transform="translate(14 {top + _HIGH / 2}) rotate(-90)" text-anchor="middle">{escape(label)}</text>'
        )
    end = 40 + 3 * (_HIGH + 30)
    parts += [f'<text x="{x:.1f}" y="{end - 14}" text-anchor="middle">{kib:,.6g}</text>' for x, kib in ticks]
    parts.append(
        f'<text x="{_LEFT + _WIDE / 2}" y="{end + 6}" text-anchor="middle">arena, KiB (hollow points: estimated)</text>'
    )
    head = f'viewBox="0 0 {_LEFT + _WIDE + 30} {end + 16}" font-family="DejaVu Sans, sans-serif" font-size="11"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head} role="img">\n{body}\n</svg>'


def _level(y: float, height: float) -> str:
    """Return a line of the grid with its height."""
    line = f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _WIDE}" y2="{y:.1f}" stroke="{_GRID}" stroke-width="0.5"/>'
    return f'{line}<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{height:,.6g}</text>'


def _mark(x: float, y: float, point: ResultJson) -> str:
    """Return the mark of a point; a pointer over it shows its numbers."""
    fill = "white" if point["estimated"] else EDGE
    said = f"arena {point['arena']:,} bytes, {point['macs']:,} MACs, {point['nodes']:,} nodes, {point['copied']:,} bytes copied"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="{EDGE}"><title>{said}</title></circle>'


def _round_up(height: float) -> float:
    """Return the next number above `height` that quarters well: 1, 2, 4 or 8 times a power of ten."""
    unit = 10.0 ** floor(log10(height))
    return next(step * unit for step in (1, 2, 4, 8, 10) if step * unit >= height)


def _picture(result: ResultJson, title: str) -> bytes:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError("a .png needs matplotlib", hint="pip install 'onnxtile[pictures]'") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 6.0), layout="constrained")
        figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
        panels = figure.subplots(3, 1, sharex=True)
        for axes, (label, heights) in zip(panels, _panels(result["curve"]), strict=True):
            draw(axes, result["curve"], heights, label)
        panels[2].set_xlabel("arena, KiB (hollow points: estimated)")
        return saved(figure, "png")


def saved(figure: Any, kind: Literal["png", "svg"]) -> bytes:
    """Return a figure as a file, the same bytes for the same figure."""
    file = io.BytesIO()
    stamp = {"Date": None, "Creator": "onnxtile"} if kind == "svg" else {"Software": "onnxtile"}
    figure.savefig(file, format=kind, dpi=200, metadata=stamp)
    return file.getvalue()


def draw(axes: Axes, points: Sequence[ResultJson], heights: Sequence[float], label: str) -> None:
    """Draw `heights` over the arenas of `points` in KiB, on a logarithmic axis; points that are estimates are hollow."""
    across = [point["arena"] / _KIB for point in points]
    fills = ["white" if point["estimated"] else EDGE for point in points]
    axes.plot(across, heights, color=EDGE, linewidth=1.0, zorder=1)
    axes.scatter(across, heights, s=18, c=fills, edgecolors=EDGE, zorder=2, clip_on=False)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}" if value >= 1 else f"{value:.2g}")
    axes.set_ylabel(label)
    axes.set_ylim(0, 1.05 * max(*heights, 1))
    axes.grid(visible=True, linewidth=0.3)


def _percent(macs: int, before: int) -> float:
    return 100 * (macs / before - 1) if before else 0.0
