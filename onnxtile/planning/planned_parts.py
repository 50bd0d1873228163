"""The parts of a buffer in a result."""

from __future__ import annotations

from onnxtile.planning.offsets.problem import Buffer
from onnxtile.planning.result import PlannedPart


def planned_parts(buffer: Buffer) -> tuple[PlannedPart, ...]:
    """Return the parts of the outline of `buffer`."""
    return tuple(PlannedPart(p.start, p.end - p.start, p.lower, p.upper - 1) for p in buffer.outline)
