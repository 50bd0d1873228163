"""Fills the skyline again and again: what ended up too high goes first the next time.

"Squeaky wheel" optimisation: Joslin and Clements, Journal of Artificial Intelligence Research 10 (1999).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from onnxtile.plan import compiled, skyline
from onnxtile.plan.lifetimes import Ints
from onnxtile.plan.problem import Problem
from onnxtile.plan.skyline import Numbers, Strip

STEPS_OF_A_PLACING = 12
"""What placing one buffer counts, of the steps of an effort."""

_COMPILE_FROM = 100_000
"""Placings that take the plain code some seconds."""
_SQUEAK = 1.5
_SLACK = 1.002
"""Buffers that end above so much of the peak have ended too high."""
_MOST = 60
"""Rounds after which nothing more is to be expected."""


def fillings(problem: Problem, steps: int) -> Iterator[list[int]]:
    """Yield the offsets of one round after the other, at least of one, until all lie below the peak or `steps` are used up.

    Conflicts beyond lives do not count.
    """
    strip = Strip.of(problem)
    count = len(strip.place)
    if not count:
        yield [0] * len(problem.buffers)
        return
    peak = int(strip.live.max())
    rounds = min(max(steps // (STEPS_OF_A_PLACING * count), 1), _MOST)
    fill = _fill(rounds * count)
    tries: list[tuple[int, Numbers, float]] = []
    starts = _starts(strip, peak)
    for _ in range(rounds):
        keys, pull = next(starts, (None, 0.0))
        if keys is None:
            # The best so far goes on; ties go to the later one.
            tries.sort(key=lambda tried: -tried[0])
            _, keys, pull = tries.pop()
        found = fill(strip.lower, strip.upper, strip.size, strip.unit, strip.first, strip.live, keys, pull)
        yield strip.offsets(found, len(problem.buffers))
        tops = found + strip.size
        highest = int(tops.max())
        if highest <= peak:
            return
        tries.append((highest, np.where(tops > _SLACK * peak, keys * _SQUEAK, keys), pull))


def _starts(strip: Strip, peak: int) -> Iterator[tuple[Numbers, float]]:
    """Yield keys to begin with, with their pull: long lives, large sizes, or both, and first of all where most bytes are live."""
    life, size, hot = strip.upper - strip.lower, strip.size / strip.size.max(), strip.fullest() / peak
    yield life * hot**8, 0.0
    yield life * np.sqrt(size) * hot**4, 5.0
    yield life**0.2 * size * hot**4, 5.0
    yield life * hot**8, 5.0


def _fill(placings: int) -> Callable[..., Ints]:
    if placings < _COMPILE_FROM or not compiled.is_available():
        return skyline.fill
    fill: Callable[..., Ints] = compiled.function(skyline, "fill")
    return fill
