"""Planners: from a Problem to offsets. Each is found by its existence, and by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from onnxtile.kernels.kernel_graph import Ints, LivePart, by_steps, fullest, rounded
from onnxtile.planning.offsets import effort as compiled
from onnxtile.planning.offsets import skyline
from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.gaps import (
    EjectionSearch,
    Fitter,
    LiveIndex,
    by_birth,
    by_breadth,
    by_size,
    placings,
    tightest,
)
from onnxtile.planning.offsets.problem import (
    Buffer,
    Ended,
    OffsetPlan,
    OptimalityProof,
    PinOverlap,
    Placement,
    Problem,
    align,
    size_of,
)
from onnxtile.planning.offsets.skyline import Floats, Strip
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import unknown
from onnxtile.system.registry import discover


@dataclass(frozen=True)
class Planner:
    """A method that gives offsets to buffers.

    `place` is a pure function, unless the effort has a limit in seconds. Its arena may exceed the capacity; it may stop at the first
    that does not.
    """

    name: str
    summary: str
    place: Callable[[Problem, Effort], Placement]

    def plan(self, problem: Problem, effort: Effort = NORMAL) -> OffsetPlan:
        """Return the plan for `problem`, whether it fits the capacity or not. The order of the buffers makes no difference.

        Raises PinOverlap for pins that no plan can have.
        """
        if problem.pin_overlap is not None:
            raise PinOverlap(*problem.pin_overlap)
        given = problem.buffers
        keys = [(b.lower, b.upper, b.size, b.alignment or 0, b.name) for b in given]
        order = sorted(range(len(given)), key=keys.__getitem__)
        placement = self.place(replace(problem, buffers=tuple(given[i] for i in order)), effort)
        offsets = dict(zip(order, placement.offsets, strict=True))
        return OffsetPlan.from_offsets(problem, [offsets[i] for i in range(len(order))], placement.proof)


def heuristic(offsets_of: Callable[[Problem], Sequence[int]]) -> Callable[[Problem, Effort], Placement]:
    """Return the `Planner.place` of a planner that places every buffer once, without a search."""

    def placed(problem: Problem, _effort: Effort) -> Placement:
        offsets = tuple(offsets_of(problem))
        did_reach = size_of(problem, offsets) == problem.lower_bound
        return Placement(
            offsets,
            OptimalityProof(problem.lower_bound, problem.bound, "lower bound reached" if did_reach else "heuristic"),
        )

    return placed


def planners() -> dict[str, Planner]:
    """Return all planners by name."""
    return discover("onnxtile.planning.planners", Planner)


def find_planner(name: str) -> Planner:
    """Return the planner called `name`. Raises UsageError for an unknown name."""
    known = planners()
    if name in known:
        return known[name]
    raise unknown("planner", name, known)


# Every buffer in bytes of its own: the baseline of all other planners.


def _apart(problem: Problem) -> list[int]:
    offsets, top = [], 0
    taken = sorted((problem.buffers[i].pin or 0, problem.footprints[i]) for i in problem.pinned)
    for buffer in problem.buffers:
        if buffer.pin is not None:
            offsets.append(buffer.pin)
            continue
        unit, size = problem.alignment_of(buffer), problem.footprint(buffer)
        offset = align(top, unit)
        for start, held in taken:
            if start < offset + size and offset < start + held:
                offset = align(start + held, unit)
        offsets.append(offset)
        top = offset + size
    return offsets


NAIVE = Planner("naive", "no two buffers share a byte", heuristic(_apart))


# The largest buffer first, each into the tightest gap between the buffers it is in conflict with.
#
# Algorithm 3 of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288.


def _into_gaps(problem: Problem) -> list[int]:
    return Fitter(problem).place(by_size(problem), tightest)


GREEDY_BY_SIZE = Planner("greedy-by-size", "the largest first, each into the tightest gap", heuristic(_into_gaps))


# Whole buffers instead of offsets: each slot is as large as the largest buffer that uses it, and holds one at a time.
#
# As Caffe2's memonger did (pytorch caffe2/python/memonger.py), and as "shared objects" of Pisarchyk and Lee, arXiv 2001.03288. It suits
# executors that cannot use parts of a block of memory.

Slots = list[list[int]]


def _into_slots(problem: Problem) -> list[int]:
    """Return the offsets of the fewest slots found; of equals, those with fewer bytes."""
    tried = (_assign(problem, order(problem)) for order in (by_birth, by_size))
    return _offsets(problem, min(tried, key=lambda slots: (len(slots), _bytes(problem, slots))))


def _assign(problem: Problem, order: Sequence[int]) -> Slots:
    """Return the buffers of each slot. Buffers go in `order`, each into the free slot that has to grow least, of equals the tightest.

    In the order of first steps, the number of slots is the smallest possible: a new slot is opened only where all others are in use.
    """
    lower, upper = problem.live_ranges
    index = LiveIndex(lower, upper)
    slots = _pinned(problem)
    slot_of = np.full(len(problem.buffers), -1)
    widths = np.zeros(len(problem.buffers), np.int64)
    starts, ends = np.zeros((2, len(problem.buffers) + 1), np.int64)
    for number, held in enumerate(slots):
        slot_of[held] = number
        starts[number], ends[number] = _span(problem, held)
        widths[number] = ends[number] - starts[number]
    for i in order:
        size = problem.footprints[i]
        if not size or slot_of[i] >= 0:
            continue
        others = np.array(problem.extra_conflicts.get(i, ()), np.int64)
        taken = slot_of[np.concatenate((index.met(lower[i], upper[i]), others))]
        is_free = np.ones(len(slots), bool)
        is_free[taken[taken >= 0]] = False
        unit = problem.alignment_of(problem.buffers[i])
        first = (starts[: len(slots)] + unit - 1) & -unit
        is_free &= (ends[: len(slots)] == 0) | (first + size <= ends[: len(slots)])
        slot = _choose(is_free, widths[: len(slots)], size)
        if slot == len(slots):
            slots.append([])
        slots[slot].append(i)
        slot_of[i], widths[slot] = slot, max(int(widths[slot]), size)
    return slots


def _pinned(problem: Problem) -> Slots:
    """Return a slot for each range of bytes that buffers with pins take; it does not grow."""
    slots: Slots = []
    end = 0
    for i in sorted(problem.pinned, key=lambda i: problem.buffers[i].pin or 0):
        start = problem.buffers[i].pin or 0
        if slots and start < end:
            slots[-1].append(i)
        else:
            slots.append([i])
        end = max(end, start + problem.footprints[i])
    return slots


def _span(problem: Problem, slot: Sequence[int]) -> tuple[int, int]:
    """Return the first byte of the slot of pinned buffers, and the byte after its last; (0, 0) where none is pinned."""
    spans = [(pin, pin + problem.footprints[i]) for i in slot if (pin := problem.buffers[i].pin) is not None]
    return min((start for start, _ in spans), default=0), max((end for _, end in spans), default=0)


def _choose(is_free: npt.NDArray[np.bool_], widths: Ints, size: int) -> int:
    """Return the tightest free slot that holds `size` bytes, else the widest free one, else the number of a new one."""
    fits = is_free & (widths >= size)
    if fits.any():
        return int(np.where(fits, widths, np.iinfo(np.int64).max).argmin())
    return int(np.where(is_free, widths, -1).argmax()) if is_free.any() else len(widths)


def _bytes(problem: Problem, slots: Slots) -> int:
    return (
        size_of(problem, _offsets(problem, slots)) if problem.pinned else sum(_width(problem, slot) for slot in slots)
    )


def _width(problem: Problem, slot: Sequence[int]) -> int:
    return max(problem.footprints[i] for i in slot)


def _offsets(problem: Problem, slots: Slots) -> list[int]:
    offsets, top = [buffer.pin or 0 for buffer in problem.buffers], 0
    taken = sorted(span for slot in slots if (span := _span(problem, slot))[1])
    for slot in slots:
        units, width = [problem.alignment_of(problem.buffers[i]) for i in slot], _width(problem, slot)
        pinned, end = _span(problem, slot)
        if end:
            for i, unit in zip(slot, units, strict=True):
                offsets[i] = align(pinned, unit) if problem.buffers[i].pin is None else offsets[i]
            continue
        start = align(top, max(units))
        for low, high in taken:
            if low < start + width and start < high:
                start = align(high, max(units))
        for i in slot:
            offsets[i] = start
        top = start + width
    return offsets


SLOTS = Planner("slots", "whole buffers instead of offsets: each slot holds one at a time", heuristic(_into_slots))


# The smallest arena: a search that ends with a proof, or with its budget.
#
# After MiniMalloc: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752; see planning.offsets.exact_search.


_OF_PARTS = 10
"""One in so many steps goes to each proof for buffers cut into parts, and to bounding rectangles that were placed on their own before."""
_FEW = 500
"""Buffers up to which placing parts takes the whole effort where bounding rectangles need no more bytes; of more it seldom helps."""


def improve(problem: Problem, start: tuple[int, ...], effort: Effort) -> Placement:
    """Return the best offsets that the search finds within `effort`, no worse than `start`, which are free of overlaps.

    The exact search knows rectangles only: of buffers with outlines it proves nothing.
    """
    if problem.has_outlines:
        return _of_outlines(problem, start, effort)
    from onnxtile.planning.offsets.exact_search import solve  # most problems are solved before

    placement = solve(problem, start, effort)
    if placement.proof.lower_bound > problem.lower_bound:
        return placement
    ended: Ended = "lower bound reached" if placement.proof.ended == "search ended" else placement.proof.ended
    return Placement(placement.offsets, OptimalityProof(problem.lower_bound, problem.bound, ended))


def _of_outlines(problem: Problem, start: tuple[int, ...], effort: Effort) -> Placement:
    """Return the best offsets of the exact search on the bounding rectangles, and of rounds of placing the parts.

    The rectangles go first where they need no more bytes than the parts: the search is better at them. They take little effort then,
    since a plan of a layout places them alone before.
    """
    budget, best, bounding = effort.budget, start, problem.bounding
    proof = _of_parts(problem, effort) if problem.pinned else None
    least = problem.lower_bound if proof is None else proof.lower_bound
    is_possible = bounding.pin_overlap is None
    is_tight = is_possible and bounding.lower_bound == problem.lower_bound
    if is_tight:
        best = min(best, _place(bounding, _little(effort)).offsets, key=partial(size_of, problem))
    if size_of(problem, best) > least:
        rounds = _little(effort).budget if is_tight and len(problem.buffers) > _FEW else budget
        best = min((best, *map(tuple, placings(problem, rounds, least))), key=partial(size_of, problem))
    if is_possible and not is_tight and bounding.lower_bound < size_of(problem, best) > least:
        best = min(best, _place(bounding, effort.after(budget)).offsets, key=partial(size_of, problem))
    ended: Ended = "time" if budget.is_late else "effort"
    if size_of(problem, best) == least:
        ended = "lower bound reached"
    return Placement(best, OptimalityProof(least, problem.bound if proof is None else proof.bound, ended))


def _of_parts(problem: Problem, effort: Effort) -> OptimalityProof:
    """Return the better proof of two arenas with parts of buffers apart: cut by bytes, and cut by steps. No plan takes fewer bytes."""
    cuts = (_in_parts(problem, lambda parts: parts), _in_parts(problem, by_steps))
    return max((_place(cut, _little(effort)).proof for cut in cuts), key=lambda proof: proof.lower_bound)


def _little(effort: Effort) -> Effort:
    return replace(effort, steps=effort.steps // _OF_PARTS)


def _in_parts(problem: Problem, cut: Callable[[tuple[LivePart, ...]], Iterable[LivePart]]) -> Problem:
    """Return the problem in which each part that `cut` makes of a buffer is a buffer by itself."""
    unit, buffers = problem.granule, []
    for i, buffer in enumerate(problem.buffers):
        for start, end, lower, upper in cut(rounded(buffer.live_parts, unit)):
            pin = None if buffer.pin is None else buffer.pin + start
            buffers.append(Buffer(f"{i} {start} {lower}", end - start, lower, upper, unit, pin=pin))
    return Problem(tuple(buffers), unit)


def _place(problem: Problem, effort: Effort) -> Placement:
    return improve(problem, GREEDY_BY_SIZE.place(problem, effort).offsets, effort)


EXACT = Planner("exact", "the smallest arena, by a search that proves it", _place)


# The skyline, filled in rounds: buffers that ended too high are placed earlier in the next round.
#
# After Joslin and Clements, Journal of Artificial Intelligence Research 10 (1999), pages 353-373.

STEPS_OF_A_PLACING = 12
"""The steps of an effort that placing one buffer takes."""

_LOAD_FROM, _COMPILE_FROM, _COMPILE_ONCE_FROM = 10_000, 100_000, 500_000
"""Placements from which loading compiled code pays; compiling it, where it is kept for later plans; compiling it for this process alone.

