"""Finds the smallest arena of a problem, or the smallest within the budget, with a lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onnxtile.planning.offsets.effort import Effort, SearchBudget
from onnxtile.planning.offsets.exact.descent import IMPOSSIBLE, SOLVED
from onnxtile.planning.offsets.exact.restarts import Runner
from onnxtile.planning.offsets.exact.state import grain_of, groups, state_of
from onnxtile.planning.offsets.problem import Problem

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

How = Literal["optimal", "effort", "time", "size"]


@dataclass(frozen=True)
class Solution:
    """Offsets in bytes for each buffer of a problem, in its order. No arena is smaller than `lower_bound` bytes.

    `ended` is the reason why the search ended: "optimal" (no smaller arena is possible), "effort", "time", or "size" (a group of more than
    MAX_BUFFERS buffers was not searched).
    """

    offsets: tuple[int, ...]
    lower_bound: int
    ended: How


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

    def of(self, found: _Range) -> SearchBudget:
        """Return the budget of a group with the bounds `found`."""
        if self.is_fitting(found):
            return self._fitting
        return self._closing if self.is_closing(found) else self._smaller

    def is_closing(self, found: _Range) -> bool:
        """Return whether the group with the bounds `found` has steps to come near to the lower bound."""
        return found.is_far and self._closing.is_left and not self.is_fitting(found)

    def is_fitting(self, found: _Range) -> bool:
        """Return whether the group with the bounds `found` may still fit the capacity, and does not yet."""
        return self._most is not None and found.low <= self._most < found.high

    @property
    def ended(self) -> How:
        """The reason why the searches ended."""
        return "time" if self._smaller.is_late else "effort"


def solve(problem: Problem, start: Sequence[int], effort: Effort) -> Solution:
    """Return the best offsets found within `effort`, no worse than `start`, which are free of overlaps.

    The same problem, start and effort give the same offsets, with numba and without, unless a limit in seconds ends the search.
    """
    offsets, grain = list(start), grain_of(problem)
    bound = need = -(-problem.lower_bound // grain)
    budgets = _SearchBudgets(problem, effort, grain)
    ended: How = "optimal"
    for members in sorted(groups(problem), key=len):
        high = max(offsets[i] + problem.footprints[i] for i in members)
        if high <= need * grain:
            continue
        if len(members) > MAX_BUFFERS:
            ended, need = "size", -(-high // grain)
            continue
        found = _Range(need, -(-high // grain))
        if len(members) > _MANY and _DESCENTS * _LOOKS * len(members) ** 2 > budgets.of(found).looks:
            ended, need = budgets.ended, max(need, found.high)
            continue
        _improve(problem, members, offsets, found, budgets)
        # The bound of this group bounds the whole only if it is above the bytes that another group is known to need.
        bound = max(bound, found.low) if found.low > need else bound
        if found.high > max(need, found.low) and ended == "optimal":
            ended = budgets.ended
        need = max(need, found.high)
    return Solution(tuple(offsets), bound * grain, "optimal" if need <= bound else ended)


def _improve(
    problem: Problem,
    members: Sequence[int],
    offsets: list[int],
    found: _Range,
    budgets: _SearchBudgets,
) -> None:
    """Lower the offsets of a group until `found` is one size, or the budget is used up."""
    grain = grain_of(problem)
    state, order = state_of(problem, members, grain)
    runner = Runner(state, [problem.buffers[i].upper - problem.buffers[i].lower for i in order])
    share, target, tried = _FIRST_SHARE, found.high, found.low
    while found.low < found.high and budgets.of(found).is_left:
        if target >= found.high:
            target = tried = found.low
        goal = _goal(problem, found, grain)
        is_closing = budgets.is_closing(found)
        most = share
        if target != goal:
            sure = int(_FAR_DESCENTS * _LOOKS * len(members) ** 2)
            most = max(share // _FAR_BETWEEN, sure) if is_closing else share // _BETWEEN
        ended = runner.fit(target, budgets.of(found), most, fitting=target == goal and budgets.is_fitting(found))
        if ended == SOLVED:
            found.high = max(o + s for o, s in zip(runner.offsets(), state.size, strict=True))
            for i, offset in zip(order, runner.offsets(), strict=True):
                offsets[i] = offset * grain
        elif ended == IMPOSSIBLE:
            found.low = target + 1
        tried = max(tried, target + 1) if ended != SOLVED else tried
        target = _next_target(problem, found, tried, grain, _FAR_FINE if is_closing else _FINE)
        share *= 2 if target >= found.high else 1


def _next_target(problem: Problem, found: _Range, tried: int, grain: int, fine: int) -> int:
    """Return the next size to try, at least `tried`; `found.high` where the round is over: see `_FINE`.

    While a capacity may still be met and nothing fits it, only the capacity is tried. Otherwise the middle between tried and found is.
    """
    goal = _goal(problem, found, grain)
    if goal > found.low or (problem.capacity is not None and problem.capacity // grain == goal):
        return goal if tried <= goal else found.high
    if (found.high - tried) * fine < found.high and tried > found.low:
        return found.high
    return (tried + found.high) // 2


def _goal(problem: Problem, found: _Range, grain: int) -> int:
    """Return the size with the most looks: the capacity where it may still be met, else the least that is not known to be impossible."""
    capacity = found.high if problem.capacity is None else problem.capacity // grain
    return capacity if found.low <= capacity < found.high else found.low
