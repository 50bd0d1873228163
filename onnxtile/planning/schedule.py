"""The orders of nodes by name, and the step of each node, counted from 0."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from onnxtile.model.topology import dependencies, node_ids
from onnxtile.system.errors import ModelError, UsageError, unknown
from onnxtile.system.registry import discover


@dataclass(frozen=True)
class Schedule:
    """The nodes of a graph in the order in which they run. A node with bodies, or a call of a function, is one node.

    Each node is a step of its own, unless `numbers` says which step each is in: nodes of one step run in any order, or at once.
    """

    nodes: tuple[ir.Node, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(default=(), repr=False)

    @cached_property
    def steps(self) -> Mapping[ir.Node, int]:
        """The step of each node."""
        return dict(zip(self.nodes, self.numbers or range(len(self.nodes)), strict=True))

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The name of each node in a result, in the order of the nodes."""
        names = node_ids(self.nodes)
        return tuple(names[node] for node in self.nodes)

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.numbers[-1] + 1 if self.numbers else len(self.nodes)


def own_order(graph: ir.Graph) -> Schedule:
    """Return the order of the file. Raises ModelError where a node comes before one that it depends on."""
    schedule = Schedule(tuple(graph))
    for node, step in schedule.steps.items():
        for producer in predecessors(node):
            if producer.graph is graph and schedule.steps[producer] >= step:
                read = next(v for v in dependencies(node) if v.producer() is producer)
                raise ModelError(f"the node {schedule.ids[step]!r} reads {read.name!r}, which is made after it")
    return schedule


def named(graph: ir.Graph, ids: Sequence[str], numbers: Sequence[int]) -> Schedule:
    """Return the schedule of the nodes of `graph` with the names `ids` in a result, in the steps `numbers`.

    Nodes that share a name keep their order. Raises UsageError where the names are not those of this graph.
    """
    nodes: dict[str, list[ir.Node]] = {}
    for node, name in node_ids(graph).items():
        nodes.setdefault(name, []).append(node)
    if sorted(name for name, same in nodes.items() for _ in same) != sorted(ids):
        raise UsageError("the plan belongs to another model")
    return Schedule(tuple(nodes[name].pop(0) for name in ids), tuple(numbers))


def shuffled(schedule: Schedule, *, freely: bool, seed: int) -> tuple[int, ...]:
    """Return the places of the nodes of `schedule` in another order in which they may run, the same one for the same seed.

    Nodes of one step change places; with `freely`, whatever the graph allows.
    """
    generator = random.Random(seed)
    places = range(len(schedule.nodes))
    if not freely:
        steps = tuple(schedule.steps.values())
        return tuple(sorted(places, key=lambda place: (steps[place], generator.random())))
    place_of = {node: place for place, node in enumerate(schedule.nodes)}
    before = [{place_of[p] for p in predecessors(node) if p in place_of} for node in schedule.nodes]
    followers: list[list[int]] = [[] for _ in places]
    for place, earlier in enumerate(before):
        for other in earlier:
            followers[other].append(place)
    open_ = [len(earlier) for earlier in before]
    ready = [place for place in places if not open_[place]]
    found = []
    while ready:
        at = generator.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        found.append(ready.pop())
        for follower in followers[found[-1]]:
            open_[follower] -= 1
            if not open_[follower]:
                ready.append(follower)
    return tuple(found)


def predecessors(node: ir.Node) -> Iterable[ir.Node]:
    """Return the nodes that make the values `node` reads, each once, including nodes of the graphs around its own."""
    makers = (value.producer() for value in dependencies(node))
    return dict.fromkeys(maker for maker in makers if maker is not None)


def in_streams(schedule: Schedule, streams: int) -> Schedule:
    """Return `schedule` in steps of up to `streams` independent nodes, earlier nodes first.

    Takes O(n log n) steps. Raises UsageError for fewer than one stream.
    """
    if streams < 1:
        raise UsageError(f"the number of streams must be at least 1, not {streams}")
    if streams == 1:
        return Schedule(schedule.nodes)
    place = {node: number for number, node in enumerate(schedule.nodes)}
    waits = {node: [p for p in predecessors(node) if p in place] for node in schedule.nodes}
    open_ = {node: len(before) for node, before in waits.items()}
    followers: dict[ir.Node, list[ir.Node]] = {}
    for node, before in waits.items():
        for maker in before:
            followers.setdefault(maker, []).append(node)
    ready = [place[node] for node, count in open_.items() if not count]
    nodes: list[ir.Node] = []
    numbers: list[int] = []
    while ready:
        together = [schedule.nodes[heapq.heappop(ready)] for _ in range(min(streams, len(ready)))]
        numbers.extend([numbers[-1] + 1 if numbers else 0] * len(together))
        nodes.extend(together)
        for follower in (f for node in together for f in followers.get(node, ())):
            open_[follower] -= 1
            if not open_[follower]:
                heapq.heappush(ready, place[follower])
    return Schedule(tuple(nodes), tuple(numbers))


# Orders of nodes, found by name.


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