Plain code takes about two seconds for 100,000 placements, loading half a second, compiling ten.
"""
_PRIORITY_GROWTH = 1.5
_SLACK = 1.002
"""A buffer that ends above this multiple of the peak has ended too high."""
_MOST = 48
"""The most rounds; later ones rarely improve."""
_PATIENCE = 16
"""Rounds without a smaller arena after which no further one is begun."""


@dataclass(frozen=True)
class Start:
    """The first keys of a round: length of the live range, size, and largest live bytes in the live range, each to the power given here.

    `weight` is the one of skyline.fill.
    """

    duration: float
    size: float
    live: float
    weight: int

    def keys(self, strip: Strip) -> Floats:
        """Return the key of each buffer of `strip`."""
        duration, size, live = (
            strip.upper - strip.lower,
            strip.size / strip.size.max(),
            fullest(strip.live, strip.lower, strip.upper) / strip.live.max(),
        )
        keys: Floats = duration**self.duration * size**self.size * live**self.live
        return keys


# The best of some hundred tried on random problems, the best single one first.
_STARTS = (
    Start(1.0, 0.0, 8.0, 50),
    Start(1.0, 1.0, 4.0, 15),
    Start(1.0, 0.0, 0.0, 100),
    Start(0.5, 0.0, 16.0, 6),
    Start(1.0, 0.25, 4.0, 4),
    Start(1.0, 1.0, 4.0, 10),
    Start(1.0, 0.25, 4.0, 6),
    Start(1.0, 0.0, 8.0, 25),
)


def fillings(problem: Problem, steps: int) -> Iterator[list[int]]:
    """Yield the offsets of one round after the other, at least one, until all buffers lie below the peak or `steps` are used up.

    Conflicts of buffers whose live ranges do not overlap are ignored. Rounds of the last few problems are kept: a plan places the same
    buffers with little effort and with more, with outlines and without.
    """
    strip = Strip.from_problem(problem)
    count = len(strip.number)
    if not count:
        yield [0] * len(problem.buffers)
        return
    most = min(max(steps // (STEPS_OF_A_PLACING * count), 1), _MOST)
    rounds = _rounds(*(part.tobytes() for part in (strip.lower, strip.upper, strip.size, strip.unit)))
    for offsets in rounds.first(strip, most):
        yield strip.offsets(offsets, len(problem.buffers))


@lru_cache(maxsize=4)
def _rounds(_lower: bytes, _upper: bytes, _size: bytes, _unit: bytes) -> SkylineRounds:
    """Return the rounds of a strip with these columns, from which everything else in it but the places follows."""
    return SkylineRounds()


class SkylineRounds:
    """The rounds of one strip that have run so far: their offsets, and the keys of each, from which later rounds go on."""

    def __init__(self) -> None:
        self._rounds: list[Ints] = []
        self._tries: list[tuple[int, Floats, Start]] = []
        self._least: tuple[int, int] | None = None
        """The smallest arena so far, and the round that found it."""
        self._is_over = False

    def first(self, strip: Strip, most: int) -> Iterator[Ints]:
        """Yield the offsets of the first rounds, `most` at most; those that have not run yet run now."""
        fill = _fill((most - len(self._rounds)) * len(strip.number))
        for turn in range(most):
            if turn == len(self._rounds):
                if self._is_over:
                    return
                self._run(strip, fill)
            yield self._rounds[turn]

    def _run(self, strip: Strip, fill: Callable[..., Ints]) -> None:
        turn, peak = len(self._rounds), int(strip.live.max())
        if turn < len(_STARTS):
            start = _STARTS[turn]
            keys = start.keys(strip)
        else:
            # The best round so far is continued; ties go to the later one.
            self._tries.sort(key=lambda tried: -tried[0])
            _, keys, start = self._tries.pop()
        placed = fill(strip.waiting(keys), strip.soonest, strip.live, start.weight)
        tops = placed + strip.size
        highest = int(tops.max())
        self._rounds.append(placed)
        if self._least is None or highest < self._least[0]:
            self._least = highest, turn
        self._is_over = highest <= peak or turn - self._least[1] >= _PATIENCE
        self._tries.append((highest, np.where(tops > _SLACK * peak, keys * _PRIORITY_GROWTH, keys), start))


def _fill(placings: int) -> Callable[..., Ints]:
    if not compiled.is_loaded(skyline, "fill") and (placings < _least() or not compiled.is_available()):
        return skyline.fill
    fill: Callable[..., Ints] = compiled.function(skyline, "fill")
    return fill


def _least() -> int:
    """Return the placements from which compiled code is used."""
    if compiled.is_kept(skyline, "fill"):
        return _LOAD_FROM
    return _COMPILE_FROM if compiled.can_keep(skyline) else _COMPILE_ONCE_FROM


# Heuristics, ejections, then the exact search with the effort that is left, until the lower bound is reached.

SKYLINE_FROM = 500
"""Buffers above which the skyline and ejections run: smaller problems are left to the exact search, which does better."""

MANY = 20_000
"""Buffers above which only the skyline runs: the other heuristics take seconds there."""


def place(problem: Problem, effort: Effort) -> Placement:
    """Return the best offsets that heuristics and then the exact search find for `problem` within `effort`."""
    budget = effort.budget
    best: Sequence[int] = ()
    size = -1

    def placement(ended: Ended) -> Placement:
        ended = "lower bound reached" if size == problem.lower_bound else ended
        return Placement(tuple(best), OptimalityProof(problem.lower_bound, problem.bound, ended))

    for offsets in _tried(problem, effort):
        reached = size_of(problem, offsets)
        if size < 0 or reached < size:
            best, size = offsets, reached
        if size <= max(problem.lower_bound, effort.enough):
            return placement("effort")
        if budget.is_late:
            return placement("time")
    if len(problem.buffers) > SKYLINE_FROM and _is_free(problem):
        # A tenth of the exact search takes much less time than the ejections, and may end it. These come lower from the heuristics'
        # offsets than from its own.
        few = _little(replace(effort, steps=min(effort.steps, NORMAL.steps)).after(budget))
        placed = improve(problem, tuple(best), few)
        if size_of(problem, placed.offsets) <= max(placed.proof.lower_bound, effort.enough):
            return placed
        ejected = EjectionSearch(problem).lowered(best, effort.after(budget).budget, effort.enough)
        best = min(ejected, placed.offsets, key=partial(size_of, problem))
        size = size_of(problem, best)
        if size <= effort.enough:
            return placement("effort")
    return improve(problem, tuple(best), effort.after(budget))


def _is_free(problem: Problem) -> bool:
    """Return whether a problem has neither conflicts between buffers whose live ranges do not meet, nor pins."""
    return not problem.extra_conflicts and not problem.pinned


def _tried(problem: Problem, effort: Effort) -> Iterator[Sequence[int]]:
    """Yield the offsets of one heuristic after the other, the quickest first."""
    count, is_free = len(problem.buffers), _is_free(problem)
    if count > MANY and is_free:
        yield from fillings(problem, effort.steps)
        return
    fitter = Fitter(problem)
    yield fitter.place(by_size(problem), tightest)
    yield fitter.place(by_breadth(problem), tightest)
    if is_free and count > SKYLINE_FROM:
        yield from fillings(problem, effort.steps)


BEST = Planner("best", "heuristics, then an exact search, until the lower bound is reached", place)
