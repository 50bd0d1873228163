"""A memory map for print: steps across, addresses up, a rectangle for each tensor, and the live bytes of each step below.

One column a plan (two where plans are compared, at the same scale of bytes), one row an arena. Drawn by matplotlib, the extra "pictures".
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from onnxtile.report.colors import EDGE, GAP, PEAK, Coloring, colorings
from onnxtile.report.format import PlanJson, RenderOptions
from onnxtile.report.layout import ArenaLayout, BufferJson, arenas_in_use, first_step, pieces, shown, step_names, steps
from onnxtile.report.words import Headline, headline, readable, unit_of
from onnxtile.system.errors import UsageError, escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Names inside rectangles: which fit, how large, and how shortened.

_ASPECT = 0.62
"""Width of a character of a sans-serif face, in its size."""

_LINE = 1.25
"""Height of a line, in its size."""

_LEAST = 6
"""Characters without which a shortened name says nothing."""

_PLAIN = re.compile(r"_output_0$")
"""The end of all names that PyTorch's exporter writes."""


@dataclass(frozen=True)
class Box:
    """A rectangle in points with a name, and more text that follows the name where both fit."""

    name: str
    more: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Label:
    """A text centred at x, y; `size` in points."""

    text: str
    x: float
    y: float
    size: float
    upright: bool


def fitting(boxes: Iterable[Box], smallest: float, largest: float, line: float | None = None) -> Iterator[Label]:
    """Yield a label for each box in which one fits with characters between `smallest` and `largest` points, along its longer side.

    A label keeps clear of a vertical `line`, where it fits beside it.
    """
    for box in boxes:
        label = _label(beside(box, line), smallest, largest) or _label(box, smallest, largest)
        if label is not None:
            yield label


def beside(box: Box, line: float | None) -> Box:
    """Return the wider part of `box` beside a vertical `line`; all of it where that does not cross."""
    if line is None or not box.x < line < box.x + box.width:
        return box
    left, right = line - box.x, box.x + box.width - line
    return replace(box, width=left) if left > right else replace(box, x=line, width=right)


def _label(box: Box, smallest: float, largest: float) -> Label | None:
    upright = box.height > box.width
    length, depth = (box.height, box.width) if upright else (box.width, box.height)
    if depth / _LINE < smallest:
        return None
    text = shortened(box.name, box.more, int(length / (_ASPECT * smallest)))
    size = min(largest, depth / _LINE, length / (_ASPECT * max(len(text), 1)))
    if not text:
        return None
    return Label(text, box.x + box.width / 2, box.y + box.height / 2, round(size, 2), upright)


def shortened(name: str, more: str, room: int) -> str:
    """Return `name`, and `more` if that fits too, in at most `room` characters; else its end, where names differ; else nothing.

    The end is of whole parts of the path, if one fits.
    """
    short = _PLAIN.sub("", name)
    for text in (name + more, short + more, short):
        if len(text) <= room:
            return text
    if room < _LEAST:
        return ""
    at = short.find("/", max(1, len(short) - room + 1))
    return f"…{short[at if at >= 0 else len(short) - room + 1 :]}"


# One arena in print: its map, and below it the bytes that live at each step.

_LARGEST, _SMALL, _SMALLEST = 7.0, 4.5, 2.5
"""Points: of the largest letters, of the smallest that are easily read, of the smallest that are drawn where names are asked for."""


_HEADROOM = 1.07
"""Ratio of the height of a map to its largest address; the rest holds the text above the arena line."""

_HAIR = 0.2
"""Points by which a rectangle without an outline is drawn wider, so that it does not vanish."""


@dataclass(frozen=True)
class Panel:
    """An arena of a plan to draw, up to `top` bytes, in `size` points (width, height), its tensors in the colours of `coloring`.

    `said` tells it from its neighbour. One that `is_single` has no heading: the figure's says the same.
    """

    plan: PlanJson
    arena: ArenaLayout
    coloring: Coloring
    said: str
    top: int
    size: tuple[float, float]
    names: bool | None
    is_single: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """The steps shown, half-open, the same in all arenas: those before anything lives are left out."""
        return first_step(self.plan), max(steps(self.plan), 1)

    @property
    def unit(self) -> tuple[int, str]:
        """The unit of addresses."""
        return unit_of(self.top)


