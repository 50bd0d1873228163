"""Short searches, each learning from the failures of the one before, until one ends; now and then all is forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import cycle

from onnxtile.planning.offsets import compiled
from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.planning.offsets.exact import descent
from onnxtile.planning.offsets.exact.state import SearchState, as_arrays

Descend = Callable[[SearchState, int, int, int], tuple[int, int]]

COMPILE_FROM = 5_000_000
"""Looks after which compiling pays: the plain search takes one or two seconds for them, and compiling, the first time, some more."""

_SHORT, _LEAST = 1.3, 200
"""Placements of a short search: a multiple of the buffers, but not so few that a small problem is not searched through."""
_GROWTH = 500
"""After this many searches they are twice as long, then thrice."""
_LONG = 1_000
"""Placements of the first long search. Each is twice as long as the one before, so that one ends some day; half of the work is theirs."""

_EPOCH, _LENGTHENED = 100, 1.3
"""Searches after which what was learned is forgotten, and how much later it is each time: some lessons lead into a corner."""
_POWERS, _NOISE = (0.5, 1.0, 0.25), 0.2
"""A buffer weighs as much as the length of its life to one of these powers, in turn, more or less by the noise from the second time on:
which one serves a problem best is not known beforehand, and equal weights would teach the same again."""

_SLICE, _FASTER = 2_000_000, 20
"""Looks after which the clock is asked where it counts: half a second plain, a tenth compiled. What is cut off there is lost, so a short
search through some hundreds of buffers has to end before."""


class BranchingOrder:
    """A way to choose between buffers: the heaviest first, and the more so the more often it was in the way."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights
        self.failures = [0.0] * len(weights)

    def ranks(self) -> list[int]:
        """Return the rank of each buffer."""
        key = [weight * (1.0 + failures) for weight, failures in zip(self._weights, self.failures, strict=True)]
        ranks = [0] * len(key)
        for rank, i in enumerate(sorted(range(len(key)), key=lambda i: (-key[i], i))):
            ranks[i] = rank
        return ranks


class RestartSchedule:
    """The search for offsets below one size: its order with what it has learned, and the lengths of its searches.

    `lengths` are those of the buffers' lives.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._draw, self._powers = random.Random(0), cycle(_POWERS)
        self._short = max(int(_SHORT * len(lengths)), _LEAST)
        self._long = _LONG
        self._searches = self._owed = 0
        self._epoch = self._left = _EPOCH
        self.order = self._begun(0.0)

    def next(self) -> tuple[int, bool]:
        """Return how many placements the next search may take, and whether the order learns from it: what is long teaches too much."""
        if self._owed >= self._long:
            nodes, self._owed, self._long = self._long, 0, self._long * 2
            return nodes, False
        if not self._left:
            self._epoch = self._left = int(self._epoch * _LENGTHENED)
            self.order = self._begun(_NOISE)
        nodes = self._short * (_GROWTH + self._searches) // _GROWTH
        self._searches += 1
        self._left -= 1
        self._owed += nodes
        return nodes, True

    def _begun(self, noise: float) -> BranchingOrder:
        power = next(self._powers)
        return BranchingOrder([length**power * (1.0 + self._draw.uniform(-noise, noise)) for length in self._lengths])


class Runner:
    """Runs searches on one state, plain until `COMPILE_FROM` looks were taken, then compiled where numba is installed.

    `lengths` are those of the buffers' lives.
    """

    def __init__(self, state: SearchState, lengths: Sequence[int]) -> None:
        self._state = state
        self._lengths = lengths
        self._run: Descend = descent.descend
        self._looks = 0
        self._restarts: dict[int, RestartSchedule] = {}

    def fit(self, capacity: int, budget: SearchBudget, share: int) -> int:
        """Search until offsets below `capacity` are found, it is known that there are none, or `share` of `budget` is used up.

        Return which of them ended it. Searching again goes on with what was learned.
        """
        if capacity not in self._restarts:
            self._restarts[capacity] = RestartSchedule(self._lengths)
        least = max(0, budget.looks - share)
        ended = descent.STOPPED
        while ended == descent.STOPPED and budget.looks > least and budget.is_left:
            ended = self._search(self._restarts[capacity], capacity, budget, least)
        return ended

    def offsets(self) -> list[int]:
        """Return the offsets that the last search left, in grains."""
        return [int(offset) for offset in self._state.offset]

    def _search(self, restarts: RestartSchedule, capacity: int, budget: SearchBudget, least: int) -> int:
        """Make the next search of `attempt`, until the budget is down to `least` looks; return how it ended."""
        if self._looks >= COMPILE_FROM and self._run is descent.descend and compiled.is_available():
            self._state = as_arrays(self._state)
            self._run = compiled.function(descent, "descend", allocates=False)
        nodes, does_teach = restarts.next()
        order = restarts.order
        for buffer, rank in enumerate(order.ranks()):
            self._state.rank[buffer] = rank
            self._state.failures[buffer] = order.failures[buffer]
        most = budget.looks - least
        if budget.seconds is not None:
            most = min(most, _SLICE * (1 if self._run is descent.descend else _FASTER))
        ended, looks = self._run(self._state, capacity, nodes, most)
        if does_teach:
            order.failures = [float(failures) for failures in self._state.failures]
        self._looks += int(looks)
        budget.take(int(looks))
        return int(ended)
