"""One arena in print: its map, and below it the bytes that live at each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxtile.report.coloring import Coloring
from onnxtile.report.format import PlanJson
from onnxtile.report.labels import Box, fitting
from onnxtile.report.layout import ArenaLayout, BufferJson, first_step, pieces, step_names, steps
from onnxtile.report.palette import EDGE, GAP, PEAK
from onnxtile.report.units import readable, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
