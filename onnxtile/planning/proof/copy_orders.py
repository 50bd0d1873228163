"""The orders in which the copies of a plan are made as early, and as late, as the plan allows.

A runtime whose copies run beside its kernels makes each somewhere between the two. Copies stay in their own order: one engine makes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxtile.planning.movement.copies import PlannedMovement


def copy_orders(movement: PlannedMovement, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the `nodes` of a schedule with the copies of `movement` at their earliest and at their latest."""
    early, late = dict[int, int](), dict[int, int]()
    at = 0
    for copy in movement.copies:
        at = early[copy.step] = max(at, copy.target_free, copy.source_ready)
    at = nodes
    for copy in reversed(movement.copies):
        ends = [
            end
            for end in (copy.before, None if copy.source_until is None else copy.source_until + 1)
            if end is not None
        ]
        at = late[copy.step] = min(at, *ends, nodes)
    return _ordered(early, nodes), _ordered(late, nodes)


def _ordered(before: Mapping[int, int], nodes: int) -> tuple[int, ...]:
    """Return the places of all nodes; the copies that are keys of `before` come before the kernel at the place there."""
    return tuple(sorted(range(nodes), key=lambda place: (before.get(place, place), place not in before, place)))
