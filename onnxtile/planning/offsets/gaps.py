"""Places buffers one after the other, each into a gap between the buffers it is in conflict with."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import count as count_up
from itertools import cycle

import numpy as np

from onnxtile.kernels.liveness import Ints
from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.planning.offsets.problem import Problem

# Conflicts between buffers: pairs that must share no byte, because both are live in a step or the problem says so.


class LiveIndex:
    """Live ranges, sorted once: those that overlap one with d others take two searches and about d steps."""

    def __init__(self, lower: Ints, upper: Ints) -> None:
        self._order = np.argsort(lower, kind="stable")
        self._births = lower[self._order]
        self._deaths = upper[self._order]
        # The latest end of the live ranges so far, in the order of their starts.
        self._latest = np.maximum.accumulate(self._deaths) if len(lower) else self._deaths

    def met(self, lower: int, upper: int) -> Ints:
        """Return the numbers of the live ranges that overlap the steps from `lower` to `upper`."""
        first = int(np.searchsorted(self._latest, lower, side="right"))
        last = int(np.searchsorted(self._births, upper, side="left"))
        numbers: Ints = self._order[first:last][self._deaths[first:last] > lower]
        return numbers


Choose = Callable[[Ints], int]
"""Given the room in each gap in bytes (negative: too small), lowest gap first, returns the index of the gap to take; -1 is the space
above all."""


_UNPLACED = -(1 << 60)
"""The offset of a buffer that is not placed: what it bars lies far below 0."""
_KEPT = 2_000_000
"""The most conflicts of parts that a `Fitter` keeps; those of further buffers are looked up again in each round."""


class Fitter:
    """Places the buffers of a problem in any order; the live ranges of their parts are sorted once.

    n parts with d conflicts each take n searches of about d steps, which are kept for further rounds, as long as they are few enough.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._index = LiveIndex(problem.parts.lower, problem.parts.upper)
        self._extra_conflicts = {i: np.array(others, np.int64) for i, others in problem.extra_conflicts.items()}
        self._barred: dict[int, tuple[Ints, Ints, Ints]] = {}
        self._left = _KEPT

    def place(self, order: Sequence[int], choose: Choose) -> list[int]:
        """Return an offset for each buffer, placed in the order of their numbers in `order`; those with a pin come first."""
        problem = self._problem
        offsets = [buffer.pin or 0 for buffer in problem.buffers]
        placed = np.full(len(offsets), _UNPLACED)
        free = order if not problem.pinned else [i for i in order if problem.buffers[i].pin is None]
        for i in (*problem.pinned, *free):
            if problem.footprints[i]:
                if problem.buffers[i].pin is None:
                    offsets[i] = self._offset(i, placed, choose)
                placed[i] = offsets[i]
        return offsets

    def _offset(self, i: int, placed: Ints, choose: Choose) -> int:
        """Return the offset in the gap that is chosen for buffer `i`."""
        owner, low, high = self._barred.get(i) or self._barred_by(i)
        base = placed[owner]
        low = low + base
        order = low.argsort()
        # The lowest offset above all intervals that begin earlier: 0, then one for each interval.
        candidates = np.zeros(len(order) + 1, np.int64)
        candidates[1:] = (high + base)[order]
        np.maximum.accumulate(candidates, out=candidates)
        alignment = self._problem.alignment_of(self._problem.buffers[i])
        if alignment > self._problem.granule:
            candidates = (candidates + alignment - 1) & -alignment
        return int(candidates[choose(low[order] - candidates[:-1])])

    def _barred_by(self, i: int) -> tuple[Ints, Ints, Ints]:
        """Return the open intervals of offsets in which a part of buffer `i` would overlap one of another buffer at offset 0.

        Each has the number of the other buffer, and its ends.
        """
        parts, near, own = self._problem.parts, [], []
        for part in range(parts.first[i], parts.first[i + 1]):
            met = self._index.met(parts.lower[part], parts.upper[part])
            if i in self._extra_conflicts:
                met = np.concatenate((met, self._extra_conflicts[i]))
            near.append(met)
            own.append(np.full(len(met), part))
        others, mine = np.concatenate(near), np.concatenate(own)
        barred = (parts.owner[others], parts.start[others] - parts.end[mine], parts.end[others] - parts.start[mine])
        self._left -= len(others)
        if self._left >= 0:
            self._barred[i] = barred
        return barred


def lowest(room: Ints) -> int:
    """Choose the lowest gap."""
    if not len(room):
        return -1
    fits = room >= 0
    first = int(fits.argmax())
    return first if fits[first] else -1


def tightest(room: Ints) -> int:
    """Choose the gap with the least room, of several the lowest."""
    if not len(room):
        return -1
    # As unsigned numbers, those below 0 are the largest.
    least = int(room.view(np.uint64).argmin())
    return least if room[least] >= 0 else -1


# Orders in which planners place buffers, as numbers of buffers.


