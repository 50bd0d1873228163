"""Live ranges: the steps in which the bytes of a value must be kept."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.scope import PlanScope

LiveRange = tuple[int, int]
"""Half-open, in steps."""


def find_live_ranges(scope: PlanScope, schedule: Schedule) -> dict[ir.Value, LiveRange]:
    """Return the live range of each input in `scope` and of each value that a node makes, in the order in which they are made.

    It starts with the step that makes the value, and ends after the last step that reads it, or after its own if none does. A node also
    reads the values that its bodies capture. Inputs are live from the first step on, kept values to the last. Values that share bytes
    with nothing are live in all steps.
    """
    live_ranges: dict[ir.Value, LiveRange] = {value: (0, 1) for value in scope.given}
    for node, step in schedule.steps.items():
        for value in dependencies(node):
            if value in live_ranges:
                live_ranges[value] = (live_ranges[value][0], step + 1)
        live_ranges.update((value, (step, step + 1)) for value in node.outputs if value.name)
    for value in scope.kept & live_ranges.keys():
        first = 0 if value in scope.apart else live_ranges[value][0]
        live_ranges[value] = (first, max(schedule.end, 1))
    return live_ranges


def merged(first: LiveRange, second: LiveRange) -> LiveRange:
    """Return the live range of bytes that two values share."""
    return min(first[0], second[0]), max(first[1], second[1])


def with_states(
    live_ranges: Mapping[ir.Value, LiveRange], scope: PlanScope, schedule: Schedule
) -> dict[ir.Value, LiveRange]:
    """Return `live_ranges` in which the inputs of the states of `scope` keep their bytes in all steps: the next run reads these, too."""
    whole = (0, max(schedule.end, 1))
    return {**live_ranges, **{pair.input: whole for pair in scope.states if pair.input in live_ranges}}
