"""The plan as pictures: an interactive page, and a memory map for print."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import (
    ArenaLayout,
    BufferJson,
    PlanSide,
    first_step,
    pieces,
    rectangles,
    sides,
    step_names,
    steps,
)
from onnxtile.report.plan_tables import fixed_rules
from onnxtile.report.svg import (
    ASPECT,
    EDGE,
    GAP,
    LINE,
    PEAK,
    RENDERER,
    Coloring,
    Style,
    as_text,
    colorings,
    element,
    figures,
    filled,
    in_script,
    lines_of,
    mark_text,
    number,
    picture,
    png,
    rectangle,
    text,
    ticks,
    width_of,
    xml_text,
)
from onnxtile.report.words import Headline, headline, readable, unit_of
from onnxtile.report.words import element as element_type
from onnxtile.system.dataclass import dataclass

# The interactive page: one file that needs nothing else, drawn on canvases by the scripts in web/.
#
# A canvas of its own rather than a plotting library: 20,000 rectangles stay smooth, names are drawn where they fit at each zoom, and a
# clicked step lists what is live.


def render(plan: PlanJson, options: RenderOptions) -> bytes:
    """Return the page."""
    heading = headline(plan, options.title, options.before)
    return filled(
        "page.html",
        {
            "title": as_text(heading.title),
            "inputs": as_text(heading.inputs),
            "figures": figures(heading.figures),
            "data": in_script(content(plan, options)),
        },
    )


def content(plan: PlanJson, options: RenderOptions) -> dict[str, Any]:
    """Return the data that the page shows."""
    columns = sides(plan, options)
    ways = colorings([side.plan for side in columns], options.color_by)
    return {
        "names": options.names is not False,
        "ownScales": options.own_scales,
        "colorings": [
            {"name": way.name, "ramp": way.is_ramp, "groups": [vars(group) for group in way.groups]} for way in ways
        ],
        "plans": [_plan(side, ways) for side in columns],
    }


def _plan(side: PlanSide, ways: tuple[Coloring, ...]) -> dict[str, Any]:
    plan, rules = side.plan, fixed_rules(side.plan)
    return {
        "said": side.said,
        "start": first_step(plan),
        "steps": steps(plan),
        "runs": step_names(plan),
        "arenas": [_arena(arena, ways, rules) for arena in side.arenas],
    }


def _arena(arena: ArenaLayout, ways: tuple[Coloring, ...], rules: Mapping[str, str]) -> dict[str, Any]:
    facts = {"name": arena.name, "size": arena.size, "capacity": arena.capacity, "peak": arena.peak, "gap": arena.gap}
    # What comes last is found first, too.
    shapes = [_row(piece, ways) if piece is row else _part(row, piece, ways) for row, piece in rectangles(arena)]
    for shape in shapes:
        if shape["name"] in rules:
            shape["rule"] = rules[shape["name"]]
    return {**facts, "peakStep": arena.peak_step, "live": arena.live, "rows": shapes}


def _part(row: BufferJson, piece: BufferJson, ways: tuple[Coloring, ...]) -> dict[str, Any]:
    """Return the `piece` of `row`, with the bytes of the whole."""
    return {**_row(piece, ways), "whole": [row["offset"], row["size"]]}


def _row(row: BufferJson, ways: tuple[Coloring, ...]) -> dict[str, Any]:
    plain = {key: row[key] for key in ("name", "offset", "size", "first", "last", "kind")}
    more = {key: row.get(key) for key in ("node", "operator", "layer", "shape")}
    groups = [way.index(row) for way in ways]
    return {**plain, **more, "dtype": element_type(row.get("dtype")), "owner": row.get("alias"), "groups": groups}


HTML = Format("html", ".html", render, "an interactive page: the arena over the steps", picture=True)


# A memory map for print, in SVG and PNG: steps across, addresses up, a rectangle for each tensor, and the live bytes of each step below.
#
# One column a plan (two where plans are compared, at the same scale of bytes or each at its own), one row an arena. All lengths are points.
# First the names inside rectangles: which fit, how large, and how shortened.

_LEAST = 6
"""The least characters of a shortened name."""

_PLAIN = re.compile(r"(_output_0)?(_(De)?[Qq]uantizeLinear_Output)?$")
"""The end of all names that PyTorch's exporter writes, and of those that onnxruntime adds where it quantises."""


