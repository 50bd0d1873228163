"""Searches the order of least peak: best first within a budget, else along a beam.

Best first: the prefix with the lowest peak is continued, so the first complete order is the best. Prefixes of the same nodes are one search
node, and safe nodes run at once. The idea is that of Ahn et al., "Ordering Chaos:
Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices", MLSys 2020, with a priority queue in place of its layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem
from onnxtile.planning.layout.ordering.schedule_prefix import SchedulePrefix

BUDGET = 60_000
"""The default budget in steps; a step runs one node after a prefix. It takes about two seconds."""

_BROAD = 12
"""Outside the exact search, the number of ready nodes to choose from: the first of the model, besides those that became ready last."""


@dataclass(frozen=True)
class FoundOrder:
    """The best order found, its peak in bytes, and whether it is proved to be the least (`exact`)."""

    order: tuple[int, ...]
    peak: int
    exact: bool


def search(problem: OrderingProblem, budget: int = BUDGET) -> FoundOrder:
    """Return an order of `problem` whose peak is at most the one of the given order; the result is deterministic."""
    given = _given(problem)
    found = _best_first(problem, given, budget) if given.peak > problem.floor else given
    if found is not None:
        return found
    width = budget // max(1, len(problem.after))
    others = _along_a_beam(problem, given.peak, width) if width else [_greedily(problem)]
    best = given
    for other in others:
        best = other if other.peak < best.peak else best
    return best


def _given(problem: OrderingProblem) -> FoundOrder:
    prefix = SchedulePrefix.start(problem)
    for node in range(len(problem.after)):
        prefix.run(node)
    return FoundOrder(tuple(prefix.order()), prefix.peak, exact=prefix.peak <= problem.floor)


def _best_first(problem: OrderingProblem, given: FoundOrder, budget: int) -> FoundOrder | None:
    """Return the order of least peak; None where `budget` steps do not suffice to find it."""
    numbers = count()
    start = SchedulePrefix.start(problem)
    start.run_safely(start.ready, problem.floor)
    steps = start.done
    heap = [(start.peak, 0, start.live, next(numbers), start)]
    best = {frozenset(start.ready): start.peak}
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
            further.run_safely(further.run(node), problem.floor)
            steps += further.done - prefix.done
            key = frozenset(further.ready)
            if further.peak < best.get(key, given.peak):
                best[key] = further.peak
                heapq.heappush(heap, (further.peak, -further.done, further.live, next(numbers), further))
    return FoundOrder(given.order, given.peak, exact=True)


def _greedily(problem: OrderingProblem) -> FoundOrder:
    """Return a greedy order: of the first few ready nodes, the one with the lowest peak runs next, of equals the least live bytes."""
    prefix = SchedulePrefix.start(problem)
    queue = sorted(node for node in prefix.run_safely(prefix.ready, problem.floor) if node in prefix.ready)
    while prefix.ready:
        near = list(_first(queue, prefix.ready))
        recent = (node for node in prefix.recent if node in prefix.ready)
        _, _, cheapest = min(_cost(prefix, node) for node in (*near, *recent))
        for node in (*near, *prefix.run_safely(prefix.run(cheapest), problem.floor)):
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


def _along_a_beam(problem: OrderingProblem, peak: int, width: int) -> Iterator[FoundOrder]:
    """Yield the best order of a beam search that continues the `width` best prefixes of each length."""
    start = SchedulePrefix.start(problem)
    start.run_safely(start.ready, problem.floor)
    beams: dict[int, dict[frozenset[int], SchedulePrefix]] = {start.done: {frozenset(start.ready): start}}
    while beams:
        beam = beams.pop(min(beams))
        for prefix in sorted(beam.values(), key=lambda p: (p.peak, p.live))[:width]:
            if prefix.is_complete:
                yield FoundOrder(tuple(prefix.order()), prefix.peak, exact=False)
                return
            for further in _continued(prefix, peak, width):
                key = frozenset(further.ready)
                same = beams.setdefault(further.done, {})
                if key not in same or further.peak < same[key].peak:
                    same[key] = further


def _continued(prefix: SchedulePrefix, peak: int, width: int) -> Iterator[SchedulePrefix]:
    """Yield `prefix` continued by one node, in the `width` best ways with a peak below `peak`."""
    recent = (node for node in prefix.recent if node in prefix.ready)
    near = {*heapq.nsmallest(_BROAD, prefix.ready), *recent}
    ways = sorted(_cost(prefix, node) for node in near)
    for _, _, node in (way for way in ways[:width] if way[0] < peak):
        further = prefix.copy()
        further.run_safely(further.run(node), prefix.problem.floor)
        yield further
