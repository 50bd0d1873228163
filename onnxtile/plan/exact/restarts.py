"""Short searches in several orders, each learning from the failures of the one before, until one ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxtile.plan import compiled
from onnxtile.plan.effort import Budget
from onnxtile.plan.exact import descent
from onnxtile.plan.exact.state import State, as_arrays

Descend = Callable[[State, int, int, int], tuple[int, int]]

COMPILE_FROM = 10_000_000
"""Looks after which compiling pays: the plain search takes some seconds for them, and compiling, the first time, some more."""

_SHORT, _LEAST = 4, 200
"""Placements of a short search: a multiple of the buffers, but not so few that a small problem is not searched through."""
_GROWTH = 500
"""After this many searches of one order they are twice as long, then thrice."""
_LONG = 1_000
"""Placements of the first long search. Each is twice as long as the one before, so that one ends some day; half of the work is theirs."""

_SLICE, _FASTER = 500_000, 20
"""Looks after which the clock is asked where it counts: a tenth of a second plain, and as much compiled."""


@dataclass
class Order:
    """A way to break ties between buffers of one offset: the heaviest first, and the more so the more often it was in the way."""

    weight: list[float]
    blame: list[float]

    def ranks(self) -> list[int]:
        """Return the rank of each buffer."""
        key = [weight * (1.0 + blame) for weight, blame in zip(self.weight, self.blame, strict=True)]
        ranks = [0] * len(key)
        for rank, i in enumerate(sorted(range(len(key)), key=lambda i: (-key[i], i))):
            ranks[i] = rank
        return ranks


class Attempt:
    """The search for offsets below one size: its orders with what they have learned, and the lengths of its searches.

    `lengths` are those of the buffers' lives.
    """

    def __init__(self, lengths: Sequence[int], sizes: Sequence[int]) -> None:
        self._orders = (_order(lengths), _order(sizes))
        self._short = max(_SHORT * len(sizes), _LEAST)
        self._long = _LONG
        self._searches = 0
        self._owed = 0

    def next(self) -> tuple[Order, int]:
        """Return the order of the next search, and how many placements it may take."""
        rounds, place = divmod(self._searches, len(self._orders))
        if self._owed >= self._long:
            nodes, self._owed, self._long = self._long, 0, self._long * 2
            return self._orders[place], nodes
        nodes = self._short * (_GROWTH + rounds) // _GROWTH
        self._searches += 1
        self._owed += nodes
        return self._orders[place], nodes


class Runner:
    """Runs searches on one state, plain until `COMPILE_FROM` looks were taken, then compiled where numba is installed.

    `lengths` are those of the buffers' lives.
    """

    def __init__(self, state: State, lengths: Sequence[int]) -> None:
        self._state = state
        self._lengths = lengths
        self._run: Descend = descent.descend
        self._looks = 0
        self._attempts: dict[int, Attempt] = {}

    def fit(self, capacity: int, budget: Budget, share: int) -> int:
        """Search until offsets below `capacity` are found, it is known that there are none, or `share` of `budget` is used up.

        Return which of them ended it. Searching again goes on with what was learned.
        """
        if capacity not in self._attempts:
            self._attempts[capacity] = Attempt(self._lengths, [int(size) for size in self._state.size])
        least = max(0, budget.looks - share)
        ended = descent.STOPPED
        while ended == descent.STOPPED and budget.looks > least and budget.is_left:
            order, nodes = self._attempts[capacity].next()
            ended = self._search(order, capacity, nodes, budget, least)
        return ended

    def offsets(self) -> list[int]:
        """Return the offsets that the last search left, in grains."""
        return [int(offset) for offset in self._state.offset]

    def _search(self, order: Order, capacity: int, nodes: int, budget: Budget, least: int) -> int:
        """Search once in `order`, which learns from it, until the budget is down to `least` looks; return how it ended."""
        if self._looks >= COMPILE_FROM and self._run is descent.descend and compiled.is_available():
            self._state = as_arrays(self._state)
            self._run = compiled.function(descent, "descend", allocates=False)
        for buffer, rank in enumerate(order.ranks()):
            self._state.rank[buffer] = rank
            self._state.blame[buffer] = order.blame[buffer]
        most = budget.looks - least
        if budget.seconds is not None:
            most = min(most, _SLICE * (1 if self._run is descent.descend else _FASTER))
        ended, looks = self._run(self._state, capacity, nodes, most)
        order.blame = [float(blame) for blame in self._state.blame]
        self._looks += int(looks)
        budget.take(int(looks))
        return int(ended)


def _order(weights: Sequence[int]) -> Order:
    largest = max(weights)
    return Order([weight / largest for weight in weights], [0.0] * len(weights))
