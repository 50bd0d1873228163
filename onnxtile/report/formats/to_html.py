"""The interactive page: one file that needs nothing else, drawn on canvases by the scripts in web/.

A canvas of its own rather than a plotting library: 20,000 rectangles stay smooth, names are drawn where they fit at each zoom, and a
clicked step lists what is live.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxtile.report.colors import Coloring, colorings
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import ArenaLayout, BufferJson, PlanSide, first_step, rectangles, sides, step_names, steps
from onnxtile.report.plan_tables import fixed_rules
from onnxtile.report.web_page import as_text, figures, filled, in_script
from onnxtile.report.words import element, headline


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
    return {**plain, **more, "dtype": element(row.get("dtype")), "owner": row.get("alias"), "groups": groups}


FORMAT = Format("html", ".html", render, "an interactive page: the arena over the steps", picture=True)
