"""Fills the arena from below, always where it is lowest: offsets for very many buffers in a few seconds.

After Burke, Kendall and Whitwell, "A New Placement Heuristic for the Orthogonal Stock-Cutting Problem", Operations Research 52 (2004): the
skyline is how high the arena is filled at each step; its lowest stretch of time gets a buffer that lives inside of it, or, if there
is none, is filled up to the lower of its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from onnxtile.plan.problem import Problem, align

_Ints = npt.NDArray[np.int64]
_NONE = -1


def fill(problem: Problem, key: Sequence[int]) -> list[int]:
    """Return offsets; of the buffers that fit a stretch of time the one with the largest key (a positive number) comes first."""
    buffers = problem.buffers
    order = sorted((i for i, b in enumerate(buffers) if b.size), key=lambda i: buffers[i].lower)
    offsets = [0] * len(buffers)
    if not order:
        return offsets
    lower = np.array([buffers[i].lower for i in order], np.int64)
    upper = np.array([buffers[i].upper for i in order], np.int64)
    # Those that are placed have no key.
    keys = np.array([key[i] for i in order], np.int64)
    sky = _Skyline(int(lower[0]), int(upper.max()))
    left = len(order)
    while left:
        start, end, height = sky.lowest()
        first, last = np.searchsorted(lower, (start, end))
        window = np.where(upper[first:last] <= end, keys[first:last], 0)
        k = int(window.argmax()) if len(window) else _NONE
        if k == _NONE or not window[k]:
            sky.lift(start)
            continue
        k += int(first)
        i, keys[k] = order[k], 0
        offsets[i] = align(height, problem.alignment_of(buffers[i]))
        sky.put(start, int(lower[k]), int(upper[k]), offsets[i] + problem.footprint(buffers[i]))
        left -= 1
    return offsets


class _Skyline:
    """Stretches of time, each with its height: by their starts, in a linked list, and the lowest first, in a heap."""

    def __init__(self, start: int, end: int) -> None:
        self._end = {start: end}
        self._height = {start: 0}
        self._before = {end: start}
        self._heap = [(0, start, end)]
        self._limits = start, end
        heapify(self._heap)

    def lowest(self) -> tuple[int, int, int]:
        """Return start, end and height of the first lowest stretch."""
        while True:
            height, start, end = self._heap[0]
            if self._height.get(start) == height and self._end[start] == end:
                return start, end, height
            heappop(self._heap)

    def lift(self, start: int) -> None:
        """Fill a lowest stretch up to the lower of its neighbours, and make it one with those of that height."""
        end = self._end[start]
        before = self._before[start] if start > self._limits[0] else None
        after = end if end < self._limits[1] else None
        height = min(self._height[s] for s in (before, after) if s is not None)
        if after is not None and self._height[after] == height:
            end = self._end[after]
            del self._height[after], self._end[after], self._before[after]
        if before is not None and self._height[before] == height:
            del self._height[start], self._end[start], self._before[start]
            start = before
        self._set(start, end, height)

    def put(self, start: int, lower: int, upper: int, height: int) -> None:
        """Raise the steps [`lower`, `upper`) of the stretch at `start` to `height`."""
        end, ground = self._end[start], self._height[start]
        if start < lower:
            self._set(start, lower, ground)
        if upper < end:
            self._set(upper, end, ground)
        self._set(lower, upper, height)

    def _set(self, start: int, end: int, height: int) -> None:
        self._end[start], self._height[start], self._before[end] = end, height, start
        heappush(self._heap, (height, start, end))
