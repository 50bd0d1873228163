"""Which buffers may not share a byte: those that live at the same time, and those in conflict."""

from __future__ import annotations

import numpy as np

from onnxtile.planning.offsets.problem import Ints, Problem


class ConflictIndex:
    """The lives of a problem's buffers, sorted once: n buffers of which each meets d others take n searches of about d each."""

    def __init__(self, problem: Problem) -> None:
        buffers = problem.buffers
        self._lower, self._upper = problem.live_ranges
        self._order = np.argsort(self._lower, kind="stable")
        self._births = self._lower[self._order]
        self._deaths = self._upper[self._order]
        # Lives before this one in the order of their births have all ended by the latest death so far.
        self._latest = np.maximum.accumulate(self._deaths) if len(buffers) else self._deaths
        self._extra_conflicts = {i: np.array(others, np.int64) for i, others in problem.extra_conflicts.items()}

    def of(self, i: int) -> Ints:
        """Return the others that buffer `i` may share no byte with, by their places in the problem; itself is among them."""
        lower, upper = self._lower[i], self._upper[i]
        first = int(np.searchsorted(self._latest, lower, side="right"))
        last = int(np.searchsorted(self._births, upper, side="left"))
        met = self._order[first:last][self._deaths[first:last] > lower]
        return met if i not in self._extra_conflicts else np.concatenate((met, self._extra_conflicts[i]))
