"""A product cut into two zones side by side along N, whose blocks of the result have different heights and widths.

Equal blocks fill a memory only where the sizes are multiples of what fits: of 1,024 rows and columns, five by four blocks of 205 × 256 are
all that 64 Ki elements allow, where 17 times as many elements would do. Two zones of blocks of their own heights come much nearer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxtile.tiling.grid import Axis


@dataclass(frozen=True)
class Zone:
    """`width` columns of the result, in `columns` blocks side by side; blocks are `m` rows high, and each is made in `pieces` along N."""

    m: int
    width: int
    columns: int
    pieces: int

    @property
    def widths(self) -> list[tuple[int, ...]]:
        """For each block the widths of its pieces."""
        blocks = Axis(self.width, -(-self.width // self.columns)).widths
        return [tuple(Axis(width, -(-width // self.pieces)).widths) for width in blocks]


@dataclass(frozen=True)
class Uneven(Axis):
    """An axis cut into stretches of given widths."""

    parts: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many stretches there are."""
        return len(self.parts)

    def stretch(self, index: int) -> slice:
        """Return the half-open range of elements in stretch `index`."""
        start = sum(self.parts[:index])
        return slice(start, start + self.parts[index])

    def width(self, index: int) -> int:
        """Return the number of elements in stretch `index`."""
        return self.parts[index]


@dataclass(frozen=True)
class ZonedGrid:
    """The cuts of a product in zones. A block of the result is made as a whole before the next, K in its inner loop."""

    size: int
    """That of M."""
    k: Axis
    zones: tuple[Zone, ...]

    order = "mnk"
    fills = False
    is_cut = True

    @property
    def rows(self) -> list[Axis]:
        """For each zone the cuts of M."""
        return [Axis(self.size, zone.m) for zone in self.zones]

    @property
    def n(self) -> Uneven:
        """The pieces of N, those of the first zone first."""
        parts = tuple(width for zone in self.zones for block in zone.widths for width in block)
        return Uneven(sum(parts), max(parts), parts=parts)

    @property
    def m(self) -> Axis:
        """The cuts of M where there are most."""
        return max(self.rows, key=lambda axis: axis.count)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of stretches along M, where there are most, K and N."""
        return self.m.count, self.k.count, self.n.count

    @property
    def steps(self) -> list[int | None]:
        """The size of the largest tile along M, K and N."""
        return [max(zone.m for zone in self.zones), self.k.step, self.n.step]

    @property
    def matmuls(self) -> int:
        """How many matrix products there are."""
        return self.k.count * sum(
            rows.count * sum(map(len, zone.widths)) for rows, zone in zip(self.rows, self.zones, strict=True)
        )

    def blocks(self) -> Iterator[tuple[int, int, range]]:
        """Yield the zone, the row and the pieces of each block of the result, in the order in which they are made."""
        start = 0
        for at, (rows, zone) in enumerate(zip(self.rows, self.zones, strict=True)):
            ranges = []
            for block in zone.widths:
                ranges.append(range(start, start + len(block)))
                start += len(block)
            for row in range(rows.count):
                yield from ((at, row, pieces) for pieces in ranges)
