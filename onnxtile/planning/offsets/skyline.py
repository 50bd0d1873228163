"""Fills the arena from below, always at its lowest stretch of time: offsets for very many buffers in a few seconds.

After Burke, Kendall and Whitwell, "A New Placement Heuristic for the Orthogonal Stock-Cutting Problem", Operations Research 52 (2004). The
skyline is the height to which the arena is filled at each step. Its lowest stretch gets a buffer whose live range lies inside it; if none
does, it is filled up to the lower of its neighbours. Two rules are added. The step of the stretch with the most unplaced bytes is served
first, because a byte wasted there makes the arena larger. And stretches with more unplaced bytes run ahead of others, so a buffer may lie
across lower stretches beside them: the bytes lost below it are lost at steps with bytes to spare.
"""

from __future__ import annotations

from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxtile.kernels.kernel_graph import Ints, distinct, live_sums
from onnxtile.planning.offsets.problem import Problem
from onnxtile.system.dataclass import dataclass

Floats = npt.NDArray[np.float64]

_FEW = 500
"""With fewer unplaced buffers, removing the placed ones saves no time."""
_NOTHING, _WAITS = -1, -2


@dataclass(frozen=True)
class Strip:
    """The buffers of a problem that have bytes, sorted by first step, in sections: stretches of time from one first step to the next.

    `number` is that of each buffer in the problem. A buffer is live in the sections [`lower`, `upper`), has `size` bytes, and
    starts at a multiple of `unit`. Buffers from `first[k]` on start in section k or later. `live` are the live bytes of each section.
    """

    number: Ints
    lower: Ints
    upper: Ints
    size: Ints
    unit: Ints
    first: Ints
    live: Ints

    @classmethod
    def from_problem(cls, problem: Problem) -> Strip:
        """Return the strip of `problem`; its conflicts are ignored."""
        lower, upper = problem.live_ranges
        size = np.array(problem.footprints, np.int64)
        number = np.argsort(lower, kind="stable")
        number = number[size[number] > 0]
        births = distinct(lower[number])
        begin, end = np.searchsorted(births, lower[number]), np.searchsorted(births, upper[number])
        first = np.searchsorted(begin, np.arange(len(births) + 1))
        unit = np.array([b.alignment or problem.alignment for b in problem.buffers], np.int64)
        live = live_sums(begin, end, size[number], len(births))
        return cls(number, begin, end, size[number], unit[number], first, live)

    def waiting(self, keys: Floats) -> Waiting:
        """Return all buffers as unplaced, with these keys."""
        return Waiting(np.arange(len(keys)), self.lower, self.upper, self.size, self.unit, keys.copy(), self.first)

    @cached_property
    def soonest(self) -> Ints:
        """By section, the first end of a live range that starts there or later."""
        earliest = np.minimum.accumulate(self.upper[::-1])[::-1]
        return np.append(earliest, len(self.live) + 1)[self.first]

    def offsets(self, placed: Ints, count: int) -> list[int]:
        """Return the offsets `placed` of the strip as offsets of the `count` buffers of the problem."""
        every = np.zeros(count, np.int64)
        every[self.number] = placed
        offsets: list[int] = every.tolist()
        return offsets


class Waiting(NamedTuple):
    """Unplaced buffers of a strip, by first section; a buffer that has been placed has the key 0.

    `number` is that of each in the strip; `first[k]` is the first that starts in section k or later.
    """

    number: Ints
    lower: Ints
    upper: Ints
    size: Ints
    unit: Ints
    keys: Floats
    first: Ints


class Skyline(NamedTuple):
    """The stretches of equal height: end and height by first section, and the stretch that ends before a section."""

    end: Ints
    height: Ints
    before: Ints


