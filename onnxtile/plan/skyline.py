"""Fills the arena from below, always where it is lowest: offsets for very many buffers in a few seconds.

After Burke, Kendall and Whitwell, "A New Placement Heuristic for the Orthogonal Stock-Cutting Problem", Operations Research 52 (2004): the
skyline is how high the arena is filled at each step; its lowest stretch of time gets a buffer that lives inside of it, or, if there
is none, is filled up to the lower of its neighbours. Here the step of that stretch at which most bytes are still to come is served
first: a byte that is wasted there is one that the arena grows by.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxtile.plan.problem import Ints, Problem

Numbers = npt.NDArray[np.float64]

_FEW = 500
"""With fewer buffers left nothing is gained by taking out those that are placed."""


@dataclass(frozen=True)
class Strip:
    """The buffers of a problem that have bytes, sorted by birth, in sections: the stretches of time from one birth to the next.

    `place` says which buffer of the problem each is. It lives in the sections [`lower`, `upper`), takes `size` bytes, and starts at a
    multiple of `unit`; those from `first[k]` on are born in section k or later. `live` are the bytes that are live in each section.
    """

    place: Ints
    lower: Ints
    upper: Ints
    size: Ints
    unit: Ints
    first: Ints
    live: Ints

    @classmethod
    def of(cls, problem: Problem) -> Strip:
        """Return the strip of `problem`, whose conflicts do not count."""
        buffers = problem.buffers
        lower, upper = problem.lives
        size = np.array(problem.footprints, np.int64)
        place = np.argsort(lower, kind="stable")
        place = place[size[place] > 0]
        births = np.unique(lower[place])
        begin, end = np.searchsorted(births, lower[place]), np.searchsorted(births, upper[place])
        first = np.searchsorted(begin, np.arange(len(births) + 1))
        change = np.zeros(len(births) + 1, np.int64)
        np.add.at(change, begin, size[place])
        np.add.at(change, end, -size[place])
        unit = np.array([problem.alignment_of(buffers[i]) for i in place], np.int64)
        return cls(place, begin, end, size[place], unit, first, np.cumsum(change)[:-1])

    def waiting(self, keys: Numbers) -> Waiting:
        """Return all buffers as waiting with these keys."""
        return Waiting(np.arange(len(keys)), self.lower, self.upper, self.size, self.unit, keys.copy(), self.first)

    @cached_property
    def soonest(self) -> Ints:
        """The first section by which one of those is dead that are born in a section or later."""
        earliest = np.minimum.accumulate(self.upper[::-1])[::-1]
        return np.append(earliest, len(self.live) + 1)[self.first]

    def fullest(self) -> Ints:
        """Return for each buffer the most bytes that are live in a section of its life, itself included."""
        found = np.zeros(len(self.place), np.int64)
        table, width = self.live, 1
        length = self.upper - self.lower
        while len(found) and width <= int(length.max()):
            fits = (length >= width) & (length < 2 * width)
            found[fits] = np.maximum(table[self.lower[fits]], table[self.upper[fits] - width])
            table, width = np.maximum(table[:-width], table[width:]), 2 * width
        return found

    def offsets(self, found: Ints, count: int) -> list[int]:
        """Return `found`, an offset for each buffer of the strip, as offsets of the `count` buffers of the problem."""
        offsets = np.zeros(count, np.int64)
        offsets[self.place] = found
        return [int(offset) for offset in offsets]


class Waiting(NamedTuple):
    """Buffers of a strip, by birth, of which those that are placed have no key.

    `place` is where each stands in the strip; `first[k]` is the first that is born in section k or later.
    """

    place: Ints
    lower: Ints
    upper: Ints
    size: Ints
    unit: Ints
    keys: Numbers
    first: Ints


class Skyline(NamedTuple):
    """The stretches of equal height: where each ends and how high it is, by its first section; and which one ends before a section."""

    end: Ints
    height: Ints
    before: Ints


def fill(waiting: Waiting, soonest: Ints, live: Ints, pull: float, caution: float) -> Ints:
    """Return offsets for the buffers of a strip; of those that could be next the one with the largest key, all positive, is.

    A key counts the less the longer the gap beside the buffer is, measured by its life, and by `pull`; and, by `caution`, the more bytes
    that gap takes from a section that has none to spare. Whatever is born in section k or later lives till `soonest[k]` at least.
    """
    offsets = np.zeros(len(waiting.lower), np.int64)
    rest, bound, largest = live.copy(), int(live.max()), int(waiting.size.max())
    ends = len(live)
    sky = Skyline(np.full(ends + 1, -1), np.zeros(ends + 1, np.int64), np.full(ends + 1, -1))
    sky.end[0], sky.before[-1] = ends, 0
    heap = [(0, 0, ends)]
    left = len(offsets)
    while left > 0:
        ground, start, stop = heappop(heap)
        if sky.end[start] != stop or sky.height[start] != ground:
            continue
        chosen = -1
        if soonest[start] <= stop:
            peak = start + int(rest[start:stop].argmax())
            scarce = caution if ground + rest[peak] + largest > bound else 0.0
            chosen = choose(waiting, rest, sky, (start, peak, stop), pull, scarce / bound, bound - ground)
        if chosen < 0:
            start, stop, ground = lift(sky, start, stop)
            heappush(heap, (ground, start, stop))
            continue
        low, high, size = int(waiting.lower[chosen]), int(waiting.upper[chosen]), int(waiting.size[chosen])
        offset = -(-ground // int(waiting.unit[chosen])) * int(waiting.unit[chosen])
        offsets[waiting.place[chosen]] = offset
        rest[low:high] -= size
        for begin, until, level in ((start, low, ground), (high, stop, ground), (low, high, offset + size)):
            if begin < until:
                sky.end[begin], sky.height[begin], sky.before[until] = until, level, begin
                heappush(heap, (level, begin, until))
        waiting.keys[chosen] = 0.0
        left -= 1
        if 2 * left < len(waiting.keys) and left > _FEW:
            waiting = still(waiting)
    return offsets


def still(waiting: Waiting) -> Waiting:
    """Return `waiting` without those that are placed."""
    kept = waiting.keys > 0.0
    lower = waiting.lower[kept]
    first = np.searchsorted(lower, np.arange(len(waiting.first)))
    return Waiting(
        waiting.place[kept],
        lower,
        waiting.upper[kept],
        waiting.size[kept],
        waiting.unit[kept],
        waiting.keys[kept],
        first,
    )


def choose(
    waiting: Waiting, rest: Ints, sky: Skyline, stretch: tuple[int, int, int], pull: float, scarce: float, room: int
) -> int:
    """Return the buffer that lives inside of a stretch, at its peak if there is one, with the largest key; or -1.

    `stretch` is its start, its peak (the section at which most is still to come), and its end. `scarce` is how much a byte counts that is
    lost in a section where there is only `room` above the ground for all that is still to come.
    """
    start, peak, stop = stretch
    low, high = int(waiting.first[start]), int(waiting.first[peak + 1])
    upper = waiting.upper[low:high]
    keys = waiting.keys[low:high] * ((upper > peak) & (upper <= stop))
    found = best(keys)
    if found < 0:
        high = int(waiting.first[stop])
        upper = waiting.upper[low:high]
        keys = waiting.keys[low:high] * (upper <= stop)
        found = best(keys)
    if found < 0:
        return -1
    if pull > 0.0:
        lower = waiting.lower[low:high]
        life = upper - lower
        keys = keys * (life / (life + pull * np.minimum(lower - start, np.abs(stop - upper))))
    if scarce > 0.0:
        keys = keys * np.exp(-scarce * losses(waiting, rest, sky, low, high, start, stop, room))
    return low + int(keys.argmax()) if pull > 0.0 or scarce > 0.0 else low + found


def best(keys: Numbers) -> int:
    """Return the place of the largest of `keys`, or -1 if none is positive."""
    found = int(keys.argmax()) if len(keys) > 0 else -1
    return found if found >= 0 and keys[found] > 0.0 else -1


def losses(waiting: Waiting, rest: Ints, sky: Skyline, low: int, high: int, start: int, stop: int, room: int) -> Ints:
    """Return what each of the buffers [low, high) would take from the sections beside it that the arena cannot spare.

    A gap between it and the end of the stretch is as good as lost, up to the lower of the two beside it.
    """
    ground = sky.height[start]
    before = sky.height[sky.before[start]] - ground if start > 0 else room
    after = sky.height[stop] - ground if stop < len(rest) else room
    lower, size = waiting.lower[low:high], waiting.size[low:high]
    upper = np.minimum(waiting.upper[low:high], stop)
    lost = np.maximum(np.minimum(size, before) + rest[lower - 1] - room, 0) * (lower > start)
    lost += np.maximum(np.minimum(size, after) + rest[upper - (upper == stop)] - room, 0) * (upper < stop)
    return lost


def lift(sky: Skyline, start: int, stop: int) -> tuple[int, int, int]:
    """Fill the stretch [start, stop) up to the lower of its neighbours, and make it one with those of that height; return it."""
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
