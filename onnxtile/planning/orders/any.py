"""Every order that the graph allows: for executors that run branches in parallel, or choose their own order."""

from __future__ import annotations

from onnxtile.planning.order import Order, SchedulingContext
from onnxtile.planning.schedule import Schedule


def candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the model's own order, whose steps are counted; the plan holds in every other order, too."""
    return (context.own,)


order = Order(
    "any",
    "every order the graph allows: tensors share bytes only where the graph itself orders them",
    candidates,
    every=True,
)
