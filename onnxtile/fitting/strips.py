"""The rows of each tensor that each strip of a region reads, computes and keeps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from math import inf, prod

import numpy as np
import numpy.typing as npt

from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.operators.reads import AxisLink
from onnxtile.system.dataclass import dataclass

PatchRange = tuple[int, int]
RowEnds = npt.NDArray[np.float64]
RowNumbers = npt.NDArray[np.int64]
_FAR, _NONE = 1 << 40, -1
"""The start and the stop of an empty range."""


class PaddingOnly(Exception):
    """The cut would give an operator padding only."""


@dataclass(frozen=True)
class PatchRanges:
    """A range of rows for each strip, from `starts` to `stops`; empty where a start is not below its stop."""

    starts: RowNumbers
    stops: RowNumbers

    @staticmethod
    def from_ranges(ranges: Sequence[PatchRange | None]) -> PatchRanges:
        """Return the ranges, of which None is an empty one."""
        pairs = np.array([(_FAR, _NONE) if rows is None else rows for rows in ranges], np.int64).reshape(-1, 2)
        return PatchRanges(pairs[:, 0], pairs[:, 1])

    def __len__(self) -> int:
        """Return the number of strips."""
        return len(self.starts)

    def __getitem__(self, strip: int) -> PatchRange | None:
        """Return the range of one strip; None for an empty one."""
        return self.pairs[strip]

    def __iter__(self) -> Iterator[PatchRange | None]:
        """Return the ranges one after the other."""
        return iter(self.pairs)

    @cached_property
    def pairs(self) -> list[PatchRange | None]:
        """The range of each strip; None for an empty one."""
        pairs = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [(start, stop) if start < stop else None for start, stop in pairs]

    @cached_property
    def some(self) -> npt.NDArray[np.bool_]:
        """Whether each range is not empty."""
        some: npt.NDArray[np.bool_] = self.starts < self.stops
        return some

    @cached_property
    def lengths(self) -> RowNumbers:
        """The number of rows of each range."""
        lengths: RowNumbers = np.maximum(self.stops - self.starts, 0)
        return lengths

    def where(self, some: npt.NDArray[np.bool_]) -> PatchRanges:
        """Return the same ranges where `some` is true, and empty ones elsewhere."""
        return PatchRanges(np.where(some, self.starts, _FAR), np.where(some, self.stops, _NONE))


@dataclass(frozen=True)
class StripRanges:
    """For each strip the rows of a result that are at hand (`windows`) and those that are computed in it (`news`).

    `needs` has the rows of each operand that the computed rows read.
    """

    windows: PatchRanges
    news: PatchRanges
    needs: list[PatchRanges] = field(default_factory=list)

    @cached_property
    def before(self) -> PatchRanges:
        """The rows that are kept for each strip from the strips before it."""
        if self.windows is self.news:
            return PatchRanges(np.full(len(self.news), _FAR), np.full(len(self.news), _NONE))
        before = PatchRanges(self.windows.starts, np.where(self.news.some, self.news.starts, self.windows.stops))
        some = before.some & self.windows.some
        some[0] = False
        return before.where(some)


def _hull(count: int, demands: Sequence[PatchRanges]) -> PatchRanges:
    if not demands:
        return PatchRanges(np.full(count, _FAR), np.full(count, _NONE))
    if len(demands) == 1:
        return demands[0]
    starts = np.minimum.reduce([demand.starts for demand in demands])
    return PatchRanges(starts, np.maximum.reduce([demand.stops for demand in demands]))


def _kept(windows: PatchRanges, *, folds: bool) -> StripRanges:
    """Return the span of a tensor whose rows are computed once: each stays at hand until no later strip reads it.

    Of one that `folds`, all stay at hand until then: they are one sum.
    """
    low = np.minimum.accumulate(windows.starts[::-1])[::-1]
    low = np.where(low < _FAR, low[0], low) if folds else low
    done = np.maximum(np.maximum.accumulate(windows.stops), low[0])
    before = np.concatenate(([low[0]], done[:-1]))
    news = PatchRanges(before, done)
    held = PatchRanges(low, done)
    return StripRanges(held.where(held.some), news.where(news.some))


def _rounded(ranges: PatchRanges, factor: int, size: int) -> PatchRanges:
    if factor == 1:
        return ranges
    starts, stops = ranges.starts // factor * factor, -(-ranges.stops // factor) * factor
    return PatchRanges(starts, np.minimum(stops, size)).where(ranges.some)


def spans(
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    wanted: Mapping[int, PatchRanges],
    keeps: bool,
) -> list[StripRanges]:
    """Return the span of each kernel's results, from the ranges `wanted` of results, and of kept tensors, in each strip.

    With `keeps`, rows of tensors in `wanted` are kept from strip to strip; those of others are computed again.
    Raises PaddingOnly where an operator would read padding only.
    """
    count = len(next(iter(wanted.values())))
    demands: dict[int, list[PatchRanges]] = {tensor: [ranges] for tensor, ranges in wanted.items()}
    by_kernel: list[StripRanges] = []
    for number in range(len(kernels) - 1, -1, -1):
        kernel = kernels[number]
        size = max(tensors[result].rows for result in kernel.makes)
        windows = _hull(count, [demand for result in kernel.makes for demand in demands.get(result, ())])
        if kernel.links is None:
            windows = PatchRanges(np.zeros(count, np.int64), np.full(count, size)).where(windows.some)
        else:
            windows = _rounded(windows, kernel.factor, size)
        keep = keeps and (any(result in wanted for result in kernel.makes))
        folds = bool(tensors[kernel.makes[0]].folds)
        span = _kept(windows, folds=folds) if keep else StripRanges(windows, windows)
        by_kernel.append(span)
        for index, tensor in enumerate(kernel.reads):
            need = rows_read(kernel, index, tensors[tensor], span.news)
            span.needs.append(need)
            demands.setdefault(tensor, []).append(need)
    return by_kernel[::-1]


def in_parts(
    kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], ranges: Sequence[StripRanges]
) -> tuple[list[FitKernel], list[StripRanges]]:
    """Return the kernels of single nodes that run as `kernels`, each with its rows: what is inside of an island is made for each strip."""
    members, rows = list[FitKernel](), list[StripRanges]()
    for kernel, span in zip(kernels, ranges, strict=True):
        members += kernel.members
        if not kernel.parts:
            rows.append(span)
            continue
        within = spans(kernel.parts, tensors, dict.fromkeys(kernel.makes, span.news), keeps=False)
        for part, own_rows in zip(kernel.parts, within, strict=True):
            is_stored = not kernel.makes or any(result in kernel.makes for result in part.makes)
            rows.append(StripRanges(span.windows, span.news, own_rows.needs) if is_stored else own_rows)
    return members, rows


def uncut(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor]) -> list[StripRanges]:
    """Return the ranges of kernels that run once, on all rows of their operands."""
    ranges = []
    for kernel in kernels:
        whole = _whole(max(tensors[result].rows for result in kernel.makes))
        ranges.append(StripRanges(whole, whole, [_whole(tensors[tensor].rows) for tensor in kernel.reads]))
    return ranges


def _whole(size: int) -> PatchRanges:
    return PatchRanges(np.zeros(1, np.int64), np.full(1, size))


def paced(
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    eager: Collection[int],
    needed: Mapping[int, PatchRange],
    step: int,
    grains: Mapping[int, int] | None = None,
) -> dict[int, PatchRanges]:
    """Return the rows of each tensor that are computed in each strip, when strips of `step` rows of the largest operand come in.

    `needed` has the rows of each made tensor that are read or wanted at all. Tensors of `eager` go as far as the operands allow, and each
    other tensor as far as its readers then need. A tensor of `grains` goes on by a multiple of so many rows. Ends are counted before the
    first row and after the last row as within the tensors, so that the first and the last strips are no longer than the others.
    """
    given = {tensor for kernel in kernels for tensor in kernel.reads if tensor not in needed}
    coming = coming_in(kernels, tensors)
    largest = max((tensors[tensor].rows for tensor in coming), default=1)
    # After so many strips every kernel has run, whatever it reads.
    strips = 4 * largest // step + 1
    counts = np.arange(1, strips + 1, dtype=np.float64)
    ends = {tensor: counts * step * tensors[tensor].rows / largest for tensor in coming}
    # All of any other operand is there from the start.
    ends.update((tensor, np.full(strips, inf)) for tensor in given - coming)
    for kernel in kernels:
        end = np.full(strips, inf if kernel.reads else 0.0)
        for index, tensor in enumerate(kernel.reads):
            end = np.minimum(end, _result_end(kernel, index, tensors, ends[tensor]))
        for tensor in kernel.makes:
            grain = (grains or {}).get(tensor, 1)
            ends[tensor] = np.where(end < needed[tensor][1], np.floor(end / grain) * grain, end) if grain > 1 else end
    late = {tensor: ends[tensor] for tensor in eager if tensor in needed}
    for tensor, end in late.items():
        end[-1] = max(end[-1], needed[tensor][1])
    for kernel in reversed(kernels):
        makes = [late[tensor] for tensor in kernel.makes if tensor in late]
        late.update((tensor, makes[0]) for tensor in kernel.makes if makes and tensor not in late)
        for index, tensor in enumerate(kernel.reads) if makes else ():
            need = _operand_end(kernel, index, tensors, np.maximum.reduce(makes))
            late[tensor] = np.maximum(late[tensor], need) if tensor in late else need
    done = {
        tensor: np.clip(np.maximum.accumulate(late[tensor]), first, last) for tensor, (first, last) in needed.items()
    }
    count = 1 + max(int(np.argmax(end >= needed[tensor][1])) for tensor, end in done.items())
    return {tensor: _parts(needed[tensor][0], end[:count]) for tensor, end in done.items()}


def read_whole(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor]) -> set[int]:
    """Return the operands of which a kernel reads all rows for each row of its results, or which have one row."""
    return {
        tensor
        for kernel in kernels
        for index, tensor in enumerate(kernel.reads)
        if _link(kernel, index, tensors) is None or tensors[tensor].rows == 1
    }


def coming_in(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor]) -> set[int]:
    """Return the operands from outside of a region that come in strip by strip: none that is read whole.

    An operand from which a tensor that is read whole is made, such as the means of a gate, sets the pace only where no other does.
    """
    whole = read_whole(kernels, tensors)
    given = {tensor for kernel in kernels for tensor in kernel.reads}
    before = set(whole)
    for kernel in reversed(kernels):
        given.difference_update(kernel.makes)
        if not before.isdisjoint(kernel.makes) and not tensors[kernel.makes[0]].folds:
            before.update(kernel.reads)
    return given - before or given - whole


def _parts(first: int, ends: RowEnds) -> PatchRanges:
    stops = np.concatenate(([first], ends.astype(np.int64)))
    parts = PatchRanges(stops[:-1], stops[1:])
    return parts.where(parts.some)


def _link(kernel: FitKernel, index: int, tensors: Sequence[FitTensor]) -> AxisLink | None:
    link = kernel.axis_link(index)
    return None if link is None or link.axis != tensors[kernel.reads[index]].axis else link


def _result_end(kernel: FitKernel, index: int, tensors: Sequence[FitTensor], available: RowEnds) -> RowEnds:
    """Return the number of result rows that an operand of `available` rows allows, in each strip."""
    link = _link(kernel, index, tensors)
    if link is None:
        # Read whole: before its last row nothing can be computed, from then on all.
        return np.where(available >= tensors[kernel.reads[index]].rows, inf, -inf)
    if link.sources is not None:
        return link.sources.results(available)
    if link.window is None:
        return available * link.factor
    slide = link.window
    if slide.transposed:
        return available * slide.stride - slide.before
    return np.floor((available + slide.before - slide.reach) / slide.stride) + 1


def _operand_end(kernel: FitKernel, index: int, tensors: Sequence[FitTensor], end: RowEnds) -> RowEnds:
    """Return the number of operand rows that results up to `end` need, in each strip."""
    link, size = _link(kernel, index, tensors), tensors[kernel.reads[index]].rows
    if link is None:
        return np.where(end > 0, float(size), -inf)
    if link.sources is not None:
        return link.sources.operands(end)
    if link.window is None:
        return np.ceil(end / link.factor)
    slide = link.window
    if slide.transposed:
        return np.floor((end - 1 + slide.before) / slide.stride) + 1
    return (end - 1) * slide.stride - slide.before + slide.reach


def rows_read(kernel: FitKernel, index: int, tensor: FitTensor, news: PatchRanges) -> PatchRanges:
    """Return the rows of an operand that the results `news` of a kernel read in each strip. Raises PaddingOnly."""
    link = kernel.axis_link(index)
    if link is None or link.axis != tensor.axis:
        zeros = np.zeros(len(news), np.int64)
        return PatchRanges(zeros, zeros + tensor.rows).where(news.some)
    if link == AxisLink(link.axis):
        return news
    rows = _gathered(link, news)
    if bool(np.any((rows.starts >= rows.stops) & news.some)):
        raise PaddingOnly
    return rows.where(news.some)


def _gathered(link: AxisLink, news: PatchRanges) -> PatchRanges:
    slide = link.window
    if slide is None and link.sources is None:
        return PatchRanges(news.starts // link.factor, -(-news.stops // link.factor))
    if slide is None or slide.transposed or not isinstance(slide.size, int):
        windows = [(0, 0) if new is None else _window(link, new) for new in news]
        return PatchRanges(*np.array(windows, np.int64).reshape(-1, 2).T)
    starts = news.starts * slide.stride - slide.before
    stops = (news.stops - 1) * slide.stride - slide.before + slide.reach
    return PatchRanges(np.maximum(starts, 0), np.minimum(stops, slide.size))


def _window(link: AxisLink, new: PatchRange) -> PatchRange:
    rows = link.reads(*new)
    return rows.start, rows.stop


def shares(size: int, count: int) -> list[PatchRange | None]:
    """Return `size` rows in `count` strips whose lengths differ by one at most; None for an empty strip."""
    ends = [size * strip // count for strip in range(count + 1)]
    return [(start, end) if start < end else None for start, end in pairwise(ends)]


# A run of kernels cut into strips: the rows that each kernel computes, and the multiply-accumulates.

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
        whole = {t: PatchRanges.from_ranges([(0, self.tensors[t].rows)]) for t in self.results}
        least = spans(self.kernels, self.tensors, whole, keeps=False)
        return {
            result: span.windows[0]
            for kernel, span in zip(self.kernels, least, strict=True)
            for result in kernel.makes
            if span.windows[0] is not None
        }

    @cached_property
    def _streamed(self) -> set[int]:
        """The rows of inputs that come row by row, each of which is read once."""
        readers = (kernel for kernel in self.kernels if any(self.tensors[read].is_streamed for read in kernel.reads))
        return {result for kernel in readers for result in kernel.makes}

    def _cut_rows(self, cut: Cut) -> list[StripRanges]:
        folded = {result for kernel in self.kernels for result in kernel.makes if self.tensors[result].folds}
        eager = {*self.results, *cut.eager, *folded}
        pace = paced(self.kernels, self.tensors, eager, self._needed, cut.step, dict(cut.grains))
        once = folded | self._streamed
        again = cut.recomputed - once
        kept = {tensor: ranges for tensor, ranges in pace.items() if tensor in self.results or tensor not in again}
        return spans(self.kernels, self.tensors, kept, keeps=True)


def macs_of(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], ranges: Sequence[StripRanges]) -> int:
    """Return the multiply-accumulates of all strips."""
    total = 0
    for kernel, rows in zip(kernels, ranges, strict=True):
        result = tensors[kernel.makes[0]]
        if kernel.macs:
            total += kernel.macs * int(rows.news.lengths.sum()) // result.rows
        total += _weighted_macs(kernel, result, rows)
    return total


def _weighted_macs(kernel: FitKernel, result: FitTensor, rows: StripRanges) -> int:
    """Return the multiply-accumulates of pieces whose rows are weighted sums: each piece is a matrix product with the rows it reads."""
    index = next((index for index, link in enumerate(kernel.links or ()) if link is not None and link.sums), None)
    if index is None:
        return 0
    lengths, extent = rows.news.lengths, result.rows
    products = int((lengths * rows.needs[index].lengths)[lengths < extent].sum())
    return products * (prod(result.dims) // extent)


def row_pieces(ends: Sequence[int]) -> list[PatchRange]:
    """Return the rows of consecutive pieces, from their ends."""
    return list(pairwise((0, *ends)))


def overlapped(pieces: Sequence[PatchRange], rows: PatchRange | None) -> range:
    """Return the numbers of the pieces that hold some of the rows."""
    if rows is None:
        return range(0)
    first = bisect_right(pieces, rows[0], key=lambda piece: piece[1])
    return range(first, bisect_left(pieces, rows[1], key=lambda piece: piece[0]))


# Regions that follow each other, and what they cost.

WHOLE = Cut()


@dataclass(frozen=True)
class Prices:
    """The price of a piece of work: of all multiply-accumulates of the model once more, of one call, and of one copied byte."""

    macs: float = 1.0
    node: float = 2e-5
    copied: float = 1e-10

    def price_of(self, region: RegionCost, network: Network) -> float:
        """Return the price of a region beyond that of its kernels."""
        kernels = network.kernels[region.start : region.stop]
        extra = max(region.macs - sum(kernel.macs for kernel in kernels), 0) / max(network.macs, 1)
        return self.macs * extra + self.node * (region.calls - len(kernels)) + self.copied * region.copied


USUAL_PRICES = Prices()
"""Prices where no target says others."""


@dataclass(frozen=True)
class RegionCost:
    """The costs of a region that is cut in one way. `peak` counts all live bytes, also of tensors that pass by.

    It has so many `nodes`, which run as `calls` kernels.
    """

    start: int
    stop: int
    cut: Cut
    peak: int
    macs: int
    nodes: int
    copied: int
    calls: int
    loads: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The largest sum of live bytes while each kernel runs; that of all its chunks."""
    rest: int = field(default=0, compare=False, repr=False)
    """The largest sum of live bytes between two strips."""

    @property
    def is_whole(self) -> bool:
        """Whether the kernels stay as they are."""
        return self.cut == WHOLE


