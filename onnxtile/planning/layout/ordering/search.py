"""Searches the order of least peak, best first over the ideals of the graph, with a proof that no order has a lower one.

The ideal with the fewest live bytes is continued, by nodes that need at most `limit` bytes. Where no such node is left, no order stays
within the limit, and the limit rises to the least that a node needs: it is a lower bound of every order. Live bytes are a submodular
function of the nodes that have run. So an ideal with no more live bytes than the one the search began with, which is the first to be
found, is on some order of least peak: the search begins again from there. The same holds for the order in reverse, where other graphs are
easy. Ideals as search nodes follow Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge
Devices", MLSys 2020; the search from valley to valley is that of Liu, "An application of generalized tree pebbling to sparse matrix
factorization", SIAM J. Alg. Disc. Meth. 1987, doi 10.1137/0608031, for any graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from onnxtile.planning.layout.ordering.ideals import Ideal, Ideals, Trail, members, unrolled
from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem

BUDGET = 200_000
"""The default budget in steps; a step looks at one node after an ideal. They take about a second."""

WIDEST = 20_000
"""Nodes of a graph, at most, whose orders are searched: each ideal takes a bit for each node."""

_MOST_PEAKS = 8
"""Peaks of the given order, at most, at which the bytes that every order needs are counted; each takes a pass over the graph."""
_ROUNDS = 4
"""Searches in each direction; each takes four times as many steps as the one before."""
_SHARES = (4096, 256)
"""Units smaller than these shares of the bound, as 1/n, are left out where the search of the whole problem does not end quickly."""
_CLOSE = 2048
"""A peak above the bound by this share of it, as 1/n, at most, is not searched further."""
_LARGE = 1000
"""Nodes of a graph, at most, of which a last and longest search begins although those before it have found nothing."""
_STEPS_OF_A_NODE = 4
"""Steps for each node of the graph, at least, that a search may take: with fewer it would not reach the end."""
_LEVELS = 8
"""Limits between the bound and the peak of the given order that are tried one by one where the search does not end."""
_NEAR = 8
"""Outside the exact search, the number of ready nodes to choose from: the first ones, and as many that became ready last."""
_BEFORE_A_TRY = 200
"""Steps of the search, at least, before all nodes that are left are tried in one go."""


@dataclass(frozen=True)
class FoundOrder:
    """The best order found, its peak, and a lower bound of the peak of every order, both in bytes; `steps` were taken to find it."""

    order: tuple[int, ...]
    peak: int
    bound: int
    steps: int = field(default=0, compare=False)

    @property
    def exact(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak == self.bound


def search(problem: OrderingProblem, budget: int = BUDGET) -> FoundOrder:
    """Return an order of `problem` whose peak is at most the one of the given order; the result is deterministic.

    A graph of more than WIDEST nodes is searched in stretches of the given order.
    """
    given = tuple(range(len(problem.after)))
    during = heights(problem, given)
    best = FoundOrder(given, max(during, default=problem.floor), bound_of(problem, during))
    if best.exact:
        return best
    if len(given) > WIDEST:
        return replace(best, order=_in_stretches(problem, budget))
    known, best = best, _both_ways(problem, best, budget // 4)
    first = best
    for share in _SHARES:
        if _is_close(best):
            return best
        best = _roughly(problem, best, best.bound // share, budget // 4)
    if _is_close(best):
        return best
    rounds = _ROUNDS
    if best == first:
        # Searches with fewer steps ended without an order before: they would again, from the same bound.
        rounds = 0 if first.steps and first == known and len(given) > _LARGE else 1
    return _both_ways(problem, best, budget, rounds, to_the_end=True)


def others(problem: OrderingProblem, found: FoundOrder, budget: int = BUDGET) -> Iterator[tuple[int, ...]]:
    """Yield orders with the peak of `found`, which is the least, as the searches in both directions find them.

    Their buffers may leave smaller gaps in an arena.
    """
    for backward in (False, True):
        above = replace(found, peak=found.peak + 1)
        other = _Direction(problem, backward=backward).least(above, budget // 4)
        if other.peak == found.peak:
            yield other.order


def _both_ways(
    problem: OrderingProblem, given: FoundOrder, budget: int, rounds: int = _ROUNDS, *, to_the_end: bool = False
) -> FoundOrder:
    """Return the best order that is found from the first node, or from the last, within `budget` steps each; at worst `given`.

    With `to_the_end`, orders that are quickly made are tried where the searches do not end.
    """
    best = given
    if best.exact:
        return best
    directions = [_Direction(problem, backward=backward) for backward in (False, True)]
    budgets = [budget // 4**level for level in reversed(range(rounds))]
    for steps in (steps for steps in budgets if steps >= _STEPS_OF_A_NODE * len(problem.after)):
        for direction in directions:
            found = direction.least(best, steps)
            if found.exact:
                return found
            best = replace(best, bound=max(best.bound, found.bound), steps=found.steps)
    if not to_the_end:
        return best
    quick = [direction.quickly(best, budget) for direction in directions]
    taken = sum(found.steps - best.steps for found in quick)
    return replace(min(quick, key=lambda found: found.peak), steps=best.steps + taken)


def _roughly(problem: OrderingProblem, given: FoundOrder, least: int, budget: int) -> FoundOrder:
    """Return the best order that is found where units of fewer than `least` bytes count nothing; at worst `given`.

    A bound without some units is one with them. Many small tensors, such as those of a computed shape, hide how few orders matter.
    """
    if all(size >= least for size in problem.sizes if size):
        return given
    rough = problem.without_units_below(least)
    during = heights(rough, given.order)
    own = bound_of(rough, heights(rough, range(len(during))))
    found = _both_ways(rough, FoundOrder(given.order, max(during), own, given.steps), budget)
    bound = max(given.bound, found.bound)
    peak = max(heights(problem, found.order))
    best = found if peak < given.peak else given
    return FoundOrder(best.order, min(peak, given.peak), bound, found.steps)


def _is_close(found: FoundOrder) -> bool:
    """Return whether no order has a peak lower than that of `found` by more than a small share."""
    return found.peak - found.bound <= found.bound // _CLOSE


def heights(problem: OrderingProblem, order: Sequence[int]) -> list[int]:
    """Return the live bytes while each node of `order` runs."""
    left = [len(users) + (unit in problem.kept) for unit, users in enumerate(problem.users)]
    born = [unit in problem.given for unit in range(len(left))]
    live = sum(problem.sizes[unit] for unit in problem.given)
    found = []
    for node in order:
        touched = problem.touches[node]
        live += sum(problem.sizes[unit] for unit in touched if not born[unit])
        ending = {unit for unit in touched if left[unit] == 1}
        found.append(live - problem.saved(node, ending))
        live -= sum(problem.sizes[unit] for unit in ending)
        for unit in touched:
            born[unit] = True
            left[unit] -= 1
    return found


def bound_of(problem: OrderingProblem, during: Sequence[int]) -> int:
    """Return the bytes that every order needs at a peak of the given order, whose live bytes are `during`, or to run any one node."""
    peak = max(during, default=0)
    at = islice((node for node, bytes_of in enumerate(during) if bytes_of == peak), _MOST_PEAKS)
    return max(problem.floor, *map(problem.forced, at), 0)


def _in_stretches(problem: OrderingProblem, budget: int) -> tuple[int, ...]:
    """Return an order in which each stretch of WIDEST nodes of the given order has the least peak that is found."""
    found: list[int] = []
    for first in range(0, len(problem.after), WIDEST):
        nodes = range(first, min(first + WIDEST, len(problem.after)))
        part = problem.between(set(range(first)), nodes)
        found += (nodes[place] for place in search(part, budget).order)
    return tuple(found)


class _Direction:
    """The search of the orders of `problem` from the first node, or `backward` from the last."""

    def __init__(self, problem: OrderingProblem, *, backward: bool) -> None:
        self._problem = problem
        self._backward = backward
        self._ideals = Ideals(problem, backward=backward)

    def least(self, given: FoundOrder, budget: int) -> FoundOrder:
        """Return the order of least peak; where `budget` steps do not suffice, `given` with the bound that is proved by then.

        The steps that are taken are added to those of `given`.
        """
        ideals = self._ideals
        ideals.steps = 0
        order: list[int] = []
        at = ideals.run_safely(ideals.start, ideals.start.ready, given.bound, order)
        limit = given.bound
        while at.done != ideals.all:
            valley = _Valley(ideals, at, limit)
            found = valley.next(given.peak, budget)
            limit = valley.limit
            if limit >= given.peak or found is None:
                return replace(given, bound=min(limit, given.peak), steps=given.steps + ideals.steps)
            at, run = found
            order += run
        return self._found(order, limit, given)

    def quickly(self, given: FoundOrder, budget: int) -> FoundOrder:
        """Return an order with a peak not far above the bound of `given`, without going back; else `given`.

        No further try begins after `budget` steps.
        """
        self._ideals.steps = 0
        for level in range(_LEVELS):
            if self._ideals.steps > budget:
                break
            limit = given.bound + (given.peak - given.bound) * level // _LEVELS
            run = dive(self._ideals, self._ideals.start, limit)
            if run is not None:
                return self._found(run, given.bound, given)
        return replace(given, steps=given.steps + self._ideals.steps)

    def _found(self, run: Sequence[int], bound: int, given: FoundOrder) -> FoundOrder:
        order = tuple(reversed(run) if self._backward else run)
        peak = max(heights(self._problem, order), default=self._problem.floor)
        return FoundOrder(order, peak, bound, given.steps + self._ideals.steps)


class _Valley:
    """The search for the next ideal on an order of least peak, from the ideal `start`; no node may need more than `limit` bytes.

    Nodes that need more are kept, until no others are left: then the limit rises.
    """

    def __init__(self, ideals: Ideals, start: Ideal, limit: int) -> None:
        self.limit = limit
        self._ideals = ideals
        self._start = start
        self._numbers = count()
        self._seen = {start.done}
        self._open: list[tuple[int, int, int, Ideal, Trail]] = []
        self._blocked: list[tuple[int, int, Ideal, int, Trail]] = []
        self._put(start, None)

    def next(self, most: int, budget: int) -> tuple[Ideal, list[int]] | None:
        """Return the next ideal, and the nodes that lead to it; None where the limit reaches `most`, or the `budget` ends."""
        ideals = self._ideals
        next_try = ideals.steps + _BEFORE_A_TRY
        while ideals.steps < budget and self._rises(most):
            _, _, number, ideal, trail = heapq.heappop(self._open)
            if number and self._is_lower(ideal):
                return ideal, unrolled(trail)
            if ideals.steps >= next_try:
                steps = ideals.steps
                run = dive(ideals, ideal, self.limit)
                if run is not None:
                    return ideal._replace(done=ideals.all), [*unrolled(trail), *run]
                # As many steps are spent on these tries as on the search itself.
                next_try = 2 * ideals.steps - steps + _BEFORE_A_TRY
            for node in members(ideal.ready):
                self._continue(ideal, node, trail)
        return None

    def _is_lower(self, ideal: Ideal) -> bool:
        return ideal.live <= self._start.live or ideal.done == self._ideals.all

    def _rises(self, most: int) -> bool:
        """Raise the limit until an ideal can be continued; return whether it stays below `most`."""
        while not self._open:
            self.limit = self._blocked[0][0]
            if self.limit >= most:
                return False
            while self._blocked and self._blocked[0][0] <= self.limit:
                _, _, ideal, node, trail = heapq.heappop(self._blocked)
                self._continue(ideal, node, trail)
        return True

    def _continue(self, ideal: Ideal, node: int, trail: Trail) -> None:
        ideals = self._ideals
        done = ideal.done | 1 << node
        if done in self._seen:
            return
        effect = ideals.effect(ideal.done, node)
        during = ideal.live + effect.during
        if during > self.limit:
            heapq.heappush(self._blocked, (during, next(self._numbers), ideal, node, trail))
            return
        self._seen.add(done)
        further, run = ideals.run(ideal, node, effect, self.limit)
        if further.done == done or further.done not in self._seen:
            self._seen.add(further.done)
            self._put(further, (trail, run))

    def _put(self, ideal: Ideal, trail: Trail) -> None:
        # Of equals, the one with more nodes first: so no two ideals tie that matter to the proof.
        heapq.heappush(self._open, (ideal.live, -ideal.done.bit_count(), next(self._numbers), ideal, trail))


def dive(ideals: Ideals, ideal: Ideal, limit: int) -> list[int] | None:
    """Return the nodes after `ideal` in an order in which none needs more than `limit` bytes; None where the first try finds none.

    Of a few ready nodes, the one that leaves the fewest live bytes runs next.
    """
    run: list[int] = []
    ideal = ideals.run_safely(ideal, ideal.ready, limit, run)
    while ideal.ready:
        effects = ((node, ideals.effect(ideal.done, node)) for node in _few(ideal.ready))
        ways = [(node, effect) for node, effect in effects if ideal.live + effect.during <= limit]
        if not ways:
            return None
        node, effect = min(ways, key=lambda way: (way[1].after, -way[0]))
        ideal, further = ideals.run(ideal, node, effect, limit)
        run += further
    return run


def _few(ready: int) -> list[int]:
    """Return the first and the last few of the nodes `ready`."""
    found = []
    for _ in range(_NEAR):
        if ready:
            bit = ready & -ready
            found.append(bit.bit_length() - 1)
            ready ^= bit
    for _ in range(_NEAR):
        if ready:
            found.append(ready.bit_length() - 1)
            ready ^= 1 << found[-1]
    return found
