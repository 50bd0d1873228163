"""The bound of the work of searches: a number of kernels that are counted in regions, which grows with the network.

It is a number, not a time, so the same model gives the same result on every machine.
"""

from __future__ import annotations

from bisect import bisect_right

from onnxtile.fitting.regions import Regions

_LONGEST = 400
"""Kernels of a region, at most."""
_ENDS = 64
"""Ends of regions from one place, at most."""
_KERNELS, _BASE = 200, 60_000
"""The kernels that all searches may count for each kernel of the network, and for the network."""
_FULL, _FEWER, _LARGE = 1_000, 12, 120_000
"""The kernels of a network up to which this holds; of a larger one, those counted for each of its kernels, and at least."""
_LARGEST = 12_000
"""Kernels of the largest network of which cuts are looked for; a search of so many takes some minutes and 1 GB."""
_PART = 2
"""The part of the effort left that one search may take."""
_LEAST = 32
"""The part of all effort that every search may take."""
_DEPTHS = (1, 4)
"""The multiples of this work that are tried one after the other, as long as nothing fits and the bound ended the search."""
_ATTEMPTS = (2, 8)
"""Schedules that are looked for until the plan of one fits: in the largest networks, and in those of up to `_FULL` kernels."""
_AHEAD = 4
"""The effort of one place, as a multiple of that left for each place."""


def all_effort(kernels: int) -> int:
    """Return the kernels that all searches of a network of so many may count, at a depth of 1."""
    return _BASE + _KERNELS * kernels if kernels <= _FULL else max(_LARGE, _FEWER * kernels)


def is_too_large(kernels: int) -> bool:
    """Return whether a network of so many kernels is too large for a search."""
    return kernels > _LARGEST


def depths(kernels: int) -> tuple[int, ...]:
    """Return the multiples of the work that are tried: one where the network is large, and none above the largest."""
    if is_too_large(kernels):
        return ()
    return _DEPTHS if kernels <= _FULL else _DEPTHS[:1]


def attempts(kernels: int) -> int:
    """Return how many schedules are looked for, at most, until the plan of one fits; fewer the larger the network is."""
    fewest, most = _ATTEMPTS
    return max(min(most, most * _FULL // max(kernels, 1)), fewest)


def ends_from(places: list[int], start: int) -> list[int]:
    """Return those of `places` at which a region from `start` on may end, the nearest first."""
    first = bisect_right(places, start)
    return places[first : min(first + _ENDS, bisect_right(places, start + _LONGEST))]


class SearchEffort:
    """The effort of one search: a share for each of its `places`, which grows where others took less.

    Counted regions are known to later searches, so these take less. `depth` is the multiple of the work that all searches may take.
    """

    def __init__(self, regions: Regions, places: int, depth: int = 1) -> None:
        self.regions, self.places = regions, places
        most = depth * all_effort(len(regions.network.kernels))
        self._end = regions.counted + max((most - regions.counted) // _PART, most // _LEAST)

    def next_share(self) -> int:
        """Return the number of counted kernels at which the next place ends; one region may be tried there unless no effort is left."""
        counted = self.regions.counted
        left = max(self._end - counted, 0)
        share = max(left * _AHEAD // max(self.places, 1), min(left, 1))
        self.places -= 1
        return counted + share
