"""The order of the file."""

from __future__ import annotations

from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.order import Order, SchedulingContext


def candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the nodes as they stand in the model."""
    return (context.packed(context.own),)


order = Order("model", "as the nodes stand in the file", candidates)
