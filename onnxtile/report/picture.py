"""A memory map for print: steps across, addresses up, a rectangle for each tensor, and the live bytes of each step below.

One column a plan (two where plans are compared, at the same scale of bytes), one row an arena. Drawn by matplotlib, the extra "pictures".
"""

from __future__ import annotations

import io
import math
import re
import warnings
from typing import TYPE_CHECKING, Any, Literal

from onnxtile.errors import UsageError
from onnxtile.printable import escaped
from onnxtile.report.coloring import Coloring, colorings
from onnxtile.report.format import PlanJson, RenderOptions
from onnxtile.report.headline import Headline, headline
from onnxtile.report.layout import ArenaLayout, arenas_in_use
from onnxtile.report.palette import GAP
from onnxtile.report.panel import Panel, draw
from onnxtile.report.shown import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 10.0
_MAP, _STRIP, _AROUND, _HEAD = 4.2, 0.7, 2.0, 0.86
"""Inches: width of the figure; heights of a map, of the strip below it, of the margins around both, and of the title in these."""

_MOST_ENTRIES, _ENTRIES_ACROSS = 13, 7
"""Entries of a legend: all of them, and in one row."""

_PATHS, _DIGITS = re.compile(rb' d="[^"]*"'), re.compile(rb"(\.\d\d)\d+")
_DPI = 200
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "onnxtile",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.5,
}


def render(plan: PlanJson, options: RenderOptions, kind: Literal["png", "svg"]) -> bytes:
    """Return the picture as a file, the same bytes for the same plan. Raises UsageError where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise UsageError(f"a .{kind} needs matplotlib", hint="pip install 'onnxtile[pictures]'") from error
    file = io.BytesIO()
    stamp = {"Date": None, "Creator": "onnxtile"} if kind == "svg" else {"Software": "onnxtile"}
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A name may be in a script that the font does not have.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure = _figure(plan, options)
        _make_printable(figure, keeps_texts=kind == "svg")
        figure.savefig(file, format=kind, dpi=_DPI, metadata=stamp)
    return _rounded(file.getvalue()) if kind == "svg" else file.getvalue()


def _rounded(svg: bytes) -> bytes:
    """Return an SVG with coordinates of paths in hundredths of a point: a third smaller, and no different to see."""
    return _PATHS.sub(lambda path: _DIGITS.sub(rb"\1", path[0]), svg)


def _make_printable(figure: Figure, *, keeps_texts: bool) -> None:
    """Escape characters in names that no picture shows and that XML forbids.

    A file that `keeps_texts` as texts has no edges around letters, which would make outlines of them.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text("\n".join(map(escaped, text.get_text().split("\n"))))
        if keeps_texts:
            text.set_path_effects([])


def _figure(plan: PlanJson, options: RenderOptions) -> Figure:
    from matplotlib.figure import Figure

    given = {"before": options.before, "after": plan} if options.before is not None else {"": plan}
    plans = [shown(one) for one in given.values()]
    coloring = colorings(plans, options.color_by)[0]
    columns = list(zip(given, plans, arenas_in_use(plans), strict=True))
    rows = max(len(found) for _, _, found in columns) or 1
    many = max(len(one["buffers"]) for one in plans)
    width, height = _WIDTH * _growth(many), _MAP * _growth(many) * (1.0 if rows == 1 else 0.7)
    figure = Figure(figsize=(width, rows * (height + _STRIP) + _AROUND))
    _title(figure, headline(plan, options.title, "" if options.before is None else "after"))
    grid = figure.subplots(2 * rows, len(columns), squeeze=False, height_ratios=[height, _STRIP] * rows)
    size = (width / len(columns) - 1.0) * 72, (height - 0.4) * 72
    is_single = rows == len(columns) == 1
    for i in range(rows):
        top = max((_top(found[i]) for _, _, found in columns if i < len(found)), default=1)
        for j, (said, one, found) in enumerate(columns):
            axes = grid[2 * i, j], grid[2 * i + 1, j]
            if i < len(found):
                draw(*axes, Panel(one, found[i], coloring, said, top, size, options.names, is_single))
            else:
                _hide(*axes)
    gaps = any(arena.gap for _, _, found in columns for arena in found)
    _legend(figure, coloring, gaps)
    return figure


def _title(figure: Figure, said: Headline) -> None:
    """Write the model's name, and below it the inputs and the figures of the plan; the layout leaves room for it."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    height = figure.get_size_inches()[1]
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, 1.0 - _HEAD / height)))
    texts = (text if label == "proof" else f"{label} {text}" for label, text in said.figures)
    lines = (
        (0.32, said.title, 14, "bold"),
        (0.56, said.inputs, 8.5, "normal"),
        (0.76, "   ·   ".join(texts), 8.5, "bold"),
    )
    for down, text, size, weight in lines:
        figure.text(0.012, 1 - down / height, text, fontsize=size, fontweight=weight, parse_math=False)


def _growth(many: int) -> float:
    """Return how much larger a picture of so many tensors is: at 6,400, names have four times the room."""
    return min(max(1.0, math.sqrt(math.sqrt(many / 400))), 2.0)


def _top(arena: ArenaLayout) -> int:
    """Return up to which address an arena is shown: also up to its capacity, where that is not much larger."""
    most = max(arena.size, arena.peak, 1)
    return max(most, arena.capacity) if arena.capacity is not None and arena.capacity <= 1.6 * most else most


def _hide(*hidden: Axes) -> None:
    for axes in hidden:
        axes.set_axis_off()


def _legend(figure: Figure, coloring: Coloring, gaps: bool) -> None:
    from matplotlib.patches import Patch

    groups = coloring.groups
    if coloring.is_ramp and len(groups) > _MOST_ENTRIES:
        # Of many layers every n-th, with the first and the last: their colours run from one to the other.
        picked = [groups[round(i * (len(groups) - 1) / (_MOST_ENTRIES - 1))] for i in range(_MOST_ENTRIES)]
        groups = tuple(dict.fromkeys(picked))
    named = (
        f"{len(coloring.groups)} layers, {len(groups)} of them named" if len(groups) < len(coloring.groups) else None
    )
    patches = [Patch(facecolor=group.color, label=escaped(group.label)) for group in groups]
    if gaps:
        patches.append(Patch(facecolor="none", edgecolor=GAP, hatch="////", linewidth=0.4, label="gap above the peak"))
    if patches:
        columns = min(len(patches), _ENTRIES_ACROSS)
        figure.legend(
            handles=patches, loc="outside lower center", ncols=columns, title=named, frameon=False, handlelength=1.0
        )