def draw(space: Axes, strip: Axes, panel: Panel) -> None:
    """Draw `panel` with its map in `space` and its live bytes in `strip`."""
    _tensors(space, panel)
    _marks(space, panel)
    if panel.names is not False:
        _names(space, panel)
    _live(strip, panel)
    low, high = panel.span
    space.set_xlim(low, high)
    strip.set_xlim(low, high)
    space.set_ylim(0, panel.top / panel.unit[0] * _HEADROOM)
    space.set_ylabel(f"address ({panel.unit[1]})")
    if not panel.is_single or panel.arena.gap:
        space.set_title(_heading(panel), fontsize=8, loc="left", parse_math=False)
    space.tick_params(labelbottom=False)
    strip.set_xlabel("step")
    strip.locator_params(axis="x", integer=True)
    space.set_xticks(strip.get_xticks())
    space.set_xlim(low, high)


def _heading(panel: Panel) -> str:
    arena = panel.arena
    gap = f"gap {readable(arena.gap)} ({arena.gap / arena.size:.1%})" if arena.gap else "no gap"
    name = f"arena {arena.name}" if len(panel.plan["arenas"]) > 1 else "arena"
    limit = "" if arena.capacity is None else f" of {readable(arena.capacity)}"
    parts = (f"{name} {readable(arena.size)}{limit}", f"peak {readable(arena.peak)}", gap)
    return ", ".join((f"{panel.said}: {parts[0]}" if panel.said else parts[0], *parts[1:]))


def _tensors(space: Axes, panel: Panel) -> None:
    """Draw each tensor; those inside another's bytes over that one, and the outline of that one over all.

    A buffer with parts is drawn as these.
    """
    from matplotlib.collections import PolyCollection

    rows = panel.arena.rows
    owning = [piece for row in rows if row.get("alias") is None for piece in pieces(row)]
    # Lines tell neighbours apart, as long as they leave something between them.
    width = 0.5 if len(rows) < 400 else 0.25 if len(rows) < 3000 else 0.0
    across, up = _scale(panel)

    def line(row: BufferJson) -> float:
        """Return the width of the outline in points: 0 for a rectangle that is hardly wider than a line."""
        return width if min(_length(row) * across, row["size"] * up) > 4 * width else 0.0

    for drawn in (owning, [row for row in rows if row.get("alias") is not None]):
        faces = [panel.coloring.color(row) for row in drawn]
        # In their own colour those without a line around them are seen however small they are.
        edges = ["white" if line(row) else face for row, face in zip(drawn, faces, strict=True)]
        widths = [0.6 * line(row) or _HAIR for row in drawn] or 0.0
        polygons = [_corners(row, panel.unit[0]) for row in drawn]
        space.add_collection(PolyCollection(polygons, facecolors=faces, edgecolors=edges, linewidths=widths))
    outlined = [row for row in owning if line(row)]
    outlines = [_corners(row, panel.unit[0]) for row in outlined]
    space.add_collection(PolyCollection(outlines, facecolors="none", edgecolors=EDGE, linewidths=width))


def _scale(panel: Panel) -> tuple[float, float]:
    """Return how many points a step and a byte take."""
    (low, high), (width, height) = panel.span, panel.size
    return width / (high - low), height / panel.top


def _length(row: BufferJson) -> int:
    """Return how many steps a tensor lives."""
    return int(row["last"]) + 1 - int(row["first"])


def _corners(row: BufferJson, unit: int) -> list[tuple[float, float]]:
    left, right = row["first"], row["last"] + 1
    low, high = row["offset"] / unit, (row["offset"] + row["size"]) / unit
    return [(left, low), (left, high), (right, high), (right, low)]


