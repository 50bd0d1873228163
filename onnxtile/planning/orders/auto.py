"""The order with the smallest arena of the model's order and min-peak; on very large graphs the model's order."""

from __future__ import annotations

from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.order import Order, SchedulingContext
from onnxtile.planning.orders import min_peak, model

LARGEST = 20_000
"""Nodes of a graph, at most, for which orders are searched: each candidate costs a whole layout, and the search runs out of its budget."""


def candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the model's own order and those of `min-peak`; only the model's own for a graph of more than LARGEST nodes."""
    plain = len(context.own.nodes) > LARGEST
    return model.candidates(context) if plain else min_peak.candidates(context)


order = Order("auto", "the smallest arena of the model's order and min-peak; never larger than the model's", candidates)
