"""A problem without a model: read from CSV, planned, and checked."""

from __future__ import annotations

import csv
import io
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import ge
from typing import TYPE_CHECKING

import numpy as np

from onnxtile.declare.plan_document import CopyCount, PlanFailure, PlannedBuffer
from onnxtile.kernels.kernel_graph import LivePart, union
from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.memories import Capacity, allocate, memories
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, Problem, align
from onnxtile.planning.planners import find_planner
from onnxtile.planning.result import PlanResult, planned_parts
from onnxtile.system.errors import CheckFailed, UsageError
from onnxtile.system.text import text_of, whole

if TYPE_CHECKING:
    from _csv import Reader


# Reads a problem without a model from CSV, with MiniMalloc's columns in any order: id, lower, upper (half-open live range), size.
#
# Source: https://github.com/google/minimalloc, "Input format".


_NEEDED = ("id", "lower", "upper", "size")
_OWN = ("alignment", "moved", "pin")
_MEMORY = "memory"
_OF_PARTS = ("part_of", "part_start")
_OPTIONAL = (*_OWN, _MEMORY, *_OF_PARTS)
_OTHER_NAMES = {"buffer": "id", "buffer_id": "id", "begin": "lower", "start": "lower", "end": "upper"}
"""Names that MiniMalloc takes for columns, too; an "end" is the last step of a live range, not the one after it."""
_MOST = 2**53
"""The largest step, and the largest sum of sizes: up to here tools that read numbers as floating point are exact."""

_DIGITS = 30
"""Digits of a number, at most: Python takes long to read very long ones."""


def read_problem(text: str, *, alignment: int = 1) -> Problem:
    """Return the problem in `text`; unknown columns are ignored.

    These optional columns apply to one buffer: "alignment", "moved" (bytes read and written in a run), "pin" (the offset that it must have,
    in bytes), and "memory" (the name of the memory that it must be in). Rows with a name in "part_of" are the parts of one buffer with that
    name, and begin at its byte "start". Raises UsageError, with the line, for a missing or repeated column, or a cell that is not a whole
    number. It does so, too, for a repeated id, a negative size, or an empty live range.
    """
    text = text.removeprefix("\ufeff")
    buffers = _plain(_rows(text))
    if buffers is None:
        rows = _rows(text)
        try:
            buffers = _read(rows)
        except csv.Error as error:
            raise UsageError(f"line {rows.line_num}: not CSV ({error})") from error
    if sum(buffer.size for buffer in buffers) > _MOST:
        raise UsageError(f"the sizes add up to more than {_MOST:,} bytes")
    return Problem(buffers, alignment)


def column(name: str) -> str:
    """Return the usual name of the column `name` of a problem."""
    return _OTHER_NAMES.get(name, name)


def _rows(text: str) -> Reader:
    return csv.reader(io.StringIO(text), skipinitialspace=True)


def _plain(rows: Reader) -> tuple[Buffer, ...] | None:
    """Return the buffers of a complete table with only digits in the needed columns, read column by column in a third of the time.

    None for any other table, which `_read` reads row by row to name the line of a fault.
    """
    try:
        header = next(rows, [])
        table = [row for row in rows if row]
    except csv.Error:
        return None
    names = [name.strip() for name in header]
    if not _OTHER_NAMES.keys().isdisjoint(names):
        return None
    if any(len(row) != len(names) for row in table) or any(
        names.count(name) != (name in _NEEDED) for name in (*_NEEDED, *_OPTIONAL)
    ):
        return None
    columns = dict(zip(names, zip(*table, strict=True), strict=False))
    ids, *texts = (columns.get(name, ()) for name in _NEEDED)
    if len(set(ids)) < len(ids) or not all(ids) or not all(map(_is_plain, texts)):
        return None
    lower, upper, size = (list(map(int, column)) for column in texts)
    if max(upper, default=0) > _MOST or any(map(ge, lower, upper)):
        return None
    return tuple(map(Buffer, map(text_of, ids), size, lower, upper))


def _is_plain(column: Sequence[str]) -> bool:
    digits = "".join(column)
    return digits.isascii() and digits.isdecimal() and all(column) and max(map(len, column)) <= _DIGITS


