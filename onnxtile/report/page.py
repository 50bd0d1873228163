"""The interactive page: one file that needs nothing else, drawn on canvases by the scripts in web/.

A canvas of its own rather than a plotting library: 20,000 rectangles stay smooth, names are drawn where they fit at each zoom, and a
clicked step lists what is live.
"""

from __future__ import annotations

import html
import re
from importlib import resources
from typing import Any

from onnxtile.json_text import compact
from onnxtile.printable import escaped
from onnxtile.report.bodies import unrolled
from onnxtile.report.format import Options, Plan
from onnxtile.report.layout import ArenaLayout, Row, arenas_in_use, first_step, step_names, steps
from onnxtile.report.palette import color, kind_of, kinds

_PART = re.compile(r"@([a-z.]+)@")


def render(plan: Plan, options: Options) -> bytes:
    """Return the page."""
    files = resources.files("onnxtile.report") / "web"
    given = {"title": html.escape(escaped(options.title)), "data": _in_script(content(plan, options))}

    def part(match: re.Match[str]) -> str:
        name = match[1]
        return given[name] if name in given else (files / name).read_text(encoding="utf-8").strip()

    return _PART.sub(part, (files / "page.html").read_text(encoding="utf-8")).encode()


def content(plan: Plan, options: Options) -> dict[str, Any]:
    """Return what the page shows, as plain data."""
    shown = {"before": options.before, "after": plan} if options.before is not None else {"": plan}
    plans = {said: unrolled(one) for said, one in shown.items()}
    return {
        "names": options.names is not False,
        "plans": [
            _plan(said, shown, found)
            for (said, shown), found in zip(plans.items(), arenas_in_use(plans.values()), strict=True)
        ],
    }


def _plan(said: str, plan: Plan, found: tuple[ArenaLayout, ...]) -> dict[str, Any]:
    return {
        "said": said,
        "start": first_step(plan),
        "steps": steps(plan),
        "runs": step_names(plan),
        "kinds": [{"name": kind, "color": color(kind)} for kind in kinds(plan)],
        "arenas": [_arena(arena) for arena in found],
    }


def _arena(arena: ArenaLayout) -> dict[str, Any]:
    facts = {"name": arena.name, "size": arena.size, "capacity": arena.capacity, "peak": arena.peak, "gap": arena.gap}
    # What lies inside another's bytes comes last: it is drawn over that one, and found first.
    rows = sorted(arena.rows, key=lambda row: row.get("alias") is not None)
    return {**facts, "peakStep": arena.peak_step, "live": arena.live, "rows": [_row(row) for row in rows]}


def _row(row: Row) -> dict[str, Any]:
    plain = {key: row[key] for key in ("name", "offset", "size", "first", "last")}
    more = {key: row.get(key) for key in ("node", "dtype", "shape")}
    return {**plain, **more, "kind": row["kind"], "shown": kind_of(row), "owner": row.get("alias")}


def _in_script(content: Any) -> str:
    """Return JSON that does not end the script element it stands in, whatever a model calls its tensors."""
    return compact(content).replace("<", "\\u003c")
