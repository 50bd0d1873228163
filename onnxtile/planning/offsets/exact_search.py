"""Finds the smallest arena of a problem, or the smallest within the budget, with a lower bound."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import cycle
from typing import ClassVar

from onnxtile.planning.offsets import effort as compiled
from onnxtile.planning.offsets import exact_descent as descent
from onnxtile.planning.offsets.effort import Effort, SearchBudget
from onnxtile.planning.offsets.exact_descent import (
    IMPOSSIBLE,
    SOLVED,
    SearchState,
    as_arrays,
    grain_of,
    groups,
    state_of,
)
from onnxtile.planning.offsets.problem import Ended, OptimalityProof, Placement, Problem
from onnxtile.system.dataclass import dataclass

# Runs short searches for one capacity until one ends, each with an order learned from the failures of those before.

Descend = Callable[[SearchState, int, int, int], tuple[int, int]]

COMPILE_FROM, LOAD_FROM, USE_FROM = 5_000_000, 500_000, 5_000
"""Looks of one problem after which compiling pays, which plain Python does in one or two seconds; looks of all problems of a process after
which loading what is compiled pays; and those of one problem after which what is loaded is used."""

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
        self.failures = [0] * len(weights)

    def ranks(self) -> list[int]:
        """Return the rank of each buffer."""
        key = [weight * (1 + failures) for weight, failures in zip(self._weights, self.failures, strict=True)]
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
    """Runs searches on one state: as plain Python for the first looks, then compiled where numba is installed.

    `lengths` are the lengths of the live ranges, by buffer of the state.
    """

    spent: ClassVar[int] = 0
    """The looks of all runners of this process: fit places hundreds of small problems, none of which pays for loading alone."""

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
        if self._run is descent.descend and self._looks >= USE_FROM and self._pays_to_compile():
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
            order.failures = [int(failures) for failures in self._state.failures]
        self._looks += int(looks)
        Runner.spent += int(looks)
        budget.take(int(looks))
        return int(ended)

    def _pays_to_compile(self) -> bool:
        if compiled.is_loaded(descent, "descend"):
            return True
        return Runner.spent >= LOAD_FROM and compiled.is_available() and (self._looks >= COMPILE_FROM or self._is_kept)

    @cached_property
    def _is_kept(self) -> bool:
        return compiled.is_kept(descent, "descend")


MAX_BUFFERS = 3_000
"""Buffers of one group, at most: the search keeps a list of candidates for each of its depths."""

_MANY, _DESCENTS = 1_000, 4
"""A group of more buffers is searched only with a budget for so many descents: each learns from the failures of those before."""
_LOOKS = 0.65
"""The looks of a descent are about this multiple of the square of the number of buffers: 1.3 placements of each, among half of them."""

_FIRST_SHARE = 100_000
"""Looks for each size in the first round; every round doubles them."""
_BETWEEN = 8
"""The goal is the lower bound, or the capacity as long as nothing fits it. Other sizes get one part in so many of its looks."""
_FINE = 200
"""A round ends where the sizes between the tried and the found are fewer than one in so many of the found."""
_FAR = 32
"""The found is far above the bound where it exceeds it by more than one part in so many. Then the next three numbers hold, as long as the
effort has steps for that."""
_FAR_BETWEEN, _FAR_FINE, _FAR_DESCENTS = 4, 64, 2
"""Instead of the two above; and other sizes get the looks of so many descents at least: one that is cut off finds nothing."""


@dataclass
class _Range:
    """Bounds of the smallest arena of a group, in grains: no placement takes fewer than `low`, one takes `high`."""

    low: int
    high: int

    @property
    def is_far(self) -> bool:
        """Whether a far smaller arena may be possible."""
        return (self.high - self.low) * _FAR > self.low


class _SearchBudgets:
    """The budget for a smaller arena, and those spent before it: to fit the capacity, and to come near to the lower bound."""

    def __init__(self, problem: Problem, effort: Effort, grain: int) -> None:
        self._most = None if problem.capacity is None else problem.capacity // grain
        self._smaller = effort.budget
        self._fitting, self._closing = effort.budget_to_fit, effort.budget_to_close

    def of_group(self, bounds: _Range) -> SearchBudget:
        """Return the budget of a group with these `bounds`."""
        if self.is_fitting(bounds):
            return self._fitting
        return self._closing if self.is_closing(bounds) else self._smaller

    def is_closing(self, bounds: _Range) -> bool:
        """Return whether the group with these `bounds` has steps to come near to the lower bound."""
        return bounds.is_far and self._closing.is_left and not self.is_fitting(bounds)

    def is_fitting(self, bounds: _Range) -> bool:
        """Return whether the group with these `bounds` may still fit the capacity, and does not yet."""
        return self._most is not None and bounds.low <= self._most < bounds.high

    @property
    def ended(self) -> Ended:
        """The reason why the searches ended."""
        return "time" if self._smaller.is_late else "effort"


def solve(problem: Problem, start: Sequence[int], effort: Effort) -> Placement:
    """Return the best offsets found within `effort`, no worse than `start`, which are free of overlaps, and a bound that is proved.

    A group of more than MAX_BUFFERS buffers is not searched.

    The same problem, start and effort give the same offsets, with numba and without, unless a limit in seconds ends the search.
    """
    offsets, grain = list(start), grain_of(problem)
    bound = need = -(-problem.lower_bound // grain)
    budgets = _SearchBudgets(problem, effort, grain)
    ended: Ended = "search ended"
    for members in sorted(groups(problem), key=len):
        high = max(offsets[i] + problem.footprints[i] for i in members)
        if high <= need * grain:
            continue
        if len(members) > MAX_BUFFERS:
            ended, need = "too many buffers", -(-high // grain)
            continue
        bounds = _Range(need, -(-high // grain))
        if len(members) > _MANY and _DESCENTS * _LOOKS * len(members) ** 2 > budgets.of_group(bounds).looks:
            ended, need = budgets.ended, max(need, bounds.high)
            continue
        _improve(problem, members, offsets, bounds, budgets)
        # The bound of this group bounds the whole only if it is above the bytes that another group is known to need.
        bound = max(bound, bounds.low) if bounds.low > need else bound
        if bounds.high > max(need, bounds.low) and ended == "search ended":
            ended = budgets.ended
        need = max(need, bounds.high)
    ended = "search ended" if need <= bound else ended
    return Placement(tuple(offsets), OptimalityProof(bound * grain, "search", ended))


def _improve(
    problem: Problem,
    members: Sequence[int],
    offsets: list[int],
    bounds: _Range,
    budgets: _SearchBudgets,
) -> None:
    """Lower the offsets of a group until its `bounds` are one size, or the budget is used up."""
    grain = grain_of(problem)
    state, order = state_of(problem, members, grain)
    runner = Runner(state, [problem.buffers[i].upper - problem.buffers[i].lower for i in order])
    share, target, tried = _FIRST_SHARE, bounds.high, bounds.low
    while bounds.low < bounds.high and budgets.of_group(bounds).is_left:
        if target >= bounds.high:
            target = tried = bounds.low
        goal = _goal(problem, bounds, grain)
        is_closing = budgets.is_closing(bounds)
        most = share
        if target != goal:
            sure = int(_FAR_DESCENTS * _LOOKS * len(members) ** 2)
            most = max(share // _FAR_BETWEEN, sure) if is_closing else share // _BETWEEN
        ended = runner.fit(
            target, budgets.of_group(bounds), most, fitting=target == goal and budgets.is_fitting(bounds)
        )
        if ended == SOLVED:
            bounds.high = max(o + s for o, s in zip(runner.offsets(), state.size, strict=True))
            for i, offset in zip(order, runner.offsets(), strict=True):
                offsets[i] = offset * grain
        elif ended == IMPOSSIBLE:
            bounds.low = target + 1
        tried = max(tried, target + 1) if ended != SOLVED else tried
        target = _next_target(problem, bounds, tried, grain, _FAR_FINE if is_closing else _FINE)
        share *= 2 if target >= bounds.high else 1


def _next_target(problem: Problem, bounds: _Range, tried: int, grain: int, fine: int) -> int:
    """Return the next size to try, at least `tried`; the upper bound where the round is over: see `_FINE`.

    While a capacity may still be met and nothing fits it, only the capacity is tried. Otherwise it is the middle of the sizes left.
    """
    goal = _goal(problem, bounds, grain)
    if goal > bounds.low or (problem.capacity is not None and problem.capacity // grain == goal):
        return goal if tried <= goal else bounds.high
    if (bounds.high - tried) * fine < bounds.high and tried > bounds.low:
        return bounds.high
    return (tried + bounds.high) // 2


def _goal(problem: Problem, bounds: _Range, grain: int) -> int:
    """Return the size with the most looks: the capacity where it may still be met, else the least that is not known to be impossible."""
    capacity = bounds.high if problem.capacity is None else problem.capacity // grain
    return capacity if bounds.low <= capacity < bounds.high else bounds.low
