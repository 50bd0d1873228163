"""The orders that ship: that of the file, those of least peak, the better of both, and every order at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxtile.kernels.kernel_graph import Schedule
from onnxtile.planning.schedule import Order, SchedulingContext


def _as_in_file(context: SchedulingContext) -> tuple[Schedule, ...]:
    return (context.packed(context.own),)


def _least_peak(context: SchedulingContext) -> Iterator[Schedule]:
    """Yield the model's own order, and the orders of least peak that the search finds, each once."""
    yield context.packed(context.own)
    yield from (context.packed(schedule) for schedule in context.searched() if schedule.order != context.own.order)


def _best(context: SchedulingContext) -> Iterable[Schedule]:
    """Return the model's own order and those of least peak; only the model's own for a graph that is too large to search."""
    return _as_in_file(context) if context.wide else _least_peak(context)


def _any_order(context: SchedulingContext) -> tuple[Schedule, ...]:
    """Return the model's own order, whose steps are counted; the plan holds in every other order, too."""
    return (context.own,)


MODEL = Order("model", "the order of the nodes in the file", _as_in_file)
MIN_PEAK = Order(
    "min-peak", "least memory, proved where the search ends; never a larger arena than the model's order", _least_peak
)
AUTO = Order("auto", "the smallest arena of the model's order and min-peak; never larger than the model's", _best)
ANY = Order(
    "any",
    "every order the graph allows: tensors share bytes only where the graph itself orders them",
    _any_order,
    every=True,
)
