"""A run of kernels cut into strips and bands: each operation in its order, with the patch that it makes.

The same operations are counted by the search and written into the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from onnxtile.fitting.axis_maps import AxisLink
from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel, FitTensor

PatchRange = tuple[int, int]


class Patch(NamedTuple):
    """Rows and columns of a tensor."""

    tensor: int
    rows: PatchRange
    columns: PatchRange


class PieceOp(NamedTuple):
    """One operation on patches, by their numbers: a `kernel` of the region, or (None) a Slice of one patch or a Concat of several."""

    kernel: int | None
    reads: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """How a region is cut: strips of `step` rows of its largest operand (0: one strip), and `bands` of columns.

    `chunks` has the number of parts into which the hidden channels between two kernels, named by the first one's place, are cut.
    Rows of the tensors in `recomputed` are not kept from strip to strip, but computed again. Tensors in `eager` are computed as far as the
    operands allow, others as far as their readers need.
    """

    step: int = 0
    bands: int = 1
    recomputed: frozenset[int] = frozenset()
    eager: frozenset[int] = frozenset()
    chunks: tuple[tuple[int, int], ...] = ()


@dataclass
class RegionTrace:
    """The operations of a region, the patches that they read and make, and the multiply-accumulates."""

    patches: list[Patch] = field(default_factory=list)
    ops: list[PieceOp] = field(default_factory=list)
    macs: int = 0
    whole: dict[int, int] = field(default_factory=dict)
    """The patches that are whole tensors: those read from outside of the region, and the results for it."""
    strips: int = 1
    kept: int = 0
    """The number of tensors of which rows are kept from strip to strip."""


class PaddingOnly(Exception):
    """The cut would give an operator padding only."""


@dataclass(frozen=True)
class StripRanges:
    """For each strip the rows of a tensor that are at hand (`windows`) and those that are computed in it (`news`); None for no row."""

    windows: list[PatchRange | None]
    news: list[PatchRange | None]


def _hulls(count: int, demands: Iterable[Sequence[PatchRange | None]]) -> list[PatchRange | None]:
    found: list[PatchRange | None] = [None] * count
    for demand in demands:
        for strip, one in enumerate(demand):
            held = found[strip]
            if one is not None:
                found[strip] = one if held is None else (min(held[0], one[0]), max(held[1], one[1]))
    return found


def _kept(windows: list[PatchRange | None]) -> StripRanges:
    """Return the span of a tensor whose rows are computed once: each stays at hand until no later strip reads it."""
    count = len(windows)
    low: list[int | None] = [None] * count
    least: int | None = None
    for strip in range(count - 1, -1, -1):
        one = windows[strip]
        if one is not None:
            least = one[0] if least is None else min(least, one[0])
        low[strip] = least
    done = next((start for start in low if start is not None), 0)
    news: list[PatchRange | None] = []
    held: list[PatchRange | None] = []
    for strip in range(count):
        one, start = windows[strip], low[strip]
        if one is not None and one[1] > done:
            news.append((done, one[1]))
            done = one[1]
        else:
            news.append(None)
        held.append(None if start is None or start >= done else (start, done))
    return StripRanges(held, news)


def _rounded(one: PatchRange | None, factor: int, size: int) -> PatchRange | None:
    if one is None or factor == 1:
        return one
    return one[0] // factor * factor, min(-(-one[1] // factor) * factor, size)


def spans(
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    wanted: dict[int, list[PatchRange | None]],
    direction: int,
    keeps: bool,
) -> list[StripRanges]:
    """Return the span of each kernel's results, from the ranges `wanted` of results, and of kept tensors, in each strip.

    With `keeps`, rows of tensors in `wanted` are kept from strip to strip; those of others are computed again.
    Raises PaddingOnly where an operator would read padding only.
    """
    count = len(next(iter(wanted.values())))
    demands: dict[int, list[list[PatchRange | None]]] = {tensor: [ranges] for tensor, ranges in wanted.items()}
    found: list[StripRanges] = []
    for number in range(len(kernels) - 1, -1, -1):
        kernel = kernels[number]
        size = max(tensors[made].extent(direction) for made in kernel.makes)
        windows = _hulls(count, (one for made in kernel.makes for one in demands.get(made, ())))
        links = kernel.links[direction]
        if links is None:
            windows = [None if one is None else (0, size) for one in windows]
        else:
            factor = kernel.factor(direction)
            windows = [_rounded(one, factor, size) for one in windows]
        keep = keeps and (any(made in wanted for made in kernel.makes))
        span = _kept(windows) if keep else StripRanges(windows, windows)
        found.append(span)
        for place, tensor in enumerate(kernel.reads):
            demands.setdefault(tensor, []).append(
                [None if new is None else reads(kernel, place, tensors[tensor], new, direction) for new in span.news]
            )
    return found[::-1]


def paced(
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    eager: Collection[int],
    needed: dict[int, PatchRange],
    step: int,
) -> dict[int, list[PatchRange | None]]:
    """Return the rows of each tensor that are computed in each strip, when strips of `step` rows of the largest operand come in.

    `needed` has the rows of each made tensor that are read or wanted at all. Tensors of `eager` go as far as the operands allow, and each
    other tensor as far as its readers then need.

    Ends are counted before the first row and behind the last row as within the tensors, so that
    the first and the last strips are no longer than the others.
    """
    given = [tensor for kernel in kernels for tensor in kernel.reads if tensor not in needed]
    largest = max((tensors[tensor].extent(ROWS) for tensor in given), default=1)
    found: dict[int, list[PatchRange | None]] = {tensor: [] for tensor in needed}
    done = {tensor: rows[0] for tensor, rows in needed.items()}
    strip = 0
    while any(done[tensor] < rows[1] for tensor, rows in needed.items()):
        strip += 1
        ends = {tensor: strip * step * tensors[tensor].extent(ROWS) / largest for tensor in given}
        # After so many strips every kernel has run, whatever it reads.
        over = strip * step > 4 * largest
        for kernel in kernels:
            end = min((_result_end(kernel, n, tensors, ends[one]) for n, one in enumerate(kernel.reads)), default=0.0)
            ends.update((tensor, end) for tensor in kernel.makes)
        ends = {tensor: needed[tensor][1] if over else ends[tensor] for tensor in eager if tensor in needed}
        for kernel in reversed(kernels):
            end = max((ends[tensor] for tensor in kernel.makes if tensor in ends), default=-inf)
            for place, tensor in enumerate(kernel.reads):
                ends[tensor] = max(ends.get(tensor, -inf), _operand_end(kernel, place, tensors, end))
        for tensor, (_, last) in needed.items():
            stop = int(min(max(ends[tensor], done[tensor]), last))
            found[tensor].append((done[tensor], stop) if stop > done[tensor] else None)
            done[tensor] = stop
    return found


def _link(kernel: FitKernel, place: int, tensors: Sequence[FitTensor]) -> AxisLink | None:
    links = kernel.links[ROWS]
    link = None if links is None else links[place]
    return None if link is None or link.axis != tensors[kernel.reads[place]].axes[ROWS] else link


def _result_end(kernel: FitKernel, place: int, tensors: Sequence[FitTensor], available: float) -> float:
    """Return the number of result rows that an operand of `available` rows allows."""
    link = _link(kernel, place, tensors)
    if link is None:
        # Read whole: before its last row nothing can be computed, from then on all.
        return inf if available >= tensors[kernel.reads[place]].extent(ROWS) else -inf
    if link.window is None or available in {inf, -inf}:
        return available * link.factor
    slide = link.window
    if slide.transposed:
        return available * slide.stride - slide.before
    return (available + slide.before - slide.reach) // slide.stride + 1


def _operand_end(kernel: FitKernel, place: int, tensors: Sequence[FitTensor], end: float) -> float:
    """Return the number of operand rows that results up to `end` need."""
    link = _link(kernel, place, tensors)
    if link is None or end in {inf, -inf}:
        return tensors[kernel.reads[place]].extent(ROWS) if end > 0 else -inf
    if link.window is None:
        return -(-end // link.factor)
    slide = link.window
    if slide.transposed:
        return (end - 1 + slide.before) // slide.stride + 1
    return (end - 1) * slide.stride - slide.before + slide.reach


def reads(kernel: FitKernel, place: int, tensor: FitTensor, new: PatchRange, direction: int) -> PatchRange:
    """Return the rows or columns of an operand that the results `new` of a kernel read. Raises PaddingOnly."""
    links = kernel.links[direction]
    link = None if links is None else links[place]
    if link is None or link.axis != tensor.axes[direction]:
        return 0, tensor.extent(direction)
    window = link.reads(*new)
    if window.stop <= window.start:
        raise PaddingOnly
    return window.start, window.stop


def shares(size: int, count: int) -> list[PatchRange | None]:
    """Return `size` rows in `count` strips whose lengths differ by one at most; None for an empty strip."""
    ends = [size * strip // count for strip in range(count + 1)]
    return [(start, end) if start < end else None for start, end in pairwise(ends)]


def trace(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], results: Sequence[int], cut: Cut) -> RegionTrace:
    """Return the operations of `kernels` in strips and bands; `results` are the tensors that are needed afterwards.

    Raises PaddingOnly where an operator would read padding only.
    """
    whole: dict[int, list[PatchRange | None]] = {tensor: [(0, tensors[tensor].extent(ROWS))] for tensor in results}
    rows = spans(kernels, tensors, whole, ROWS, keeps=False)
    if cut.step:
        needed = {
            made: span.windows[0]
            for kernel, span in zip(kernels, rows, strict=True)
            for made in kernel.makes
            if span.windows[0] is not None
        }
        pace = paced(kernels, tensors, {*results, *cut.eager}, needed, cut.step)
        kept = {tensor: ranges for tensor, ranges in pace.items() if tensor in whole or tensor not in cut.recomputed}
        rows = spans(kernels, tensors, kept, ROWS, keeps=True)
    bands = {tensor: shares(tensors[tensor].extent(COLUMNS), cut.bands) for tensor in results}
    columns = spans(kernels, tensors, bands, COLUMNS, keeps=False)
    return _Tracer(kernels, tensors, frozenset(results), rows, columns).trace(cut)


class _Tracer:
    """Lists the operations of one region."""

    def __init__(
        self,
        kernels: Sequence[FitKernel],
        tensors: Sequence[FitTensor],
        results: frozenset[int],
        rows: list[StripRanges],
        columns: list[StripRanges],
    ) -> None:
        self.kernels, self.tensors, self.results = kernels, tensors, results
        self.rows, self.columns = rows, columns
        self.found = RegionTrace()
        self.made = {made for kernel in kernels for made in kernel.makes}
        self.readers: dict[int, int] = {}
        for kernel in kernels:
            for tensor in kernel.reads:
                self.readers[tensor] = self.readers.get(tensor, 0) + 1
        self.held: dict[int, int] = {}
        self.cuts: dict[Patch, int] = {}
        self.last_read: dict[int, int] = {}
        self.tails: dict[int, list[PieceOp]] = {}

    def trace(self, cut: Cut) -> RegionTrace:
        joined: dict[int, list[int]] = {tensor: [] for tensor in self.results}
        for band in range(cut.bands):
            parts: dict[int, list[int]] = {tensor: [] for tensor in self.results}
            self.held = {}
            for strip in range(len(self.rows[0].news)):
                self._strip(strip, band, parts)
                self._keep(strip)
            for tensor, pieces in parts.items():
                joined[tensor].append(self._join(tensor, pieces, ROWS))
        for tensor, pieces in joined.items():
            self.found.whole[tensor] = self._join(tensor, pieces, COLUMNS)
        self._put_tails()
        self.found.macs = self._macs()
        self.found.strips = len(self.rows[0].news)
        self.found.kept = len({op.makes for tails in self.tails.values() for op in tails})
        return self.found

    def _macs(self) -> int:
        total = 0
        for kernel, rows, columns in zip(self.kernels, self.rows, self.columns, strict=True):
            if not kernel.macs:
                continue
            made = self.tensors[kernel.makes[0]]
            area = sum(new[1] - new[0] for new in rows.news if new) * sum(
                new[1] - new[0] for new in columns.news if new
            )
            total += kernel.macs * area // (made.extent(ROWS) * made.extent(COLUMNS))
        return total

    def _patch(self, patch: Patch) -> int:
        self.found.patches.append(patch)
        return len(self.found.patches) - 1

    def _op(self, kernel: int | None, read: tuple[int, ...], makes: tuple[int, ...]) -> None:
        at = len(self.found.ops)
        for patch in read:
            self.last_read[patch] = at
        for patch in makes:
            self.last_read[patch] = at
        self.found.ops.append(PieceOp(kernel, read, makes))

    def _strip(self, strip: int, band: int, parts: dict[int, list[int]]) -> None:
        self.cuts = {}
        for number, kernel in enumerate(self.kernels):
            rows, columns = self.rows[number].news[strip], self.columns[number].news[band]
            if rows is None or columns is None:
                continue
            operands = tuple(
                self._operand(kernel, place, tensor, rows, columns) for place, tensor in enumerate(kernel.reads)
            )
            makes = tuple(self._patch(self._made(kernel, made, rows, columns)) for made in kernel.makes)
            self._op(number, operands, makes)
            for made, patch in zip(kernel.makes, makes, strict=True):
                if made in self.results:
                    parts[made].append(self._result(made, patch, columns, band))
                if made in self.readers:
                    before = self.held.get(made)
                    self.held[made] = patch if before is None else self._join(made, [before, patch], ROWS)

    def _made(self, kernel: FitKernel, tensor: int, rows: PatchRange, columns: PatchRange) -> Patch:
        """Return the patch of one result; the results of a kernel that is not cut may have different sizes."""
        about = self.tensors[tensor]
        return Patch(
            tensor,
            (0, about.extent(ROWS)) if kernel.links[ROWS] is None else rows,
            (0, about.extent(COLUMNS)) if kernel.links[COLUMNS] is None else columns,
        )

    def _result(self, tensor: int, patch: int, columns: PatchRange, band: int) -> int:
        """Return the patch without columns that another band makes, too."""
        bands = len(self.columns[0].news)
        share = shares(self.tensors[tensor].extent(COLUMNS), bands)[band]
        if share is None or share == columns:
            return patch
        return self._slice(patch, Patch(tensor, self.found.patches[patch].rows, share))

    def _operand(self, kernel: FitKernel, place: int, tensor: int, rows: PatchRange, columns: PatchRange) -> int:
        about = self.tensors[tensor]
        wanted = Patch(tensor, reads(kernel, place, about, rows, ROWS), reads(kernel, place, about, columns, COLUMNS))
        return self._slice(self.held[tensor] if tensor in self.made else self._whole(tensor), wanted)

    def _whole(self, tensor: int) -> int:
        if tensor not in self.found.whole:
            about = self.tensors[tensor]
            self.found.whole[tensor] = self._patch(Patch(tensor, (0, about.extent(ROWS)), (0, about.extent(COLUMNS))))
        return self.found.whole[tensor]

    def _slice(self, source: int, wanted: Patch) -> int:
        if self.found.patches[source] == wanted:
            return source
        if wanted not in self.cuts:
            self.cuts[wanted] = self._patch(wanted)
            self._op(None, (source,), (self.cuts[wanted],))
        return self.cuts[wanted]

    def _join(self, tensor: int, pieces: Sequence[int], direction: int) -> int:
        if len(pieces) == 1:
            return pieces[0]
        first, last = self.found.patches[pieces[0]], self.found.patches[pieces[-1]]
        if direction == ROWS:
            patch = self._patch(Patch(tensor, (first.rows[0], last.rows[1]), first.columns))
        else:
            patch = self._patch(Patch(tensor, first.rows, (first.columns[0], last.columns[1])))
        self._op(None, tuple(pieces), (patch,))
        return patch

    def _keep(self, strip: int) -> None:
        """Keep the rows that the next strip reads again, from the last operation on that reads the others."""
        after = strip + 1
        held: dict[int, int] = {}
        for number, kernel in enumerate(self.kernels) if after < len(self.rows[0].news) else ():
            span = self.rows[number]
            if span.windows is span.news:  # recomputed
                continue
            later, now = span.windows[after], span.news[after]
            end = later[1] if later is not None and now is None else now[0] if now is not None else None
            if later is None or end is None or later[0] >= end:
                continue
            for made in kernel.makes:
                if made in self.held:
                    held[made] = self._tail(made, (later[0], end))
        self.held = held

    def _tail(self, tensor: int, rows: PatchRange) -> int:
        source = self.held[tensor]
        patch = self.found.patches[source]
        if patch.rows == rows:
            return source
        tail = self._patch(Patch(tensor, rows, patch.columns))
        self.tails.setdefault(self.last_read[source], []).append(PieceOp(None, (source,), (tail,)))
        self.last_read[tail] = self.last_read[source]
        return tail

    def _put_tails(self) -> None:
        if not self.tails:
            return
        ops: list[PieceOp] = []
        for at, op in enumerate(self.found.ops):
            ops.append(op)
            ops.extend(self.tails.get(at, ()))
        self.found.ops = ops