def _read(rows: Reader) -> tuple[Buffer, ...]:
    given = [name.strip() for name in next(rows, [])]
    header, last = [column(name) for name in given], "end" in given
    for name in _NEEDED:
        if name not in header:
            raise UsageError(f"line 1: missing column {name!r}", hint=f"the columns are {', '.join(_NEEDED)}")
    for name in (*_NEEDED, *_OPTIONAL):
        if header.count(name) > 1:
            raise UsageError(f"line 1: column {name!r} is repeated")
    columns = {name: header.index(name) for name in (*_NEEDED, *_OPTIONAL) if name in header}
    buffers: dict[str, Buffer] = {}
    wholes: dict[str, list[Buffer]] = {}
    for row in rows:
        if not row:
            continue
        cells = {name: row[at] for name, at in columns.items() if at < len(row)}
        buffer = _buffer(cells, rows.line_num, last)
        if cells.get("part_of"):
            wholes.setdefault(text_of(cells["part_of"]), []).append(_moved_to_start(buffer, cells, rows.line_num))
        if buffer.name in buffers:
            raise UsageError(f"line {rows.line_num}: the id {buffer.name!r} is repeated")
        buffers[buffer.name] = buffer
    parts = {part.name for of_whole in wholes.values() for part in of_whole}
    others = [buffer for buffer in buffers.values() if buffer.name not in parts]
    return (*others, *(_whole(name, of_whole) for name, of_whole in wholes.items()))


def _moved_to_start(part: Buffer, cells: dict[str, str], line: int) -> Buffer:
    """Return `part` with its outline in bytes from the start of its buffer."""
    start = _number(cells, "part_start", line)
    if start < 0 or not part.size:
        raise UsageError(f"line {line}: a part must have bytes, from a start of at least 0")
    outline = (LivePart(start, start + part.size, part.lower, part.upper),)
    pin = None if part.pin is None else part.pin - start
    if pin is not None and pin < 0:
        raise UsageError(f"line {line}: the pin of a part is at least its start {start}")
    return replace(part, size=start + part.size, outline=outline, pin=pin)


def _whole(name: str, parts: Sequence[Buffer]) -> Buffer:
    """Return the buffer of `parts`, aligned as the first of them says, with the pin and the memory of the first that has one.

    Raises UsageError for parts with several.
    """
    outline = union(live for part in parts for live in part.outline)
    lower, upper = min(part.lower for part in parts), max(part.upper for part in parts)
    pins = {part.pin for part in parts if part.pin is not None}
    memories = {part.memory for part in parts if part.memory is not None}
    if len(pins) > 1 or len(memories) > 1:
        raise UsageError(f"the parts of {name!r} have pins or memories that differ")
    pin, memory = next(iter(pins), None), next(iter(memories), None)
    size, first = max(part.size for part in parts), parts[0]
    return Buffer(name, size, lower, upper, first.alignment, first.moved, outline, pin=pin, memory=memory)


def _buffer(row: dict[str, str], line: int, is_last: bool) -> Buffer:
    """Return the buffer of `row`; with `is_last` its upper step is the last of its live range."""
    if not row.get("id"):
        raise UsageError(f"line {line}: the id is empty")
    lower, upper, size = (_number(row, name, line) for name in _NEEDED[1:])
    upper += is_last
    numbers = {name: _number(row, name, line) for name in _OWN if row.get(name, "").strip()}
    if lower < 0 or upper > _MOST:
        raise UsageError(f"line {line}: steps must be between 0 and {_MOST:,}")
    try:
        memory = row.get(_MEMORY, "").strip() or None
        pin = numbers.get("pin")
        return Buffer(
            text_of(row["id"]),
            size,
            lower,
            upper,
            numbers.get("alignment"),
            numbers.get("moved"),
            pin=pin,
            memory=memory,
        )
    except UsageError as error:
        raise UsageError(f"line {line}: {error.message}") from error


def _number(row: dict[str, str], name: str, line: int) -> int:
    text = row.get(name, "").strip()
    digits = text[1:] if text.startswith(("+", "-")) else text
    number = whole(digits)
    if number is None:
        raise UsageError(f"line {line}: {name} must be a whole number, not {text!r}")
    return -number if text.startswith("-") else number


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


# The plan.


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
