"""The rows of a plan by arena, and the live bytes of each arena over the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

from onnxtile.planning.offsets.outline import LivePart, rounded
from onnxtile.report.format import PlanJson

BufferJson: TypeAlias = Mapping[str, Any]
"""A buffer of the plan."""


@dataclass(frozen=True)
class ArenaLayout:
    """One arena: its rows in the plan's order, and its live bytes, each buffer and part rounded outwards to the alignment.

    `live` are pairs of a step and the sum of live bytes from there on, wherever it changes; the first is of step 0, the last of the end.
    """

    name: str
    size: int
    capacity: int | None
    rows: tuple[BufferJson, ...] = field(repr=False)
    live: tuple[tuple[int, int], ...] = field(repr=False)

    @property
    def peak(self) -> int:
        """The largest sum of live bytes at any step."""
        return max(live for _, live in self.live)

    @property
    def peak_step(self) -> int:
        """The first step at which the peak is reached."""
        return next(step for step, live in self.live if live == self.peak)

    @property
    def gap(self) -> int:
        """The bytes that the arena takes above its peak: fragmentation."""
        return max(self.size - self.peak, 0)


def pieces(row: BufferJson) -> list[BufferJson]:
    """Return `row` as rectangles of bytes and steps: one for each of its parts, or itself."""
    if not row.get("parts"):
        return [row]
    whole = {key: value for key, value in row.items() if key != "parts"}
    return [
        {**whole, "offset": row["offset"] + part["start"], **{key: part[key] for key in ("size", "first", "last")}}
        for part in row["parts"]
    ]


def retimed(row: BufferJson, start_of: Callable[[int], int]) -> BufferJson:
    """Return `row` with its steps on another line of time, where a step begins at `start_of` the step. Parts without steps are left out."""
    moved = {**row, "first": start_of(row["first"]), "last": start_of(row["last"] + 1) - 1}
    if row.get("parts"):
        parts = [retimed(part, start_of) for part in row["parts"]]
        moved["parts"] = [part for part in parts if part["first"] <= part["last"]]
    return moved


def owners(plan: PlanJson) -> list[BufferJson]:
    """Return the buffers that own their bytes: all that are no alias."""
    return [row for row in plan["buffers"] if row.get("alias") is None]


def runs(plan: PlanJson) -> list[tuple[int, str]]:
    """Return the step of each node and its name, in the order of the schedule; of a bare problem there are none."""
    schedule = plan.get("schedule") or ()
    return list(zip(plan.get("steps") or range(len(schedule)), schedule, strict=True))


def steps(plan: PlanJson) -> int:
    """Return how many steps the plan has; a plan of a bare problem has as many as its lives need."""
    lives = max((row["last"] + 1 for row in plan["buffers"]), default=0)
    return max(lives, max((step + 1 for step, _ in runs(plan)), default=0))


def first_step(plan: PlanJson) -> int:
    """Return the first step of any live range: a schedule may begin with constants."""
    return min((row["first"] for row in plan["buffers"]), default=0)


def step_names(plan: PlanJson) -> dict[int, str]:
    """Return the nodes of each step by name, several with commas between; a bare problem has none."""
    names: dict[int, list[str]] = {}
    for step, node in runs(plan):
        names.setdefault(step, []).append(node)
    return {step: ", ".join(nodes) for step, nodes in names.items()}


def arenas(plan: PlanJson) -> tuple[ArenaLayout, ...]:
    """Return the layout of each arena, in the plan's order."""
    end, unit = steps(plan), plan.get("alignment") or 1
    held: dict[str, list[BufferJson]] = {arena["name"]: [] for arena in plan["arenas"]}
    for row in plan["buffers"]:
        held.setdefault(row["arena"], []).append(row)
    facts = {arena["name"]: arena for arena in plan["arenas"]}
    return tuple(
        ArenaLayout(
            name=name,
            size=facts.get(name, {}).get("size") or max((row["offset"] + row["size"] for row in rows), default=0),
            capacity=facts.get(name, {}).get("capacity"),
            rows=tuple(rows),
            live=_live(rows, end, unit),
        )
        for name, rows in held.items()
    )


def arenas_in_use(plans: Iterable[PlanJson]) -> list[tuple[ArenaLayout, ...]]:
    """Return the arenas of each plan without those in which, in all of the plans, nothing lies; the first stays in any case."""
    layouts = [arenas(plan) for plan in plans]
    most = max(map(len, layouts), default=0)
    used = {i for i in range(most) if any(i < len(found) and found[i].rows for found in layouts)} or {0}
    return [tuple(arena for i, arena in enumerate(found) if i in used) for found in layouts]


def _blocks(row: BufferJson, unit: int) -> Iterable[LivePart]:
    """Return the live bytes of `row`, rounded outwards to multiples of `unit`, with half-open steps."""
    if not row.get("parts"):
        return [LivePart(0, -(-row["size"] // unit) * unit, row["first"], row["last"] + 1)]
    found = row["parts"]
    return rounded((LivePart(p["start"], p["start"] + p["size"], p["first"], p["last"] + 1) for p in found), unit)


def _live(rows: list[BufferJson], end: int, unit: int) -> tuple[tuple[int, int], ...]:
    changes = {0: 0, end: 0}
    for row in rows:
        for start, stop, first, last in _blocks(row, unit) if row.get("alias") is None else ():
            changes[first] = changes.get(first, 0) + stop - start
            changes[last] = changes.get(last, 0) - (stop - start)
    order = sorted(changes)
    sums = accumulate(changes[step] for step in order)
    return tuple(zip(order, sums, strict=True))
