"""Planners that place every buffer once: in bytes of its own, into the tightest gap, or into whole slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnxtile.kernels.liveness import Ints
from onnxtile.planning.offsets.gaps import Fitter, LiveIndex, by_birth, by_size, tightest
from onnxtile.planning.offsets.problem import Problem, align, size_of
from onnxtile.planning.planner import Planner, heuristic

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
    fixed = np.zeros(len(problem.buffers) + 1, np.int64)
    for number, held in enumerate(slots):
        slot_of[held] = number
        start, end = _span(problem, held)
        fixed[number] = widths[number] = end - start
    for i in order:
        size = problem.footprints[i]
        if not size or slot_of[i] >= 0:
            continue
        others = np.array(problem.extra_conflicts.get(i, ()), np.int64)
        taken = slot_of[np.concatenate((index.met(lower[i], upper[i]), others))]
        is_free = np.ones(len(slots), bool)
        is_free[taken[taken >= 0]] = False
        is_free &= (fixed[: len(slots)] == 0) | (fixed[: len(slots)] >= size)
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
        unit, width = max(problem.alignment_of(problem.buffers[i]) for i in slot), _width(problem, slot)
        pinned, end = _span(problem, slot)
        start = align(pinned if end else top, unit)
        for low, high in () if end else taken:
            if low < start + width and start < high:
                start = align(high, unit)
        for i in slot:
            offsets[i] = start if problem.buffers[i].pin is None else offsets[i]
        top = top if end else start + width
    return offsets


SLOTS = Planner("slots", "whole buffers instead of offsets: each slot holds one at a time", heuristic(_into_slots))
