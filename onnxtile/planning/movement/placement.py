"""Gives each buffer an offset in the memory that a movement chose for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.memories import Allocation, Filled, Memory
from onnxtile.planning.offsets.problem import OptimalityProof, Problem, require_capacity
from onnxtile.planning.planner import Planner


def allocate_apart(
    problem: Problem, memories: Sequence[Memory], planner: Planner, effort: Effort, slow: Collection[str]
) -> Allocation:
    """Place the buffers named in `slow` in the second of two memories, and all others in the first.

    Raises OverCapacity (an Infeasible) where either exceeds its capacity.
    """
    arenas = []
    for memory, is_slow in zip(memories, (False, True), strict=True):
        buffers = tuple(buffer for buffer in problem.buffers if (buffer.name in slow) is is_slow)
        part = Problem(buffers, problem.alignment, memory.capacity)
        plan = planner.plan(part, replace(effort, fitting=effort.steps))
        require_capacity(part, plan, memory.name)
        arenas.append(Filled(memory, part, plan))
    bound = problem.lower_bound
    did_reach = sum(arena.plan.size for arena in arenas) == bound
    proof = OptimalityProof(bound, problem.bound, "lower bound reached" if did_reach else "several arenas")
    return Allocation(tuple(arenas), proof)
