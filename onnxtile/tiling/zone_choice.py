"""The zones that move the fewest bytes, where two of them move fewer than any grid of equal tiles.

The cost model is that of onnxtile.tiling.choice. A block of m × n of the result stays in fast memory while all of K goes by, k at a time;
the block of A is read once for each, that of B in `pieces`, so that only one of them has to be there:

    m·n·c + m·(k·a + row) + k·(n / pieces)·b + n·column <= memory

A zone of W columns of the result, in blocks of m × n, reads A once for each of its W / n columns of blocks and its part of B once for each
of its M / m rows of blocks; the result is written once:

    bytes = a·M·K·(columns₁ + columns₂) + b·K·(W₁·rows₁ + W₂·rows₂) + c·M·N

The search is exact over one zone, or two whose rows of blocks differ by no more than 2: for given rows a block is as wide as fits, and the
zone of fewer rows as wide as its columns of blocks allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

from onnxtile.tiling.choice import Choice, Counts, Work
from onnxtile.tiling.grid import Axis
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.zoned import Zone, ZonedGrid

PIECES = (1, 2)
MOST_APART = 2


def with_zones(
    work: Work, limits: Limits, choices: Sequence[Choice], nodes: Callable[[ZonedGrid], int]
) -> tuple[Choice, ...]:
    """Return `choices`, from the fewest nodes to the fewest bytes, with those in zones that none of them beats in both."""
    found = [*choices, *(_counted(work, choice, nodes) for choice in _zoned(work, limits))]
    best: list[Choice] = []
    # Of equal ones the grid of equal tiles, which comes first.
    for choice in sorted(found, key=lambda choice: (choice.nodes, choice.bytes_moved)):
        if not best or choice.bytes_moved < best[-1].bytes_moved:
            best.append(choice)
    return tuple(best)


def _counted(work: Work, choice: Choice, nodes: Callable[[ZonedGrid], int]) -> Choice:
    return replace(choice, nodes=nodes(zoned_grid(work, choice)))


def zoned_grid(work: Work, choice: Choice) -> ZonedGrid:
    """Return the cuts of a choice in zones."""
    return ZonedGrid(work.sizes[0], Axis(work.sizes[1], choice.tile[1]), choice.zones)


def _zoned(work: Work, limits: Limits) -> Iterator[Choice]:
    """Yield the best zones for each number of pieces and for steps of K that double; nothing where limits hold for M, N or a block."""
    memory, (_, k_bound, _) = limits.memory, limits.bounds
    free = limits.m is limits.n is limits.largest_bytes is limits.largest_elements is None
    if memory is None or not free or limits.pad or limits.multiples[2] > 1:
        return
    step = limits.multiples[1]
    while step < work.sizes[1] and (k_bound is None or step <= k_bound):
        for pieces in PIECES:
            choice = _best(work, limits, memory, step, pieces)
            if choice is not None:
                yield choice
        step *= 2


@dataclass(frozen=True)
class _Blocks:
    """The heights that blocks of the result may have, tallest first, with the width that fits beside each and the rows of blocks."""

    work: Work
    m: Counts
    n: Counts

    @property
    def rows(self) -> Counts:
        """How many blocks lie above each other."""
        return -(-self.work.sizes[0] // self.m)

    def one_zone(self) -> Counts:
        """Return bytes of A and B that are moved, place of the height, -1, and columns of blocks, one each a row."""
        columns = -(-self.work.sizes[2] // self.n)
        at = np.arange(len(self.m))
        return np.stack([self._moved(columns, self.work.sizes[2] * self.rows), at, np.full_like(at, -1), columns])

    def two_zones(self, apart: int) -> Counts:
        """Return the same with the place of the second height, whose rows are `apart` more, and the columns of the first."""
        one = np.arange(len(self.m))
        other = np.minimum(np.searchsorted(self.rows, self.rows + apart), len(self.m) - 1)
        one, other = (places[self.rows[other] == self.rows + apart] for places in (one, other))
        columns = np.arange(1, int((-(-self.work.sizes[2] // self.n)).max()))[:, None]
        width = columns * self.n[one]
        left = self.work.sizes[2] - width
        moved = self._moved(columns + -(-left // self.n[other]), width * self.rows[one] + left * self.rows[other])
        parts = np.broadcast_arrays(moved, one, other, columns)
        return np.stack([part[left > 0] for part in parts])

    def zones(self, first: int, second: int, columns: int, pieces: int) -> tuple[Zone, ...]:
        """Return the zones that a column of these says."""
        size, height = self.work.sizes[2], int(self.m[first])
        if second < 0:
            return (Zone(height, size, columns, pieces),)
        width = columns * int(self.n[first])
        others = -(-(size - width) // int(self.n[second]))
        return Zone(height, width, columns, pieces), Zone(int(self.m[second]), size - width, others, pieces)

    def _moved(self, columns: Counts, rows: Counts) -> Counts:
        """Return the bytes of A, moved for each of its `columns` of blocks, and of B, moved for `rows`, summed over its columns."""
        (a, b, _), (m, k, _) = self.work.weights, self.work.sizes
        return np.asarray(a * m * k * columns + b * k * rows)


def _best(work: Work, limits: Limits, memory: int, k: int, pieces: int) -> Choice | None:
    (size_m, _, size_n), (*_, c) = work.sizes, work.weights
    m = _heights(size_m, limits.multiples[0], isqrt(max(memory // c, 1)))
    n = _widths(work, memory, m, k, pieces)
    if not n.any():
        return None
    blocks = _Blocks(work, m[n > 0], n[n > 0])
    found = [blocks.one_zone(), *(blocks.two_zones(apart) for apart in range(1, MOST_APART + 1))]
    moved, first, second, columns = np.concatenate(found, axis=1)
    at = int(np.argmin(moved))
    zones = blocks.zones(int(first[at]), int(second[at]), int(columns[at]), pieces)
    tile = (max(zone.m for zone in zones), k, max(max(block) for zone in zones for block in zone.widths))
    held = max(_held(work, zone, k) for zone in zones)
    return Choice(tile, "mnk", 0, int(moved[at]) + c * size_m * size_n, held, zones)


def _heights(size: int, multiple: int, side: int) -> Counts:
    """Return the shortest height of a block for each number of rows of blocks, tallest first; blocks lower than `side` / 4 lose."""
    units = -(-size // multiple)
    most = min(units, 4 * -(-size // max(side, 1)) + 8)
    return np.unique(-(-units // np.arange(1, most + 1, dtype=np.int64)))[::-1] * multiple


def _widths(work: Work, memory: int, m: Counts, k: int, pieces: int) -> Counts:
    """Return the widest block beside each height; 0 where none fits."""
    a, b, c = work.weights
    n = (memory - m * (k * a + work.row)) * pieces // (pieces * (m * c + work.column) + k * b)
    n = np.clip(n, 0, work.sizes[2])
    # What the last piece is longer by may not fit.
    while True:
        over = (n > 0) & (m * n * c + m * (k * a + work.row) + k * -(-n // pieces) * b + n * work.column > memory)
        if not over.any():
            return np.asarray(n)
        n = np.where(over, n - 1, n)


def _held(work: Work, zone: Zone, k: int) -> int:
    a, b, c = work.weights
    blocks = zone.widths
    n, piece = max(map(sum, blocks)), max(map(max, blocks))
    return zone.m * n * c + zone.m * (k * a + work.row) + k * piece * b + n * work.column
