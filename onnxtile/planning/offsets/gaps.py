"""Places buffers one after the other into gaps between those in conflict, and moves those that end too high."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count as count_up
from itertools import cycle
from math import sqrt
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxtile.kernels.kernel_graph import Ints, distinct, fullest, live_sums
from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.planning.offsets.problem import Buffer, Problem, size_of
from onnxtile.system.dataclass import dataclass

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


class PartConflicts(NamedTuple):
    """The parts in conflict with those of one buffer: their owners, and the offsets between which the two overlap.

    A buffer at offset x overlaps a part whose owner lies at y where y + `low` < x < y + `high`.
    """

    owner: Ints
    low: Ints
    high: Ints

    @classmethod
    def of_buffer(cls, i: int, problem: Problem, index: LiveIndex, further: Ints) -> PartConflicts:
        """Return the parts of `problem`, in the `index`, that are live with those of buffer `i`, and the parts `further`."""
        parts, near, own_parts = problem.parts, [], []
        for part in range(parts.first[i], parts.first[i + 1]):
            met = index.met(parts.lower[part], parts.upper[part])
            near.append(np.concatenate((met[parts.owner[met] != i], further)))
            own_parts.append(np.full(len(near[-1]), part))
        others, mine = np.concatenate(near), np.concatenate(own_parts)
        return cls(parts.owner[others], parts.start[others] - parts.end[mine], parts.end[others] - parts.start[mine])


_NO_PARTS: Ints = np.zeros(0, np.int64)

Choose = Callable[[Ints], int]
"""Given the room in each gap in bytes (negative: too small), lowest gap first, returns the index of the gap to take; -1 is the space
above all."""


_UNPLACED = -(1 << 60)
"""The offset of a buffer that is not placed: what it bars lies far below 0."""
_KEPT = 2_000_000
"""The most conflicts of parts that a `Fitter` keeps; those of further buffers are looked up again in each round."""


class _PlacedBytes:
    """The bytes of all buffers that are placed, whatever their steps: ranges in order, none of which touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._latest_birth, self._first_death = -math.inf, math.inf

    def add(self, start: int, end: int, buffer: Buffer) -> None:
        """Add the bytes from `start` to `end`, those of `buffer`."""
        self._latest_birth = max(self._latest_birth, buffer.lower)
        self._first_death = min(self._first_death, buffer.upper)
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < last:
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
        self.starts[first:last], self.ends[first:last] = [start], [end]

    def are_all_met(self, buffer: Buffer) -> bool:
        """Return whether the live range of `buffer` overlaps that of each placed one."""
        return self._latest_birth < buffer.upper and buffer.lower < self._first_death


