"""The order that needs the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator

from onnxtile.planning.order import Order, SchedulingContext
from onnxtile.planning.schedule import Schedule


def candidates(context: SchedulingContext) -> Iterator[Schedule]:
    """Yield the model's own order, and the orders of least peak that the search finds, each once."""
    yield context.packed(context.own)
    yield from (context.packed(found) for found in context.searched() if found.nodes != context.own.nodes)


order = Order(
    "min-peak",
    "least memory, proved where the search ends; never a larger arena than the model's order",
    candidates,
)
