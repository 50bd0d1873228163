"""The order with the smallest arena of the model's order and min-peak; on very large graphs the model's order."""

from __future__ import annotations

from collections.abc import Iterable

from onnxtile.planning.order import Order, SchedulingContext
from onnxtile.planning.orders import min_peak, model
from onnxtile.planning.schedule import Schedule


def candidates(context: SchedulingContext) -> Iterable[Schedule]:
    """Return the model's own order and those of `min-peak`; only the model's own for a graph that is too large to search."""
    return model.candidates(context) if context.wide else min_peak.candidates(context)


order = Order("auto", "the smallest arena of the model's order and min-peak; never larger than the model's", candidates)
