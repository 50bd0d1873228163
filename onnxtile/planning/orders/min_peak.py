"""The order that needs the fewest bytes."""

from __future__ import annotations

from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.ordering.search import search
from onnxtile.planning.order import Order, SchedulingContext

_RULES = (("view",), ("view", "cut", "join"))
"""What the search takes for granted: first, that every part of a whole is a copy; then, that those are not that help the own order.

What is written over an operand, the search finds out as it goes; what is a copy in the end is decided with the order known.
"""


def candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the model's own order, and those of the lowest peaks that the searches find, each once."""
    orders = (search(context.ordering_problem(rules)).order for rules in _RULES)
    found = (Schedule(tuple(context.own.nodes[number] for number in order)) for order in orders)
    return tuple(context.packed(schedule) for schedule in dict.fromkeys((Schedule(context.own.nodes), *found)))


order = Order(
    "min-peak",
    "the least memory: searched best first, then along a beam; no arena larger than in the model's",
    candidates,
)
