"""The order that needs the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator

from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.order import Order, SchedulingContext

_RULES = (("view", "cut", "join", "in place"), ("view", "in place"))
"""The aliases that the search takes: first all, although some may exclude each other; then none of the parts."""


def candidates(context: SchedulingContext) -> Iterator[Schedule]:
    """Yield the model's own order, and the orders of least peak that the searches find, each once."""
    yield context.packed(context.own)
    seen = {context.own.nodes}
    for rules in _RULES:
        found = context.least(rules)
        if found.nodes not in seen:
            seen.add(found.nodes)
            yield context.packed(found)


order = Order(
    "min-peak",
    "least memory, proved where the search ends; never a larger arena than the model's order",
    candidates,
)
