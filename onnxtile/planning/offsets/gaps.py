"""Places buffers one after the other, each into a gap between the buffers it is in conflict with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from onnxtile.planning.offsets.conflicts import LiveIndex
from onnxtile.planning.offsets.problem import Ints, Problem

Choose = Callable[[Ints], int]
"""Given the room in each gap in bytes (negative: too small), lowest gap first, returns the index of the gap to take; -1 is the space
above all."""


class Fitter:
    """Places the buffers of a problem in any order; the live ranges of their parts are sorted once.

    n parts with d conflicts each take n searches of about d steps: about a second for 10,000 buffers.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._index = LiveIndex(problem.parts.lower, problem.parts.upper)
        self._extra_conflicts = {i: np.array(others, np.int64) for i, others in problem.extra_conflicts.items()}

    def place(self, order: Sequence[int], choose: Choose) -> list[int]:
        """Return an offset for each buffer, placed in the order of their numbers in `order`; those with a pin come first."""
        problem, parts = self._problem, self._problem.parts
        offsets = [buffer.pin or 0 for buffer in problem.buffers]
        start, end = parts.start.copy(), parts.end.copy()
        is_placed = np.zeros(len(start), bool)
        free = order if not problem.pinned else [i for i in order if problem.buffers[i].pin is None]
        for i in (*problem.pinned, *free):
            if not problem.footprints[i]:
                continue
            first, last, offset = parts.first[i], parts.first[i + 1], problem.buffers[i].pin
            if offset is None:
                low, high = self._barred(i, start, end, is_placed)
                offset = _offset(low, high, problem.alignment_of(problem.buffers[i]), choose)
            start[first:last] += offset
            end[first:last] += offset
            is_placed[first:last] = True
            offsets[i] = offset
        return offsets

    def _barred(self, i: int, start: Ints, end: Ints, is_placed: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the ends of the open intervals of offsets of buffer `i` in which one of its parts would overlap a placed one."""
        parts, low, high = self._problem.parts, [], []
        for part in range(parts.first[i], parts.first[i + 1]):
            near = self._index.met(parts.lower[part], parts.upper[part])
            if i in self._extra_conflicts:
                near = np.concatenate((near, self._extra_conflicts[i]))
            near = near[is_placed[near]]
            low.append(start[near] - parts.end[part])
            high.append(end[near] - parts.start[part])
        return (low[0], high[0]) if len(low) == 1 else (np.concatenate(low), np.concatenate(high))


def _offset(low: Ints, high: Ints, alignment: int, choose: Choose) -> int:
    if not len(low):
        return 0
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    top = np.maximum.accumulate(high)
    candidates = np.maximum(np.concatenate(([0], (top + alignment - 1) & -alignment)), 0)
    return int(candidates[choose(low - candidates[:-1])])


def lowest(room: Ints) -> int:
    """Choose the lowest gap."""
    fits = room >= 0
    return int(fits.argmax()) if fits.any() else -1


def tightest(room: Ints) -> int:
    """Choose the gap with the least room, of several the lowest."""
    fits = room >= 0
    return int(np.argmin(np.where(fits, room, np.iinfo(np.int64).max))) if fits.any() else -1
