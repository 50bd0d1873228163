"""A memory map for print: steps across, addresses up, a rectangle for each tensor, and the live bytes of each step below.

One column a plan (two where plans are compared, at the same scale of bytes), one row an arena. Drawn by matplotlib, the extra "pictures".
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from onnxtile.errors import UsageError
from onnxtile.printable import escaped
from onnxtile.report.bodies import unrolled
from onnxtile.report.format import Options, Plan
from onnxtile.report.layout import ArenaLayout, arenas_in_use
from onnxtile.report.palette import GAP, color, kinds
from onnxtile.report.panel import Panel, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 10.0
_MAP, _STRIP, _ROOM = 4.2, 0.7, 1.5
"""Inches: of the whole figure across; of a map, the strip below it, and what stands around both."""

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


def render(plan: Plan, options: Options, kind: Literal["png", "svg"]) -> bytes:
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
        _make_printable(figure)
        figure.savefig(file, format=kind, dpi=_DPI, metadata=stamp)
    return file.getvalue()


def _make_printable(figure: Figure) -> None:
    """Escape what names may hold that no picture shows, and that XML forbids."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text("\n".join(map(escaped, text.get_text().split("\n"))))


def _figure(plan: Plan, options: Options) -> Figure:
    from matplotlib.figure import Figure

    given = {"before": options.before, "after": plan} if options.before is not None else {"": plan}
    plans = {said: unrolled(one) for said, one in given.items()}
    columns = list(zip(plans.keys(), plans.values(), arenas_in_use(plans.values()), strict=True))
    rows = max(len(found) for _, _, found in columns) or 1
    many = max(len(shown["buffers"]) for shown in plans.values())
    width, height = _WIDTH * _growth(many), _MAP * _growth(many) * (1.0 if rows == 1 else 0.7)
    figure = Figure(figsize=(width, rows * (height + _STRIP) + _ROOM), layout="constrained")
    figure.suptitle(options.title, fontsize=11, fontweight="bold", parse_math=False)
    grid = figure.subplots(2 * rows, len(columns), squeeze=False, height_ratios=[height, _STRIP] * rows)
    size = (width / len(columns) - 1.0) * 72, (height - 0.4) * 72
    for i in range(rows):
        top = max((_top(found[i]) for _, _, found in columns if i < len(found)), default=1)
        for j, (said, shown, found) in enumerate(columns):
            axes = grid[2 * i, j], grid[2 * i + 1, j]
            if i < len(found):
                draw(*axes, Panel(shown, found[i], said, top, size, options.names))
            else:
                _hide(*axes)
    gaps = any(arena.gap for _, _, found in columns for arena in found)
    _legend(figure, dict.fromkeys(kind for shown in plans.values() for kind in kinds(shown)), gaps)
    return figure


def _growth(many: int) -> float:
    """Return how much larger a picture of so many tensors is: at 6,400, names have four times the room."""
    return min(max(1.0, math.sqrt(math.sqrt(many / 400))), 2.0)


def _top(arena: ArenaLayout) -> int:
    return max(arena.size, arena.peak, 1)


def _hide(*hidden: Axes) -> None:
    for axes in hidden:
        axes.set_axis_off()


def _legend(figure: Figure, found: Iterable[str], gaps: bool) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=color(kind), edgecolor="#555555", linewidth=0.4, label=kind) for kind in found]
    if gaps:
        patches.append(Patch(facecolor="none", edgecolor=GAP, hatch="////", linewidth=0.4, label="gap above the peak"))
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
