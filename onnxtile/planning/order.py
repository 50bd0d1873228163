"""What an order is, and how one is chosen by its name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from onnxtile.errors import unknown
from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem
from onnxtile.planning.layout.ordering.schedule import Schedule, in_streams
from onnxtile.registry import discover


@dataclass(frozen=True)
class SchedulingContext:
    """What an order is chosen by: the model's own, the number of streams, and what orders cost.

    `work` returns what to search in, given the rules by which tensors may share bytes whatever the order.
    """

    own: Schedule
    streams: int
    ordering_problem: Callable[[Collection[str]], OrderingProblem]

    def packed(self, schedule: Schedule) -> Schedule:
        """Return `schedule` in as many streams as there are."""
        return in_streams(schedule, self.streams)


@dataclass(frozen=True)
class Order:
    """A way to put the nodes of a model in order.

    `candidates` returns schedules of which the one with the smallest arena is taken, of equals the first. It is a pure function, and the
    same ground gets the same schedules every time. `every` says that a plan must hold for every order that the graph allows; the schedule
    is then one of them.
    """

    name: str
    summary: str
    candidates: Callable[[SchedulingContext], tuple[Schedule, ...]]
    every: bool = False


def orders() -> dict[str, Order]:
    """Return every order there is, by name."""
    return discover("onnxtile.planning.orders", Order)


def find_order(name: str) -> Order:
    """Return the order called `name`. Raises UsageError for an unknown name."""
    known = orders()
    if name in known:
        return known[name]
    raise unknown("order", name, known)
