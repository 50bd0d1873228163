"""Fills the skyline in rounds: buffers that ended too high are placed earlier in the next round.

After Joslin and Clements, Journal of Artificial Intelligence Research 10 (1999), pages 353-373.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from onnxtile.kernels.kernel_graph import Ints, fullest
from onnxtile.planning.offsets import effort as compiled
from onnxtile.planning.offsets import skyline
from onnxtile.planning.offsets.problem import Problem
from onnxtile.planning.offsets.skyline import Floats, Strip
from onnxtile.system.dataclass import dataclass

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
