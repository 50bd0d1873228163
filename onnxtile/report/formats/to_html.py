"""The interactive page: one file that needs nothing else, drawn on canvases by the scripts in web/.

A canvas of its own rather than a plotting library: 20,000 rectangles stay smooth, names are drawn where they fit at each zoom, and a
clicked step lists what is live.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from onnxtile.report.colors import Coloring, colorings
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import ArenaLayout, BufferJson, PlanSide, first_step, rectangles, sides, step_names, steps
from onnxtile.report.plan_tables import fixed_rules
from onnxtile.report.words import element, headline
from onnxtile.system.errors import escaped
from onnxtile.system.text import compact

_PART = re.compile(r"@([a-z.]+)@")


def render(plan: PlanJson, options: RenderOptions) -> bytes:
    """Return the page."""
    files = resources.files("onnxtile.report") / "web"
    heading = headline(plan, options.title, "" if options.before is None else "after")
    given = {
        "title": _text(heading.title),
        "inputs": _text(heading.inputs),
        "figures": "\n".join(
            f"<div><dt>{_text(label)}</dt><dd>{_text(text)}</dd></div>" for label, text in heading.figures
        ),
        "data": _in_script(content(plan, options)),
    }

    def part(match: re.Match[str]) -> str:
        name = match[1]
        return given[name] if name in given else (files / name).read_text(encoding="utf-8").strip()

    return _PART.sub(part, (files / "page.html").read_text(encoding="utf-8")).encode()


def _text(text: str) -> str:
    return html.escape(escaped(text))


def content(plan: PlanJson, options: RenderOptions) -> dict[str, Any]:
    """Return the data that the page shows."""
    columns = sides(plan, options)
    ways = colorings([side.plan for side in columns], options.color_by)
    return {
        "names": options.names is not False,
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
    more = {key: row.get(key) for key in ("node", "operator", "shape")}
    groups = [way.index(row) for way in ways]
    return {**plain, **more, "dtype": element(row.get("dtype")), "owner": row.get("alias"), "groups": groups}


def _in_script(content: Any) -> str:
    """Return JSON that cannot end the script element around it, whatever the names of tensors."""
    return compact(content).replace("<", "\\u003c")


FORMAT = Format("html", ".html", render, "an interactive page: the arena over the steps", picture=True)
