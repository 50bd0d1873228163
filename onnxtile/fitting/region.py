"""A run of kernels cut into strips: the rows that each kernel computes, and the multiply-accumulates."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from onnxtile.fitting.network import ROWS, FitKernel, FitTensor
from onnxtile.fitting.strip_ranges import PatchRange, PatchRanges, StripRanges, paced, spans, uncut

PiecesOfTensors = tuple[tuple[int, tuple[int, ...]], ...]
"""Tensors that are not joined, in their order, each with the ends of the rows of its pieces."""


@dataclass(frozen=True)
class Cut:
    """How a region is cut: strips of `step` rows of its largest operand (0: one strip).

    `chunks` has the number of parts into which the hidden channels between two kernels, named by the first one's place, are cut.
    Rows of the tensors in `recomputed` are not kept from strip to strip, but computed again. Tensors in `eager` are computed as far as the
    operands allow, others as far as their readers need. `grains` has tensors of which a multiple of so many rows is computed at a time.
    `given` has the tensors from before the region that were handed over in pieces, each with the ends of the rows of its pieces. Results
    of `parted` are handed over in pieces, others are joined.
    """

    step: int = 0
    recomputed: frozenset[int] = frozenset()
    eager: frozenset[int] = frozenset()
    chunks: tuple[tuple[int, int], ...] = ()
    grains: tuple[tuple[int, int], ...] = ()
    given: PiecesOfTensors = ()
    parted: frozenset[int] = frozenset()

    @property
    def plain(self) -> Cut:
        """The cut without chunks and without pieces, which has the same ranges of rows."""
        return replace(self, chunks=(), given=(), parted=frozenset())


@dataclass(frozen=True)
class UncutRegion:
    """The `kernels` of a region; `results` are the tensors that are needed afterwards."""

    kernels: Sequence[FitKernel]
    tensors: Sequence[FitTensor]
    results: Sequence[int]

    def ranges(self, cut: Cut) -> list[StripRanges]:
        """Return the rows that the kernels compute in each strip. Raises PaddingOnly."""
        return self._cut_rows(cut) if cut.step else self._whole_rows

    @cached_property
    def _whole_rows(self) -> list[StripRanges]:
        return uncut(self.kernels, self.tensors)

    @cached_property
    def _needed(self) -> dict[int, PatchRange]:
        """The rows of each made tensor that are read or wanted at all."""
        whole = {t: PatchRanges.of([(0, self.tensors[t].extent(ROWS))]) for t in self.results}
        least = spans(self.kernels, self.tensors, whole, keeps=False)
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
        return spans(self.kernels, self.tensors, kept, keeps=True)


def macs_of(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], ranges: Sequence[StripRanges]) -> int:
    """Return the multiply-accumulates of all strips."""
    total = 0
    for kernel, rows in zip(kernels, ranges, strict=True):
        made = tensors[kernel.makes[0]]
        if kernel.macs:
            total += kernel.macs * int(rows.news.lengths.sum()) // made.extent(ROWS)
        total += _weighted_macs(kernel, made, rows)
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
