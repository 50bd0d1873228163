"""A plan as pictures show it: on one line of time, without steps that only make constants, each row with its operator and layer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from onnxtile.report.bodies import unrolled
from onnxtile.report.format import PlanJson
from onnxtile.report.layer_names import layer_names
from onnxtile.report.layout import BufferJson, retimed, runs

_STEP_FIELDS = ("steps", "schedule", "operators")


def shown(plan: PlanJson) -> PlanJson:
    """Return `plan` with bodies unrolled, without steps that only make constants, and with `operator` and `layer` in each row.

    Either is None for a row that no node makes. Steps are counted anew: they are those of the picture.
    """
    whole = _without_constant_steps(unrolled(plan))
    nodes = [node for _, node in runs(whole)]
    operators = dict(zip(nodes, whole.get("operators") or (), strict=False))
    layers = layer_names(nodes)
    return {**whole, "buffers": [_described(row, operators, layers) for row in whole["buffers"]]}


def _described(row: BufferJson, operators: dict[str, str], layers: dict[str, str]) -> BufferJson:
    node = row.get("node")
    return {**row, "operator": operators.get(node or ""), "layer": layers.get(node or "")}


def _without_constant_steps(plan: PlanJson) -> PlanJson:
    """Return `plan` without the steps in which every node makes constants only, unless all of a buffer's life is in them."""
    constant = frozenset(plan.get("constant_nodes") or ())
    if not constant:
        return plan
    busy = {step for step, node in runs(plan) if node not in constant}
    free = sorted({step for step, _ in runs(plan)} - busy)
    lives = {(row["first"], row["last"] + 1) for row in plan["buffers"]}
    needed = {first for first, end in lives if _counted(first, free) == _counted(end, free)}
    free = [step for step in free if step not in needed]
    rows = [retimed(row, lambda step: _counted(step, free)) for row in plan["buffers"]]
    return {**plan, "buffers": rows, **_kept_nodes(plan, free)}


def _counted(step: int, free: list[int]) -> int:
    """Return how many steps before `step` are not in the sorted list `free`."""
    return step - bisect_left(free, step)


def _kept_nodes(plan: PlanJson, free: Iterable[int]) -> dict[str, Any]:
    """Return the schedule of `plan`, with steps and operators, without its steps in `free`."""
    left_out = sorted(free)
    without = frozenset(left_out)
    entries = [(_counted(step, left_out), step, at) for at, (step, _) in enumerate(runs(plan)) if step not in without]
    columns: dict[str, Any] = {key: plan.get(key) or () for key in ("schedule", "operators")}
    return {
        "steps": [number for number, _, _ in entries],
        **{key: [column[at] for _, _, at in entries] for key, column in columns.items() if column},
    }
