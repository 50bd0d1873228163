"""Searches the order of least peak: best first within a budget, else along a beam.

Best first: the prefix with the lowest peak is continued, so the first complete order is the best. Prefixes of the same nodes are one search
node, and safe nodes run at once. The idea is that of Ahn et al., "Ordering Chaos:
Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices", MLSys 2020, with a priority queue in place of its layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem
from onnxtile.planning.layout.ordering.schedule_prefix import SchedulePrefix

BUDGET = 60_000
"""The default budget in steps; a step runs one node after a prefix. It takes about two seconds."""

_BROAD = 12
"""Outside the exact search, the number of ready nodes to choose from: the first of the model, besides those that became ready last."""


_SHORTEST = 3
"""Nodes of a stretch before or after a peak, at least, that is searched again."""
_BUDGET_OF_A_STRETCH, _COST_OF_A_STRETCH = 50, 5
"""Steps for each node of such a stretch that a search may take, and that count."""


@dataclass(frozen=True)
class FoundOrder:
    """The best order found, its peak in bytes, and whether it is proved to be the least (`exact`)."""

    order: tuple[int, ...]
    peak: int
    exact: bool


def search(problem: OrderingProblem, budget: int = BUDGET) -> FoundOrder:
    """Return an order of `problem` whose peak is at most the one of the given order; the result is deterministic.

    Before and after the peak, the order has the least peak there, too, as far as the budget reaches: the same holds recursively.
    """
    nodes = range(len(problem.after))
    best = _least(_SearchStart(SchedulePrefix.start(problem), problem.floor), nodes, budget)
    return replace(best, order=_refined(problem, best.order, budget))


@dataclass(frozen=True)
class _SearchStart:
    """The prefix that a search starts from, and the bytes that no order from there avoids."""

    prefix: SchedulePrefix
    floor: int

    def fresh(self) -> SchedulePrefix:
        """Return a copy of the prefix in which every safe node has run."""
        found = self.prefix.copy()
        found.run_safely(found.ready, self.floor)
        return found

    def given(self, nodes: Iterable[int]) -> FoundOrder:
        """Return the order `nodes` with its peak."""
        prefix = self.prefix.copy()
        for node in nodes:
            prefix.run(node)
        return FoundOrder(tuple(prefix.order()), prefix.peak, exact=prefix.peak <= self.floor)


def _least(start: _SearchStart, nodes: Sequence[int], budget: int) -> FoundOrder:
    """Return the order of least peak that is found from `start`, at most the peak of the order `nodes`."""
    given = start.given(nodes)
    found = _best_first(start, given, budget) if given.peak > start.floor else given
    if found is not None:
        return found
    width = budget // max(1, len(nodes))
    others = _along_a_beam(start, given.peak, width) if width else [_greedily(start)]
    best = given
    for other in others:
        best = other if other.peak < best.peak else best
    return best


def _refined(problem: OrderingProblem, order: Sequence[int], budget: int) -> tuple[int, ...]:
    """Return `order` with the nodes before and after its peak in an order of less peak, recursively; the peak stays the same.

    The nodes up to the peak stay before it, so that only their order changes. Each look at a stretch of nodes takes as many steps of the
    budget as it has nodes.
    """
    done = SchedulePrefix.start(problem)
    todo = [(tuple(order), True)]
    while todo:
        nodes, is_least = todo.pop()
        if len(nodes) < _SHORTEST or budget < len(nodes):
            for node in nodes:
                done.run(node)
            continue
        start = _SearchStart(done.limited(nodes), problem.floor_of(nodes))
        if not is_least:
            nodes = _least(start, nodes, min(budget, _BUDGET_OF_A_STRETCH * len(nodes))).order
        at = _peak_at(start.prefix.copy(), nodes)
        budget -= len(nodes) * (1 if is_least else _COST_OF_A_STRETCH)
        todo += [(nodes[at + 1 :], False), (nodes[at : at + 1], True), (nodes[:at], False)]
    return tuple(done.order())


def _peak_at(prefix: SchedulePrefix, nodes: Sequence[int]) -> int:
    """Return the place of the first node with the most live bytes while it runs."""
    highest, found = -1, 0
    for place, node in enumerate(nodes):
        during, _ = prefix.price(node)
        if during > highest:
            highest, found = during, place
        prefix.run(node)
    return found


def _best_first(start: _SearchStart, given: FoundOrder, budget: int) -> FoundOrder | None:
    """Return the order of least peak; None where `budget` steps do not suffice to find it."""
    numbers = count()
    first = start.fresh()
    steps = first.done
    heap = [(first.peak, 0, first.live, next(numbers), first)]
    best = {frozenset(first.ready): first.peak}
    while heap:
        prefix = heapq.heappop(heap)[-1]
        if prefix.is_complete:
            return FoundOrder(tuple(prefix.order()), prefix.peak, exact=True)
        if steps > budget:
            return None
        if prefix.peak > best[frozenset(prefix.ready)]:
            continue
        for node in sorted(prefix.ready):
            if prefix.price(node)[0] >= given.peak:
                continue
            further = prefix.copy()
            further.run_safely(further.run(node), start.floor)
            steps += further.done - prefix.done
            key = frozenset(further.ready)
            if further.peak < best.get(key, given.peak):
                best[key] = further.peak
                heapq.heappush(heap, (further.peak, -further.done, further.live, next(numbers), further))
    return replace(given, exact=True)


def _greedily(start: _SearchStart) -> FoundOrder:
    """Return a greedy order: of the first few ready nodes, the one with the lowest peak runs next, of equals the least live bytes."""
    prefix = start.prefix.copy()
    queue = sorted(node for node in prefix.run_safely(prefix.ready, start.floor) if node in prefix.ready)
    while prefix.ready:
        near = list(_first(queue, prefix.ready))
        recent = (node for node in prefix.recent if node in prefix.ready)
        _, _, cheapest = min(_cost(prefix, node) for node in (*near, *recent))
        for node in (*near, *prefix.run_safely(prefix.run(cheapest), start.floor)):
            if node in prefix.ready:
                heapq.heappush(queue, node)
    return FoundOrder(tuple(prefix.order()), prefix.peak, exact=False)


def _cost(prefix: SchedulePrefix, node: int) -> tuple[int, int, int]:
    """Return the peak once `node` has run, the bytes that are then live, and its number."""
    during, after = prefix.price(node)
    return max(during, prefix.peak), after, node


def _first(queue: list[int], ready: set[int]) -> Iterator[int]:
    """Take the first few nodes of `queue` that are still `ready`."""
    found = 0
    while queue and found < _BROAD:
        node = heapq.heappop(queue)
        if node in ready:
            found += 1
            yield node


def _along_a_beam(start: _SearchStart, peak: int, width: int) -> Iterator[FoundOrder]:
    """Yield the best order of a beam search that continues the `width` best prefixes of each length."""
    first = start.fresh()
    beams: dict[int, dict[frozenset[int], SchedulePrefix]] = {first.done: {frozenset(first.ready): first}}
    while beams:
        beam = beams.pop(min(beams))
        for prefix in sorted(beam.values(), key=lambda p: (p.peak, p.live))[:width]:
            if prefix.is_complete:
                yield FoundOrder(tuple(prefix.order()), prefix.peak, exact=False)
                return
            for further in _continued(prefix, peak, width, start.floor):
                key = frozenset(further.ready)
                same = beams.setdefault(further.done, {})
                if key not in same or further.peak < same[key].peak:
                    same[key] = further


def _continued(prefix: SchedulePrefix, peak: int, width: int, floor: int) -> Iterator[SchedulePrefix]:
    """Yield `prefix` continued by one node, in the `width` best ways with a peak below `peak`."""
    recent = (node for node in prefix.recent if node in prefix.ready)
    near = {*heapq.nsmallest(_BROAD, prefix.ready), *recent}
    ways = sorted(_cost(prefix, node) for node in near)
    for _, _, node in (way for way in ways[:width] if way[0] < peak):
        further = prefix.copy()
        further.run_safely(further.run(node), floor)
        yield further
