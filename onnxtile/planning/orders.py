"""The orders in which a plan may run a model, found by their names."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from onnxtile.kernels.kernel_graph import Schedule
from onnxtile.model.topology import node_ids
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, unknown
from onnxtile.system.registry import discover


def named(graph: ir.Graph, ids: Iterable[str]) -> tuple[ir.Node, ...]:
    """Return the nodes of `graph` with the names `ids` in a result: see `in_order`."""
    return in_order(node_ids(graph), ids)


_Named = TypeVar("_Named")


def in_order(names: Mapping[_Named, str], ids: Iterable[str]) -> tuple[_Named, ...]:
    """Return the keys of `names`, each with its name in a result, in the order of `ids`. Those that share a name keep their order.

    Raises UsageError where the names are not those of one graph.
    """
    ids = tuple(ids)
    keys: dict[str, list[_Named]] = {}
    for key, name in names.items():
        keys.setdefault(name, []).append(key)
    if sorted(names.values()) != sorted(ids):
        raise UsageError("the plan belongs to another model")
    return tuple(keys[name].pop(0) for name in ids)


def shuffled_steps(steps: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the places of nodes, of which `steps` has the step of each, in an order in which those of one step change places."""
    generator = random.Random(seed)
    return tuple(sorted(range(len(steps)), key=lambda number: (steps[number], generator.random())))


def shuffled(after: Sequence[Collection[int]], seed: int) -> tuple[int, ...]:
    """Return another order of nodes, the same one for the same seed. Node n comes after the nodes `after[n]`."""
    generator = random.Random(seed)
    ready = _Ready(after)
    todo, order = list(ready.first), []
    while todo:
        at = generator.randrange(len(todo))
        todo[at], todo[-1] = todo[-1], todo[at]
        order.append(todo.pop())
        todo.extend(ready.freed_by(order[-1]))
    return tuple(order)


class _Ready:
    """The nodes that may run. Node n comes after the nodes `after[n]`; those in `first` come after none."""

    def __init__(self, after: Sequence[Collection[int]]) -> None:
        self._open = [len(before) for before in after]
        self._followers: list[list[int]] = [[] for _ in after]
        for node, before in enumerate(after):
            for other in before:
                self._followers[other].append(node)
        self.first = tuple(node for node, count in enumerate(self._open) if not count)

    def freed_by(self, node: int) -> Iterator[int]:
        """Yield the nodes that wait for `node` alone, which has run."""
        for follower in self._followers[node]:
            self._open[follower] -= 1
            if not self._open[follower]:
                yield follower


def in_streams(after: Sequence[Collection[int]], schedule: Schedule, streams: int) -> Schedule:
    """Return `schedule` in steps of up to `streams` independent kernels, earlier kernels first. Kernel n comes after those in `after[n]`.

    Takes O(n log n) steps. Raises UsageError for fewer than one stream.
    """
    if streams < 1:
        raise UsageError(f"the number of streams must be at least 1, not {streams}")
    if streams == 1:
        return Schedule(schedule.order)
    positions = {kernel: number for number, kernel in enumerate(schedule.order)}
    ready = _Ready(after)
    todo = sorted(positions[kernel] for kernel in ready.first)
    order: list[int] = []
    numbers: list[int] = []
    while todo:
        together = [schedule.order[heapq.heappop(todo)] for _ in range(min(streams, len(todo)))]
        numbers.extend([numbers[-1] + 1 if numbers else 0] * len(together))
        order.extend(together)
        for kernel in together:
            for follower in ready.freed_by(kernel):
                heapq.heappush(todo, positions[follower])
    return Schedule(tuple(order), tuple(numbers))


# Orders of nodes, found by name.


@dataclass(frozen=True)
class SchedulingContext:
    """The inputs of an order: the model's own schedule, the number of streams, and the search of orders.

    Kernel n comes after the kernels `after[n]`. `searched` returns orders of least peak, the best first. With `wide`, the graph has too
    many nodes to search all its orders.
    """

    own: Schedule
    after: Sequence[Collection[int]]
    streams: int
    searched: Callable[[], Iterable[Schedule]]
    wide: bool = False

    def packed(self, schedule: Schedule) -> Schedule:
        """Return `schedule` in steps of up to `streams` nodes."""
        return in_streams(self.after, schedule, self.streams)


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


# The orders that ship: that of the file, those of least peak, the better of both, and every order at once.


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
