"""A run of kernels cut into strips and bands: the rows and columns that each kernel computes, and the multiply-accumulates."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel, FitTensor
from onnxtile.fitting.strip_ranges import PatchRange, PatchRanges, StripRanges, paced, shares, spans, uncut

PiecesOfTensors = tuple[tuple[int, tuple[int, ...]], ...]
"""Tensors that are not joined, in their order, each with the ends of the rows of its pieces."""


@dataclass(frozen=True)
class Cut:
    """How a region is cut: strips of `step` rows of its largest operand (0: one strip), and `bands` of columns.

    `chunks` has the number of parts into which the hidden channels between two kernels, named by the first one's place, are cut.
    Rows of the tensors in `recomputed` are not kept from strip to strip, but computed again. Tensors in `eager` are computed as far as the
    operands allow, others as far as their readers need. `grains` has tensors of which a multiple of so many rows is computed at a time.
    `given` has the tensors from before the region that were handed over in pieces, each with the ends of the rows of its pieces. Results
    of `parted` are handed over in pieces, others are joined.
    """

    step: int = 0
    bands: int = 1
    recomputed: frozenset[int] = frozenset()
    eager: frozenset[int] = frozenset()
    chunks: tuple[tuple[int, int], ...] = ()
    grains: tuple[tuple[int, int], ...] = ()
    given: PiecesOfTensors = ()
    parted: frozenset[int] = frozenset()

    @property
    def plain(self) -> Cut:
        """The cut without chunks and without pieces, which has the same ranges of rows and columns."""
        return replace(self, chunks=(), given=(), parted=frozenset())


@dataclass(frozen=True)
class RegionRanges:
    """The rows and columns that each kernel of a region computes in each strip and band."""

    rows: list[StripRanges]
    columns: list[StripRanges]


@dataclass(frozen=True)
class UncutRegion:
    """The `kernels` of a region; `results` are the tensors that are needed afterwards."""

    kernels: Sequence[FitKernel]
    tensors: Sequence[FitTensor]
    results: Sequence[int]

    def ranges(self, cut: Cut) -> RegionRanges:
        """Return the rows and columns that the kernels compute in each strip and band. Raises PaddingOnly."""
        rows = self._cut_rows(cut) if cut.step else self._whole_rows
        return RegionRanges(rows, self._bands(cut.bands) if cut.bands > 1 else self._whole_columns)

    @cached_property
    def _whole_rows(self) -> list[StripRanges]:
        return uncut(self.kernels, self.tensors, ROWS)

    @cached_property
    def _whole_columns(self) -> list[StripRanges]:
        return uncut(self.kernels, self.tensors, COLUMNS)

    @cached_property
    def _needed(self) -> dict[int, PatchRange]:
        """The rows of each made tensor that are read or wanted at all."""
        whole = {t: PatchRanges.of([(0, self.tensors[t].extent(ROWS))]) for t in self.results}
        least = spans(self.kernels, self.tensors, whole, ROWS, keeps=False)
        return {
            made: span.windows[0]
            for kernel, span in zip(self.kernels, least, strict=True)
            for made in kernel.makes
            if span.windows[0] is not None
        }

    def _cut_rows(self, cut: Cut) -> list[StripRanges]:
        eager = {*self.results, *cut.eager}
        pace = paced(self.kernels, self.tensors, eager, self._needed, cut.step, dict(cut.grains))
        again = {tensor for tensor in pace if self.tensors[tensor].is_inside} | cut.recomputed
        kept = {tensor: ranges for tensor, ranges in pace.items() if tensor in self.results or tensor not in again}
        return spans(self.kernels, self.tensors, kept, ROWS, keeps=True)

    def _bands(self, count: int) -> list[StripRanges]:
        sizes = {tensor: self.tensors[tensor].extent(COLUMNS) for tensor in self.results}
        bands = {tensor: PatchRanges.of(shares(size, count)) for tensor, size in sizes.items()}
        return spans(self.kernels, self.tensors, bands, COLUMNS, keeps=False)


def macs_of(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], ranges: RegionRanges) -> int:
    """Return the multiply-accumulates of all strips and bands."""
    total = 0
    for kernel, rows, columns in zip(kernels, ranges.rows, ranges.columns, strict=True):
        if kernel.macs:
            made = tensors[kernel.makes[0]]
            area = int(rows.news.lengths.sum()) * int(columns.news.lengths.sum())
            total += kernel.macs * area // (made.extent(ROWS) * made.extent(COLUMNS))
        total += _weighted_macs(kernel, tensors[kernel.makes[0]], rows)
    return total


def _weighted_macs(kernel: FitKernel, made: FitTensor, rows: StripRanges) -> int:
    """Return the multiply-accumulates of pieces whose rows are weighted sums: each piece is a matrix product with the rows it reads."""
    place = next((place for place, link in enumerate(kernel.links[ROWS] or ()) if link is not None and link.sums), None)
    if place is None:
        return 0
    lengths, extent = rows.news.lengths, made.extent(ROWS)
    products = int((lengths * rows.needs[place].lengths)[lengths < extent].sum())
    return products * (prod(made.dims) // extent)


def row_pieces(ends: Sequence[int]) -> list[PatchRange]:
    """Return the rows of consecutive pieces, from their ends."""
    return list(pairwise((0, *ends)))


def overlapped(pieces: Sequence[PatchRange], rows: PatchRange | None) -> range:
    """Return the numbers of the pieces that hold some of the rows."""
    if rows is None:
        return range(0)
    first = bisect_right(pieces, rows[0], key=lambda piece: piece[1])
    return range(first, bisect_left(pieces, rows[1], key=lambda piece: piece[0]))
