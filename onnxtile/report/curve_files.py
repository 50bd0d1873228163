"""The trade of fit as files: a picture, a page with the picture and the table, and the table alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from onnxtile.csv_text import as_csv
from onnxtile.errors import UsageError
from onnxtile.json_text import as_json
from onnxtile.report.curve_tables import COLUMNS, curve_rows
from onnxtile.report.palette import EDGE
from onnxtile.report.table import ResultJson

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
    """Return the trade as a vector image. Raises UsageError where matplotlib is not installed."""
    return _picture(result, title, "svg")


def to_png(result: ResultJson, title: str) -> bytes:
    """Return the trade as an image. Raises UsageError where matplotlib is not installed."""
    return _picture(result, title, "png")


def to_html(result: ResultJson, title: str) -> bytes:
    """Return a page with the picture and the table; it needs no other file. Raises UsageError where matplotlib is not installed."""
    picture = to_svg(result, title).decode()
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_shown(cell)}</td>' for cell in row)}</tr>" for row in curve_rows(result))
    page = _PAGE.format(title=escape(title), picture=picture[picture.index("<svg") :], head=head, rows=rows)
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


def _picture(result: ResultJson, title: str, kind: Literal["png", "svg"]) -> bytes:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError(f"a .{kind} needs matplotlib", hint="pip install 'onnxtile[pictures]'") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 6.0), layout="constrained")
        figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
        panels = figure.subplots(3, 1, sharex=True)
        points = result["curve"]
        macs = points[0]["macs"]
        draw(panels[0], points, [_percent(one["macs"], macs) for one in points], "extra MACs, %")
        draw(panels[1], points, [one["nodes"] for one in points], "nodes")
        draw(panels[2], points, [one["copied"] / _KIB for one in points], "copied, KiB")
        panels[2].set_xlabel("arena, KiB (hollow points: estimated)")
        return saved(figure, kind)


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
