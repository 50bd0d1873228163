"""From a problem to the smallest arena, or the smallest that the budget finds, and what is known about a smaller one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtile.plan.exact.descent import IMPOSSIBLE, SOLVED
from onnxtile.plan.exact.restarts import Budget, Runner
from onnxtile.plan.exact.state import grain_of, groups, state_of
from onnxtile.plan.problem import Problem

MAX_BUFFERS = 3_000
"""Of one group: a search keeps a list of candidates for each of its depths."""

_FIRST_SHARE = 100_000
"""Looks that each attempt at a size may take in the first round; every round doubles them."""
_BETWEEN = 8
"""Sizes between the bound and the best plan get one part in so many of what the bound gets."""
_SPARED = 10
"""Once a plan fits the capacity, one part in so many of the budget is spent on a smaller one."""
_FINE = 200
"""A round ends where what lies between tried and found is less than one in this many of the whole."""


@dataclass(frozen=True)
class Solution:
    """Offsets in bytes for each buffer of a problem, in its order; no plan takes less than `lower_bound` bytes.

    `ended` says what ended the search: "optimal" (no smaller arena is possible), "budget", or "size" where a group of more than
    MAX_BUFFERS buffers was not searched.
    """

    offsets: tuple[int, ...]
    lower_bound: int
    ended: str


@dataclass
class _Range:
    """What is known of the bytes that a group takes at least, in grains: fewer than `low` are too few, `high` have been enough."""

    low: int
    high: int


def solve(problem: Problem, start: Sequence[int], looks: int) -> Solution:
    """Return the best offsets found in at most `looks` looks at a buffer, no worse than the sound ones of `start`.

    The same problem, start and budget give the same offsets, with numba and without.
    """
    offsets, grain = list(start), grain_of(problem)
    bound = need = -(-problem.lower_bound // grain)
    budget, ended = Budget(looks), "optimal"
    for members in sorted(groups(problem), key=len):
        high = max(offsets[i] + problem.footprint(problem.buffers[i]) for i in members)
        if high <= need * grain:
            continue
        if len(members) > MAX_BUFFERS:
            ended, need = "size", -(-high // grain)
            continue
        found = _Range(need, -(-high // grain))
        _improve(problem, members, offsets, found, budget)
        # Where another group takes more than is known to be needed, what this one takes at least says nothing about the whole.
        bound = max(bound, found.low) if found.low > need else bound
        if found.high > max(need, found.low) and ended == "optimal":
            ended = "budget"
        need = max(need, found.high)
    return Solution(tuple(offsets), bound * grain, "optimal" if need <= bound else ended)


def _improve(problem: Problem, members: Sequence[int], offsets: list[int], found: _Range, budget: Budget) -> None:
    """Lower the offsets of a group, as far as they lie above `found.low`, until no less is possible or the budget is used up."""
    grain = grain_of(problem)
    state, order = state_of(problem, members, grain)
    runner = Runner(state, [problem.buffers[i].upper - problem.buffers[i].lower for i in order])
    share, least = _FIRST_SHARE, 0
    while found.low < found.high and budget.looks > least:
        target = tried = found.low
        while target < found.high and budget.looks > least:
            most = share if target == found.low else share // _BETWEEN
            ended = runner.fit(target, budget, min(most, budget.looks - least))
            if ended == SOLVED:
                did_fit = _fits(problem, found, grain)
                found.high = max(o + s for o, s in zip(runner.offsets(), state.size, strict=True))
                if _fits(problem, found, grain) and not did_fit:
                    least = budget.looks - budget.looks // _SPARED
                for i, offset in zip(order, runner.offsets(), strict=True):
                    offsets[i] = offset * grain
            elif ended == IMPOSSIBLE:
                found.low = target + 1
            tried = max(tried, target + 1) if ended != SOLVED else tried
            target = _next_target(problem, found, tried, grain)
        share *= 2


def _fits(problem: Problem, found: _Range, grain: int) -> bool:
    return problem.capacity is not None and found.high * grain <= problem.capacity


def _next_target(problem: Problem, found: _Range, tried: int, grain: int) -> int:
    """Return the size to try after all below `tried`; `found.high` where the round is over.

    As long as nothing fits a capacity that may be met, that is all that counts. Else half of what lies between tried and found.
    """
    capacity = found.high if problem.capacity is None else problem.capacity // grain
    if found.low <= capacity < found.high:
        return capacity if tried <= capacity else found.high
    if (found.high - tried) * _FINE < found.high and tried > found.low:
        return found.high
    return (tried + found.high) // 2
