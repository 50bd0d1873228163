"""The order of the file."""

from __future__ import annotations

from onnxtile.planning.order import Order, SchedulingContext
from onnxtile.planning.schedule import Schedule


def candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the order of the file."""
    return (context.packed(context.own),)


order = Order("model", "the order of the nodes in the file", candidates)
