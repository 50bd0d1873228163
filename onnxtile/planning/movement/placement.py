"""Gives each buffer an offset in the memory that a movement chose for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from onnxtile.planning.planner import Planner


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
