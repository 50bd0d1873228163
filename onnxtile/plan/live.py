"""Live ranges: from which step to which a value's bytes must be kept."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.plan.schedule import Schedule

Life = tuple[int, int]
"""Half-open, in steps."""


def live_ranges(graph: ir.Graph, schedule: Schedule) -> dict[ir.Value, Life]:
    """Return the life of each value that a node of `graph` makes, in the order in which they are made.

    It begins with the step that makes the value and ends after the last step that reads it, or after its own where none does. A node
    reads what its bodies capture. Graph outputs live to the end.
    """
    lives: dict[ir.Value, Life] = {}
    for node, step in schedule.steps.items():
        for value in dependencies(node):
            if value in lives:
                lives[value] = (lives[value][0], step + 1)
        lives.update((value, (step, step + 1)) for value in node.outputs if value.name)
    for output in graph.outputs:
        if output in lives:
            lives[output] = (lives[output][0], schedule.end)
    return lives


def merged(first: Life, second: Life) -> Life:
    """Return the life of bytes that two values share."""
    return min(first[0], second[0]), max(first[1], second[1])
