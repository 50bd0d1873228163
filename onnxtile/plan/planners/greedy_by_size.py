"""The largest buffer first, each into the tightest gap that its live neighbours leave.

Algorithm 3 of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxtile.plan.planner import Planner
from onnxtile.plan.problem import Problem

_Ints = npt.NDArray[np.int64]


def _place(problem: Problem) -> list[int]:
    """Give offsets in order of falling size; ties go to the earlier, then the longer life, then the name.

    With n buffers of which each meets d others, n searches over the lives that began before it ended: 10,000 buffers take about a second.
    """
    buffers = problem.buffers
    by_start = sorted(range(len(buffers)), key=lambda i: buffers[i].lower)
    place = {i: rank for rank, i in enumerate(by_start)}
    lower = np.array([buffers[i].lower for i in by_start], np.int64)
    upper = np.array([buffers[i].upper for i in by_start], np.int64)
    # Lives before this one in the order of their starts have all ended by the highest end so far.
    latest_end = np.maximum.accumulate(upper) if len(buffers) else upper
    start = np.zeros(len(buffers), np.int64)
    # An end of 0 says: not placed yet, or without bytes; it is in nobody's way.
    end = np.zeros(len(buffers), np.int64)
    by_size = sorted(
        range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].lower, -buffers[i].upper, buffers[i].name)
    )
    for i in by_size:
        buffer = buffers[i]
        size = problem.footprint(buffer)
        if not size:
            break
        first = int(np.searchsorted(latest_end, buffer.lower, side="right"))
        last = int(np.searchsorted(lower, buffer.upper, side="left"))
        near = np.flatnonzero((upper[first:last] > buffer.lower) & (end[first:last] > 0)) + first
        offset = _tightest(start[near], end[near], size, problem.alignment_of(buffer))
        start[place[i]], end[place[i]] = offset, offset + size
    return [int(start[place[i]]) for i in range(len(buffers))]


def _tightest(start: _Ints, end: _Ints, size: int, alignment: int) -> int:
    """Return the lowest offset of the smallest gap between the neighbours that takes `size` bytes, else the one above them all."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    top = np.maximum.accumulate(end)
    candidates = np.concatenate(([0], (top + alignment - 1) & -alignment))
    gaps = start - candidates[:-1]
    fits = gaps >= size
    if not fits.any():
        return int(candidates[-1])
    return int(candidates[np.argmin(np.where(fits, gaps, np.iinfo(np.int64).max))])


GREEDY_BY_SIZE = Planner("greedy-by-size", "the largest first, each into the tightest gap", _place)