class Fitter:
    """Places the buffers of a problem in any order; the live ranges of their parts are sorted once.

    n parts with d conflicts each take n searches of about d steps, which are kept for further rounds, as long as they are few enough. A
    buffer in conflict with all that are placed takes as many steps as there are gaps between these.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._index = LiveIndex(problem.parts.lower, problem.parts.upper)
        self._extra_conflicts = {i: np.array(others, np.int64) for i, others in problem.extra_conflicts.items()}
        self._barred: dict[int, PartConflicts] = {}
        self._left = _KEPT

    def place(self, order: Sequence[int], choose: Choose) -> list[int]:
        """Return an offset for each buffer, placed in the order of their numbers in `order`; those with a pin come first."""
        problem = self._problem
        offsets = [buffer.pin or 0 for buffer in problem.buffers]
        placed, taken = np.full(len(offsets), _UNPLACED), _PlacedBytes()
        free = order if not problem.pinned else [i for i in order if problem.buffers[i].pin is None]
        for i in (*problem.pinned, *free):
            if problem.footprints[i]:
                if problem.buffers[i].pin is None:
                    offsets[i] = self._offset(i, placed, taken, choose)
                placed[i] = offsets[i]
                if not problem.has_outlines:
                    taken.add(offsets[i], offsets[i] + problem.footprints[i], problem.buffers[i])
        return offsets

    def _offset(self, i: int, placed: Ints, taken: _PlacedBytes, choose: Choose) -> int:
        """Return the offset in the gap that is chosen for buffer `i`."""
        buffer = self._problem.buffers[i]
        if not self._problem.has_outlines and taken.are_all_met(buffer):
            low = np.array(taken.starts, np.int64) - self._problem.footprints[i]
            high = np.array(taken.ends, np.int64)
        else:
            owner, low, high = self._barred.get(i) or self._barred_by(i)
            base = placed[owner]
            low, high = low + base, high + base
            low.sort()
            high.sort()
        # Where k intervals begin before a gap, all k end before it: so the k-th end of all is the lowest offset above them.
        candidates = np.zeros(len(low) + 1, np.int64)
        np.maximum(high, 0, out=candidates[1:])
        alignment = self._problem.alignment_of(buffer)
        if alignment > self._problem.granule:
            candidates = (candidates + alignment - 1) & -alignment
        return int(candidates[choose(low - candidates[:-1])])

    def _barred_by(self, i: int) -> PartConflicts:
        """Return the parts in conflict with those of buffer `i`, and keep them while they are few enough."""
        barred = PartConflicts.of_buffer(i, self._problem, self._index, self._extra_conflicts.get(i, _NO_PARTS))
        self._left -= len(barred.owner)
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
    buffers, parts, (lower, upper) = problem.buffers, problem.parts, problem.live_ranges
    steps = distinct(np.concatenate((parts.lower, lower)))
    begin, end = (np.searchsorted(steps, ends) for ends in (parts.lower, parts.upper))
    live = live_sums(begin, end, parts.end - parts.start, len(steps))
    widest = fullest(live, np.searchsorted(steps, lower), np.searchsorted(steps, upper)).tolist()
    return sorted(range(len(buffers)), key=lambda i: (-widest[i], -buffers[i].size, buffers[i].lower, buffers[i].name))


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


# Moves buffers that end too high below a target, and those that are in their way elsewhere, until all lie below it.
#
# After the ejection chains of Glover, Discrete Applied Mathematics 65 (1996), pages 223-253.


STEPS_OF_A_MOVE = 20
"""The steps of an effort that moving one buffer takes; each part in conflict takes a twentieth of one more."""
_MOST = 24_000
"""Moves for one problem, at most; later ones rarely lower the arena."""
_PATIENCE, _OF_BUFFERS, _OF_STEPS = 2_400, 2, 200
"""Moves after which a target is left where the buffers that wait were never worth less since: at least, for each buffer, and one for so
many steps of the effort."""
_FINE = 400
"""The search ends where the arena exceeds the largest target that was not met by no more than one in so many bytes of the lower bound."""


class EjectionSearch:
    """Lowers the offsets of a problem without pins, and without conflicts between buffers whose live ranges do not meet."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._index = problem, LiveIndex(problem.parts.lower, problem.parts.upper)
        self._sizes = np.array(problem.footprints, np.int64)
        self._units = np.array([problem.alignment_of(buffer) for buffer in problem.buffers], np.int64)
        durations = (buffer.upper - buffer.lower for buffer in problem.buffers)
        # Buffers that are large and live long are the hardest to place again.
        self._worth = np.array(
            [1 + int(size * sqrt(steps)) for size, steps in zip(problem.footprints, durations, strict=True)], np.int64
        )
        self._known: dict[int, PartConflicts] = {}
        self._patience = max(_PATIENCE, _OF_BUFFERS * len(problem.buffers))

    def lowered(self, offsets: Sequence[int], budget: SearchBudget, enough: int = 0) -> tuple[int, ...]:
        """Return offsets whose arena is no larger than that of `offsets`, which are free of overlaps.

        Targets between the lower bound and the arena are tried by bisection, until one of `enough` bytes is reached; the capacity, or
        these, first, where they may still be met.
        """
        problem, best = self._problem, tuple(offsets)
        low, high, left = problem.lower_bound, size_of(problem, best), _MOST
        wanted = enough if problem.capacity is None else problem.capacity
        self._patience = max(self._patience, budget.looks // _OF_STEPS)
        while left > 0 and budget.is_left and high > enough and (high - low) * _FINE > problem.lower_bound:
            is_wanted = low <= wanted < high
            target = wanted if is_wanted else (low + high) // 2
            lower, moves = self._below(target, best, left if is_wanted else -(-left // 2), budget)
            left -= moves
            if lower is None:
                low = target + 1
            else:
                best, high = lower, size_of(problem, lower)
        return best

    def _below(
        self, target: int, start: Sequence[int], most: int, budget: SearchBudget
    ) -> tuple[tuple[int, ...] | None, int]:
        """Return offsets below `target`, or None where `most` moves do not find any; and the number of moves."""
        offsets, generator = np.array(start, np.int64), random.Random(0)
        is_placed = offsets + self._sizes <= target
        tries = np.ones(len(offsets), np.int64)
        waiting = sorted(np.flatnonzero(~is_placed).tolist(), key=self._worth.__getitem__)
        moves, end = 0, self._patience
        worth = least = int(self._worth[waiting].sum())
        while waiting and moves < min(most, end) and budget.is_left:
            buffer = waiting.pop()
            if buffer not in self._known:
                self._known[buffer] = PartConflicts.of_buffer(buffer, self._problem, self._index, _NO_PARTS)
            near = self._known[buffer]
            budget.take(STEPS_OF_A_MOVE + len(near.owner) // 20)
            moves += 1
            placement = self._place(buffer, near, target, offsets, is_placed, tries, generator)
            if placement is None:
                return None, moves
            offsets[buffer], ejected = placement
            is_placed[buffer] = True
            is_placed[ejected] = False
            if ejected:
                tries[buffer] += 1
                waiting += sorted(ejected, key=self._worth.__getitem__)
            worth += int(self._worth[ejected].sum()) - int(self._worth[buffer])
            if worth < least:
                least, end = worth, moves + self._patience
        return (None if waiting else tuple(offsets.tolist())), moves

    def _place(
        self,
        buffer: int,
        near: PartConflicts,
        target: int,
        offsets: Ints,
        is_placed: npt.NDArray[np.bool_],
        tries: Ints,
        generator: random.Random,
    ) -> tuple[int, list[int]] | None:
        """Return the offset of a buffer that ejects the buffers of the least worth, and these buffers; None where it has none."""
        unit, last = int(self._units[buffer]), target - int(self._sizes[buffer])
        if last < 0:
            return None
        kept = is_placed[near.owner].nonzero()[0]
        owner = near.owner[kept]
        base = offsets[owner]
        low, high = near.low[kept] + base, near.high[kept] + base
        choices = np.concatenate(((0, last & -unit), (high + unit - 1) & -unit, low & -unit))
        choices = choices[(choices >= 0) & (choices <= last)]
        costs = _overlapping(choices, low, high, self._worth[owner] * tries[owner])
        least = (costs == costs.min()).nonzero()[0]
        offset = int(choices[least[int(generator.random() * len(least))]])
        return offset, sorted(set(owner[(low < offset) & (offset < high)].tolist()))


def _overlapping(choices: Ints, low: Ints, high: Ints, worth: Ints) -> Ints:
    """Return the worth of the open intervals from `low` to `high` that each of `choices` lies in."""
    by_low, by_high = low.argsort(), high.argsort()
    begun, ended = np.zeros((2, len(worth) + 1), np.int64)
    worth[by_low].cumsum(out=begun[1:])
    worth[by_high].cumsum(out=ended[1:])
    sums: Ints = begun[low[by_low].searchsorted(choices)] - ended[high[by_high].searchsorted(choices, "right")]
    return sums


# The order in which buffers are put upon each other, so that an arena is small at several sizes of its buffers at once.
#
# A buffer begins where the highest of those below it ends that are live with it. With one order of buffers from below to above, that is a
# plan for all sizes: two buffers that are live at once never overlap, however large they are. Orders are those of plans at single sizes.
# Then buffers that make the arena high at a size are moved.

_WORK = 120_000
"""Buffers that the search puts into an arena, at most, in all orders together."""
_MOST_ORDERS = 1500
"""Orders that the search tries, at most."""
_OVER = 20.0
"""The penalty of an arena above the limit, for each part of it."""
_HEAT = 0.05
"""By how much an order may be worse at first, about, to be taken in place of the one before."""
_LEAST = 2.0 + 1e-9
"""The worth of arenas that are as small as the peak at every point."""


class _Tried(NamedTuple):
    """An order of the buffers with its worth, the less the better, and the offsets and sizes by buffer and point."""

    worth: float
    order: tuple[int, ...]
    offsets: Ints
    sizes: Ints


@dataclass(frozen=True)
class Stacking:
    """The buffers of a `problem` at several points: `footprints` has their bytes by buffer and point.

    At the first point, the arena takes at most `limit` bytes. A `problem` of buffers live in parts, or in conflict beyond their live
    ranges, cannot be stacked.
    """

    problem: Problem
    footprints: Ints
    limit: int

    def highest(self, order: Sequence[int]) -> Ints:
        """Return the highest offset of each buffer at the first point with which all others in this order keep the limit."""
        return _Stacked(self).highest(order)

    def best(self, offsets: Sequence[int]) -> list[int]:
        """Return the buffers from below to above: the best order found, from that of `offsets` on, which keeps the limit."""
        stacked = _Stacked(self)
        given = stacked.tried(tuple(np.argsort(np.array(offsets), kind="stable").tolist()))
        best = min((given, *map(stacked.tried, self._orders())), key=lambda trial: trial.worth)
        improved = stacked.improved(best)
        return list((improved if improved.sizes[0] <= self.limit else given).order)

    def _orders(self) -> Iterator[tuple[int, ...]]:
        """Yield the orders of plans at single points."""
        points = self.footprints.shape[1] if len(self.problem.buffers) <= _WORK // 100 else 2
        for point in range(1, points):
            sizes = self.footprints[:, point].tolist()
            buffers = tuple(replace(b, size=size) for b, size in zip(self.problem.buffers, sizes, strict=True))
            alone = replace(self.problem, buffers=buffers)
            fitter = Fitter(alone)
            for ranked in (by_size(alone), by_breadth(alone)):
                placed = fitter.place(ranked, tightest)
                yield tuple(np.argsort(np.array(placed), kind="stable").tolist())


class _Stacked:
    """Puts the buffers of a stacking upon each other in any order."""

    def __init__(self, stacking: Stacking) -> None:
        problem = stacking.problem
        lower, upper = problem.live_ranges
        births = distinct(lower)
        begin, end = np.searchsorted(births, lower), np.searchsorted(births, upper)
        self._begin, self._end = begin.tolist(), end.tolist()
        self._units = [problem.alignment_of(buffer) for buffer in problem.buffers]
        self._is_even = set(self._units) <= {problem.granule}
        self._footprints = stacking.footprints
        self._limit = stacking.limit
        live = live_sums(begin, end, self._footprints, len(births))
        self._peaks = live.max(axis=0, initial=1)
        self._turns = min(_MOST_ORDERS, _WORK // max(1, len(problem.buffers)))

    def tried(self, order: tuple[int, ...]) -> _Tried:
        """Return the arenas of an order."""
        tops = np.zeros((max(self._end, default=0), self._footprints.shape[1]), np.int64)
        offsets = np.zeros_like(self._footprints)
        for i in order:
            beside = tops[self._begin[i] : self._end[i]]
            start = beside.max(axis=0)
            if not self._is_even:
                start = -(-start // self._units[i]) * self._units[i]
            offsets[i] = start
            beside[:] = start + self._footprints[i]
        sizes = tops.max(axis=0, initial=0)
        ratios = sizes / self._peaks
        over = max(0.0, float(sizes[0]) / max(1, self._limit) - 1)
        return _Tried(float(ratios.mean() + ratios.max()) + _OVER * over, order, offsets, sizes)

    def highest(self, order: Sequence[int]) -> Ints:
        """Return the highest offset of each buffer at the first point, where those above it still end below the limit."""
        roof = np.full(max(self._end, default=0), self._limit, np.int64)
        offsets = np.zeros(len(order), np.int64)
        for i in reversed(order):
            above = roof[self._begin[i] : self._end[i]]
            offsets[i] = (above.min() - self._footprints[i, 0]) // self._units[i] * self._units[i]
            above[:] = offsets[i]
        return offsets

    def improved(self, best: _Tried) -> _Tried:
        """Return the best order that keeps the limit, by simulated annealing: buffers that lie below the top at a point are moved.

        It is `best` where none keeps the limit.
        """
        random = Random(0)
        present, kept = best, best
        for turn in range(self._turns):
            if kept.sizes[0] <= self._limit and kept.worth <= _LEAST:
                break
            heat = _HEAT * (1 - turn / self._turns) + 1e-4
            ratios = present.sizes / self._peaks
            point = int(ratios.argmax()) if random.random() < 0.5 else int(random.random() * len(ratios))
            chain = self._chain(present, point)
            buffer = chain[int(random.random() * len(chain))]
            rest = [member for member in present.order if member != buffer]
            position = int(random.random() * (len(rest) + 1))
            moved = self.tried((*rest[:position], buffer, *rest[position:]))
            if moved.worth < present.worth or random.random() < math.exp((present.worth - moved.worth) / heat):
                present = moved
            if moved.sizes[0] <= self._limit and (kept.sizes[0] > self._limit or moved.worth < kept.worth):
                kept = moved
        return kept

    def _chain(self, tried: _Tried, point: int) -> list[int]:
        """Return the buffers that lie upon each other up to the top at `point`, the highest first."""
        ends = tried.offsets[:, point] + self._footprints[:, point]
        chain = [int(ends.argmax())]
        while tried.offsets[chain[-1], point] > 0:
            start, end = self._begin[chain[-1]], self._end[chain[-1]]
            under = [
                i
                for i in np.flatnonzero(
                    (ends <= tried.offsets[chain[-1], point])
                    & (ends > tried.offsets[chain[-1], point] - self._units[chain[-1]])
                ).tolist()
                if self._begin[i] < end and start < self._end[i] and self._footprints[i, point]
            ]
            if not under:
                break
            chain.append(under[0])
        return chain
