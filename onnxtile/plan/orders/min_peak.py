"""The order that needs the fewest bytes."""

from __future__ import annotations

from onnxtile.plan.order.choice import Ground, Order
from onnxtile.plan.order.schedule import Schedule
from onnxtile.plan.order.search import search

_RULES = (("view",), ("view", "cut", "join"))
"""What the search takes for granted: first, that every part of a whole is a copy; then, that those are not that help the own order.

What is written over an operand, the search finds out as it goes; what is a copy in the end is decided with the order known.
"""


def arrange(ground: Ground) -> Schedule:
    """Return the order with the lowest peak of those that the searches find; the model's own where none is lower."""
    best = ground.packed(ground.own)
    least = ground.peak(best)
    for rules in _RULES:
        found = search(ground.work(rules))
        candidate = ground.packed(Schedule(tuple(ground.own.nodes[number] for number in found.order)))
        peak = ground.peak(candidate)
        if peak < least:
            best, least = candidate, peak
    return best


order = Order(
    "min-peak", "the least memory: searched best first, then along a beam; never worse than the model's", arrange
)