@dataclass(frozen=True)
class Box:
    """A rectangle with a name, and more text that follows the name where both fit."""

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
    if depth / LINE < smallest:
        return None
    name = shortened(box.name, box.more, int(length / (ASPECT * smallest)))
    size = min(largest, depth / LINE, length / (ASPECT * max(len(name), 1)))
    if not name:
        return None
    return Label(name, box.x + box.width / 2, box.y + box.height / 2, round(size, 2), upright)


def shortened(name: str, more: str, room: int) -> str:
    """Return `name`, and `more` if that fits too, in at most `room` characters; else its end, where names differ; else nothing.

    The end is of whole parts of the path, if one fits.
    """
    short = _PLAIN.sub("", name)
    for candidate in (name + more, short + more, short):
        if len(candidate) <= room:
            return candidate
    if room < _LEAST:
        return ""
    at = short.find("/", max(1, len(short) - room + 1))
    return f"…{short[at if at >= 0 else len(short) - room + 1 :]}"


# One arena in print: its map, and below it the bytes that live at each step.

_LARGEST, _SMALL, _SMALLEST = 7.0, 4.5, 2.5
"""Sizes of the largest letters, of the smallest that are easily read, of the smallest that are drawn where names are asked for."""

_HEADROOM = 1.07
"""Ratio of the height of a map to its largest address; the rest holds the text above the arena line."""

_HAIR = 0.2
"""By how much a rectangle without an outline is drawn wider, so that it does not vanish."""

_LEFT, _RIGHT, _ABOVE = 44.0, 12.0, 15.0
"""Room around a map: for its addresses, at its right end, and for its heading."""

_BETWEEN, _STRIP, _BELOW = 18.0, 50.0, 32.0
"""Between a map and its live bytes; the height of these; below them, for the steps."""

_BRIGHT: Style = {"paint_order": "stroke", "stroke": "#fff", "stroke_opacity": 0.7, "stroke_width": 1.6}
"""A bright edge around letters, for texts on several colours."""

_DASHED: Style = {"stroke": PEAK, "stroke_width": 0.9, "stroke_dasharray": "4 2"}
_TILE: Style = {"id": "gap", "width": 5, "height": 5, "patternUnits": "userSpaceOnUse"}
_HATCH = element("pattern", element("path", d="M0 5L5 0", stroke=GAP, stroke_width=0.5), **_TILE)


@dataclass(frozen=True)
class Panel:
    """An arena of a plan to draw, up to `top` bytes, its tensors in the colours of `coloring`; its map begins at `left` and `upper`.

    `said` tells it from its neighbour. One that `is_single` has no heading: the title says the same.
    """

    plan: PlanJson
    arena: ArenaLayout
    coloring: Coloring
    said: str
    top: int
    left: float
    upper: float
    width: float
    height: float
    names: bool | None
    is_single: bool = False

    @cached_property
    def span(self) -> tuple[int, int]:
        """The steps shown, half-open, the same in all arenas: those before anything lives are left out."""
        return first_step(self.plan), max(steps(self.plan), 1)

    @cached_property
    def unit(self) -> tuple[int, str]:
        """The unit of addresses."""
        return unit_of(self.top)

    @cached_property
    def scale(self) -> tuple[float, float]:
        """The width of a step, and the height of a byte."""
        low, high = self.span
        return self.width / (high - low), self.height / (self.top * _HEADROOM)

    @cached_property
    def peak(self) -> float:
        """Where the middle of the peak step is."""
        return self.x(self.arena.peak_step + 0.5)

    def x(self, step: float) -> float:
        """Return where `step` begins."""
        return self.left + (step - self.span[0]) * self.scale[0]

    def y(self, address: float) -> float:
        """Return the height of `address` in the map."""
        return self.upper + self.height - address * self.scale[1]

    def box(self, row: BufferJson) -> tuple[float, float, float, float]:
        """Return left, upper, width and height of the rectangle of `row`."""
        across, up = self.scale
        end = row["offset"] + row["size"]
        return self.x(row["first"]), self.y(end), (row["last"] + 1 - row["first"]) * across, row["size"] * up


