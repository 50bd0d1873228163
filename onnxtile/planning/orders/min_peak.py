"""The order that needs the fewest bytes."""

from __future__ import annotations

from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.ordering.search import search
from onnxtile.planning.order import Order, SchedulingContext

_RULES = (("view",), ("view", "cut", "join"))
"""The aliases that the search assumes: first none of the parts; then the parts chosen for the own order.

The search itself decides which results are written over operands; parts are chosen again for the order that it finds.
"""


def candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the model's own order, and the orders of least peak that the searches find, each once."""
    orders = (search(context.ordering_problem(rules)).order for rules in _RULES)
    found = (Schedule(tuple(context.own.nodes[number] for number in order)) for order in orders)
    return tuple(context.packed(schedule) for schedule in dict.fromkeys((Schedule(context.own.nodes), *found)))


order = Order(
    "min-peak",
    "least memory: a best-first search, then a beam search; never a larger arena than the model's order",
    candidates,
)
