"""The independent check of offsets for a problem without a model.

It shares no computation with the planners, and does not use the bound, peak or footprints of the problem. Like the validator of
google/minimalloc it names the failure. Plans of models are checked in `onnxtile.check`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from onnxtile.declare.plan_document import PlanFailure
from onnxtile.kernels.liveness import LivePart
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, Problem
from onnxtile.system.errors import CheckFailed


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
    reasons = []
    alignment = problem.alignment if buffer.alignment is None else buffer.alignment
    if offset < 0:
        reasons.append(f"{buffer.name!r} starts at {offset}, before the arena")
    if offset % alignment:
        reasons.append(f"{buffer.name!r} at {offset} is not aligned to {alignment}")
    if buffer.pin not in {None, offset}:
        reasons.append(f"{buffer.name!r} is at {offset}, not at its pin {buffer.pin}")
    if buffer.size and offset + buffer.size > plan.size:
        reasons.append(f"{buffer.name!r} ends at {offset + buffer.size}, beyond the arena of {plan.size} bytes")
    return [PlanFailure(reason, (buffer.name,), buffer.lower) for reason in reasons]


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
    for first, second in sorted(problem.conflicts):
        if first not in plan.offsets or second not in plan.offsets:
            continue
        start, begin = plan.offsets[first], plan.offsets[second]
        if start < begin + sizes[second] and begin < start + sizes[first] and sizes[first] and sizes[second]:
            yield PlanFailure(
                f"{first!r} at {start} and {second!r} at {begin} are in conflict and share bytes", (first, second)
            )
