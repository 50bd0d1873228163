"""Places buffers with outlines in rounds: buffers that ended too high are placed earlier in the next round.

After Joslin and Clements, Journal of Artificial Intelligence Research 10 (1999), pages 353-373.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count as count_up
from itertools import cycle

from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.planning.offsets.gaps import Fitter, lowest, tightest
from onnxtile.planning.offsets.problem import Problem

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
