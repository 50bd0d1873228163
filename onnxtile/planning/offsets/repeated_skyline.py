"""Fills the skyline again and again: what ended up too high goes first the next time.

"Squeaky wheel" optimisation: Joslin and Clements, Journal of Artificial Intelligence Research 10 (1999).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onnxtile.planning.offsets import compiled, skyline
from onnxtile.planning.offsets.problem import Ints, Problem
from onnxtile.planning.offsets.skyline import Floats, Strip

STEPS_OF_A_PLACING = 12
"""What placing one buffer counts, of the steps of an effort."""

_COMPILE_FROM = 100_000
"""Placings that take the plain code some seconds."""
_PRIORITY_GROWTH = 1.5
_SLACK = 1.002
"""Buffers that end above so much of the peak have ended too high."""
_MOST = 48
"""Rounds after which nothing more is to be expected."""


@dataclass(frozen=True)
class Start:
    """Keys to begin with: the life, the size, and the most bytes that are live in that life, each to a power.

    `weight` is that of skyline.fill.
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
            strip.fullest() / strip.live.max(),
        )
        keys: Floats = duration**self.duration * size**self.size * live**self.live
        return keys


# Found by trying some hundreds on random problems; those that are best alone come first.
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
    tries: list[tuple[int, Floats, Start]] = []
    for turn in range(rounds):
        if turn < len(_STARTS):
            start = _STARTS[turn]
            keys = start.keys(strip)
        else:
            # The best so far goes on; ties go to the later one.
            tries.sort(key=lambda tried: -tried[0])
            _, keys, start = tries.pop()
        found = fill(strip.waiting(keys), strip.soonest, strip.live, start.weight)
        yield strip.offsets(found, len(problem.buffers))
        tops = found + strip.size
        highest = int(tops.max())
        if highest <= peak:
            return
        tries.append((highest, np.where(tops > _SLACK * peak, keys * _PRIORITY_GROWTH, keys), start))


def _fill(placings: int) -> Callable[..., Ints]:
    if placings < _COMPILE_FROM or not compiled.is_available():
        return skyline.fill
    fill: Callable[..., Ints] = compiled.function(skyline, "fill")
    return fill
