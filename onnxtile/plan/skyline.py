"""Fills the arena from below, always where it is lowest: offsets for very many buffers in a few seconds.

After Burke, Kendall and Whitwell, "A New Placement Heuristic for the Orthogonal Stock-Cutting Problem", Operations Research 52 (2004): the
skyline is how high the arena is filled at each step; its lowest stretch of time gets a buffer that lives inside of it, or, if there
is none, is filled up to the lower of its neighbours. Here the step of that stretch at which most bytes are still to come is served
first: a byte that is wasted there is one that the arena grows by.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from onnxtile.plan.lifetimes import Ints
from onnxtile.plan.problem import Problem

Numbers = npt.NDArray[np.float64]


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
        lower = np.array([b.lower for b in buffers], np.int64)
        upper = np.array([b.upper for b in buffers], np.int64)
        size = np.array([problem.footprint(b) for b in buffers], np.int64)
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


def fill(lower: Ints, upper: Ints, size: Ints, unit: Ints, first: Ints, live: Ints, keys: Numbers, pull: float) -> Ints:
    """Return offsets for the buffers of a strip; of those that could be next the one with the largest of `keys`, all positive, is.

    A key counts the less the longer the gap beside the buffer is, measured by its life, and by `pull`.
    """
    offsets = np.zeros(len(lower), np.int64)
    keys, rest = keys.copy(), live.copy()
    # The stretches of the skyline: where each ends and how high it is, by its first section; and which is before a section.
    end, height, before = np.full(len(rest) + 1, -1), np.zeros(len(rest) + 1, np.int64), np.full(len(rest) + 1, -1)
    end[0], before[-1] = len(rest), 0
    heap = [(0, 0, len(rest))]
    left = len(lower)
    while left > 0:
        ground, start, stop = heappop(heap)
        if end[start] != stop or height[start] != ground:
            continue
        chosen = choose(lower, upper, first, rest, keys, pull, start, stop)
        if chosen < 0:
            start, stop, ground = lift(end, height, before, start, stop)
            heappush(heap, (ground, start, stop))
            continue
        keys[chosen] = 0.0
        left -= 1
        low, high = int(lower[chosen]), int(upper[chosen])
        offsets[chosen] = -(-ground // unit[chosen]) * unit[chosen]
        rest[low:high] -= size[chosen]
        for begin, until, level in (
            (start, low, ground),
            (high, stop, ground),
            (low, high, int(offsets[chosen] + size[chosen])),
        ):
            if begin < until:
                end[begin], height[begin], before[until] = until, level, begin
                heappush(heap, (level, begin, until))
    return offsets


def choose(lower: Ints, upper: Ints, first: Ints, rest: Ints, keys: Numbers, pull: float, start: int, stop: int) -> int:
    """Return the buffer that lives inside of [start, stop), where most is still to come if there is one, with the largest key; or -1."""
    peak = start + int(rest[start:stop].argmax())
    low, high = int(first[start]), int(first[peak + 1])
    fits = (upper[low:high] > peak) & (upper[low:high] <= stop)
    found = best(lower[low:high], upper[low:high], keys[low:high] * fits, pull, start, stop)
    if found < 0:
        high = int(first[stop])
        fits = upper[low:high] <= stop
        found = best(lower[low:high], upper[low:high], keys[low:high] * fits, pull, start, stop)
    return low + found if found >= 0 else -1


def best(lower: Ints, upper: Ints, keys: Numbers, pull: float, start: int, stop: int) -> int:
    """Return the place of the largest of `keys`, less what the gaps to `start` or `stop` take off, if it is positive; else -1."""
    if len(keys) == 0:
        return -1
    if pull > 0.0:
        life = upper - lower
        keys = keys * (life / (life + pull * np.minimum(lower - start, np.abs(stop - upper))))
    found = int(keys.argmax())
    return found if keys[found] > 0.0 else -1


def lift(end: Ints, height: Ints, before: Ints, start: int, stop: int) -> tuple[int, int, int]:
    """Fill the stretch [start, stop) up to the lower of its neighbours, and make it one with those of that height; return it."""
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