@dataclass(frozen=True)
class FitSchedule:
    """Regions that follow each other from the first kernel to the last."""

    regions: tuple[RegionCost, ...]

    @property
    def peak(self) -> int:
        """The largest sum of live bytes."""
        return max((region.peak for region in self.regions), default=0)

    @property
    def macs(self) -> int:
        """The multiply-accumulates."""
        return sum(region.macs for region in self.regions)

    @property
    def nodes(self) -> int:
        """The nodes of all regions."""
        return sum(region.nodes for region in self.regions)

    @property
    def copied(self) -> int:
        """The bytes that cutting copies."""
        return sum(region.copied for region in self.regions)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut."""
        return all(region.is_whole for region in self.regions)


# The kernels of a region of which some are cut into chunks of channels, and the rows of their parts.


@dataclass(frozen=True)
class ChunkedKernels:
    """Kernels of which some are cut into chunks of channels.

    `tensors` are those of the network, and parts of these after them. `bases` has,
    for each kernel, the number of the kernel that it is a part of, and `weights` the number of chunks that it stands for. `sums` are the
    kernels that add up or join parts of results, `partial` are these parts and their sums.
    """

    kernels: list[FitKernel]
    tensors: list[FitTensor]
    bases: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    sums: set[int] = field(default_factory=set)
    partial: set[int] = field(default_factory=set)

    @staticmethod
    def whole(kernels: Sequence[FitKernel], tensors: list[FitTensor]) -> ChunkedKernels:
        """Return kernels of which none is cut into chunks; `tensors` are not copied, since no part is added to them."""
        return ChunkedKernels(list(kernels), tensors, bases=list(range(len(kernels))), weights=[1] * len(kernels))

    def add(self, kernel: FitKernel, base: int, weight: int = 1) -> None:
        """Append a kernel."""
        self.kernels.append(kernel)
        self.bases.append(base)
        self.weights.append(weight)

    def extend(self, parts: ChunkedKernels, start: int) -> None:
        """Append kernels whose bases are places in the network, to a region that begins at the place `start`."""
        self.sums.update(len(self.kernels) + number for number in parts.sums)
        self.partial.update(parts.partial)
        self.kernels.extend(parts.kernels)
        self.bases.extend(base - start for base in parts.bases)
        self.weights.extend(parts.weights)

    def add_tensor(self, about: FitTensor) -> int:
        """Append a part of a tensor, and return its number."""
        self.tensors.append(about)
        return len(self.tensors) - 1

    def ranges(self, whole: list[StripRanges]) -> list[StripRanges]:
        """Return the ranges of these kernels, from those of the whole kernels."""
        if not self.partial:
            return whole
        return [
            self._range(number, kernel, whole[base])
            for number, (kernel, base) in enumerate(zip(self.kernels, self.bases, strict=True))
        ]

    def _range(self, number: int, kernel: FitKernel, span: StripRanges) -> StripRanges:
        is_partial, is_sum = kernel.makes[0] in self.partial, number in self.sums
        if not (is_partial or is_sum):
            return span
        needs = [span.news] * len(kernel.reads) if is_sum else span.needs
        return StripRanges(span.news if is_partial else span.windows, span.news, needs)


# The time that a network takes by the figures of a target: multiply-accumulates, bytes that are moved, and calls.


_TYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}
"""The names of the types of operands, by the bytes of an element."""


@dataclass(frozen=True)
class TargetSpeeds:
    """What a target called `name` does in a second: multiply-accumulates of each type, bytes that are copied, and calls of kernels.

    A type without a number has the lowest of the others.
    """

    name: str
    macs: Mapping[str, int]
    copied: int
    calls: int

    def seconds(self, network: Network) -> float:
        """Return the seconds that a network takes as it is.

        A kernel without products reads its operands and writes its results as fast as bytes are copied; a view takes no time.
        """
        return sum(self._of(kernel, network) for kernel in network.kernels)

    def _of(self, kernel: FitKernel, network: Network) -> float:
        tensors = [network.tensors[number] for number in (*kernel.reads, *kernel.makes)]
        if kernel.is_view:
            return 0.0
        if not kernel.macs:
            moved = sum(about.row_bytes * (1 if about.folds else about.rows) for about in tensors)
            return moved / self.copied + 1 / self.calls
        return kernel.macs / self._rate(kernel, network) + 1 / self.calls

    def _rate(self, kernel: FitKernel, network: Network) -> int:
        """Return the multiply-accumulates in a second of a kernel; one of a quantised island works on the integers that it reads."""
        item = max((network.tensors[number].item for number in kernel.reads), default=4)
        return self.macs.get(_TYPES.get(item, ""), min(self.macs.values()))

    def prices(self, network: Network) -> Prices:
        """Return the prices of further work as shares of the time of the network as it is."""
        whole = self.seconds(network) or 1.0
        products = sum(kernel.macs / self._rate(kernel, network) for kernel in network.kernels if kernel.macs)
        return Prices(products / whole, 1 / self.calls / whole, 1 / self.copied / whole)