def draw(panel: Panel) -> Iterator[str]:
    """Yield the parts of an arena: its map and its live bytes."""
    if not panel.is_single or panel.arena.gap:
        yield text(panel.left, panel.upper - 5, _heading(panel))
    yield from _tensors(panel)
    yield from _marks(panel)
    if panel.names is not False:
        yield from _names(panel)
    yield from _live(panel)


def _heading(panel: Panel) -> str:
    arena = panel.arena
    gap = f"gap {readable(arena.gap)} ({arena.gap / arena.size:.1%})" if arena.gap else "no gap"
    name = f"arena {arena.name}" if len(panel.plan["arenas"]) > 1 else "arena"
    limit = "" if arena.capacity is None else f" of {readable(arena.capacity)}"
    parts = (f"{name} {readable(arena.size)}{limit}", f"peak {readable(arena.peak)}", gap)
    return ", ".join((f"{panel.said}: {parts[0]}" if panel.said else parts[0], *parts[1:]))


def _tensors(panel: Panel) -> Iterator[str]:
    """Yield each tensor; those inside another's bytes over that one, and the outline of that one over all.

    A buffer with parts is drawn as these.
    """
    arena = panel.arena
    if arena.gap:
        bottom, top = panel.y(arena.peak), panel.y(arena.size)
        yield element("rect", x=panel.left, y=top, width=panel.width, height=bottom - top, fill="url(#gap)")
    # Lines tell neighbours apart, as long as they leave something between them.
    line = 0.5 if len(arena.rows) < 400 else 0.25 if len(arena.rows) < 3000 else 0.0
    outlines = []
    for row, piece in rectangles(arena):
        left, upper, width, height = panel.box(piece)
        face = panel.coloring.color(row)
        is_lined = min(width, height) > 4 * line > 0
        # In its own colour one without a line around it is seen however small it is.
        edge: Style = (
            {"stroke": "#fff", "stroke_width": 0.6 * line} if is_lined else {"stroke": face, "stroke_width": _HAIR}
        )
        titles = [] if panel.names is False else [element("title", xml_text(_tooltip(row)))]
        yield element("rect", *titles, x=left, y=upper, width=width, height=height, fill=face, **edge)
        if is_lined and row.get("alias") is None:
            outlines.append(rectangle(left, upper, width, height))
    if outlines:
        yield element("path", d="".join(outlines), fill="none", stroke=EDGE, stroke_width=line)


def _tooltip(row: BufferJson) -> str:
    """Return what a pointer over a tensor shows."""
    inside = "" if row.get("alias") is None else f", in {row['alias']}"
    return (
        f"{row['name']}: {row['size']:,} bytes at {row['offset']:,}, steps {row['first']:,} to {row['last']:,}{inside}"
    )


def _marks(panel: Panel) -> Iterator[str]:
    """Yield the axis of addresses, the size of the arena, its capacity, and the peak step."""
    arena = panel.arena
    yield from _upright_axis(panel, panel.upper, panel.height, f"address ({panel.unit[1]})", 7)
    yield from _limit(panel, arena.size, "arena", {"stroke": "#000", "stroke_width": 0.8})
    if arena.capacity is not None and arena.capacity <= panel.top:
        yield from _limit(panel, arena.capacity, "capacity", {**_DASHED, "stroke_width": 0.8})
    if arena.peak:
        yield element("line", x1=panel.peak, y1=panel.upper, x2=panel.peak, y2=panel.upper + panel.height, **_DASHED)


def _upright_axis(panel: Panel, upper: float, height: float, name: str, most: int) -> Iterator[str]:
    """Yield an axis of bytes from 0 at the bottom to the top of the panel, with at most about `most` marks."""
    left, bottom, high = panel.left, upper + height, panel.top * _HEADROOM / panel.unit[0]
    marks = [(at, bottom - at / high * height) for at in ticks(0, high, most)]
    lines = f"M{number(left)} {number(upper)}V{number(bottom)}H{number(left + panel.width)}"
    lines += "".join(f"M{number(left - 3)} {number(y)}h3" for _, y in marks)
    yield element("path", d=lines, fill="none", stroke="#000", stroke_width=0.6)
    yield from (text(left - 5, y, mark_text(at), middle=8, text_anchor="end") for at, y in marks)
    yield text(left - 36, upper + height / 2, name, upright=True, middle=8, text_anchor="middle")


