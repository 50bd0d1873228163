"""The costs of a region that is cut: counted on one strip of each kind, since most strips of a region are alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from onnxtile.fitting.chunked_kernels import ChunkedKernels
from onnxtile.fitting.given_pieces import GivenPieces
from onnxtile.fitting.live_bytes import ALIGNMENT, LiveBytes, aligned, live_bytes
from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel
from onnxtile.fitting.region import Cut
from onnxtile.fitting.region_tracer import RegionTracer, StripTrace
from onnxtile.fitting.strip_ranges import PatchRanges, RowNumbers, StripRanges

_EMPTY = 1 << 40
"""The place of an empty range."""


@dataclass(frozen=True)
class CutCost:
    """The largest sum of live bytes, the tensors alive there, and the nodes and copied bytes of all strips.

    `loads` are the largest sums while each kernel runs, `rest` that between two strips.
    """

    peak: int
    alive: frozenset[int]
    nodes: int
    copied: int
    loads: tuple[int, ...] = ()
    rest: int = 0


def cut_cost(
    kernels: Sequence[FitKernel],
    region: ChunkedKernels,
    ranges: list[StripRanges],
    results: Sequence[int],
    cut: Cut,
    dying: Collection[int],
    limit: LoadLimit | None = None,
) -> CutCost | int:
    """Return the costs of a region, of whose operands those of `dying` are not read later; `ranges` are those of its whole `kernels`.

    Tensors that were handed over in pieces are counted wherever they live, read by the region or not.

    Where a kernel exceeds the `limit`, only its live bytes are returned.
    """
    about = RegionTracer(region.kernels, region.tensors, results, region.ranges(ranges), cut)
    return _StripCosts(region, about, results, dying).cost(kernels, ranges, limit)


@dataclass(frozen=True)
class LoadLimit:
    """The bytes that may live at most while each kernel of `fixed` runs, by its number in the region."""

    bytes: int
    fixed: Sequence[int]

    def exceeding(self, loads: Sequence[int]) -> int:
        """Return the most bytes of `loads`, of each kernel, where they exceed the limit; else 0."""
        most = max((loads[number] for number in self.fixed), default=0)
        return most if most > self.bytes else 0


class _StripCosts:
    def __init__(
        self,
        region: ChunkedKernels,
        about: RegionTracer,
        results: Sequence[int],
        dying: Collection[int],
    ) -> None:
        self.region, self.about = region, about
        self.results, self.dying = results, frozenset(dying) - set(about.given)
        self.count = len(about.rows[0].news)
        self.pieces = GivenPieces(about, frozenset(dying))
        self.done = sum((self._row_bytes(tensor) for tensor in results), np.zeros(self.count + 1, np.int64))
        self.loads = [0] * (1 + max(region.bases))
        self.counted: dict[int, tuple[StripTrace, LiveBytes]] = {}
        self.peak, self.rest, self.alive = 0, 0, frozenset[int]()
        self.nodes = self.copied = 0

    def _row_bytes(self, tensor: int) -> RowNumbers:
        """Return the bytes of the strips of a result that are complete before each strip."""
        about = self.region.tensors[tensor]
        lengths = self.about.rows[self.about.makers[tensor]].news.lengths
        sizes = -(-lengths * about.bytes(1, about.extent(COLUMNS)) // ALIGNMENT) * ALIGNMENT
        return np.concatenate(([0], np.cumsum(sizes)))

    def cost(self, kernels: Sequence[FitKernel], ranges: list[StripRanges], limit: LoadLimit | None) -> CutCost | int:
        """Count one strip of each kind, until a kernel exceeds the limit."""
        # Late strips, but the last one, have most bytes beside them.
        self._measure(max(self.count - 2, 0))
        if limit is not None and limit.exceeding(self.loads):
            return limit.exceeding(self.loads)
        kinds: dict[bytes, list[int]] = {}
        outlines = _outlines(kernels, ranges) if self.count > 1 else np.zeros((1, 0), np.int64)
        for strip, outline in enumerate(outlines):
            kinds.setdefault(outline.tobytes() + self.pieces.places[strip], []).append(strip)
        for strips in sorted(kinds.values(), key=lambda strips: -(strips[-1] % (self.count - 1 or 1))):
            # Of equal strips the last has most results beside it, unless pieces that were handed over die before.
            fullest = max(strips, key=lambda strip: (int(self.done[strip]) + self.pieces.living[strip], strip))
            self._measure(fullest)
            if limit is not None and limit.exceeding(self.loads):
                return limit.exceeding(self.loads)
            self._count(len(strips), fullest)
        self._join()
        return CutCost(self.peak, self.alive, self.nodes, self.copied, tuple(self.loads), self.rest)

    def _measure(self, strip: int) -> None:
        """Count the live bytes of one strip."""
        if strip in self.counted:
            return
        at_end = strip == self.count - 1
        found = self.about.strip(strip)
        operands = 0 if at_end else sum(self._size(tensor) for tensor in self.dying)
        pieces = self.pieces.living[strip] - self.pieces.size(found.pieces)
        beside = int(self.done[strip]) + operands + pieces + self._kept_of_others(found)
        live = live_bytes(
            found.trace,
            self.about.kernels,
            self.about.tensors,
            self.dying if at_end else (),
            (*found.given, *found.pieces.values()),
            (*found.left, *(patch for piece, patch in found.pieces.items() if self.pieces.lives_after(piece, strip))),
            self.peak - beside,
        )
        if live.peak + beside > self.peak:
            self.peak, self.alive = live.peak + beside, live.tensors
        self.rest = max(self.rest, live.first + beside)
        running, bases = 0, self.region.bases
        for op, load in zip(found.trace.ops, live.loads, strict=True):
            if op.kernel is not None:
                running = bases[op.kernel]
            self.loads[running] = max(self.loads[running], load + beside)
        self.counted[strip] = found, live

    def _count(self, number: int, measured: int) -> None:
        """Add up the nodes and copied bytes of a number of equal strips, of which one was measured."""
        found, live = self.counted.pop(measured)
        weights, makers = self.region.weights, self.about.makers
        for op in found.trace.ops:
            tensor = found.trace.patches[op.makes[0]].tensor
            weight = weights[makers[tensor]] if tensor in makers else 1
            self.nodes += number * weight
            if op.kernel is None:
                self.copied += number * weight * live.sizes[op.makes[0]]

    def _kept_of_others(self, found: StripTrace) -> int:
        """Return the bytes of the rows that are kept of chunks for which another chunk stands."""
        makers, weights, patches = self.about.makers, self.region.weights, found.trace.patches
        kept: dict[int, int] = {}
        for patch in (*found.given, *found.left):
            tensor, rows, columns = patches[patch]
            others = weights[makers[tensor]] - 1 if tensor in makers else 0
            if others:
                size = self.region.tensors[tensor].bytes(rows[1] - rows[0], columns[1] - columns[0])
                kept[tensor] = max(kept.get(tensor, 0), others * aligned(size))
        return sum(kept.values())

    def _join(self) -> None:
        """Count the copies of the strips of results into one tensor each."""
        joined = [
            tensor
            for tensor in self.results
            if not self.region.tensors[tensor].is_contiguous(ROWS)
            and tensor not in self.about.cut.parted
            and int(self.about.rows[self.about.makers[tensor]].news.some.sum()) > 1
        ]
        whole = sum(self._size_made(tensor) for tensor in self.results) + self.pieces.living[-1]
        peak = whole + max((self._size(tensor) for tensor in joined), default=0)
        if joined and peak > self.peak:
            self.peak, self.alive = peak, frozenset(joined)
        self.loads[-1] = max(self.loads[-1], peak if joined else 0)
        self.copied += sum(self._size(tensor) for tensor in joined)
        self.nodes += len(joined)

    def _size(self, tensor: int) -> int:
        return aligned(self.region.tensors[tensor].size)

    def _size_made(self, tensor: int) -> int:
        """Return the bytes of a result, that of its strips where it is handed over in pieces."""
        return int(self._row_bytes(tensor)[-1]) if tensor in self.about.cut.parted else self._size(tensor)


def _outlines(kernels: Sequence[FitKernel], ranges: list[StripRanges]) -> RowNumbers:
    """Return a row for each strip; strips with equal rows cost the same: the lengths of all ranges, and their places in each other."""
    anchors: dict[int, RowNumbers] = {}
    columns: list[RowNumbers] = []
    for kernel, span in zip(kernels, ranges, strict=True):
        before, none = span.before, np.full(1, _EMPTY)
        later = PatchRanges(np.append(before.starts[1:], none), np.append(before.stops[1:], none))
        anchor = np.where(before.some, before.starts, span.news.starts)
        anchors.update((made, anchor) for made in kernel.makes)
        for one in (span.news, before, later):
            columns += [np.where(one.some, one.starts - anchor, _EMPTY), one.lengths]
        for tensor, need in zip(kernel.reads, span.needs, strict=True):
            columns.append(need.lengths)
            if tensor in anchors:
                columns.append(np.where(need.some, need.starts - anchors[tensor], _EMPTY))
    return np.stack(columns, axis=1)
