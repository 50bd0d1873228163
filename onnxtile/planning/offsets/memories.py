"""Several memories: assigns each buffer to one, and plans each memory.

Memories are listed by priority, the fastest first. Buffers that move the most bytes (by reads and writes) for their size go there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from onnxtile.declare.plan_document import Arena
from onnxtile.planning.offsets.effort import Effort
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
from onnxtile.system.errors import UsageError

ARENA = "arena"
"""The name of a single arena without a name."""


@dataclass(frozen=True)
class Memory:
    """One block of memory: its name and its capacity in bytes (None: no limit)."""

    name: str = ARENA
    capacity: int | None = None


Capacity: TypeAlias = int | Mapping[str, int] | None
"""The capacity in bytes of one arena, or of several by name, the fastest first; None: one arena without a limit."""


def memories(capacity: Capacity) -> tuple[Memory, ...]:
    """Return the memories of `capacity`."""
    if isinstance(capacity, Mapping):
        return tuple(Memory(name, size) for name, size in capacity.items()) or (Memory(),)
    return (Memory(capacity=capacity),)


@dataclass(frozen=True)
class Filled:
    """A memory, the problem of the buffers in it, and their plan."""

    memory: Memory
    problem: Problem
    plan: OffsetPlan


@dataclass(frozen=True)
class Allocation:
    """Each memory with its plan, and a bound on the bytes of all memories together."""

    arenas: tuple[Filled, ...]
    proof: OptimalityProof

    @property
    def size(self) -> int:
        """The bytes of all arenas together."""
        return sum(arena.plan.size for arena in self.arenas)

    @property
    def optimal(self) -> bool:
        """Whether the plan is proved to take the fewest bytes."""
        return self.size == self.proof.lower_bound

    @property
    def summary(self) -> tuple[Arena, ...]:
        """The arenas of a result."""
        return tuple(
            Arena(arena.memory.name, arena.plan.size, arena.problem.peak[0], capacity=arena.memory.capacity)
            for arena in self.arenas
        )

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """The offset of each buffer in its arena."""
        return {name: offset for arena in self.arenas for name, offset in arena.plan.offsets.items()}

    @cached_property
    def places(self) -> Mapping[str, str]:
        """The name of the arena that each buffer lies in."""
        return {name: arena.memory.name for arena in self.arenas for name in arena.plan.offsets}


def allocate(problem: Problem, memories: Sequence[Memory], planner: Planner, effort: Effort) -> Allocation:
    """Give each buffer of `problem` (whose own capacity is ignored) a memory, and an offset in it.

    If all buffers fit the first memory, they lie there. Otherwise it takes those that move the most bytes for their size, up to its
    capacity. The next memory takes the rest in the same way. A buffer that names its memory is in that one. Raises OverCapacity (an
    Infeasible) where the rest exceeds the last memory. Raises UsageError for two memories of one name, or one after a memory without
    a limit. It does so, too, for a buffer of another memory, or pins that no plan can have.
    """
    _require_sense(memories)
    _require_places(problem, memories)
    over: OverCapacity | None = None
    # Moved bytes decide first. If the rest then exceeds the last memory, size times live range decides.
    for worth in (_moved_for_size, _occupancy) if len(memories) > 1 else (_moved_for_size,):
        try:
            return _summary(problem, _filled(problem, memories, planner, effort, worth))
        except OverCapacity as error:
            over = over or error
    assert over is not None
    raise over


_Worth = Callable[[Buffer], float]


def _filled(
    problem: Problem, memories: Sequence[Memory], planner: Planner, effort: Effort, worth: _Worth
) -> tuple[Filled, ...]:
    left, arenas = problem, []
    for memory in memories[:-1]:
        arena = _fill(left, memory, planner, effort, worth)
        arenas.append(arena)
        left = _part(left, [b for b in left.buffers if b.name not in arena.plan.offsets], None)
    capacity = memories[-1].capacity
    last = left if left.capacity == capacity else _part(left, left.buffers, capacity)
    plan = planner.plan(last, effort)
    require_capacity(last, plan, memories[-1].name if len(memories) > 1 else None)
    return (*arenas, Filled(memories[-1], last, plan))


def _fill(left: Problem, memory: Memory, planner: Planner, effort: Effort, worth: _Worth) -> Filled:
    """Fill `memory` with buffers of `left`: all, or those of the most worth; fewer while their plan does not fit."""
    assert memory.capacity is not None
    # A long search is not worth it: if a set of buffers does not fit, a smaller set is tried.
    brief, free = replace(effort, fitting=effort.steps), memory.capacity
    everything = _part(left, [b for b in left.buffers if b.memory in {None, memory.name}], memory.capacity)
    if everything.lower_bound <= memory.capacity:
        plan = planner.plan(everything, brief)
        if plan.size <= memory.capacity:
            return Filled(memory, everything, plan)
    ranked = sorted(everything.buffers, key=lambda b: (b.memory is None, -worth(b), b.upper - b.lower, b.size, b.name))
    while True:
        part = _part(left, _fitting(left, ranked, free), memory.capacity)
        plan = planner.plan(part, brief)
        if plan.size <= memory.capacity:
            return Filled(memory, part, plan)
        if all(buffer.memory is not None or not buffer.size for buffer in part.buffers):
            raise OverCapacity(part, plan, memory.name)
        free -= max(plan.size - memory.capacity, 1)


def _fitting(problem: Problem, ranked: Sequence[Buffer], free: int) -> list[Buffer]:
    """Return buffers taken in the order of `ranked`, with never more than `free` live bytes, and all that name their memory."""
    steps = np.unique(np.array([b.lower for b in ranked], np.int64))
    live = np.zeros(len(steps), np.int64)
    taken = []
    for buffer in ranked:
        first, last = np.searchsorted(steps, (buffer.lower, buffer.upper))
        size = problem.footprint(buffer)
        if not size or buffer.memory is not None or int(live[first:last].max()) + size <= free:
            live[first:last] += size
            taken.append(buffer)
    return taken


def _part(problem: Problem, buffers: Sequence[Buffer], capacity: int | None) -> Problem:
    """Return `problem` with only these buffers, in the order of the problem."""
    names = {buffer.name for buffer in buffers}
    return Problem(
        tuple(buffer for buffer in problem.buffers if buffer.name in names),
        problem.alignment,
        capacity,
        frozenset(pair for pair in problem.conflicts if names.issuperset(pair)),
        problem.clique & names,
    )


def _moved_for_size(buffer: Buffer) -> float:
    return (buffer.size if buffer.moved is None else buffer.moved) / max(buffer.size, 1)


def _occupancy(buffer: Buffer) -> float:
    return buffer.size * (buffer.upper - buffer.lower)


def _summary(problem: Problem, arenas: tuple[Filled, ...]) -> Allocation:
    """Return the allocation of `arenas`, with the bound of all arenas together: at least the bytes live in one step."""
    used = [arena for arena in arenas if arena.plan.size]
    if len(used) <= 1:
        proof = (used or arenas)[0].plan.proof
        assert proof is not None
        return Allocation(arenas, proof)
    bound = problem.lower_bound
    did_reach = sum(arena.plan.size for arena in arenas) == bound
    return Allocation(
        arenas, OptimalityProof(bound, problem.bound, "lower bound reached" if did_reach else "several arenas")
    )


def _require_places(problem: Problem, memories: Sequence[Memory]) -> None:
    names = [memory.name for memory in memories]
    for buffer in problem.buffers:
        if buffer.memory is not None and buffer.memory not in names:
            raise UsageError(f"{buffer.name!r} is to be in {buffer.memory!r}, which has no capacity")
        if buffer.pin is not None and buffer.memory is None and len(names) > 1:
            raise UsageError(f"the memory of the pinned {buffer.name!r} is not known (choose {', '.join(names)})")


def _require_sense(memories: Sequence[Memory]) -> None:
    names = [memory.name for memory in memories]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two arenas are named {name!r}")
    for memory in memories[:-1]:
        if memory.capacity is None:
            raise UsageError(f"the arena {memory.name!r} has no limit, so the arenas after it would stay empty")


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
