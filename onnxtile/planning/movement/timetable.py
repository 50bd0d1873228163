"""When copies start: as early as their bytes are there, room for them is free, and the one engine that copies is idle.

Kernels run in their order beside the engine. When the engine is idle, it takes the copy that is needed first of those that can start. A
copy to the fast memory can start where there is room for its bytes until a kernel reads them. So successive
weights use the room in turn, as in a ring buffer. Room is counted in sums of bytes; offsets come later.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.memories import Allocation, Filled, Memory
from onnxtile.planning.offsets.problem import (
    Buffer,
    OffsetPlan,
    OptimalityProof,
    OverCapacity,
    Problem,
    require_capacity,
)
from onnxtile.planning.planners import Planner
from onnxtile.system.dataclass import dataclass

_CANDIDATES = 1_000
"""The most copies that are looked at for the next one."""


class WantedCopy(NamedTuple):
    """A copy of `copied` bytes into the fast memory (a load) or out of it.

    It takes `size` bytes of the fast memory: a load from its start, a store up to its end. It starts after the kernel at the place `after`
    (-1: at once), and after the copy numbered `source`, if any. The kernel at the place `before` comes after it; it waits for a load.
    """

    is_load: bool
    size: int
    copied: int
    after: int
    before: int | None
    source: int | None = None


@dataclass(frozen=True)
class KernelPlace:
    """A place in the schedule: the `seconds` that its kernel takes, and the bytes of `room` that its needs and waiting tensors leave."""

    seconds: float
    room: int


@dataclass
class Timetable:
    """By place, the numbers of the copies that are made beside its kernel or right before it, in the order of the engine.

    The place after the last kernel has those that are made afterwards. `held` has for stores the last place whose kernel starts before
    they end.
    """

    copies: dict[int, list[int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)


def timetable(
    kernels: Sequence[KernelPlace], wanted: Sequence[WantedCopy], seconds_per_byte: float, reserve: int | None = 0
) -> Timetable:
    """Return when the copies `wanted` are made. `reserve` bytes of room stay free of early copies; with None, none is early."""
    engine = _Engine(kernels, wanted, seconds_per_byte, reserve)
    for position in range(len(kernels)):
        engine.run(position)
    return engine.finish()


class _Engine:
    def __init__(
        self, kernels: Sequence[KernelPlace], wanted: Sequence[WantedCopy], seconds_per_byte: float, reserve: int | None
    ) -> None:
        self._kernels, self._wanted, self._pace, self._reserve = kernels, wanted, seconds_per_byte, reserve
        self._room = [kernel.room for kernel in kernels]
        self._table = Timetable()
        self._ends: dict[int, float] = {}
        self._idle_at = self._clock = 0.0
        self._loads = sorted((n for n, copy in enumerate(wanted) if copy.is_load), key=self._needed)
        self._due: dict[int, list[int]] = {}
        self._ready: dict[int, list[int]] = {}
        for number, copy in enumerate(wanted):
            if copy.before is not None:
                self._due.setdefault(copy.before, []).append(number)
            if not copy.is_load:
                self._ready.setdefault(copy.after, []).append(number)
        self._stores: list[int] = []
        self._open: list[tuple[float, int]] = []
        """Stores that may not have ended, by their ends."""

    def _needed(self, number: int) -> tuple[int, int]:
        before = self._wanted[number].before
        return len(self._kernels) if before is None else before, number

    def run(self, position: int) -> None:
        """Run the kernel at `position`, with the copies that it waits for, and those that are made beside it."""
        start = self._with_room(position)
        for number in self._due.get(position, ()):
            if number not in self._ends:
                self._issue(number, position, start)
        loads = (number for number in self._due.get(position, ()) if self._wanted[number].is_load)
        start = max((start, *(self._ends[number] for number in loads)))
        self._hold(position, start)
        self._clock = start + self._kernels[position].seconds
        while (
            self._reserve is not None and self._idle_at < self._clock and (chosen := self._next(position)) is not None
        ):
            self._issue(chosen, position, start)
        self._stores += self._ready.get(position, ())

    def finish(self) -> Timetable:
        """Make the copies that are left, and return the timetable."""
        for number in list(self._stores):
            self._issue(number, len(self._kernels), self._clock)
        return self._table

    def _with_room(self, position: int) -> float:
        """Return when the stores that are not done leave room for the kernel at `position`; those in its way are made first."""
        start = self._clock
        self._open = [(end, number) for end, number in self._open if end > start]
        taken = sum(self._wanted[number].size for _, number in self._open)
        taken += sum(self._wanted[number].size for number in self._stores)
        while taken > self._room[position] or (self._reserve is None and self._stores):
            if not self._open:
                self._issue(self._stores[0], position, start)
            end, number = self._open.pop(0)
            start = max(start, end)
            taken -= self._wanted[number].size
        return start

    def _hold(self, position: int, start: float) -> None:
        """Take room beside the kernel at `position` for the stores that have not ended when it starts."""
        self._open = [(end, number) for end, number in self._open if end > start]
        for number in (*(number for _, number in self._open), *self._stores):
            self._room[position] -= self._wanted[number].size
            self._table.held[number] = position

    def _issue(self, number: int, position: int, earliest: float) -> None:
        copy = self._wanted[number]
        if copy.source is not None and copy.source not in self._ends:
            self._issue(copy.source, position, earliest)
        end = max(self._idle_at, earliest) + copy.copied * self._pace
        self._idle_at = self._ends[number] = end
        self._table.copies.setdefault(position, []).append(number)
        if not copy.is_load:
            self._stores.remove(number)
            insort(self._open, (end, number))
            return
        self._loads.remove(number)
        for held in range(position, self._needed(number)[0]):
            self._room[held] -= copy.size

    def _next(self, position: int) -> int | None:
        """Return the copy to make beside the kernel at `position`: a load for the next one, a store, or another load; None for none."""
        load = self._next_load(position)
        is_urgent = load is not None and self._wanted[load].before == position + 1
        if self._stores and not (is_urgent and self._has_room_for_store(position + 1)):
            return self._stores[0]
        return load

    def _has_room_for_store(self, position: int) -> bool:
        """Return whether the first store may still run beside the kernel at `position`."""
        return position < len(self._room) and self._room[position] >= self._wanted[self._stores[0]].size

    def _next_load(self, position: int) -> int | None:
        assert self._reserve is not None
        room, seen = self._room[position] - self._reserve, position
        for number in self._loads[:_CANDIDATES]:
            size, before = self._wanted[number].size, self._needed(number)[0]
            room = min((room, *(self._room[held] - self._reserve for held in range(seen + 1, before))))
            seen = max(seen, before - 1)
            if room <= 0:
                return None
            if size <= room and self._can_start(number, position):
                return number
        return None

    def _can_start(self, number: int, position: int) -> bool:
        copy = self._wanted[number]
        return copy.after < position and (copy.source is None or copy.source in self._ends)


# Gives each buffer an offset in the memory that a movement chose for it.


@dataclass(frozen=True)
class SlowTensors:
    """The names of the tensors in the second of two memories.

    `held` has the last step in which a tensor of the first one takes bytes, because its copy may still run then.
    """

    names: Collection[str]
    held: Mapping[str, int] = field(default_factory=dict)


def allocate_apart(
    problem: Problem, memories: Sequence[Memory], planner: Planner, effort: Effort, slow: SlowTensors
) -> Allocation:
    """Place the buffers named in `slow` in the second of two memories, and all others in the first.

    Buffers that are held longer than they live are so where the first memory has room for that. Raises OverCapacity (an Infeasible) where
    either exceeds its capacity.
    """
    arenas = []
    for memory, is_slow in zip(memories, (False, True), strict=True):
        buffers = tuple(buffer for buffer in problem.buffers if (buffer.name in slow.names) is is_slow)
        part = Problem(buffers, problem.alignment, memory.capacity)
        held = part if is_slow else replace(part, buffers=tuple(_held(buffer, slow.held) for buffer in buffers))
        arenas.append(
            Filled(memory, part, _planned((held, part) if held != part else (part,), memory, planner, effort))
        )
    bound = problem.lower_bound
    did_reach = sum(arena.plan.size for arena in arenas) == bound
    proof = OptimalityProof(bound, problem.bound, "lower bound reached" if did_reach else "several arenas")
    return Allocation(tuple(arenas), proof)


def _planned(problems: Sequence[Problem], memory: Memory, planner: Planner, effort: Effort) -> OffsetPlan:
    """Return the plan of the first of `problems` that fits `memory`."""
    error: OverCapacity | None = None
    for problem in problems:
        plan = planner.plan(problem, replace(effort, fitting=effort.steps))
        try:
            require_capacity(problem, plan, memory.name)
        except OverCapacity as over:
            error = over
        else:
            return plan
    assert error is not None
    raise error


def _held(buffer: Buffer, until: Mapping[str, int]) -> Buffer:
    """Return `buffer` with the bytes that are live at its end live up to the step that `until` says, if that is later."""
    end = until.get(buffer.name, -1) + 1
    if end <= buffer.upper:
        return buffer
    parts = (part._replace(upper=end) if part.upper == buffer.upper else part for part in buffer.outline)
    return replace(buffer, upper=end, outline=tuple(parts))