def _limit(panel: Panel, size: int, name: str, line: Style) -> Iterator[str]:
    """Yield a line at an address across all steps, with its name and bytes at the right end."""
    y, end = panel.y(size), panel.left + panel.width
    yield element("line", x1=panel.left, y1=y, x2=end, y2=y, **line)
    if size:
        style: Style = {"font_size": 7, "font_weight": "bold", "fill": line["stroke"]}
        yield text(end - 3, y - 2.5, f"{name} {readable(size)}", text_anchor="end", **style, **_BRIGHT)


def _names(panel: Panel) -> Iterator[str]:
    """Yield the names of the tensors that own their bytes, each with how many others lie in it."""
    inside = Counter(row["alias"] for row in panel.arena.rows if row.get("alias") is not None)
    boxes = (
        Box(row["name"], f" +{inside[row['name']]}" if row["name"] in inside else "", *panel.box(_largest(row)))
        for row in panel.arena.rows
        if row.get("alias") is None
    )
    labels = [
        text(label.x, label.y, label.text, upright=label.upright, middle=label.size, font_size=label.size)
        for label in fitting(boxes, _SMALLEST if panel.names else _SMALL, _LARGEST, panel.peak)
    ]
    if labels:
        yield element("g", *labels, text_anchor="middle", **_BRIGHT)


def _largest(row: BufferJson) -> BufferJson:
    """Return the piece of `row` with the most room for a name."""
    return max(pieces(row), key=lambda piece: (piece["last"] + 1 - piece["first"]) * piece["size"])


def _live(panel: Panel) -> Iterator[str]:
    """Yield the live bytes of each step, with the peak, its bytes and its node."""
    arena, (low, high) = panel.arena, panel.span
    upper = panel.upper + panel.height + _BETWEEN
    bottom = upper + _STRIP
    up = _STRIP / (panel.top * _HEADROOM)
    stairs = [(panel.x(step), bottom - live * up) for step, live in arena.live if low <= step < high]
    outline = "".join(f"H{number(x)}V{number(y)}" for x, y in stairs)
    yield element(
        "path",
        d=f"M{number(panel.left)} {number(bottom)}{outline}H{number(panel.x(high))}V{number(bottom)}z",
        fill="#9a9a9a",
    )
    yield from _upright_axis(panel, upper, _STRIP, f"live ({panel.unit[1]})", 2)
    marks = [(step, panel.x(step)) for step in ticks(low, high, max(int(panel.width / 45), 1), least=1)]
    lines = "".join(f"M{number(x)} {number(y)}v3" for _, x in marks for y in (bottom, bottom - _STRIP - _BETWEEN))
    yield element("path", d=lines, stroke="#000", stroke_width=0.6)
    yield from (text(x, bottom + 12, mark_text(step), text_anchor="middle") for step, x in marks)
    yield text(panel.left + panel.width / 2, bottom + 24, "step", text_anchor="middle")
    if arena.peak:
        yield element("line", x1=panel.peak, y1=upper, x2=panel.peak, y2=bottom, **_DASHED)
        node = step_names(panel.plan).get(arena.peak_step)
        description = f"peak {readable(arena.peak)}, step {arena.peak_step:,}" + (f": {node}" if node else "")
        side = ("end", -4) if arena.peak_step > (low + high) / 2 else ("start", 4)
        yield text(panel.peak + side[1], upper - 3, description, text_anchor=side[0], font_size=7, fill=PEAK)


# The whole picture: title, one panel for each arena, legend.

_WIDTH, _MAP = 720.0, 290.0
"""Width of a picture, and height of a map in it."""
_MARGIN = 9.0
_MOST_ENTRIES = 13
"""Entries of a legend."""


