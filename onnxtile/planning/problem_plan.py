"""Plans a problem without a model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.memories import Capacity, allocate, memories
from onnxtile.planning.offsets.problem import Buffer, LivePart, OffsetPlan, Problem, align
from onnxtile.planning.planner import find_planner
from onnxtile.planning.result import CopyCount, PlanFailure, PlannedBuffer, PlannedPart, PlanResult
from onnxtile.system.errors import CheckFailed

# The independent check of offsets for a problem without a model.
#
# It shares no computation with the planners, and does not use the bound, peak or footprints of the problem. Like the validator of
# google/minimalloc it names the failure. Plans of models are checked in `onnxtile.check`.


def check(problem: Problem, plan: OffsetPlan) -> tuple[PlanFailure, ...]:
    """Return all faults of `plan`; none if it is sound.

    Every buffer has an offset, aligned, not negative, below the plan's size and the capacity; no two buffers that are live at one
    step, or are in conflict, share a byte.
    """
    failures = list(_placement_failures(problem, plan))
    placed = [buffer for buffer in problem.buffers if buffer.name in plan.offsets]
    failures += _overlaps([(plan.offsets[b.name] + part.start, piece) for b in placed for part, piece in _pieces(b)])
    failures += _conflicts(problem, plan)
    return tuple(failures)


def _pieces(buffer: Buffer) -> Iterator[tuple[LivePart, Buffer]]:
    """Yield the parts of `buffer`, each also as a buffer of the same name."""
    for part in buffer.outline or [LivePart(0, buffer.size, buffer.lower, buffer.upper)]:
        yield part, Buffer(buffer.name, part.end - part.start, part.lower, part.upper)


def require(problem: Problem, plan: OffsetPlan) -> None:
    """Raise CheckFailed with the first fault of `plan`, if it has one."""
    failures = check(problem, plan)
    if failures:
        more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise CheckFailed(f"the plan is not sound: {failures[0]}{more}")


def _placement_failures(problem: Problem, plan: OffsetPlan) -> Iterator[PlanFailure]:
    names = {buffer.name for buffer in problem.buffers}
    for name in plan.offsets:
        if name not in names:
            yield PlanFailure(f"the plan places {name!r}, which is not a buffer", (name,))
    if problem.capacity is not None and plan.size > problem.capacity:
        yield PlanFailure(f"the arena of {plan.size} bytes is larger than its capacity of {problem.capacity}", ())
    for buffer in problem.buffers:
        yield from _offset_failures(problem, plan, buffer)


def _offset_failures(problem: Problem, plan: OffsetPlan, buffer: Buffer) -> list[PlanFailure]:
    offset = plan.offsets.get(buffer.name)
    if offset is None:
        return [PlanFailure(f"{buffer.name!r} has no offset", (buffer.name,), buffer.lower)]
    found = []
    alignment = problem.alignment if buffer.alignment is None else buffer.alignment
    if offset < 0:
        found.append(f"{buffer.name!r} starts at {offset}, before the arena")
    if offset % alignment:
        found.append(f"{buffer.name!r} at {offset} is not aligned to {alignment}")
    if buffer.pin not in {None, offset}:
        found.append(f"{buffer.name!r} is at {offset}, not at its pin {buffer.pin}")
    if buffer.size and offset + buffer.size > plan.size:
        found.append(f"{buffer.name!r} ends at {offset + buffer.size}, beyond the arena of {plan.size} bytes")
    return [PlanFailure(reason, (buffer.name,), buffer.lower) for reason in found]


def _overlaps(placed: Sequence[tuple[int, Buffer]]) -> list[PlanFailure]:
    """Return a failure for each buffer that overlaps a live one at its first step, by a sweep in O(n log n) comparisons.

    The live buffers are sorted by offset. As long as no two of them overlap, a new one can overlap only its two neighbours. One that does
    is reported and left out, so this stays true.
    """
    ranges = [(offset, offset + buffer.size) for offset, buffer in placed]
    live: list[int] = []
    owner: dict[int, int] = {}
    failures = []
    for i, is_born in _events([buffer for _, buffer in placed]):
        start, end = ranges[i]
        at = bisect_left(live, start)
        if not is_born:
            if owner.get(start) == i:
                del live[at], owner[start]
            continue
        hit = _touched(ranges, [owner[other] for other in live[max(at - 1, 0) : at + 1]], start, end)
        if hit < 0:
            live.insert(at, start)
            owner[start] = i
            continue
        (buffer, other), (begin, until) = (placed[i][1], placed[hit][1]), ranges[hit]
        reason = f"{other.name!r} in [{begin}, {until}) and {buffer.name!r} in [{start}, {end}) are live together"
        failures.append(PlanFailure(reason, (other.name, buffer.name), buffer.lower))
    return failures


def _events(buffers: Sequence[Buffer]) -> Iterable[tuple[int, bool]]:
    """Return the buffers with bytes by end and start of their live ranges, in the order of steps, ends before starts."""
    sized = [i for i, buffer in enumerate(buffers) if buffer.size]
    times = np.array([buffers[i].upper for i in sized] + [buffers[i].lower for i in sized], np.int64)
    is_born = np.arange(len(times)) >= len(sized)
    order = np.lexsort((is_born, times))
    return zip(np.array(sized + sized)[order].tolist(), is_born[order].tolist(), strict=True)


def _touched(ranges: Sequence[tuple[int, int]], near: Sequence[int], start: int, end: int) -> int:
    """Return the first of those `near` that has a byte in [`start`, `end`), or -1."""
    for i in near:
        begin, until = ranges[i]
        if begin < end and start < until:
            return i
    return -1


def _conflicts(problem: Problem, plan: OffsetPlan) -> Iterator[PlanFailure]:
    sizes = {buffer.name: buffer.size for buffer in problem.buffers}
    for one, other in sorted(problem.conflicts):
        if one not in plan.offsets or other not in plan.offsets:
            continue
        start, begin = plan.offsets[one], plan.offsets[other]
        if start < begin + sizes[other] and begin < start + sizes[one] and sizes[one] and sizes[other]:
            yield PlanFailure(
                f"{one!r} at {start} and {other!r} at {begin} are in conflict and share bytes", (one, other)
            )


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
                parts=planned_parts(b),
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