def fill(waiting: Waiting, soonest: Ints, live: Ints, weight: int) -> Ints:
    """Return offsets for the buffers of a strip. Of the buffers that fit a stretch, the one with the largest (positive) key is placed.

    The lowest stretch is filled next; `weight` unplaced bytes at its peak count as one byte of height less. Buffers that start in section k
    or later are live till `soonest[k]` at least.
    """
    offsets = np.zeros(len(waiting.lower), np.int64)
    unplaced, ends, left = live.copy(), len(live), len(offsets)
    sky = Skyline(np.full(ends + 1, -1), np.zeros(ends + 1, np.int64), np.full(ends + 1, -1))
    sky.end[0], sky.before[ends] = ends, 0
    heap = [(0, 0, 0, ends)]
    while left > 0:
        _, base, start, stop = heappop(heap)
        if sky.end[start] != stop or sky.height[start] != base:
            continue
        chosen = choose(waiting, unplaced, soonest, sky, start, stop)
        if chosen == _NOTHING:
            start, stop, base = lift(sky, start, stop)
            heappush(heap, (urgency(unplaced, start, stop, base, weight), base, start, stop))
        if chosen < 0:
            continue
        low, high, size = int(waiting.lower[chosen]), int(waiting.upper[chosen]), int(waiting.size[chosen])
        offset = -(-base // int(waiting.unit[chosen])) * int(waiting.unit[chosen])
        offsets[waiting.number[chosen]] = offset
        unplaced[low:high] -= size
        cover(sky, start, low, high, offset + size)
        # The stretches beside it are shorter now, or waited for it, unless they are higher.
        for begin in (int(sky.before[low]), low, high):
            if 0 <= begin < ends and sky.height[begin] <= offset + size:
                until, level = int(sky.end[begin]), int(sky.height[begin])
                heappush(heap, (urgency(unplaced, begin, until, level, weight), level, begin, until))
        waiting.keys[chosen] = 0.0
        left -= 1
        if 2 * left < len(waiting.keys) and left > _FEW:
            waiting = compacted(waiting)
    return offsets


def urgency(unplaced: Ints, start: int, stop: int, base: int, weight: int) -> int:
    """Return the priority of a stretch; the least is filled next."""
    return weight * base - int(unplaced[start + int(unplaced[start:stop].argmax())])


def compacted(waiting: Waiting) -> Waiting:
    """Return `waiting` without the placed buffers."""
    kept = waiting.keys > 0.0
    lower = waiting.lower[kept]
    first = np.searchsorted(lower, np.arange(len(waiting.first)))
    return Waiting(
        waiting.number[kept],
        lower,
        waiting.upper[kept],
        waiting.size[kept],
        waiting.unit[kept],
        waiting.keys[kept],
        first,
    )


def choose(waiting: Waiting, unplaced: Ints, soonest: Ints, sky: Skyline, start: int, stop: int) -> int:
    """Return the buffer to place on a stretch; or _NOTHING, or _WAITS where a stretch beside it has to be filled first.

    It is the buffer with the largest key of those live at the stretch's peak, the section with the most unplaced bytes. It covers no higher
    section. It may cover lower sections beside the stretch, where fewer bytes are unplaced.
    """
    peak = start + int(unplaced[start:stop].argmax())
    low, high = basin(sky, start, stop)
    if unplaced[peak] > 0 and soonest[low] <= high:
        buffer = best(waiting, peak, low, high)
        if buffer >= 0:
            return buffer
    if (low < start and sky.height[sky.before[start]] < sky.height[start]) or (
        high > stop and sky.height[stop] < sky.height[start]
    ):
        return _WAITS
    return best(waiting, -1, start, stop) if soonest[start] <= stop else _NOTHING


def basin(sky: Skyline, start: int, stop: int) -> tuple[int, int]:
    """Return the range of sections around a stretch that are not higher."""
    base, ends = sky.height[start], len(sky.end) - 1
    while start > 0 and sky.height[sky.before[start]] <= base:
        start = int(sky.before[start])
    while stop < ends and sky.height[stop] <= base:
        stop = int(sky.end[stop])
    return start, stop


def best(waiting: Waiting, peak: int, start: int, stop: int) -> int:
    """Return the buffer with the largest key whose sections lie in [start, stop) and include `peak`, if not -1; or _NOTHING."""
    low, high = int(waiting.first[start]), int(waiting.first[peak + 1 if peak >= 0 else stop])
    if low == high:
        return _NOTHING
    upper = waiting.upper[low:high]
    keys = waiting.keys[low:high] * ((upper > peak) & (upper <= stop))
    index = int(keys.argmax())
    return low + index if keys[index] > 0.0 else _NOTHING


def cover(sky: Skyline, start: int, low: int, high: int, level: int) -> None:
    """Make [low, high), which overlaps the stretch at `start` and is nowhere higher, one stretch of this level."""
    end, height, before = sky
    while start > low:
        start = int(before[start])
    while end[start] <= low:
        start = int(end[start])
    while start < high:
        stop, base = int(end[start]), height[start]
        end[start] = -1
        if start < low:
            end[start], before[low] = low, start
        if stop > high:
            end[high], height[high], before[stop] = stop, base, high
        start = stop
    end[low], height[low], before[high] = high, level, low


def lift(sky: Skyline, start: int, stop: int) -> tuple[int, int, int]:
    """Fill the stretch [start, stop) up to the lower of its neighbours, merge it with those of that height, and return it."""
    end, height, before = sky
    left = int(before[start]) if start > 0 else -1
    right = stop if stop < len(end) - 1 else -1
    if left < 0:
        level = int(height[right])
    elif right < 0:
        level = int(height[left])
    else:
        level = min(int(height[left]), int(height[right]))
    if right >= 0 and height[right] == level:
        stop = int(end[right])
        end[right] = -1
    if left >= 0 and height[left] == level:
        end[start] = -1
        start = left
    end[start], height[start], before[stop] = stop, level, start
    return start, stop, level
