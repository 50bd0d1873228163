"""The attempts of a fit: schedules are looked for, written and placed, until the plan of one fits the capacity."""

from __future__ import annotations

from dataclasses import replace

from onnxtile.fitting.live_bytes import ALIGNMENT
from onnxtile.fitting.regions import FitSchedule
from onnxtile.fitting.search import FitTarget, search, search_within
from onnxtile.verbs.flows.fit_drafts import DraftedSchedule, FitSubject, WrittenSchedule, drafted
from onnxtile.verbs.flows.stage import Progress

_ATTEMPTS = 8
"""Schedules that are looked for, at most, until the plan of one fits."""
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
        self.above: int | None = wanted.capacity
        """The least capacity within which a schedule was found."""
        self.least: int | None = None
        """The least peak of all schedules, where one was looked for below it."""

    def result(self) -> WrittenSchedule | None:
        """Return the schedule whose arena fits, planned; else the one with the smallest arena; None over the bound of nodes."""
        target, last = self.wanted, None
        for _ in range(_ATTEMPTS):
            schedule = self._found(target)
            if schedule is not None and (last is None or schedule != last.schedule):
                last = drafted(self.subject, schedule, self.progress)
                arena, more = self._noted(last)
            self._bound(schedule, target)
            over = 0 if self.wanted.capacity is None else max(arena - self.wanted.capacity, 0)
            if not (over or more) or self._is_settled():
                break
            fewer = None if target.nodes is None else max(target.nodes - more, 1)
            target = replace(target, capacity=self._less(target.capacity, over), nodes=fewer)
        if self.full is not None or self.best is None:
            return self.full
        return self.best.planned(self.subject, self.progress)

    def _found(self, target: FitTarget) -> FitSchedule | None:
        """Return a schedule; None where another is known, and none is found within the capacity of the target."""
        find = search if self.best is None or target.capacity is None else search_within
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

    def _bound(self, schedule: FitSchedule | None, target: FitTarget) -> None:
        """Note between which capacities schedules are left to be looked for."""
        if schedule is None:
            self.least = target.capacity
        elif target.capacity is not None and schedule.peak > target.capacity:
            self.least = schedule.peak
        else:
            self.above = target.capacity

    def _is_settled(self) -> bool:
        """Return whether no capacity is left."""
        return self.least is not None and (self.above is None or self.above <= self.least + ALIGNMENT)

    def _less(self, capacity: int | None, over: int) -> int | None:
        """Return a capacity with as many bytes less as the arena has too many, or between those known."""
        if capacity is None:
            return None
        less = max(capacity - over, 1)
        return less if self.least is None or self.above is None or less > self.least else (self.least + self.above) // 2
