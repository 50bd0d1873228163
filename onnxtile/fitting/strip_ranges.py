"""The rows of each tensor that each strip of a region reads, computes and keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import numpy as np
import numpy.typing as npt

from onnxtile.fitting.axis_maps import AxisLink
from onnxtile.fitting.network import ROWS, FitKernel, FitTensor

PatchRange = tuple[int, int]
RowEnds = npt.NDArray[np.float64]


class PaddingOnly(Exception):
    """The cut would give an operator padding only."""


@dataclass(frozen=True)
class StripRanges:
    """For each strip the rows of a result that are at hand (`windows`) and those that are computed in it (`news`); None for no row.

    `needs` has the rows of each operand that the computed rows read.
    """

    windows: list[PatchRange | None]
    news: list[PatchRange | None]
    needs: list[list[PatchRange | None]] = field(default_factory=list)


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
            need = reads(kernel, place, tensors[tensor], span.news, direction)
            span.needs.append(need)
            demands.setdefault(tensor, []).append(need)
    return found[::-1]


def uncut(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], direction: int) -> list[StripRanges]:
    """Return the ranges of kernels that run once, on all rows or columns of their operands."""
    found = []
    for kernel in kernels:
        whole = (0, max(tensors[made].extent(direction) for made in kernel.makes))
        found.append(
            StripRanges([whole], [whole], [[(0, tensors[tensor].extent(direction))] for tensor in kernel.reads])
        )
    return found


def paced(
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    eager: Collection[int],
    needed: dict[int, PatchRange],
    step: int,
) -> dict[int, list[PatchRange | None]]:
    """Return the rows of each tensor that are computed in each strip, when strips of `step` rows of the largest operand come in.

    `needed` has the rows of each made tensor that are read or wanted at all. Tensors of `eager` go as far as the operands allow, and each
    other tensor as far as its readers then need. Ends are counted before the first row and behind the last row as within the tensors, so
    that the first and the last strips are no longer than the others.
    """
    given = {tensor for kernel in kernels for tensor in kernel.reads if tensor not in needed}
    at_hand = read_whole(kernels, tensors)
    largest = max((tensors[tensor].extent(ROWS) for tensor in given - at_hand), default=1)
    # After so many strips every kernel has run, whatever it reads.
    strips = 4 * largest // step + 1
    counts = np.arange(1, strips + 1, dtype=np.float64)
    ends = {tensor: counts * step * tensors[tensor].extent(ROWS) / largest for tensor in given}
    # An operand that is read whole does not come in strip by strip: all of it is there from the start.
    ends.update((tensor, np.full(strips, inf)) for tensor in given & at_hand)
    for kernel in kernels:
        end = np.full(strips, inf if kernel.reads else 0.0)
        for place, tensor in enumerate(kernel.reads):
            end = np.minimum(end, _result_end(kernel, place, tensors, ends[tensor]))
        ends.update((tensor, end) for tensor in kernel.makes)
    late = {tensor: ends[tensor] for tensor in eager if tensor in needed}
    for tensor, end in late.items():
        end[-1] = max(end[-1], needed[tensor][1])
    for kernel in reversed(kernels):
        makes = [late[tensor] for tensor in kernel.makes if tensor in late]
        late.update((tensor, makes[0]) for tensor in kernel.makes if makes and tensor not in late)
        for place, tensor in enumerate(kernel.reads) if makes else ():
            need = _operand_end(kernel, place, tensors, np.maximum.reduce(makes))
            late[tensor] = np.maximum(late[tensor], need) if tensor in late else need
    done = {
        tensor: np.clip(np.maximum.accumulate(late[tensor]), first, last) for tensor, (first, last) in needed.items()
    }
    count = 1 + max(int(np.argmax(end >= needed[tensor][1])) for tensor, end in done.items())
    return {tensor: _parts(needed[tensor][0], end[:count].tolist()) for tensor, end in done.items()}


def read_whole(kernels: Sequence[FitKernel], tensors: Sequence[FitTensor]) -> set[int]:
    """Return the operands of which a kernel reads all rows for each row of its results, or which have one row."""
    return {
        tensor
        for kernel in kernels
        for place, tensor in enumerate(kernel.reads)
        if _link(kernel, place, tensors) is None or tensors[tensor].extent(ROWS) == 1
    }


def _parts(first: int, ends: Sequence[float]) -> list[PatchRange | None]:
    stops = [int(end) for end in ends]
    return [(start, stop) if stop > start else None for start, stop in pairwise([first, *stops])]


def _link(kernel: FitKernel, place: int, tensors: Sequence[FitTensor]) -> AxisLink | None:
    links = kernel.links[ROWS]
    link = None if links is None else links[place]
    return None if link is None or link.axis != tensors[kernel.reads[place]].axes[ROWS] else link


def _result_end(kernel: FitKernel, place: int, tensors: Sequence[FitTensor], available: RowEnds) -> RowEnds:
    """Return the number of result rows that an operand of `available` rows allows, in each strip."""
    link = _link(kernel, place, tensors)
    if link is None:
        # Read whole: before its last row nothing can be computed, from then on all.
        return np.where(available >= tensors[kernel.reads[place]].extent(ROWS), inf, -inf)
    if link.window is None:
        return available * link.factor
    slide = link.window
    if slide.transposed:
        return available * slide.stride - slide.before
    return np.floor((available + slide.before - slide.reach) / slide.stride) + 1


def _operand_end(kernel: FitKernel, place: int, tensors: Sequence[FitTensor], end: RowEnds) -> RowEnds:
    """Return the number of operand rows that results up to `end` need, in each strip."""
    link, size = _link(kernel, place, tensors), tensors[kernel.reads[place]].extent(ROWS)
    if link is None:
        return np.where(end > 0, float(size), -inf)
    if link.window is None:
        return np.ceil(end / link.factor)
    slide = link.window
    if slide.transposed:
        return np.floor((end - 1 + slide.before) / slide.stride) + 1
    return (end - 1) * slide.stride - slide.before + slide.reach


def reads(
    kernel: FitKernel, place: int, tensor: FitTensor, news: Sequence[PatchRange | None], direction: int
) -> list[PatchRange | None]:
    """Return the rows or columns of an operand that the results `news` of a kernel read in each strip. Raises PaddingOnly."""
    links = kernel.links[direction]
    link = None if links is None else links[place]
    if link is None or link.axis != tensor.axes[direction]:
        whole = 0, tensor.extent(direction)
        return [None if new is None else whole for new in news]
    if link.window is None and link.factor == 1:
        return list(news)
    # Neighbouring columns and equal strips ask the same again and again.
    known: dict[PatchRange, PatchRange] = {}
    for new in news:
        if new is not None and new not in known:
            window = link.reads(*new)
            if window.stop <= window.start:
                raise PaddingOnly
            known[new] = window.start, window.stop
    return [None if new is None else known[new] for new in news]


def shares(size: int, count: int) -> list[PatchRange | None]:
    """Return `size` rows in `count` strips whose lengths differ by one at most; None for an empty strip."""
    ends = [size * strip // count for strip in range(count + 1)]
    return [(start, end) if start < end else None for start, end in pairwise(ends)]
