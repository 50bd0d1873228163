"""The bound of the work of searches: a number of kernels that are counted in regions, which grows with the network.

It is a number, not a time, so the same model gives the same result on every machine.
"""

from __future__ import annotations

from onnxtile.fitting.regions import Regions

_KERNELS, _BASE = 200, 60_000
"""The kernels that all searches may count for each kernel of the network, and for the network."""
_PART = 2
"""The part of the effort left that one search may take."""
_LEAST = 32
"""The part of all effort that every search may take."""
_AHEAD = 4
"""The effort of one place, as a multiple of that left for each place."""


class SearchEffort:
    """The effort of one search: a share for each of its `places`, which grows where others took less.

    Counted regions are known to later searches, so these take less.
    """

    def __init__(self, regions: Regions, places: int) -> None:
        self.regions, self.places = regions, places
        all_effort = _BASE + _KERNELS * len(regions.network.kernels)
        self._end = regions.counted + max((all_effort - regions.counted) // _PART, all_effort // _LEAST)

    def next_share(self) -> int:
        """Return the number of counted kernels at which the next place ends; at least one region may be tried there."""
        counted = self.regions.counted
        share = max(self._end - counted, 0) * _AHEAD // max(self.places, 1)
        self.places -= 1
        return counted + max(share, 1)
