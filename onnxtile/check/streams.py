"""The check of inputs that come row by row: each is read by Slices alone, in the order of its rows, and no row is read twice."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnxtile.check.graph import STREAM, GraphNode, Value
from onnxtile.check.sharing import RunOrder, slice_corner
from onnxtile.declare.plan_document import PlanDocument, PlanFailure, PlannedStream


def wrong_streams(claims: PlanDocument, line: RunOrder) -> Iterator[PlanFailure]:
    """Yield a failure for each input that comes row by row and is read otherwise, or of which the plan says something else.

    A plan in metadata says nothing of them.
    """
    found: dict[str, PlannedStream] = {}
    for value in (value for value in line.graph.inputs if value.is_streamed):
        stream = _stream(value, line)
        if isinstance(stream, PlanFailure):
            yield stream
        else:
            found[value.name] = stream
    said = {stream.input: stream for stream in claims.streamed}
    for name in found.keys() | said.keys() if claims.outside is not None else ():
        if said.get(name) != found.get(name):
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
