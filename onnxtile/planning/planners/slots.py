"""Whole buffers instead of offsets: each slot is as large as the largest buffer that uses it, and holds one at a time.

As Caffe2's memonger did (pytorch caffe2/python/memonger.py), and as "shared objects" of Pisarchyk and Lee, arXiv 2001.03288. It suits
executors that cannot use parts of a block of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnxtile.planning.offsets.conflicts import ConflictIndex
from onnxtile.planning.offsets.problem import Ints, Problem, align
from onnxtile.planning.offsets.ranking import by_birth, by_size
from onnxtile.planning.planner import Planner, heuristic

Slots = list[list[int]]


def _place(problem: Problem) -> list[int]:
    """Return the offsets of the fewest slots found; of equals, those with fewer bytes."""
    tried = (_assign(problem, order(problem)) for order in (by_birth, by_size))
    return _offsets(problem, min(tried, key=lambda slots: (len(slots), _bytes(problem, slots))))


def _assign(problem: Problem, order: Sequence[int]) -> Slots:
    """Return the buffers of each slot. Buffers go in `order`, each into the free slot that has to grow least, of equals the tightest.

    In the order of first steps, the number of slots is the smallest possible: a new slot is opened only where all others are in use.
    """
    conflict_index = ConflictIndex(problem)
    slots: Slots = []
    slot_of = np.full(len(problem.buffers), -1)
    widths = np.zeros(len(problem.buffers), np.int64)
    for i in order:
        size = problem.footprints[i]
        if not size:
            continue
        taken = slot_of[conflict_index.of(i)]
        is_free = np.ones(len(slots), bool)
        is_free[taken[taken >= 0]] = False
        slot = _choose(is_free, widths[: len(slots)], size)
        if slot == len(slots):
            slots.append([])
        slots[slot].append(i)
        slot_of[i], widths[slot] = slot, max(int(widths[slot]), size)
    return slots


def _choose(is_free: npt.NDArray[np.bool_], widths: Ints, size: int) -> int:
    """Return the tightest free slot that holds `size` bytes, else the widest free one, else the number of a new one."""
    fits = is_free & (widths >= size)
    if fits.any():
        return int(np.where(fits, widths, np.iinfo(np.int64).max).argmin())
    return int(np.where(is_free, widths, -1).argmax()) if is_free.any() else len(widths)


def _bytes(problem: Problem, slots: Slots) -> int:
    return sum(max(problem.footprints[i] for i in slot) for slot in slots)


def _offsets(problem: Problem, slots: Slots) -> list[int]:
    offsets, top = [0] * len(problem.buffers), 0
    for slot in slots:
        start = align(top, max(problem.alignment_of(problem.buffers[i]) for i in slot))
        for i in slot:
            offsets[i] = start
        top = start + max(problem.footprints[i] for i in slot)
    return offsets


SLOTS = Planner("slots", "whole buffers instead of offsets: each slot holds one at a time", heuristic(_place))
