"""Moves buffers that end too high below a target, and those that are in their way elsewhere, until all lie below it.

After the ejection chains of Glover, Discrete Applied Mathematics 65 (1996), pages 223-253.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.planning.offsets.gaps import LiveIndex
from onnxtile.planning.offsets.problem import Ints, Problem, size_of

STEPS_OF_A_MOVE = 20
"""The steps of an effort that moving one buffer takes; each part in conflict takes a twentieth of one more."""
_MOST = 24_000
"""Moves for one problem, at most; later ones rarely lower the arena."""
_FINE = 400
"""The search ends where the arena exceeds the largest target that was not met by no more than one in so many bytes of the lower bound."""


class PartConflicts(NamedTuple):
    """The parts in conflict with those of one buffer: their owners, and the offsets between which the two overlap.

    A buffer at offset x overlaps a part whose owner lies at y where y + `low` < x < y + `high`.
    """

    owner: Ints
    low: Ints
    high: Ints


class EjectionSearch:
    """Lowers the offsets of a problem without pins, and without conflicts between buffers whose live ranges do not meet."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._index = problem, LiveIndex(problem.parts.lower, problem.parts.upper)
        self._sizes = np.array(problem.footprints, np.int64)
        self._units = np.array([problem.alignment_of(buffer) for buffer in problem.buffers], np.int64)
        durations = (buffer.upper - buffer.lower for buffer in problem.buffers)
        # Buffers that are large and live long are the hardest to place again.
        self._worth = np.array(
            [1 + int(size * sqrt(steps)) for size, steps in zip(problem.footprints, durations, strict=True)], np.int64
        )
        self._known: dict[int, PartConflicts] = {}

    def lowered(self, offsets: Sequence[int], budget: SearchBudget) -> tuple[int, ...]:
        """Return offsets whose arena is no larger than that of `offsets`, which are free of overlaps.

        Targets between the lower bound and the arena are tried by bisection; the capacity first, where it may still be met.
        """
        problem, best = self._problem, tuple(offsets)
        low, high, left = problem.lower_bound, size_of(problem, best), _MOST
        capacity = problem.capacity
        while left > 0 and budget.is_left and (high - low) * _FINE > problem.lower_bound:
            is_wanted = capacity is not None and low <= capacity < high
            target = capacity if is_wanted and capacity is not None else (low + high) // 2
            found, moves = self._below(target, best, left if is_wanted else -(-left // 2), budget)
            left -= moves
            if found is None:
                low = target + 1
            else:
                best, high = found, size_of(problem, found)
        return best

    def _below(
        self, target: int, start: Sequence[int], most: int, budget: SearchBudget
    ) -> tuple[tuple[int, ...] | None, int]:
        """Return offsets below `target`, or None where `most` moves do not find any; and the number of moves."""
        offsets, generator = np.array(start, np.int64), random.Random(0)
        is_placed = offsets + self._sizes <= target
        tries = np.ones(len(offsets), np.int64)
        waiting = sorted(np.flatnonzero(~is_placed).tolist(), key=self._worth.__getitem__)
        moves = 0
        while waiting and moves < most and budget.is_left:
            one = waiting.pop()
            near = self._conflicts(one)
            budget.take(STEPS_OF_A_MOVE + len(near.owner) // 20)
            moves += 1
            found = self._place(one, near, target, offsets, is_placed, tries, generator)
            if found is None:
                return None, moves
            offsets[one], ejected = found
            is_placed[one] = True
            is_placed[ejected] = False
            if ejected:
                tries[one] += 1
                waiting += sorted(ejected, key=self._worth.__getitem__)
        return (None if waiting else tuple(offsets.tolist())), moves

    def _place(
        self,
        one: int,
        near: PartConflicts,
        target: int,
        offsets: Ints,
        is_placed: npt.NDArray[np.bool_],
        tries: Ints,
        generator: random.Random,
    ) -> tuple[int, list[int]] | None:
        """Return the offset of a buffer that ejects the buffers of the least worth, and these buffers; None where it has none."""
        unit, last = int(self._units[one]), target - int(self._sizes[one])
        if last < 0:
            return None
        kept = is_placed[near.owner]
        owner = near.owner[kept]
        low, high = near.low[kept] + offsets[owner], near.high[kept] + offsets[owner]
        choices = np.concatenate(([0, last & -unit], (high + unit - 1) & -unit, low & -unit))
        choices = choices[(choices >= 0) & (choices <= last)]
        worth = self._worth[owner] * tries[owner]
        costs = _overlapping(choices, low, high, worth)
        least = np.flatnonzero(costs == costs.min())
        offset = int(choices[least[int(generator.random() * len(least))]])
        return offset, np.unique(owner[(low < offset) & (offset < high)]).tolist()

    def _conflicts(self, one: int) -> PartConflicts:
        if one not in self._known:
            parts, found = self._problem.parts, []
            for part in range(parts.first[one], parts.first[one + 1]):
                near = self._index.met(parts.lower[part], parts.upper[part])
                near = near[parts.owner[near] != one]
                found.append(
                    (parts.owner[near], parts.start[near] - parts.end[part], parts.end[near] - parts.start[part])
                )
            self._known[one] = PartConflicts(*map(np.concatenate, zip(*found, strict=True)))
        return self._known[one]


def _overlapping(choices: Ints, low: Ints, high: Ints, worth: Ints) -> Ints:
    """Return the worth of the open intervals from `low` to `high` that each of `choices` lies in."""
    by_low, by_high = np.argsort(low), np.argsort(high)
    begun = np.concatenate(([0], np.cumsum(worth[by_low])))
    ended = np.concatenate(([0], np.cumsum(worth[by_high])))
    found: Ints = (
        begun[np.searchsorted(low[by_low], choices, side="left")]
        - ended[np.searchsorted(high[by_high], choices, side="right")]
    )
    return found
