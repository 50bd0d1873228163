"""The limits of one contraction, axis by axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, lcm

from onnxtile.tiling.limits import Limits, WindowBounds


@dataclass(frozen=True)
class AxisBounds:
    """Bounds and multiples in elements; None means no bound.

    `pixels` bounds the product of all `sliding` axes. `multiples` are for those axes, channels and filters. With `fills`, zeros fill up
    the last stretch of an axis to a multiple.
    """

    pixels: int | None = None
    sliding: tuple[int | None, ...] = (None,)
    channels: int | None = None
    filters: int | None = None
    multiples: tuple[int, int, int] = (1, 1, 1)
    fills: bool = False
    channels_in_all: int | None = None
    """The bound on the input channels of all groups of a tile."""
    filters_in_all: int | None = None

    @classmethod
    def of(cls, limits: Limits, *, kernel: int = 1, rank: int = 1, windows: bool = False) -> AxisBounds:
        """Return the bounds of a contraction with a kernel of so many elements, which slides along `rank` axes.

        Only one that reads `windows` has the limits of windows. A K too small for the kernel leaves no channel.
        """
        window = (limits.window if windows else None) or WindowBounds()
        m, k, n = limits.multiples
        if limits.pad:
            m, k, n = (bound or each for bound, each in zip(limits.bounds, limits.multiples, strict=True))
        channels = None if limits.k is None else limits.k // kernel
        return cls(
            pixels=limits.m,
            sliding=(window.rows, window.columns)[-rank:],
            channels=_lesser(channels, window.channels),
            filters=_lesser(limits.n, window.filters),
            multiples=(m, k // gcd(k, kernel), n),
            fills=limits.pad,
            channels_in_all=window.channels,
            filters_in_all=window.filters,
        )

    def in_units(self, units: tuple[int, int]) -> AxisBounds:
        """Return the bounds with multiples of so many channels and filters, too."""
        m, k, n = self.multiples
        return self if units == (1, 1) else replace(self, multiples=(m, lcm(k, units[0]), lcm(n, units[1])))

    @property
    def quanta(self) -> tuple[int, int, int]:
        """The numbers of elements to a multiple of which zeros fill up the last stretch along sliding axes, K and N."""
        return self.multiples if self.fills else (1, 1, 1)

    def groups(self, groups: int, channels: int, filters: int) -> int:
        """Return how many of `groups`, each of `channels` and `filters`, one tile may have; 1 where a group is cut."""
        pairs = [(self.channels, channels), (self.filters, filters)]
        if any(bound is not None and bound < size for bound, size in pairs):
            return 1
        most = [groups]
        most += [] if self.channels_in_all is None else [self.channels_in_all // channels]
        most += [] if self.filters_in_all is None else [self.filters_in_all // filters]
        return max(min(most), 1)


def _lesser(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
