"""The check of states, and of inputs that come row by row.

A state is an input and an output that are one tensor, whose bytes nothing else may have in the whole run. The rows of the plan say where
both are. An output at another address than its input is copied there after the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnxtile.check.addresses import SizedBuffer
from onnxtile.check.graph import STREAM, Graph, GraphNode, Value
from onnxtile.check.sharing import RunOrder, SharedStates, any_open, carried, held, root_of, slice_corner
from onnxtile.declare.plan_document import (
    NO_SHAPE,
    UNSAID,
    PlanDocument,
    PlanFailure,
    PlannedBuffer,
    PlannedState,
    PlannedStream,
)
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class CheckedStates:
    """The states that a plan keeps: the `inputs` and `outputs` in order, and those of them that hold bytes `throughout` the run."""

    claims: tuple[PlannedState, ...] = ()
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    throughout: frozenset[Value] = frozenset()

    @property
    def next_of(self) -> Mapping[Value, Value]:
        """The output by the input of each state."""
        return dict(zip(self.inputs, self.outputs, strict=True))


def found_states(
    claims: Iterable[PlannedState], rows: Iterable[PlannedBuffer], graph: Graph
) -> tuple[CheckedStates, list[PlanFailure]]:
    """Return the states of `claims` that `graph` has, by the names of its inputs and outputs, and the faults of the others."""
    at = {row.name: (row.arena, row.offset) for row in rows}
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    kept: list[PlannedState] = []
    failures: list[PlanFailure] = []
    seen: set[str] = set()
    for claim in claims:
        names = (claim.input, claim.output)
        if claim.input not in inputs or claim.output not in outputs:
            failures.append(
                PlanFailure(
                    f"the state {claim.input!r} and {claim.output!r} is no input and output of the model", names
                )
            )
        elif not seen.isdisjoint((f"< {claim.input}", f"> {claim.output}")):
            failures.append(PlanFailure(f"{claim.input!r} or {claim.output!r} is in two states", names))
        else:
            seen.update((f"< {claim.input}", f"> {claim.output}"))
            kept.append(claim)
    before = tuple(inputs[claim.input] for claim in kept)
    after = tuple(outputs[claim.output] for claim in kept)
    same = [claim.output for claim in kept if at.get(claim.input, "") == at.get(claim.output)]
    throughout = frozenset((*before, *(outputs[name] for name in same)))
    return CheckedStates(tuple(kept), before, after, throughout), failures


def carried_states(node: GraphNode, body: Graph, rows: Iterable[PlannedBuffer]) -> CheckedStates:
    """Return the carried values of `node`, a Loop or Scan, that have one address as input and output of its `body`."""
    at = {row.name: (row.arena, row.offset) for row in rows if row.size}
    same = [
        (before, after)
        for before, after in carried(node, body)
        if before.name in at and at[before.name] == at.get(after.name) and body.outputs.count(after) == 1
    ]
    before, after = (tuple(pair[side] for pair in same) for side in (0, 1))
    return CheckedStates((), before, after, frozenset((*before, *after)))


def wrong_states(
    states: CheckedStates, rows: Mapping[Value, PlannedBuffer], kept: Iterable[Value], shared: SharedStates
) -> Iterator[PlanFailure]:
    """Yield the faults of states: another address, type or shape than the rows and the graph have, or wrong figures.

    `kept` values outlive the run. None may have bytes that a state is copied into after it.
    """
    kept = [value for value in kept if value in rows]
    for claim, before, after in zip(states.claims, states.inputs, states.outputs, strict=True):
        names = (claim.input, claim.output)
        row, other = rows.get(before), rows.get(after)
        if row is None or other is None:
            yield PlanFailure(f"the state {claim.input!r} and {claim.output!r} has no address", names)
            continue
        if (claim.arena, claim.offset) != (row.arena, row.offset):
            yield PlanFailure(
                f"the state {claim.input!r} lies at {row.offset} of {row.arena!r}, not at {claim.offset} of {claim.arena!r}",
                names,
            )
        axes = _longer_axes(before, after)
        if before.dtype != after.dtype or axes is None or len(axes) > 1:
            yield PlanFailure(f"{claim.input!r} and {claim.output!r} have types or shapes that are no state", names)
            continue
        yield from _wrong_axis(claim, axes)
        is_same = (row.arena, row.offset) == (other.arena, other.offset)
        yield from _wrong_strides(claim, before, after, is_appended=is_same and bool(axes), shared=shared)
        if not is_same:
            yield from _lost(row, [rows[value] for value in kept if value is not before])
        right = {
            "size": max(row.size, other.size) if is_same else row.size,
            "copied": 0 if is_same else row.size,
        }
        for name, number in right.items():
            if getattr(claim, name) not in {UNSAID, number}:
                yield PlanFailure(f"{name} of the state {claim.input!r} is {getattr(claim, name)}, not {number}", names)


def _wrong_axis(claim: PlannedState, axes: Sequence[int]) -> Iterator[PlanFailure]:
    """Yield that a state grows along another axis; at sizes below the largest nothing is claimed."""
    right = axes[0] if axes else None
    if claim.size != UNSAID and claim.axis not in {UNSAID, right}:
        reason = f"axis of the state {claim.input!r} is {claim.axis}, not {right}"
        yield PlanFailure(reason, (claim.input, claim.output))


def _lost(state: PlannedBuffer, kept: Iterable[PlannedBuffer]) -> Iterator[PlanFailure]:
    for row in kept:
        if row.arena == state.arena and row.offset < state.end and state.offset < row.end and row.size and state.size:
            reason = f"{row.place} is overwritten after the run, when the state {state.place} is copied there"
            yield PlanFailure(reason, (row.name, state.name))


def _longer_axes(before: Value, after: Value) -> list[int] | None:
    """Return the axes on which `after` is longer; None where both have other ranks, or `after` is shorter."""
    inner, outer = before.shape, after.shape
    if inner is None or outer is None or len(inner) != len(outer):
        return None
    if any(size > longer for size, longer in zip(inner, outer, strict=True)):
        return None
    return [axis for axis in range(len(inner)) if inner[axis] < outer[axis]]


def _wrong_strides(
    claim: PlannedState, before: Value, after: Value, *, is_appended: bool, shared: SharedStates
) -> Iterator[PlanFailure]:
    """Yield the fault of strides other than those of the largest size, or of strides that the output has not. None is contiguous."""
    if claim.strides is None:
        return
    names = (claim.input, claim.output)
    right = _strides(after) if is_appended else None
    is_largest = claim.size != UNSAID
    if is_largest and claim.strides != right:
        yield PlanFailure(f"strides of the state {claim.input!r} are {claim.strides}, not {right}", names)
    elif (before in shared.spread) > (after in shared.spread) and (any_open((after,)) or claim.strides != right):
        yield PlanFailure(
            f"{claim.output!r} is contiguous, and has not the strides of the state {claim.input!r}", names
        )


def _strides(value: Value) -> tuple[int, ...] | None:
    """Return the bytes from one element of the contiguous `value` to the next on each axis; None where an element is no whole bytes."""
    shape, bits = value.shape, value.bits
    if shape is None or bits is None or bits % 8:
        return None
    return tuple(math.prod(shape[axis + 1 :]) * bits // 8 for axis in range(len(shape)))


def spread_tensors(states: CheckedStates, shared: SharedStates) -> dict[Value, tuple[int, int]]:
    """Return the tensors of growing states whose rows are further apart than they are long, and their views that have these rows.

    Each has the number of its rows, and the bytes from one to the next.
    """
    rows_of: dict[Value, tuple[int, int]] = {}
    for claim, before, after in zip(states.claims, states.inputs, states.outputs, strict=True):
        shape = before.shape
        if claim.strides is None or shape is None or not 0 <= (claim.axis or 0) < len(shape):
            continue
        axes = _longer_axes(before, after)
        rows = math.prod(shape[: axes[0]]) if axes else 1
        todo = [before] if rows > 1 else []
        # At the largest sizes the graph has them; they are the same at all others.
        strides = _strides(after) if claim.size != UNSAID else claim.strides
        pitch = strides[axes[0] - 1] if axes and strides is not None and len(strides) == len(shape) else 0
        if todo and (strides != _strides(after) or any_open((after,))):
            todo.append(root_of(after, shared))
        while todo:
            value = todo.pop()
            rows_of[value] = (rows, pitch)
            shown = (link for node in value.readers for link in held(node, shared) if link.rule == "view")
            todo += (link.result for link in shown if link.operand is value and _has_rows(link.result, rows))
    return rows_of


def wrong_row_strides(
    states: CheckedStates, rows: Mapping[Value, PlannedBuffer], shared: SharedStates, *, over_ranges: bool
) -> Iterator[PlanFailure]:
    """Yield the `rows` with other strides than the graph and the states give them. A contiguous tensor has none.

    Over ranges, it may have them where it is contiguous at some sizes only. A stride of an axis of one element, which nothing uses, is
    compared at the largest sizes.
    """
    owners = {rows[before].alias or rows[before].name for before in states.inputs if before in rows}
    for value, row in rows.items():
        if row.strides == NO_SHAPE:
            continue
        shape, right = value.shape, None
        if value in shared.spread and (row.alias or row.name) in owners and shape is not None and value.bits:
            right = _strides_of_rows(shape, value.bits, *shared.spread[value])
        elif over_ranges and row.strides is not None:
            right = _strides(value)
        both = row.strides, right
        if isinstance(row, SizedBuffer) and None not in both and shape is not None:
            both = tuple(_of_long_axes(strides or (), shape) for strides in both)  # type: ignore[assignment]
        if both[0] != both[1]:
            reason = f"strides of {row.name!r} are {row.strides and list(row.strides)}, not {right and list(right)}"
            yield PlanFailure(reason, (row.name,))


def _of_long_axes(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return those of `strides` that are of axes of several elements; all where they are not those of `shape`."""
    if len(strides) != len(shape):
        return tuple(strides)
    return tuple(stride for stride, size in zip(strides, shape, strict=True) if size > 1)


