"""Bodies of If, Loop, Scan and functions, for formats that cannot hold a plan within a plan.

A tensor of a body is named by its path: the node, the attribute that holds the body (none for a function), and its own name. It lies in
the workspace of its node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, repeat
from operator import add
from typing import Any, TypeAlias

from onnxtile.report.format import PlanJson
from onnxtile.report.layout import BufferJson, retimed, runs, steps

PlanOrBodyJson: TypeAlias = Mapping[str, Any]
"""A whole plan, or the plan of a body: both have buffers, a schedule, steps, and bodies."""


def rows_with_bodies(plan: PlanJson) -> list[BufferJson]:
    """Return the rows of `plan` and of its bodies, which are alive in the step of the main graph's node that they belong to."""
    start = {node: step for step, node in runs(plan)}
    found = list(plan["buffers"])
    for body in plan.get("bodies") or ():
        step = start[body["node"]]
        lodged = _lodged(body, unrolled(body)["buffers"], plan)
        found += [{**row, "first": step, "last": step, "parts": []} for row in lodged]
    return found


def unrolled(plan: PlanOrBodyJson) -> PlanJson:
    """Return `plan` on one line of time: a step whose node has bodies is as long as these, one behind the other, each run once.

    A plan without bodies stays as it is.
    """
    if not plan.get("bodies"):
        return plan
    inside: dict[str, list[tuple[PlanOrBodyJson, PlanJson]]] = {}
    for body in plan["bodies"]:
        inside.setdefault(body["node"], []).append((body, unrolled(body)))
    widths: dict[int, int] = {}
    for step, node in runs(plan):
        if node in inside:
            widths[step] = max(widths.get(step, 1), sum(steps(inner) for _, inner in inside[node]))
    wide = sorted(widths)
    added = list(accumulate((widths[step] - 1 for step in wide), initial=0))

    def start_of(step: int) -> int:
        return step + added[bisect_left(wide, step)]

    rows = [retimed(row, start_of) for row in plan["buffers"]]
    nodes = [(start_of(step), node, operator) for step, node, operator in _nodes(plan)]
    constant = list(plan.get("constant_nodes") or ())
    for step, node in runs(plan):
        start = start_of(step)
        for body, inner in inside.get(node, ()):
            lodged = _lodged(body, inner["buffers"], plan)
            rows += [retimed(row, partial(add, start)) for row in lodged]
            nodes += [(start + at, _called(body, name), operator) for at, name, operator in _nodes(inner)]
            constant += [_called(body, name) for name in inner.get("constant_nodes") or ()]
            start += steps(inner)
    nodes.sort(key=lambda entry: entry[0])
    fields: dict[str, Any] = dict(
        zip(("steps", "schedule", "operators"), map(list, zip(*nodes, strict=True)), strict=True)
    )
    timed = {**fields, "constant_nodes": constant}
    return {**plan, "buffers": rows, **timed, "bodies": []}


def _nodes(plan: PlanOrBodyJson) -> Iterator[tuple[int, str, str | None]]:
    """Yield the step, the name and the operator of each node of `plan`, as far as that is known."""
    operators = plan.get("operators") or repeat(None)
    for (step, node), operator in zip(runs(plan), operators, strict=False):
        yield step, node, operator


def flat(plan: PlanJson) -> PlanJson:
    """Return `plan` unrolled, with the buffers of bodies in place of their workspaces, as one graph."""
    rows = unrolled(plan)["buffers"]
    workspaces = {row["name"] for row in rows if row["kind"] == "workspace"} & {row.get("alias") for row in rows}
    return (
        {**unrolled(plan), "buffers": list(_without(workspaces, rows, plan.get("alignment") or 1))}
        if workspaces
        else plan
    )


def _without(workspaces: set[str], rows: list[BufferJson], unit: int) -> Iterator[BufferJson]:
    ends: dict[str, int] = {}
    for row in rows:
        if row.get("alias") in workspaces:
            end = -(-(row["offset"] + row["size"]) // unit) * unit
            ends[row["alias"]] = max(ends.get(row["alias"], 0), end)
    for row in rows:
        own = {**row, "alias": None} if row.get("alias") in workspaces else row
        rest = row["offset"] + row["size"] - ends.get(row["name"], 0)
        if row["name"] not in workspaces:
            yield own
        elif rest > 0:  # what the kernel needs besides lies behind its bodies
            yield {**own, "offset": ends[row["name"]], "size": rest}


def _lodged(body: PlanOrBodyJson, rows: list[BufferJson], around: PlanOrBodyJson) -> Iterator[BufferJson]:
    """Yield the rows of `body` with the path to it in their names; owners become aliases of the workspace of the node in `around`."""
    workspaces = (
        row["name"] for row in around["buffers"] if row["kind"] == "workspace" and row.get("node") == body["node"]
    )
    workspace = next(workspaces, None)
    for row in rows:
        owner, maker = row.get("alias"), row.get("node")
        yield {
            **row,
            "name": _called(body, row["name"]),
            "alias": workspace if owner is None else _called(body, owner),
            "node": None if maker is None else _called(body, maker),
        }


def _called(body: PlanOrBodyJson, name: str) -> str:
    return "/".join(part for part in (body["node"], body["attribute"], name) if part is not None)
