"""Searches the order of least peak: best first as long as that ends, then along a beam.

Best first: of all beginnings of an order the one with the lowest peak is continued, so the first complete one is the best. Beginnings of
the same nodes are one; what can only do good runs at once (see layout.ordering.progress). The idea is that of Ahn et al., "Ordering Chaos:
Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices", MLSys 2020, with a priority queue in place of its layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from onnxtile.planning.layout.ordering.progress import Progress
from onnxtile.planning.layout.ordering.work import Work

BUDGET = 60_000
"""Steps, of which each runs one node after some beginning: about two seconds."""

_BROAD = 12
"""Of so many ready nodes, those that come first in the model, and the last that became ready, one is chosen outside of the exact search."""


@dataclass(frozen=True)
class Found:
    """The best order found, its peak in bytes, and whether there is none better (`exact`)."""

    order: tuple[int, ...]
    peak: int
    exact: bool


def search(work: Work, budget: int = BUDGET) -> Found:
    """Return an order of `work` whose peak is not above that of the order in which it is given; the same one every time."""
    given = _given(work)
    found = _best_first(work, given, budget) if given.peak > work.floor else given
    if found is not None:
        return found
    width = budget // max(1, len(work.after))
    others = _along_a_beam(work, given.peak, width) if width else [_greedily(work)]
    best = given
    for other in others:
        best = other if other.peak < best.peak else best
    return best


def _given(work: Work) -> Found:
    progress = Progress.start(work)
    for node in range(len(work.after)):
        progress.run(node)
    return Found(tuple(progress.order()), progress.peak, exact=progress.peak <= work.floor)


def _best_first(work: Work, given: Found, budget: int) -> Found | None:
    """Return the order of least peak; None where `budget` steps do not suffice to find it."""
    numbers = count()
    start = Progress.start(work)
    start.run_safely(start.ready, work.floor)
    steps = start.done
    heap = [(start.peak, 0, start.live, next(numbers), start)]
    best = {frozenset(start.ready): start.peak}
    while heap:
        progress = heapq.heappop(heap)[-1]
        if progress.is_complete:
            return Found(tuple(progress.order()), progress.peak, exact=True)
        if steps > budget:
            return None
        if progress.peak > best[frozenset(progress.ready)]:
            continue
        for node in sorted(progress.ready):
            if progress.price(node)[0] >= given.peak:
                continue
            further = progress.copy()
            further.run_safely(further.run(node), work.floor)
            steps += further.done - progress.done
            key = frozenset(further.ready)
            if further.peak < best.get(key, given.peak):
                best[key] = further.peak
                heapq.heappush(heap, (further.peak, -further.done, further.live, next(numbers), further))
    return Found(given.order, given.peak, exact=True)


def _greedily(work: Work) -> Found:
    """Return the order in which, of the first few nodes that may, always the one runs that leaves the peak lowest, then the least live."""
    progress = Progress.start(work)
    queue = sorted(node for node in progress.run_safely(progress.ready, work.floor) if node in progress.ready)
    while progress.ready:
        near = list(_first(queue, progress.ready))
        recent = (node for node in progress.recent if node in progress.ready)
        _, _, cheapest = min(_cost(progress, node) for node in (*near, *recent))
        for node in (*near, *progress.run_safely(progress.run(cheapest), work.floor)):
            if node in progress.ready:
                heapq.heappush(queue, node)
    return Found(tuple(progress.order()), progress.peak, exact=False)


def _cost(progress: Progress, node: int) -> tuple[int, int, int]:
    """Return the peak once `node` has run, the bytes that are then live, and its number."""
    during, after = progress.price(node)
    return max(during, progress.peak), after, node


def _first(queue: list[int], ready: set[int]) -> Iterator[int]:
    """Take the first few nodes of `queue` that are still `ready`."""
    found = 0
    while queue and found < _BROAD:
        node = heapq.heappop(queue)
        if node in ready:
            found += 1
            yield node


def _along_a_beam(work: Work, peak: int, width: int) -> Iterator[Found]:
    """Yield the best order among those of which, at each length, the `width` best beginnings are continued."""
    start = Progress.start(work)
    start.run_safely(start.ready, work.floor)
    beams: dict[int, dict[frozenset[int], Progress]] = {start.done: {frozenset(start.ready): start}}
    while beams:
        beam = beams.pop(min(beams))
        for progress in sorted(beam.values(), key=lambda p: (p.peak, p.live))[:width]:
            if progress.is_complete:
                yield Found(tuple(progress.order()), progress.peak, exact=False)
                return
            for further in _continued(progress, peak, width):
                key = frozenset(further.ready)
                same = beams.setdefault(further.done, {})
                if key not in same or further.peak < same[key].peak:
                    same[key] = further


def _continued(progress: Progress, peak: int, width: int) -> Iterator[Progress]:
    """Yield `progress` continued by one node, in the `width` best ways that stay below `peak`."""
    recent = (node for node in progress.recent if node in progress.ready)
    near = {*heapq.nsmallest(_BROAD, progress.ready), *recent}
    ways = sorted(_cost(progress, node) for node in near)
    for _, _, node in (way for way in ways[:width] if way[0] < peak):
        further = progress.copy()
        further.run_safely(further.run(node), progress.work.floor)
        yield further
