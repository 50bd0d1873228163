"""From a problem to the smallest arena, or the smallest that the budget finds, and what is known about a smaller one."""

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
"""Of one group: a search keeps a list of candidates for each of its depths."""

_FIRST_SHARE = 100_000
"""Looks that each attempt at a size may take in the first round; every round doubles them."""
_BETWEEN = 8
"""Other sizes get one part in so many of what the goal gets: the bound, or the capacity as long as nothing fits it."""
_FINE = 200
"""A round ends where what lies between tried and found is less than one in this many of the whole."""

How = Literal["optimal", "effort", "time", "size"]


@dataclass(frozen=True)
class Solution:
    """Offsets in bytes for each buffer of a problem, in its order; no plan takes less than `lower_bound` bytes.

    `ended` says what ended the search: "optimal" (no smaller arena is possible), "effort", "time", or "size" where a group of more than
    MAX_BUFFERS buffers was not searched.
    """

    offsets: tuple[int, ...]
    lower_bound: int
    ended: How


@dataclass
class _Range:
    """What is known of the bytes that a group takes at least, in grains: fewer than `low` are too few, `high` have been enough."""

    low: int
    high: int


class _SearchBudgets:
    """The steps for a smaller arena, and those for one that fits the capacity, which are spent as long as none does."""

    def __init__(self, problem: Problem, effort: Effort, grain: int) -> None:
        self._most = None if problem.capacity is None else problem.capacity // grain
        self._smaller = effort.budget
        self._fitting = effort.budget_to_fit

    def of(self, found: _Range) -> SearchBudget:
        """Return the budget of a group of which this is known."""
        return self._fitting if self._most is not None and found.low <= self._most < found.high else self._smaller

    @property
    def ended(self) -> How:
        """What they were ended by."""
        return "time" if self._smaller.is_late else "effort"


def solve(problem: Problem, start: Sequence[int], effort: Effort) -> Solution:
    """Return the best offsets found with `effort`, no worse than the sound ones of `start`.

    The same problem, start and effort give the same offsets, with numba and without, unless seconds end it.
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
        _improve(problem, members, offsets, found, budgets)
        # Where another group takes more than is known to be needed, what this one takes at least says nothing about the whole.
        bound = max(bound, found.low) if found.low > need else bound
        if found.high > max(need, found.low) and ended == "optimal":
            ended = budgets.ended
        need = max(need, found.high)
    return Solution(tuple(offsets), bound * grain, "optimal" if need <= bound else ended)


def _improve(
    problem: Problem, members: Sequence[int], offsets: list[int], found: _Range, budgets: _SearchBudgets
) -> None:
    """Lower the offsets of a group, as far as they lie above `found.low`, until no less is possible or the budget is used up."""
    grain = grain_of(problem)
    state, order = state_of(problem, members, grain)
    runner = Runner(state, [problem.buffers[i].upper - problem.buffers[i].lower for i in order])
    share, target, tried = _FIRST_SHARE, found.high, found.low
    while found.low < found.high and budgets.of(found).is_left:
        if target >= found.high:
            target = tried = found.low
        most = share if target == _goal(problem, found, grain) else share // _BETWEEN
        ended = runner.fit(target, budgets.of(found), most)
        if ended == SOLVED:
            found.high = max(o + s for o, s in zip(runner.offsets(), state.size, strict=True))
            for i, offset in zip(order, runner.offsets(), strict=True):
                offsets[i] = offset * grain
        elif ended == IMPOSSIBLE:
            found.low = target + 1
        tried = max(tried, target + 1) if ended != SOLVED else tried
        target = _next_target(problem, found, tried, grain)
        share *= 2 if target >= found.high else 1


def _next_target(problem: Problem, found: _Range, tried: int, grain: int) -> int:
    """Return the size to try after all below `tried`; `found.high` where the round is over.

    As long as nothing fits a capacity that may be met, that is all that counts. Else half of what lies between tried and found.
    """
    goal = _goal(problem, found, grain)
    if goal > found.low or (problem.capacity is not None and problem.capacity // grain == goal):
        return goal if tried <= goal else found.high
    if (found.high - tried) * _FINE < found.high and tried > found.low:
        return found.high
    return (tried + found.high) // 2


def _goal(problem: Problem, found: _Range, grain: int) -> int:
    """Return the size that counts most: the capacity where it may still be met, else the least that is not known to be impossible."""
    capacity = found.high if problem.capacity is None else problem.capacity // grain
    return capacity if found.low <= capacity < found.high else found.low
