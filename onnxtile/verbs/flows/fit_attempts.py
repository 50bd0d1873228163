"""The attempts of a fit: schedules are looked for, written and placed, until the plan of one fits the capacity."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from onnxtile.fitting.live_bytes import ALIGNMENT
from onnxtile.fitting.schedule import FitSchedule
from onnxtile.fitting.search import FitTarget, search_soon, search_within
from onnxtile.fitting.search_effort import attempts
from onnxtile.verbs.flows.fit_drafts import DraftedSchedule, FitSubject, WrittenSchedule, drafted
from onnxtile.verbs.flows.stage import Progress

_SOON_PLANNED = 2000
"""Nodes of all schedules together, at most, that are planned in full before a smaller one is looked for."""


class FitAttempts:
    """Looks for a schedule whose arena is `wanted`, for smaller peaks where gaps between buffers take too many bytes."""

    def __init__(self, subject: FitSubject, wanted: FitTarget, progress: Progress) -> None:
        self.subject, self.wanted, self.progress = subject, wanted, progress
        self.best: DraftedSchedule | None = None
        self.arena = 0
        """The bytes of the best schedule: of its plan, or placed with little effort where it has none."""
        self.full: WrittenSchedule | None = None
        """The best schedule with its plan, where that was made."""
        self.left = _SOON_PLANNED
        self.known: list[tuple[int, int]] = []
        """Capacities, from the first number to the second, of which all that a search would find is known."""

    def result(self) -> WrittenSchedule | None:
        """Return the schedule whose arena fits, planned; else the one with the smallest arena; None over the bound of nodes."""
        target, last, is_cut_short = self.wanted, None, False
        for _ in range(attempts(len(self.subject.regions.network.kernels))):
            schedule = self._found(target)
            is_cut_short |= self.subject.regions.is_cut_short
            if schedule is not None and (last is None or schedule != last.schedule):
                last = drafted(self.subject, schedule, self.progress)
                arena, more = self._noted(last)
            over = 0 if self.wanted.capacity is None else max(arena - self.wanted.capacity, 0)
            if not (over or more):
                break
            fewer = None if target.nodes is None else max(target.nodes - more, 1)
            capacity = target.capacity
            if capacity is not None and not more:
                capacity = self._next(schedule, capacity, over)
                if capacity is None:
                    break
            target = replace(target, capacity=capacity, nodes=fewer)
        else:
            is_cut_short = True  # further capacities are left
        self.subject.regions.is_cut_short = is_cut_short
        if self.full is not None or self.best is None:
            return self.full
        return self.best.planned(self.subject, self.progress)

    def _found(self, target: FitTarget) -> FitSchedule | None:
        """Return a schedule; None where another is known, and none is found within the capacity of the target."""
        find = search_soon if self.best is None or target.capacity is None else search_within
        return find(self.subject.regions, target, self.progress)

    def _noted(self, found: DraftedSchedule) -> tuple[int, int]:
        """Return the bytes of the arena of a schedule, and the nodes that it has too many; note the schedule where it is the best."""
        # One kernel of the search may stand for several nodes: a quantised island does.
        more = 0 if self.wanted.nodes is None else max(found.nodes - self.wanted.nodes, 0)
        if more:
            return found.arena, more
        full = self._soon_planned(found)
        arena = found.arena if full is None else full.planned.plan.arena_size
        if self.best is None or arena < self.arena:
            self.best, self.arena, self.full = found, arena, full
        return arena, 0

    def _soon_planned(self, found: DraftedSchedule) -> WrittenSchedule | None:
        """Return a schedule with its plan, where little effort does not let it fit, but the plan may close the gaps between buffers."""
        capacity = self.wanted.capacity
        if capacity is None or found.arena <= capacity or found.peak > capacity or found.nodes > self.left:
            return None
        self.left -= found.nodes
        return found.planned(self.subject, self.progress)

    def _next(self, found: FitSchedule | None, capacity: int, over: int) -> int | None:
        """Return the capacity to look within after a schedule was `found` within one, or none; None where all are known.

        It has as many bytes less as the arena is `over` the one that is wanted, or lies between those known: the lowest first, since an
        arena mostly grows with its peak.
        """
        if found is None:
            self.known.append((0, capacity))
        elif found.peak > capacity:
            self.known.append((0, found.peak))
        else:
            self.known.append((found.peak, capacity))
        known = sorted({(0, 0), *self.known})
        for (_, low), (high, _) in pairwise(known):
            if high > low + ALIGNMENT:
                return high - over if high - over > low else (low + high) // 2
        return None
