"""Runs short searches for one capacity until one ends, each with an order learned from the failures of those before."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import cycle

from onnxtile.planning.offsets import compiled
from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.planning.offsets.exact import descent
from onnxtile.planning.offsets.exact.state import SearchState, as_arrays

Descend = Callable[[SearchState, int, int, int], tuple[int, int]]

COMPILE_FROM, LOAD_FROM = 5_000_000, 500_000
"""Looks after which compiling pays, which plain Python does in one or two seconds; and those after which loading what is compiled pays."""

_SHORT, _LEAST = 1.3, 200
"""Placements of a short search: a multiple of the number of buffers, at least _LEAST so that small problems are searched completely."""
_GROWTH = 500
"""Short searches grow linearly: after this many they are twice as long, after twice as many three times."""
_LONG = 1_000
"""Placements of the first long search. Each is twice as long as the one before, so that one of them ends."""
_LONG_SHARE, _LONG_SHARE_TO_FIT = 2, 16
"""One part in so many of all placements goes to long searches; fewer while searching for a placement that fits a capacity. Long searches
prove that a size is impossible, and seldom find a placement."""

_EPOCH, _LENGTHENED = 100, 1.3
"""Short searches before failures are forgotten, and the factor for the next time: some counts mislead the search."""
_POWERS, _NOISE = (0.5, 1.0, 0.25), 0.2
"""The weight of a buffer is the length of its live range to one of these powers, in turn. From the second turn on a random factor of up to
1 ± _NOISE is added, since equal weights would repeat the same searches."""

_SLICE, _FASTER = 2_000_000, 20
"""Looks between two readings of the clock, where time is limited: half a second of plain Python, a tenth of a second compiled. A search
that is cut off is lost, so a short search over some hundreds of buffers has to take fewer looks."""


class BranchingOrder:
    """The order in which buffers are tried: by weight times one more than the failures, largest first."""

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
    """The searches for one capacity: the length of each, and the order it tries buffers in.

    `lengths` are the lengths of the live ranges, by buffer. While `fitting`, long searches get a smaller share.
    """

    def __init__(self, lengths: Sequence[int], *, fitting: bool) -> None:
        self._lengths = lengths
        self._long_share = _LONG_SHARE_TO_FIT if fitting else _LONG_SHARE
        self._draw, self._powers = random.Random(0), cycle(_POWERS)
        self._short = max(int(_SHORT * len(lengths)), _LEAST)
        self._long = _LONG
        self._searches = self._owed = 0
        self._epoch = self._left = _EPOCH
        self.order = self._begun(0.0)

    def next(self) -> tuple[int, bool]:
        """Return the number of placements that the next search may take, and whether the order learns from its failures.

        The order does not learn from long searches: their many failures would outweigh all others.
        """
        if self._owed >= self._long * (self._long_share - 1):
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
    """Runs searches on one state: as plain Python for the first `COMPILE_FROM` looks, then compiled where numba is installed.

    `lengths` are the lengths of the live ranges, by buffer of the state.
    """

    def __init__(self, state: SearchState, lengths: Sequence[int]) -> None:
        self._state = state
        self._lengths = lengths
        self._run: Descend = descent.descend
        self._looks = 0
        self._restarts: dict[int, RestartSchedule] = {}

    def fit(self, capacity: int, budget: SearchBudget, share: int, *, fitting: bool) -> int:
        """Search offsets below `capacity` (grains) until SOLVED, IMPOSSIBLE, or STOPPED after `share` looks of `budget`; return the ending.

        `fitting` says that `capacity` is a limit the caller has to meet. A second call goes on with the failures learned in the first.
        """
        if capacity not in self._restarts:
            self._restarts[capacity] = RestartSchedule(self._lengths, fitting=fitting)
        least = max(0, budget.looks - share)
        ended = descent.STOPPED
        while ended == descent.STOPPED and budget.looks > least and budget.is_left:
            ended = self._search(self._restarts[capacity], capacity, budget, least)
        return ended

    def offsets(self) -> list[int]:
        """Return the offsets of the last search, in grains."""
        return [int(offset) for offset in self._state.offset]

    def _search(self, restarts: RestartSchedule, capacity: int, budget: SearchBudget, least: int) -> int:
        """Run the next search of `restarts`, until the budget is down to `least` looks; return its ending."""
        if self._run is descent.descend and self._looks >= LOAD_FROM and self._pays_to_compile():
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

    def _pays_to_compile(self) -> bool:
        return compiled.is_available() and (self._looks >= COMPILE_FROM or self._is_compiled)

    @cached_property
    def _is_compiled(self) -> bool:
        return compiled.is_loaded(descent, "descend") or compiled.is_kept(descent, "descend")
