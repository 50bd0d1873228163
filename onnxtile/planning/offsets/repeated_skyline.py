"""Fills the skyline in rounds: buffers that ended too high are placed earlier in the next round.

After Joslin and Clements, Journal of Artificial Intelligence Research 10 (1999), pages 353-373.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onnxtile.planning.offsets import compiled, skyline
from onnxtile.planning.offsets.problem import Ints, Problem
from onnxtile.planning.offsets.skyline import Floats, Strip

STEPS_OF_A_PLACING = 12
"""The steps of an effort that placing one buffer takes."""

_COMPILE_FROM = 100_000
"""Placements from which compiling pays: plain code takes some seconds for them."""
_PRIORITY_GROWTH = 1.5
_SLACK = 1.002
"""A buffer that ends above this multiple of the peak has ended too high."""
_MOST = 48
"""The most rounds; later ones rarely improve."""


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
            strip.fullest() / strip.live.max(),
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

    Conflicts of buffers whose live ranges do not overlap are ignored.
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
            # The best round so far is continued; ties go to the later one.
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
