"""Whole buffers instead of offsets: each slot is as large as the largest buffer that uses it, and holds one at a time.

What Caffe2's memonger did (pytorch caffe2/python/memonger.py), and "shared objects" of Pisarchyk and Lee, arXiv 2001.03288. Executors that
cannot give out parts of a block of memory need no more than this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnxtile.plan.lifetimes import Rivals
from onnxtile.plan.planner import Planner, heuristic
from onnxtile.plan.problem import Problem, align
from onnxtile.plan.ranking import by_birth, by_size

Slots = list[list[int]]


def _place(problem: Problem) -> list[int]:
    """Return the offsets of the fewest slots found; of as many, those that take less."""
    tried = (_assign(problem, order(problem)) for order in (by_birth, by_size))
    return _offsets(problem, min(tried, key=lambda slots: (len(slots), _bytes(problem, slots))))


def _assign(problem: Problem, order: Sequence[int]) -> Slots:
    """Return who shares a slot, taking buffers in `order`: each into the free slot that has to grow least, of those the tightest.

    In the order of their births that is the fewest slots there can be, since a new one is opened only where all others are in use.
    """
    rivals = Rivals(problem)
    slots: Slots = []
    slot_of: dict[int, int] = {}
    widths: list[int] = []
    for i in order:
        size = problem.footprint(problem.buffers[i])
        if not size:
            continue
        taken = {slot_of[other] for other in rivals.of(i) if other in slot_of}
        free = [slot for slot in range(len(slots)) if slot not in taken]
        if not free:
            slots.append([])
            widths.append(0)
            free = [len(slots) - 1]
        slot = min(free, key=_growth(widths, size))
        slots[slot].append(i)
        slot_of[i] = slot
        widths[slot] = max(widths[slot], size)
    return slots


def _growth(widths: Sequence[int], size: int) -> Callable[[int], tuple[int, int, int]]:
    return lambda slot: (max(0, size - widths[slot]), widths[slot], slot)


def _bytes(problem: Problem, slots: Slots) -> int:
    return sum(max(problem.footprint(problem.buffers[i]) for i in slot) for slot in slots)


def _offsets(problem: Problem, slots: Slots) -> list[int]:
    offsets, top = [0] * len(problem.buffers), 0
    for slot in slots:
        start = align(top, max(problem.alignment_of(problem.buffers[i]) for i in slot))
        for i in slot:
            offsets[i] = start
        top = start + max(problem.footprint(problem.buffers[i]) for i in slot)
    return offsets


SLOTS = Planner("slots", "whole buffers instead of offsets: each slot holds one at a time", heuristic(_place))
