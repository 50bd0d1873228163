"""Conflicts between buffers: pairs that must share no byte, because both are live in a step or the problem says so."""

from __future__ import annotations

import numpy as np

from onnxtile.planning.offsets.problem import Ints, Problem


class ConflictIndex:
    """The live ranges of a problem, sorted once: n buffers with d conflicts each take n searches of about d steps."""

    def __init__(self, problem: Problem) -> None:
        buffers = problem.buffers
        self._lower, self._upper = problem.live_ranges
        self._order = np.argsort(self._lower, kind="stable")
        self._births = self._lower[self._order]
        self._deaths = self._upper[self._order]
        # The latest end of the live ranges so far, in the order of their starts.
        self._latest = np.maximum.accumulate(self._deaths) if len(buffers) else self._deaths
        self._extra_conflicts = {i: np.array(others, np.int64) for i, others in problem.extra_conflicts.items()}

    def of(self, i: int) -> Ints:
        """Return the numbers of the buffers in conflict with buffer `i`, itself included."""
        lower, upper = self._lower[i], self._upper[i]
        first = int(np.searchsorted(self._latest, lower, side="right"))
        last = int(np.searchsorted(self._births, upper, side="left"))
        met = self._order[first:last][self._deaths[first:last] > lower]
        return met if i not in self._extra_conflicts else np.concatenate((met, self._extra_conflicts[i]))