def _svg(plan: PlanJson, options: RenderOptions) -> bytes:
    columns = sides(plan, options)
    plans = [side.plan for side in columns]
    coloring = colorings(plans, options.color_by)[0]
    rows = max(len(side.arenas) for side in columns) or 1
    growth = _growth(plans)
    width, height = _WIDTH * growth, _MAP * growth * (1.0 if rows == 1 else 0.7)
    title, upper = _title(headline(plan, options.title, options.before), width)
    parts = [element("defs", _HATCH), *title]
    across = width / len(columns)
    for at in range(rows):
        tops = [_top(side.arenas[at]) if at < len(side.arenas) else 1 for side in columns]
        for column, side in enumerate(columns):
            left, wide = column * across + _LEFT, across - _LEFT - _RIGHT
            frame = (left, upper + _ABOVE, wide, height)
            if at < len(side.arenas):
                top = tops[column] if options.own_scales else max(tops)
                is_single = rows == len(columns) == 1
                parts += draw(
                    Panel(side.plan, side.arenas[at], coloring, side.said, top, *frame, options.names, is_single)
                )
        upper += _ABOVE + height + _BETWEEN + _STRIP + _BELOW
    gaps = any(arena.gap for side in columns for arena in side.arenas)
    legend, end = _legend(coloring, gaps, width, upper)
    return picture(width, end, [*parts, *legend])


def _png(plan: PlanJson, options: RenderOptions) -> bytes:
    return png(_svg(plan, options))


def _title(heading: Headline, width: float) -> tuple[list[str], float]:
    """Return the model's name, and below it the inputs and the figures of the plan; and where they end."""
    parts = [
        text(_MARGIN, 23, heading.title, font_size=14, font_weight="bold"),
        text(_MARGIN, 40, heading.inputs, font_size=8.5),
    ]
    figures = [figure if label == "proof" else f"{label} {figure}" for label, figure in heading.figures]
    y = 42.0
    for line in lines_of(figures, width - 2 * _MARGIN, 8.5, width_of(" · ", 8.5)):
        y += 14
        parts.append(text(_MARGIN, y, " · ".join(figures[at] for _, at in line), font_size=8.5, font_weight="bold"))
    return parts, y + 6


def _growth(plans: Sequence[PlanJson]) -> float:
    """Return how much larger a picture of so many tensors is: at 6,400, names have four times the room."""
    many = max(len(plan["buffers"]) for plan in plans)
    return min(max(1.0, math.sqrt(math.sqrt(many / 400))), 2.0)


def _top(arena: ArenaLayout) -> int:
    """Return up to which address an arena is shown: also up to its capacity, where that is not much larger."""
    most = max(arena.size, arena.peak, 1)
    return max(most, arena.capacity) if arena.capacity is not None and arena.capacity <= 1.6 * most else most


def _legend(coloring: Coloring, gaps: bool, width: float, upper: float) -> tuple[list[str], float]:
    """Return the legend below a picture, and where it ends."""
    groups = coloring.groups
    if coloring.is_ramp and len(groups) > _MOST_ENTRIES:
        # Of many layers every n-th, with the first and the last: their colours run from one to the other.
        picked = [groups[round(i * (len(groups) - 1) / (_MOST_ENTRIES - 1))] for i in range(_MOST_ENTRIES)]
        groups = tuple(dict.fromkeys(picked))
    entries = [(group.color, group.label) for group in groups] + [("url(#gap)", "gap above the peak")] * gaps
    parts, y = [], upper
    if len(groups) < len(coloring.groups):
        y += 12
        title = f"{len(coloring.groups)} layers, {len(groups)} of them named"
        parts.append(text(width / 2, y, title, text_anchor="middle"))
    labels = [label for _, label in entries]
    for line in lines_of(labels, width - 2 * _LEFT, 8, 28):
        y += 13
        last, index = line[-1]
        start = (width - last - width_of(labels[index], 8) - 12) / 2
        for x, at in line:
            face, label = entries[at]
            parts.append(
                element("rect", x=start + x, y=y - 6.5, width=9, height=7, fill=face, stroke=GAP, stroke_width=0.3)
            )
            parts.append(text(start + x + 12, y, label))
    return parts, y + 10


SVG = Format("svg", ".svg", _svg, "a vector image of the arena over the steps", picture=True)
PNG = Format("png", ".png", _png, "an image of the arena over the steps", picture=True, needs=RENDERER)