def _marks(space: Axes, panel: Panel) -> None:
    """Mark the peak step and the gap between the peak and the size of the arena."""
    arena, (low, high), unit = panel.arena, panel.span, panel.unit[0]
    _limit(space, panel, arena.size, "arena", {"color": "black", "linewidth": 0.8})
    if arena.gap:
        gap: dict[str, Any] = {"facecolor": "none", "edgecolor": GAP, "hatch": "////", "linewidth": 0.0, "zorder": 0.5}
        space.fill_between([low, high], arena.peak / unit, arena.size / unit, **gap)
    if arena.capacity is not None and arena.capacity <= panel.top:
        _limit(space, panel, arena.capacity, "capacity", {"color": PEAK, "linewidth": 0.8, "linestyle": "--"})
    if arena.peak:
        space.axvline(arena.peak_step + 0.5, color=PEAK, linewidth=0.9, linestyle=(0, (4, 2)))


def _limit(space: Axes, panel: Panel, size: int, name: str, line: dict[str, Any]) -> None:
    """Draw a line at an address across all steps, with its name and bytes at the right end."""
    at = size / panel.unit[0]
    space.axhline(at, **line)
    if size:
        place: dict[str, Any] = {"xytext": (-3, 2.5), "textcoords": "offset points", "ha": "right", "va": "bottom"}
        style: dict[str, Any] = {"color": line["color"], "fontsize": 7, "fontweight": "bold", "path_effects": _bright()}
        space.annotate(f"{name} {readable(size)}", (panel.span[1], at), annotation_clip=False, **place, **style)


def _bright() -> list[Any]:
    """Return a bright edge around letters, for texts on several colours."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=1.6, foreground="#ffffffb0")]


def _names(space: Axes, panel: Panel) -> None:
    """Name the tensors that own their bytes, each with how many others lie in it."""
    low, (across, up) = panel.span[0], _scale(panel)
    peak = (panel.arena.peak_step + 0.5 - low) * across
    inside: dict[str, int] = {}
    for row in panel.arena.rows:
        if row.get("alias") is not None:
            inside[row["alias"]] = inside.get(row["alias"], 0) + 1
    boxes = (
        Box(
            row["name"],
            f" +{inside[row['name']]}" if row["name"] in inside else "",
            *((piece["first"] - low) * across, piece["offset"] * up),
            *(_length(piece) * across, piece["size"] * up),
        )
        for row in panel.arena.rows
        if row.get("alias") is None
        for piece in [max(pieces(row), key=lambda one: _length(one) * one["size"])]
    )
    bright = _bright()
    for label in fitting(boxes, _SMALLEST if panel.names else _SMALL, _LARGEST, peak):
        space.text(
            label.x / across + low,
            label.y / up / panel.unit[0],
            label.text,
            fontsize=label.size,
            rotation="vertical" if label.upright else "horizontal",
            ha="center",
            va="center",
            clip_on=True,
            parse_math=False,
            path_effects=bright,
        )


def _live(strip: Axes, panel: Panel) -> None:
    """Draw the live bytes of each step, with the peak."""
    arena, (low, high), unit = panel.arena, panel.span, panel.unit[0]
    inside = [(step, live / unit) for step, live in arena.live if low <= step < high] or [(low, 0.0)]
    starts, sizes = zip(*inside, strict=True)
    strip.stairs(sizes, (*starts, high), fill=True, color="#9a9a9a")
    if arena.peak:
        _peak(strip, panel)
    strip.set_ylim(0, panel.top / unit * _HEADROOM)
    strip.set_ylabel(f"live\n({panel.unit[1]})")
    strip.locator_params(axis="y", nbins=2)


def _peak(strip: Axes, panel: Panel) -> None:
    """Mark the peak step with its bytes and its node."""
    arena, (low, high) = panel.arena, panel.span
    strip.axvline(arena.peak_step + 0.5, color=PEAK, linewidth=0.9, linestyle=(0, (4, 2)))
    node = step_names(panel.plan).get(arena.peak_step)
    text = f"peak {readable(arena.peak)}, step {arena.peak_step:,}" + (f": {node}" if node else "")
    right = arena.peak_step > (low + high) / 2
    strip.annotate(
        text,
        (arena.peak_step + 0.5, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if right else 4, 2),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom",
        fontsize=7,
        color=PEAK,
        parse_math=False,
        annotation_clip=False,
    )


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