def _strides_of_rows(shape: Sequence[int], bits: int, rows: int, pitch: int) -> tuple[int, ...]:
    """Return the bytes from one element to the next on each axis of a tensor whose first axes number `rows`, `pitch` bytes apart."""
    axes = next(count for count in range(1, len(shape) + 1) if math.prod(shape[:count]) == rows)
    inner = [math.prod(shape[axis + 1 :]) * bits // 8 for axis in range(axes, len(shape))]
    return (*(math.prod(shape[axis + 1 : axes]) * pitch for axis in range(axes)), *inner)


def _has_rows(value: Value, rows: int) -> bool:
    """Return whether the sizes of the first axes of `value` multiply to the number of `rows`."""
    shape = value.shape or ()
    return any(math.prod(shape[:count]) == rows for count in range(1, len(shape) + 1))


# Inputs that come row by row: each is read by Slices alone, in the order of its rows, and no row is read twice.


def wrong_streams(claims: PlanDocument, line: RunOrder) -> Iterator[PlanFailure]:
    """Yield a failure for each input that comes row by row and is read otherwise, or of which the plan says something else.

    A plan in metadata says nothing of them.
    """
    expected: dict[str, PlannedStream] = {}
    for value in (value for value in line.graph.inputs if value.is_streamed):
        stream = _stream(value, line)
        if isinstance(stream, PlanFailure):
            yield stream
        else:
            expected[value.name] = stream
    claimed = {stream.input: stream for stream in claims.streamed}
    for name in expected.keys() | claimed.keys() if claims.outside is not None else ():
        if claimed.get(name) != expected.get(name):
            yield PlanFailure(f"the rows of {name!r} are not read as the plan says", (name,))


def _stream(value: Value, line: RunOrder) -> PlannedStream | PlanFailure:
    """Return the reads of an input in the order in which nodes run; a failure where they are none of consecutive rows."""
    shape, axis, bits = value.shape, value.marks[STREAM], value.bits
    if shape is None or bits is None or bits < 8 or not axis.isdecimal() or int(axis) >= len(shape):
        return PlanFailure(f"{value.name!r} has no rows along the axis {axis!r}", (value.name,))
    if value.is_output or value.is_constant:
        return PlanFailure(f"{value.name!r} cannot come row by row", (value.name,))
    reads: list[tuple[int, int]] = []
    for number, node in enumerate(line.nodes):
        if value not in line.reads[node]:
            continue
        rows = _rows_read(value, node, int(axis))
        if rows is None or rows[0] < (sum(reads[-1]) if reads else 0):
            reason = f"{node.name!r} reads {value.name!r}, which comes row by row, not in the order of its rows"
            return PlanFailure(reason, (value.name,), line.steps[number])
        reads.append(rows)
    count = shape[int(axis)]
    return PlannedStream(value.name, int(axis), count, math.prod(shape) // max(count, 1) * bits // 8, tuple(reads))


def _rows_read(value: Value, node: GraphNode, axis: int) -> tuple[int, int] | None:
    """Return the first row of an input that a Slice reads, and how many; None for any other node, or other parts of the input."""
    if node.op_type != "Slice" or not node.is_standard or node.inputs[0] is not value or value in node.inputs[1:]:
        return None
    whole, part = value.shape, node.outputs[0].shape
    corner = None if whole is None else slice_corner(node, whole)
    if whole is None or part is None or corner is None or len(part) != len(whole):
        return None
    rest = [(start, length) for at, (start, length) in enumerate(zip(corner, part, strict=True)) if at != axis]
    if rest != [(0, length) for at, length in enumerate(whole) if at != axis]:
        return None
    return (corner[axis], part[axis]) if 0 < part[axis] <= whole[axis] - corner[axis] else None
