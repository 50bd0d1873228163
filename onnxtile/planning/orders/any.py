"""Every order that the graph allows: for executors that run branches in parallel, or choose their own order."""

from __future__ import annotations

from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.order import Order, SchedulingContext


def candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the model's own, by which steps are counted; what shares bytes does so in every other order, too."""
    return (context.own,)


order = Order(
    "any",
    "whatever the graph allows: bytes are shared only where the graph itself says who is first",
    candidates,
    every=True,
)
