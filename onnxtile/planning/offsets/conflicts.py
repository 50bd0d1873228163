"""Conflicts between buffers: pairs that must share no byte, because both are live in a step or the problem says so."""

from __future__ import annotations

import numpy as np

from onnxtile.planning.offsets.problem import Ints, Problem


class LiveIndex:
    """Live ranges, sorted once: those that overlap one with d others take two searches and about d steps."""

    def __init__(self, lower: Ints, upper: Ints) -> None:
        self._order = np.argsort(lower, kind="stable")
        self._births = lower[self._order]
        self._deaths = upper[self._order]
        # The latest end of the live ranges so far, in the order of their starts.
        self._latest = np.maximum.accumulate(self._deaths) if len(lower) else self._deaths

    def met(self, lower: int, upper: int) -> Ints:
        """Return the numbers of the live ranges that overlap the steps from `lower` to `upper`."""
        first = int(np.searchsorted(self._latest, lower, side="right"))
        last = int(np.searchsorted(self._births, upper, side="left"))
        found: Ints = self._order[first:last][self._deaths[first:last] > lower]
        return found


class ConflictIndex:
    """The buffers of a problem by live range: n buffers with d conflicts each take n searches of about d steps.

    Buffers with outlines count as live with all bytes in their whole live range.
    """

    def __init__(self, problem: Problem) -> None:
        self._lower, self._upper = problem.live_ranges
        self._index = LiveIndex(self._lower, self._upper)
        self._extra_conflicts = {i: np.array(others, np.int64) for i, others in problem.extra_conflicts.items()}

    def of(self, i: int) -> Ints:
        """Return the numbers of the buffers in conflict with buffer `i`, itself included."""
        met = self._index.met(self._lower[i], self._upper[i])
        return met if i not in self._extra_conflicts else np.concatenate((met, self._extra_conflicts[i]))