def by_size(problem: Problem) -> list[int]:
    """Return the largest first; ties go to the earlier, then the longer live range, then the name."""
    b = problem.buffers
    return sorted(range(len(b)), key=lambda i: (-b[i].size, b[i].lower, -b[i].upper, b[i].name))


def by_birth(problem: Problem) -> list[int]:
    """Return them by first step, of one step the largest first."""
    b = problem.buffers
    return sorted(range(len(b)), key=lambda i: (b[i].lower, -b[i].size, -b[i].upper, b[i].name))


def by_breadth(problem: Problem) -> list[int]:
    """Return the buffers of the step with the most live bytes first, then those of the next fullest, in each step by size."""
    buffers, parts = problem.buffers, problem.parts
    steps = sorted({*parts.lower.tolist(), *(b.lower for b in buffers)})
    breadth = [0] * (len(steps) + 1)
    spans = [(bisect_left(steps, b.lower), bisect_left(steps, b.upper)) for b in buffers]
    for size, lower, upper in zip(
        (parts.end - parts.start).tolist(), parts.lower.tolist(), parts.upper.tolist(), strict=True
    ):
        breadth[bisect_left(steps, lower)] += size
        breadth[bisect_left(steps, upper)] -= size
    for k in range(1, len(breadth)):
        breadth[k] += breadth[k - 1]
    widest = _range_maximum(breadth)
    return sorted(
        range(len(buffers)), key=lambda i: (-widest(*spans[i]), -buffers[i].size, buffers[i].lower, buffers[i].name)
    )


class _range_maximum:  # noqa: N801 - used as a function
    """The maximum of a range of numbers, by tables of powers of two."""

    def __init__(self, numbers: list[int]) -> None:
        self._tables = [numbers]
        width = 1
        while 2 * width <= len(numbers):
            last = self._tables[-1]
            self._tables.append([max(a, b) for a, b in zip(last, last[width:], strict=False)])
            width *= 2

    def __call__(self, first: int, end: int) -> int:
        level = (end - first).bit_length() - 1
        table = self._tables[level]
        return max(table[first], table[end - (1 << level)])


# Places buffers with outlines in rounds: buffers that ended too high are placed earlier in the next round.
#
# After Joslin and Clements, Journal of Artificial Intelligence Research 10 (1999), pages 353-373.

STEPS_OF_A_PLACING = 200
"""The steps of an effort that placing one buffer takes."""

_PRIORITY_GROWTH = 1.5
_NOISE = 0.1
"""The largest part by which a key changes at random in a round: the same keys would repeat the same placing."""


def placings(problem: Problem, budget: SearchBudget, least: int) -> Iterator[list[int]]:
    """Yield the offsets of one round after the other, until one takes no more than `least` bytes or `budget` is used up.

    After the first rounds, every other one goes on from keys in which many bytes in few steps come first: such buffers may have to lie
    below a large one whose parts die one after another. The others go on from the smallest arena.
    """
    count = sum(map(bool, problem.footprints))
    fitter, generator = Fitter(problem), random.Random(0)
    starts, choices = _starts(problem), cycle((lowest, tightest))
    smallest: tuple[int, list[float]] | None = None
    dense = _densities(problem)
    for turn in count_up() if count else ():
        if not budget.is_left:
            return
        # Two of four, so that both ways to choose a gap serve both.
        is_dense = not starts and turn % 4 > 1
        keys = starts.pop() if starts else _changed(dense if is_dense or smallest is None else smallest[1], generator)
        offsets = fitter.place(sorted(range(len(keys)), key=lambda i: (-keys[i], i)), next(choices))
        budget.take(STEPS_OF_A_PLACING * count)
        yield offsets
        tops = [offset + size if size else 0 for offset, size in zip(offsets, problem.footprints, strict=True)]
        if max(tops) <= least:
            return
        raised = [_raised(key, top, least) for key, top in zip(keys, tops, strict=True)]
        if is_dense:
            dense = raised
        elif smallest is None or (max(tops), raised) < smallest:
            smallest = (max(tops), raised)


def _raised(key: float, top: int, least: int) -> float:
    return key * _PRIORITY_GROWTH if top > least else key


def _changed(keys: Sequence[float], generator: random.Random) -> list[float]:
    return [key * (1.0 + generator.uniform(-_NOISE, _NOISE)) for key in keys]


def _starts(problem: Problem) -> list[list[float]]:
    """Return the first keys, the best last: bytes, bytes by steps of all parts, and length of the live range."""
    sizes = [float(size) for size in problem.footprints]
    areas = [float(sum((p.end - p.start) * (p.upper - p.lower) for p in b.live_parts)) for b in problem.buffers]
    lengths = [float(b.upper - b.lower) for b in problem.buffers]
    return [sizes, areas, areas, lengths, lengths]


def _densities(problem: Problem) -> list[float]:
    """Return the bytes of each buffer for each step of its live range."""
    return [size / (b.upper - b.lower) for b, size in zip(problem.buffers, problem.footprints, strict=True)]
