"""Orders of nodes, found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onnxtile.planning.schedule import Schedule, in_streams
from onnxtile.system.errors import unknown
from onnxtile.system.registry import discover


@dataclass(frozen=True)
class SchedulingContext:
    """The inputs of an order: the model's own schedule, the number of streams, and the search of orders.

    `searched` returns orders of least peak, the best first. With `wide`, the graph has too many nodes to search all its orders.
    """

    own: Schedule
    streams: int
    searched: Callable[[], Iterable[Schedule]]
    wide: bool = False

    def packed(self, schedule: Schedule) -> Schedule:
        """Return `schedule` in steps of up to `streams` nodes."""
        return in_streams(schedule, self.streams)


@dataclass(frozen=True)
class Order:
    """A way to put the nodes of a model in order.

    `candidates` yields schedules, of which the one with the smallest arena is taken, of equals the first; no more than are needed to reach
    the lower bound of all orders. `every` says that a plan must hold for every order that the graph allows; the schedule is then one of
    them.
    """

    name: str
    summary: str
    candidates: Callable[[SchedulingContext], Iterable[Schedule]]
    every: bool = False


def orders() -> dict[str, Order]:
    """Return all orders by name."""
    return discover("onnxtile.planning.orders", Order)


def find_order(name: str) -> Order:
    """Return the order called `name`. Raises UsageError for an unknown name."""
    known = orders()
    if name in known:
        return known[name]
    raise unknown("order", name, known)
