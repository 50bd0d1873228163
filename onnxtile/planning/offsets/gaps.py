"""Places buffers one after the other, each into a gap between the buffers it is in conflict with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onnxtile.planning.offsets.conflicts import ConflictIndex
from onnxtile.planning.offsets.problem import Ints, Problem

Choose = Callable[[Ints, int], int]
"""Given the gaps in bytes, lowest first, and the bytes wanted, returns the index of the gap to take; -1 is the space above all."""


class Fitter:
    """Places the buffers of a problem in any order; their live ranges are sorted once.

    n buffers with d conflicts each take n searches of about d steps: about a second for 10,000 buffers.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._conflict_index = ConflictIndex(problem)

    def place(self, order: Sequence[int], choose: Choose) -> list[int]:
        """Return an offset for each buffer, placed in the order of their numbers in `order`."""
        problem = self._problem
        start = np.zeros(len(order), np.int64)
        # An end of 0 means not placed yet, or without bytes.
        end = np.zeros(len(order), np.int64)
        for i in order:
            buffer = problem.buffers[i]
            size = problem.footprint(buffer)
            if not size:
                continue
            near = self._conflict_index.of(i)
            near = near[end[near] > 0]
            offset = _offset(start[near], end[near], size, problem.alignment_of(buffer), choose)
            start[i], end[i] = offset, offset + size
        return [int(offset) for offset in start]


def _offset(start: Ints, end: Ints, size: int, alignment: int, choose: Choose) -> int:
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    top = np.maximum.accumulate(end)
    candidates = np.concatenate(([0], (top + alignment - 1) & -alignment))
    return int(candidates[choose(start - candidates[:-1], size)])


def lowest(gaps: Ints, size: int) -> int:
    """Choose the lowest gap."""
    fits = gaps >= size
    return int(fits.argmax()) if fits.any() else -1


def tightest(gaps: Ints, size: int) -> int:
    """Choose the smallest gap, of several the lowest."""
    fits = gaps >= size
    return int(np.argmin(np.where(fits, gaps, np.iinfo(np.int64).max))) if fits.any() else -1
