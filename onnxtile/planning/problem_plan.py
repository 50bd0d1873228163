"""Plans a problem without a model."""

from __future__ import annotations

from onnxtile.declare.plan_document import CopyCount, PlannedBuffer, PlannedPart
from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.memories import Capacity, allocate, memories
from onnxtile.planning.offsets.problem import Buffer, Problem, align
from onnxtile.planning.planners import find_planner
from onnxtile.planning.problem_check import require
from onnxtile.planning.result import PlanResult


def plan_buffers(
    problem: Problem,
    *,
    planner: str = "best",
    effort: Effort = NORMAL,
    capacity: Capacity = None,
    digest: str | None = None,
) -> PlanResult:
    """Give every buffer of `problem` an offset in an arena; the plan has passed the check.

    `capacity` (None: no limit) is in bytes; a mapping gives the capacities of several arenas, the fastest first. `digest` (of the file of
    the problem) is copied into the result. Raises UsageError for an unknown planner, OverCapacity (an Infeasible) where an arena exceeds
    its capacity, CheckFailed for a fault of the planner.
    """
    chosen = find_planner(planner)
    allocation = allocate(problem, memories(capacity), chosen, effort.alone if capacity is None else effort)
    for filled in allocation.arenas:
        require(filled.problem, filled.plan)
    places, offsets = allocation.places, allocation.offsets
    peak, peak_step = problem.peak
    return PlanResult(
        digest=digest,
        dims={},
        alignment=problem.alignment,
        planner=chosen.name,
        arenas=allocation.summary,
        peak=peak,
        peak_step=peak_step,
        lower_bound=allocation.proof.lower_bound,
        optimal=allocation.optimal,
        optimal_over="order" if allocation.optimal else None,
        any_order_bound=None,
        bound=allocation.proof.bound,
        ended=allocation.proof.ended,
        activation_bytes=sum(align(b.size, problem.alignment) for b in problem.buffers),
        in_place=0,
        copies=CopyCount(0, 0, 0, 0),
        io="outputs",
        overwrite_inputs=False,
        order="given",
        schedule=(),
        steps=(),
        buffers=tuple(
            PlannedBuffer(
                *(b.name, places[b.name], offsets[b.name], b.size, b.lower, b.upper - 1, "activation"),
                node=None,
                dtype=None,
                shape=None,
                parts=planned_parts(b) or None,
            )
            for b in problem.buffers
        ),
        constants=(),
        outside=(),
        unplanned=(),
    )


def planned_parts(buffer: Buffer) -> tuple[PlannedPart, ...]:
    """Return the parts of the outline of `buffer`."""
    return tuple(PlannedPart(p.start, p.end - p.start, p.lower, p.upper - 1) for p in buffer.outline)
