"""The cheapest way to run a network within a number of bytes: a shortest path over the places between kernels.

An edge runs one kernel whole, or a run of kernels cut into strips. Whole tensors are handed from edge to edge, so that the bytes of an edge
depend on the edge alone. Where nothing fits so, regions may hand over pieces: see `pieces_search`.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import ceil, inf, log2
from time import monotonic
from typing import TypeAlias

from onnxtile.fitting.floor import floor_of
from onnxtile.fitting.live_bytes import ALIGNMENT, Overload
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.strips import (
    USUAL_PRICES,
    WHOLE,
    Cut,
    FitSchedule,
    PiecesOfTensors,
    Prices,
    RegionCost,
    read_whole,
    row_pieces,
)
from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.system.dataclass import dataclass
from onnxtile.system.long_work import Progress, silent

# The ways to cut one region that fit a number of bytes: strips, rows computed again, and chunks of hidden channels.
#
# Chunks of one group change the bytes of no other kernel. So the chunks of each group follow from the bytes while its own kernels run.

_PARTS = (2, 3, 4, 6, 7, 8, 14, 16, 28, 32, 56, 112)
"""The numbers of strips that are tried."""
_DEEP = 16
"""With at least this many rows of the operands for one row of the results, tensors inside may set the pace, too."""
_LITTLE = 0.002
"""More rows at a time are tried where rows that are computed again cost at least this share of all multiply-accumulates."""
_FINER = 2
"""Strips that are tried then, the longest first."""
_FEW = 4
"""Tensors of which one is chosen to be computed again, at most."""
_FAR = 1.1
"""Above this multiple of the capacity, rows of one tensor after the other are not tried to be computed again."""
_GAPS = 8
"""Gaps after short strips count from this part of the capacity on."""
_ROUNDS = 8
"""Times that chunks are added in one region, at most."""


@dataclass(frozen=True)
class ChunkLoad:
    """The bytes that live while kernels of a group run, in chunks of at most `channels` channels, in so many `strips` (0: in all)."""

    channels: int
    load: int
    strips: int = 0

    def beyond(self, wider: ChunkLoad) -> int:
        """Return the bytes that live with chunks of any number of channels, by those with `wider` chunks.

        The bytes are the most of several sums of a constant and a part for each channel: so none is below the line through two of them.
        """
        return (self.load * wider.channels - wider.load * self.channels) // (wider.channels - self.channels)


class RegionCuts:
    """Finds the ways to cut regions within `capacity` bytes; `recomputes` says that rows may be computed again.

    `depth` is the multiple of their work that searches with these ways may take, `budget` the end of their time.
    """

    def __init__(
        self,
        regions: Regions,
        capacity: int,
        *,
        recomputes: bool,
        depth: int = 1,
        budget: SearchBudget | None = None,
    ) -> None:
        self.regions, self.capacity, self.recomputes, self.depth = regions, capacity, recomputes, depth
        self.budget = budget
        self.refines_all = False
        """Whether each region is refined that computes rows again, not only those of the cheapest schedule."""
        self.share = sys.maxsize
        """The kernels that one search with these ways counts, at most."""
        self.most = sys.maxsize
        """No better way to cut a region is looked for once this many kernels are counted."""
        self._found: dict[tuple[int, int, Cut], list[RegionCost]] = {}
        self._refined: set[tuple[int, int, Cut]] = set()

    @property
    def bound(self) -> int:
        """The kernels that all searches with these ways count, at most."""
        return max(self.depth * all_effort(len(self.regions.network.kernels)), self.regions.counted)

    @property
    def is_spent(self) -> bool:
        """Whether the effort is used up; the regions then note that a search was cut short."""
        is_late = self.budget is not None and self.budget.is_late
        spent = is_late or self.regions.counted >= min(self.most, self.regions.limit)
        self.regions.is_cut_short |= spent
        return spent

    def costs_of(self, start: int, stop: int, handed: Cut = WHOLE) -> list[RegionCost]:
        """Return the ways to cut a region, none of which costs more than another in each respect.

        `handed` says which tensors are handed over in pieces, to the region and by it.
        """
        key = start, stop, handed
        if key not in self._found:
            ways = list(self._ways(start, stop, handed))
            # Finer pieces may be dearer, but let the next region fit.
            self._found[key] = list(dict.fromkeys(ways)) if handed.parted else _front(ways)
        if self.refines_all:
            for way in self._found[key]:
                self._refine(way)
        return self._found[key]

    def _ways(self, start: int, stop: int, handed: Cut) -> Iterator[RegionCost]:
        regions = self.regions
        rows, tensors, results = regions.rows(start, stop), regions.network.tensors, regions.results(start, stop)
        whole = self._fitted(start, stop, handed) if self._may_fit_in_chunks(start, stop, handed) else None
        if whole is not None:
            yield whole
        coarse = max((tensors[tensor].rows for tensor in results), default=1)
        eager = regions.eager(start, stop) if coarse * _DEEP <= rows else frozenset[int]()
        for way in dict.fromkeys([frozenset[int](), eager]):
            steps, cut = self._steps(start, stop, way), replace(handed, eager=way)
            fits = list(self._longest(start, stop, steps, cut))
            if self.recomputes and whole is None:
                fits += self._again(start, stop, steps, cut)
            yield from fits
            if fits:
                return

    def _steps(self, start: int, stop: int, eager: Collection[int]) -> list[int]:
        """Return the lengths of strips that are tried, where tensors of `eager` may set the pace."""
        rows, tensors = self.regions.rows(start, stop), self.regions.network.tensors
        paced = (tensors[tensor].rows for tensor in (*eager, *self.regions.results(start, stop)))
        # Shorter strips than one row of the tensor that sets the pace change nothing.
        finest = min(rows, max(paced, default=1))
        return sorted({-(-rows // parts) for parts in _PARTS if parts < finest} | {rows // finest} - {rows})

    def _may_fit_in_chunks(self, start: int, stop: int, handed: Cut) -> bool:
        """Return whether chunks of channels alone may let a region fit: kernels whose channels are not cut must fit as they are."""
        regions = self.regions
        if not regions.within(start, stop):
            return False
        return bool(handed.given) or all(
            regions.whole[start + number].peak <= self.capacity for number in regions.fixed(start, stop)
        )

    def _again(self, start: int, stop: int, steps: Sequence[int], cut: Cut) -> list[RegionCost]:
        """Return ways to cut a region in which rows are computed again."""
        recomputed = self.regions.wide(start, stop)
        if not recomputed:
            return []
        ways = list(self._longest(start, stop, steps, replace(cut, recomputed=recomputed)))
        if not ways:
            region = (
                self._more_recomputed(start, stop, replace(cut, step=steps[0])) if steps and not self.is_spent else None
            )
            return [] if region is None else [region]
        return [*ways, self._most_kept(ways[-1])]

    def refined(self, cheapest: Callable[[], FitSchedule | None]) -> FitSchedule | None:
        """Return the `cheapest` schedule, of which each region that computes rows again was refined."""
        while (schedule := cheapest()) is not None:
            self.most = self.regions.counted + max(self.bound - self.regions.counted, 0) // _PART
            if not any([self._refine(region) for region in schedule.regions]):
                return schedule
        return None

    def _refine(self, region: RegionCost) -> bool:
        """Look for better ways to cut a region of which rows are computed again; return whether some were found. It is done once."""
        key = region.start, region.stop, replace(WHOLE, given=region.cut.given, parted=region.cut.parted)
        if not region.cut.recomputed or key in self._refined or self.is_spent:
            return False
        self._refined.add(key)
        least = sum(kernel.macs for kernel in self.regions.network.kernels[region.start : region.stop])
        ways = [self._fewer_recomputed(region)]
        if ways[-1].macs - least >= _LITTLE * self.regions.network.macs:
            ways += self._finer(region)
        known = self._found[key]
        better = list(dict.fromkeys([*known, *ways]))
        self._found[key] = better if region.cut.parted else _front(better)
        return self._found[key] != known

    def _finer(self, region: RegionCost) -> Iterator[RegionCost]:
        """Yield ways with shorter strips, in which more rows of some tensors are computed at a time."""
        start, stop = region.start, region.stop
        steps = [step for step in self._steps(start, stop, region.cut.eager) if step <= region.cut.step][-_FINER:]
        checkpoints, recomputed = self.regions.checkpoints(start, stop), self.regions.wide(start, stop)
        plain = replace(region.cut, chunks=(), grains=(), eager=checkpoints, recomputed=recomputed)
        for step in reversed(steps):
            seed = self._fitted(start, stop, replace(plain, step=step))
            if seed is not None:
                coarse, kept = self._coarser(seed), self._fewer_recomputed(seed)
                yield from (coarse, self._fewer_recomputed(coarse), kept, self._coarser(kept))

    def _longest(self, start: int, stop: int, steps: Sequence[int], cut: Cut) -> Iterator[RegionCost]:
        """Yield cuts that fit, the one with the longest strips last, by bisection: longer strips take more bytes, as a rule."""
        without_gaps = self._step_without_gaps(start, stop)
        short = [step for step in steps[:-1] if step < without_gaps]
        tried = (self._fitted(start, stop, replace(cut, step=step)) for step in steps[: len(short) + 1])
        shortest = next((region for region in tried if region is not None), None)
        if shortest is None:
            return
        yield shortest
        low, high = steps.index(shortest.cut.step) + 1, len(steps)
        while low < high:
            middle = (low + high) // 2
            # Longer strips take no fewer chunks.
            region = self._fitted(start, stop, replace(cut, step=steps[middle], chunks=shortest.cut.chunks))
            if region is None:
                high = middle
                continue
            low = middle + 1
            yield region

    def _step_without_gaps(self, start: int, stop: int) -> int:
        """Return the least rows of strips that are as long as the alignment of buffers, of the results whose gaps take many bytes."""
        results = (self.regions.network.tensors[tensor] for tensor in self.regions.results(start, stop))
        sizes = (about.size for about in results if about.rows * ALIGNMENT * _GAPS > self.capacity)
        return ceil(ALIGNMENT * self.regions.rows(start, stop) / max(min(sizes, default=1 << 40), 1))

    def _fitted(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        """Return the region with as many chunks of hidden channels as it takes to fit; None where that is not enough."""
        region = self._chunked(start, stop, cut, self.capacity)
        return region if isinstance(region, RegionCost) and region.peak <= self.capacity else None

    def _chunked(self, start: int, stop: int, cut: Cut, counted_to: int) -> RegionCost | Overload | None:
        """Return the region with more chunks of hidden channels until it fits, or more cannot help; None where it cannot be cut so.

        Strips are counted up to the first one that takes more bytes than `counted_to`.
        """
        region = self.regions.cost_within(start, stop, cut, counted_to)
        groups = self.regions.disjoint(start, stop)
        owners = {index: first for first, group in groups.items() for index in group.places}
        counts, before = dict(cut.chunks), dict[int, ChunkLoad]()
        for _ in range(_ROUNDS):
            if region is None or region.peak <= self.capacity:
                return region
            counts = self._more_chunks(region, start, counts, owners, before)
            if not counts:
                return region
            region = self.regions.cost_within(
                start, stop, replace(cut, chunks=tuple(sorted(counts.items()))), counted_to
            )
        return region

    def _more_chunks(
        self,
        region: RegionCost | Overload,
        start: int,
        counts: Mapping[int, int],
        owners: Mapping[int, int],
        before: dict[int, ChunkLoad],
    ) -> dict[int, int]:
        """Return the chunks of each group, with more of those whose kernels do not fit; none where that cannot help.

        `before` has the bytes that each group took with fewer chunks; it is brought up to date.
        """
        over: dict[int, int] = {}
        for index, load in enumerate(region.loads, start=start):
            if load > self.capacity:
                if index not in owners:
                    return {}
                over[owners[index]] = max(over.get(owners[index], 0), load)
        if region.rest >= self.capacity or not over:
            return {}
        more, strips = dict(counts), region.strips if isinstance(region, Overload) else 0
        for first, load in over.items():
            group, count = self.regions.groups[first], counts.get(first, 1)
            now = ChunkLoad(ceil(group.channels / count), load, strips)
            if count > 1 and self._is_hopeless(first, now, before):
                return {}
            wanted = ceil(count * (load - region.rest) / (self.capacity - region.rest))
            larger = group.after(count)
            while larger is not None and larger < wanted:
                larger = group.after(larger)
            if larger is None:
                return {}
            more[first] = larger
        return more

    def _is_hopeless(self, first: int, now: ChunkLoad, before: dict[int, ChunkLoad]) -> bool:
        """Return whether no number of chunks makes a group fit; from two chunks on, since one chunk needs no sum."""
        wider, before[first] = before.get(first), now
        is_known = wider is not None and wider.channels > now.channels and wider.strips == now.strips
        return is_known and wider is not None and now.beyond(wider) > self.capacity

    def _more_recomputed(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        """Return the region with rows of one tensor after the other computed again, until it fits; None where that is not enough."""
        region = self._chunked(start, stop, cut, int(_FAR * self.capacity))
        for _ in range(_ROUNDS):
            if not isinstance(region, RegionCost) or region.peak > _FAR * self.capacity:
                return None
            if region.peak <= self.capacity:
                return region
            region = None if self.is_spent else self._one_more_recomputed(region)
        return None

    def _one_more_recomputed(self, region: RegionCost) -> RegionCost | None:
        """Return the region in which rows of one more tensor are computed again, for the fewest multiply-accumulates for each byte."""
        regions, start, stop = self.regions, region.start, region.stop
        rows = regions.kept_rows(start, stop)
        some: list[tuple[float, int, Cut]] = []
        for tensor in sorted(regions.windowed(start, stop) - region.cut.recomputed):
            cut = replace(region.cut, recomputed=region.cut.recomputed | regions.from_narrower(start, tensor))
            macs = regions.macs(start, stop, cut)
            if macs is not None:
                price = (macs - region.macs) / max(rows[tensor] * regions.row_bytes(tensor), 1)
                some.append((price, tensor, cut))
        best: tuple[float, RegionCost] | None = None
        for _, _, cut in sorted(some, key=lambda each: each[:2])[:_FEW]:
            smaller = self._chunked(start, stop, cut, region.peak - 1)
            if isinstance(smaller, RegionCost) and smaller.peak < region.peak:
                price = (smaller.macs - region.macs) / min(region.peak - smaller.peak, region.peak - self.capacity)
                best = (price, smaller) if best is None or price < best[0] else best
        return None if best is None else best[1]

    def _fewer_recomputed(self, region: RegionCost) -> RegionCost:
        """Return the region with rows of fewer tensors computed again, those first that cost most multiply-accumulates for their bytes."""
        for tensor in self._dearest(region):
            kept = None if self.is_spent else self._kept(region, [tensor])
            region = region if kept is None else kept
        return region

    def _most_kept(self, region: RegionCost) -> RegionCost:
        """Return the region with as many of the tensors kept that cost most multiply-accumulates for their bytes as fit, by bisection."""
        tensors, whole = self._dearest(region), region
        low, high = 0, len(tensors)
        while low < high and not self.is_spent:
            middle = (low + high + 1) // 2
            kept = self._kept(whole, tensors[:middle])
            low, high, region = (low, middle - 1, region) if kept is None else (middle, high, kept)
        return region

    def _dearest(self, region: RegionCost) -> list[int]:
        """Return the tensors of which rows are computed again, those first that cost most multiply-accumulates for the bytes of a row."""
        regions, kernels = self.regions, self.regions.network.kernels

        def price(tensor: int) -> float:
            makers = {regions.makers[wide] for wide in regions.from_narrower(region.start, tensor)}
            macs = sum(kernels[maker].macs / regions.network.tensors[kernels[maker].makes[0]].rows for maker in makers)
            return macs / max(regions.row_bytes(tensor), 1)

        tensors = region.cut.recomputed & regions.windowed(region.start, region.stop)
        return sorted(tensors, key=lambda tensor: (-price(tensor), tensor))

    def _kept(self, region: RegionCost, tensors: Collection[int]) -> RegionCost | None:
        """Return the region with rows of `tensors` kept, for fewer multiply-accumulates; None where that does not fit."""
        regions, rows = self.regions, self.regions.kept_rows(region.start, region.stop)
        more = sum(regions.size_of_rows(tensor, rows[tensor]) for tensor in tensors)
        first = max(regions.network.last_reads[tensor] for tensor in tensors) + 1
        if not self._has_room(region, first, more):
            return None
        narrower = frozenset[int]().union(*(regions.from_narrower(region.start, tensor) for tensor in tensors))
        kept = self._fitted(region.start, region.stop, replace(region.cut, recomputed=region.cut.recomputed - narrower))
        return kept if kept is not None and kept.macs < region.macs else None

    def _has_room(self, region: RegionCost, first: int, more: int) -> bool:
        """Return whether `more` bytes may live between two strips, and beside each kernel from `first` on that is in no more chunks."""
        chunks, groups = dict(region.cut.chunks), self.regions.disjoint(region.start, region.stop)
        cut = {
            index
            for at, group in groups.items()
            if group.after(chunks.get(at, 1)) is not None
            for index in group.places
        }
        loads = (load for at, load in enumerate(region.loads[first - region.start :], start=first) if at not in cut)
        return max(region.rest, *loads, 0) + more <= self.capacity

    def _coarser(self, region: RegionCost) -> RegionCost:
        """Return the region with more rows at a time of tensors whose operands are computed again, as long as that fits."""
        # More rows of one tensor that do not fit seldom fit beside more rows of another.
        too_many = set[tuple[int, int]]()
        grown = True
        while grown and not self.is_spent:
            grown = False
            for grain, cut in self._grains(region, too_many):
                coarser = self._fitted(region.start, region.stop, cut)
                if coarser is not None:
                    region, grown = coarser, True
                    break
                too_many.add(grain)
        return region

    def _grains(self, region: RegionCost, too_many: Collection[tuple[int, int]]) -> list[tuple[tuple[int, int], Cut]]:
        """Return the cuts with more rows at a time of one tensor, each with both, those with the fewest multiply-accumulates first.

        Rows of tensors that are `too_many` are left out.
        """
        regions, before = self.regions, dict(region.cut.grains)
        cuts: list[tuple[int, int, int, Cut]] = []
        rows = regions.rows(region.start, region.stop)
        for tensor in sorted({*region.cut.eager, *regions.results(region.start, region.stop)}):
            size = regions.network.tensors[tensor].rows
            least = max(before.get(tensor, 1), region.cut.step * size // rows)
            grain = next((n for n in range(least + 1, size // 2 + 1) if size % n == 0 and 2 * n >= 3 * least), None)
            if grain is not None and (tensor, grain) not in too_many:
                cut = replace(region.cut, grains=tuple(sorted({**before, tensor: grain}.items())))
                macs = regions.macs(region.start, region.stop, cut)
                if macs is not None and macs < region.macs:
                    cuts.append((macs, tensor, grain, cut))
        return [((tensor, grain), cut) for _, tensor, grain, cut in sorted(cuts, key=lambda each: each[:2])]


def _front(ways: Sequence[RegionCost]) -> list[RegionCost]:
    """Return the ways of which no other has as few multiply-accumulates, nodes and copied bytes, and fewer of one."""
    kept: list[RegionCost] = []
    for way in sorted(ways, key=lambda way: (way.macs, way.nodes, way.copied)):
        if not any(other.nodes <= way.nodes and other.copied <= way.copied for other in kept):
            kept.append(way)
    return kept


# The bound of the work of searches: a number of kernels that are counted in regions, which grows with the network.
#
# It is a number, not a time, so the same model gives the same result on every machine.

_LONGEST = 400
"""Kernels of a region, at most."""
_ENDS = 64
"""Ends of regions from one place, at most."""
_KERNELS, _BASE = 200, 60_000
"""The kernels that all searches may count for each kernel of the network, and for the network."""
_FULL, _FEWER, _LARGE = 1_000, 12, 120_000
"""The kernels of a network up to which this holds; of a larger one, those counted for each of its kernels, and at least."""
_LARGEST = 12_000
"""Kernels of the largest network that is searched for cuts: this takes some minutes and 1 GB."""
_PART = 2
"""The part of the effort left that one search may take."""
_LEAST = 32
"""The part of all effort that every search may take."""
_DEPTHS = (1, 4)
"""The multiples of this work that are tried one after the other, as long as nothing fits and the bound ended the search."""
_ATTEMPTS = (2, 8)
"""Schedules that are looked for until the plan of one fits: in the largest networks, and in those of up to `_FULL` kernels."""
_AHEAD = 4
"""The effort of one place, as a multiple of that left for each place."""


def all_effort(kernels: int) -> int:
    """Return how many kernels all searches of a network of `kernels` kernels may count, at a depth of 1."""
    return _BASE + _KERNELS * kernels if kernels <= _FULL else max(_LARGE, _FEWER * kernels)


def is_too_large(kernels: int) -> bool:
    """Return whether a network of `kernels` kernels is too large for a search."""
    return kernels > _LARGEST


def depths(kernels: int) -> tuple[int, ...]:
    """Return the multiples of the work that are tried: one where the network is large, and none above the largest."""
    if is_too_large(kernels):
        return ()
    return _DEPTHS if kernels <= _FULL else _DEPTHS[:1]


def attempts(kernels: int) -> int:
    """Return how many schedules are looked for, at most, until the plan of one fits; fewer the larger the network is."""
    fewest, most = _ATTEMPTS
    return max(min(most, most * _FULL // max(kernels, 1)), fewest)


def ends_from(places: list[int], start: int) -> list[int]:
    """Return those of `places` at which a region from `start` on may end, the nearest first."""
    first = bisect_right(places, start)
    return places[first : min(first + _ENDS, bisect_right(places, start + _LONGEST))]


class SearchEffort:
    """The effort of one search: a share for each of its `places`, which grows where others took less.

    Counted regions are known to later searches, so these take less. `depth` is the multiple of the work that all searches may take,
    `share` are the kernels that this one counts at most.
    """

    def __init__(self, regions: Regions, places: int, depth: int = 1, share: int = sys.maxsize) -> None:
        self.regions, self.places = regions, places
        most = depth * all_effort(len(regions.network.kernels))
        self._end = regions.counted + min(max((most - regions.counted) // _PART, most // _LEAST), share)

    def next_share(self) -> int:
        """Return the number of counted kernels at which the next place ends; one region may be tried there unless no effort is left."""
        counted = self.regions.counted
        left = max(self._end - counted, 0)
        share = max(left * _AHEAD // max(self.places, 1), min(left, 1))
        self.places -= 1
        return counted + share


# The cheapest way to run a network where regions may hand over their results in pieces, which are never joined.
#
# A whole tensor lives until its last reader ends. A piece lives until the last strip that reads it, so the operands of a region die while
# its results are made. The bytes of a region then depend on the pieces that it is given: the search goes over places and pieces.

_STOPS = 8
"""Ends of regions that are tried from one place, at most, the nearest first."""
_ENOUGH = 3
"""Ends of regions that fit, after which no further end is tried."""
_CHEAPEST = 1
"""Ways to hold tensors in pieces at a place that are followed, the cheapest first; beside these, that of whole tensors and the finest."""


@dataclass(frozen=True)
class _Reached:
    """The price of the cheapest way to a place with some tensors in pieces; the last region of it, and the pieces before that."""

    price: float
    region: RegionCost | None = None
    before: PiecesOfTensors = ()


class PiecesSearch:
    """Finds the cheapest schedule of regions that are cut in the ways of `cuts`, and hand over whole tensors or pieces.

    Only schedules of a price `below` one are looked for.
    """

    def __init__(self, cuts: RegionCuts, prices: Prices, progress: Progress = silent, below: float = inf) -> None:
        self.cuts, self.prices, self.progress, self.below = cuts, prices, progress, below
        self.regions, self.capacity = cuts.regions, cuts.capacity
        self.network = cuts.regions.network
        self.macs = max(self.network.macs, 1)
        self.stops = frozenset(self.regions.level)
        self.over = [region.start for region in self.regions.whole if region.peak > self.capacity]

    def schedule(self) -> FitSchedule | None:
        """Return the cheapest schedule; None where none fits, or no tensor can be handed over in pieces."""
        return self.cuts.refined(self._cheapest) if self.row_by_row else None

    def _cheapest(self) -> FitSchedule | None:
        """Return the cheapest schedule of the ways that are known, or found on the way."""
        count = len(self.network.kernels)
        effort = SearchEffort(self.regions, count, self.cuts.depth, self.cuts.share)
        reached: list[dict[PiecesOfTensors, _Reached]] = [{} for _ in range(count + 1)]
        reached[0][()] = _Reached(0.0)
        for index in range(count):
            most = effort.next_share()
            for given, price in self._followed(reached[index]):
                for region, left in self._edges(index, given, most, price):
                    total = price + self.prices.price_of(region, self.network)
                    there = reached[region.stop].get(left)
                    if total < (self.below if there is None else there.price):
                        reached[region.stop][left] = _Reached(total, region, given)
            for given in set(reached[index]) - {given for given, _ in self._followed(reached[index])}:
                del reached[index][given]
        return self._path(reached)

    def _followed(self, here: dict[PiecesOfTensors, _Reached]) -> list[tuple[PiecesOfTensors, float]]:
        """Return the pieces at a place that are followed, with their prices."""
        ranked = sorted(here, key=lambda given: (here[given].price, given))
        parted = [given for given in ranked if given]
        finest = sorted(parted, key=lambda given: -sum(len(ends) for _, ends in given))[:1]
        chosen = dict.fromkeys([given for given in ranked if not given] + parted[:_CHEAPEST] + finest)
        return [(given, here[given].price) for given in chosen]

    def _path(self, reached: list[dict[PiecesOfTensors, _Reached]]) -> FitSchedule | None:
        path: list[RegionCost] = []
        at, given = len(reached) - 1, PiecesOfTensors()
        while at:
            last = reached[at].get(given)
            if last is None or last.region is None:
                return None
            path.append(last.region)
            at, given = last.region.start, last.before
        return FitSchedule(tuple(reversed(path)))

    def _edges(
        self, index: int, given: PiecesOfTensors, most: int, price: float
    ) -> Iterator[tuple[RegionCost, PiecesOfTensors]]:
        """Yield the regions from a place on, with the pieces that are left after each, until `most` kernels were counted.

        `price` is that of the way to this place.
        """
        if {tensor for tensor, _ in given}.isdisjoint(self.network.kernels[index].reads):
            whole = self.regions.whole[index]
            whole = replace(whole, peak=whole.peak + self._more(given))
            if whole.peak <= self.capacity:
                yield whole, given
        if index not in self.stops:
            return
        tried = fitting = 0
        self.cuts.most = most
        for stop in ends_from(self.regions.level, index):
            # A region of two strips has at least twice the nodes.
            if self.cuts.is_spent or price + self.prices.node * (stop - index) >= self.below:
                return
            ways: list[RegionCost] = []
            self.progress("searching", self.regions.counted, self.cuts.bound)
            choices = [parted for parted in self.choices(index, stop) if self._is_worth(index, stop, given, parted)]
            for parted in choices:
                ways += self.cuts.costs_of(index, stop, Cut(given=given, parted=parted))
            yield from ((way, self.left(way)) for way in ways)
            tried += bool(choices)
            fitting += bool(ways)
            if tried >= _STOPS or fitting >= _ENOUGH:
                return

    def choices(self, start: int, stop: int) -> list[frozenset[int]]:
        """Return the results of a region that may be handed over in pieces: none, or all that later kernels read row by row."""
        parted = self.row_by_row & frozenset(self.regions.results(start, stop))
        return [frozenset(), parted] if parted else [parted]

    @cached_property
    def row_by_row(self) -> frozenset[int]:
        """The tensors whose rows do not lie one after the other, and that every kernel reads row by row."""
        network = self.network
        whole = read_whole(network.kernels, network.tensors)
        return frozenset(
            tensor
            for tensor in self.regions.makers
            if network.last_reads[tensor] < len(network.kernels)
            and tensor not in whole
            and not network.tensors[tensor].has_contiguous_rows
        )

    @cached_property
    def reach(self) -> list[int]:
        """The place of the last kernel that reads each tensor, or a tensor that is written over its pieces."""
        network, reach = self.network, list(self.network.last_reads)
        for kernel in reversed(network.kernels):
            for index in kernel.overwrites:
                if kernel.makes[0] in self.row_by_row:
                    reach[kernel.reads[index]] = max(reach[kernel.reads[index]], reach[kernel.makes[0]])
        return reach

    def _is_worth(self, start: int, stop: int, given: PiecesOfTensors, parted: frozenset[int]) -> bool:
        """Return whether cutting a region so lets a kernel fit, and its operands and results could fit."""
        regions, capacity = self.regions, self.capacity
        before, after, results = regions.bytes_around(start, stop)
        pieces = {tensor for tensor, _ in given}
        joined = results - self._size(parted)
        if after + results + joined > capacity:
            joined = regions.largest_copied(start, stop, parted)
        # Operands in pieces, and inputs, die while the results are made; others live until the last strip is done.
        dying = self._size(regions.dying(start, stop) & pieces | regions.dying_by_rows(start, stop))
        if max(before, before - dying + results, after + results + joined) > capacity:
            return False
        if after + regions.least_kept(start, stop) + (0 if pieces else results * 3 // 4) > capacity:
            return False
        end = max((self.reach[tensor] + 1 for tensor in parted), default=stop)
        at = bisect_left(self.over, start)
        if at < len(self.over) and self.over[at] < end:
            return True
        if parted and after + 2 * results <= capacity:
            return False  # all that is read next fits whole, and so do the strips beside their results
        return any(not pieces.isdisjoint(kernel.reads) for kernel in self.network.kernels[start:stop])

    def _size(self, tensors: Iterable[int]) -> int:
        return sum(map(self.regions.size, tensors))

    def _more(self, given: PiecesOfTensors) -> int:
        """Return the bytes that pieces take more than whole tensors: each is aligned."""
        return sum(
            sum(self.regions.size_of_rows(tensor, stop - start) for start, stop in row_pieces(ends))
            - self.regions.size(tensor)
            for tensor, ends in given
        )

    def left(self, way: RegionCost) -> PiecesOfTensors:
        """Return the tensors in pieces after a region: those that it was given and that live on, and its results."""
        kept = {tensor: ends for tensor, ends in way.cut.given if self.network.last_reads[tensor] >= way.stop}
        if way.cut.parted:
            rows = self.regions.ranges(way.start, way.stop, way.cut)
            for tensor in way.cut.parted:
                news = rows[self.regions.makers[tensor] - way.start].news.pairs
                ends = tuple(rows_made[1] for rows_made in news if rows_made is not None)
                if len(ends) > 1:
                    kept[tensor] = ends
        return tuple(sorted(kept.items()))


_STARTS = 4
"""Starts of regions before a kernel that does not fit whole, at most, the nearest first; beside these, those with fewer live bytes."""
_DEAR = 1e6
"""At this price of multiply-accumulates none is done twice."""
_SHARE, _MULTIPLE = 1_000, 4
"""Kernels that a search for a better schedule may count at least; else as many as showed the one that is known, or this multiple of them
where no row is computed again."""


_SearchKind: TypeAlias = "type[PathSearch | PiecesSearch]"


@dataclass(frozen=True)
class FitTarget:
    """What a schedule must meet: bytes (None: as few as possible), extra multiply-accumulates as a share, and nodes (None: any)."""

    capacity: int | None
    extra_macs: float
    nodes: int | None = None
    prices: Prices = USUAL_PRICES
    """What further work costs: shares of the time of the network as it is."""
    budget: SearchBudget | None = field(default=None, compare=False)
    """The end of the time of all searches; None for none."""

    @property
    def is_late(self) -> bool:
        """Whether the time of all searches is over."""
        return self.budget is not None and self.budget.is_late

    def has_many_macs(self, schedule: FitSchedule, macs: int) -> bool:
        """Return whether a schedule does more multiply-accumulates again than the budget allows."""
        return schedule.macs > (1 + self.extra_macs) * macs

    def has_many_nodes(self, schedule: FitSchedule) -> bool:
        """Return whether a schedule has more nodes than wanted."""
        return self.nodes is not None and schedule.nodes > self.nodes


_RUNGS = 4
"""Capacities of the row that lie between one number of bytes and half of it. The row is the same for every capacity that is wanted."""
_MISSES = 2
"""Rungs, one after the other, within which nothing quicker is found before the search ends."""
SLIGHT = 0.01
"""Where a schedule takes no longer than this share of the time of the model beyond it, none at a smaller capacity is looked for."""
_CLOSE = 0.01
"""The share of its bytes to within which the least peak is looked for."""


class Descent:
    """The one way down from the network as it is to the least peak that is found within the budget of `wanted`.

    No point of it depends on a capacity, so what fits less fits more. A single capacity is first searched by itself: its quickest schedule
    lies between the points, and the way down to it is seldom needed. First no row is computed again, as within a budget of none; so a
    larger budget keeps these points. At each rung of the row the quickest schedule is looked for. Below the last rung where one is found,
    the least peak is.
    """

    def __init__(self, regions: Regions, wanted: FitTarget, progress: Progress = silent) -> None:
        self.regions, self.wanted, self._progress = regions, wanted, progress
        self.points: list[FitSchedule] = []
        """The points that are known, with ever smaller peaks; the first one is the network as it is."""
        self.found: list[FitSchedule] = []
        """The schedules that were found apart from the way down, within single capacities."""
        self._missed: dict[float, int] = {}
        """The last capacity within which nothing was found apart from the way down, by the extra multiply-accumulates as a share."""
        self._way = self._down(sys.maxsize)
        self._started, self._reached = monotonic(), ""

    def is_longer(self) -> bool:
        """Look for one more point; return whether there is one."""
        point = next(self._way, None)
        if point is None:
            return False
        if self.points:
            self._reached = f"{point.peak:,} bytes after {monotonic() - self._started:.0f} s: "
        self.points.append(point)
        return True

    def all_points(self, highest: int = sys.maxsize) -> list[FitSchedule]:
        """Return all points within the `highest` bytes, to the one with the least peak, and the network as it is.

        A search within a capacity before this changes none of them.
        """
        if self.regions.counted and not self.points:
            # What is counted already is no effort, so that with it, a search would go another way.
            regions = Regions(self.regions.network, self.regions.groups)
            self.points, self._way = Descent(regions, self.wanted, self._progress).all_points(highest), iter(())
            self.regions.is_cut_short = regions.is_cut_short
        if not self.points:
            self._way = self._down(highest)
        while self.is_longer():
            pass
        return self.points

    def within(self, capacity: int) -> Iterator[FitSchedule]:
        """Yield points within a capacity, of the way down from the first rung within it: first those that compute no row again.

        None is looked for that computes as many rows again as an earlier search within the capacity, which found nothing.
        """
        if capacity < self.regions.least:
            return
        way = Descent(self.regions, self.wanted, self._progress)
        way.points.append(FitSchedule(tuple(self.regions.whole)))
        for target in self._targets():
            if self._missed.get(target.extra_macs, 0) < capacity:
                for point in way._phase(target, capacity):
                    way.points.append(point)
                    yield point

    def quickest(self, capacity: int) -> FitSchedule | None:
        """Return the quickest schedule that is found within a capacity itself, or within the next rungs; None where none is.

        Rungs are tried only where that may pay: as long as no row is computed again, and the time is not that of the network as it is.
        """
        if capacity < max(self.regions.least, 1) or not depths(len(self.regions.network.kernels)):
            return None
        best = min((known for known in self.found if known.peak <= capacity), key=self.price, default=None)
        for extra in dict.fromkeys((0.0, self.wanted.extra_macs)):
            target, misses = replace(self.wanted, extra_macs=extra), 0
            least = _least(self.regions, target)
            for rung in (capacity, *(() if extra else rungs_below(self.regions, capacity))):
                is_done = rung <= self._missed.get(extra, 0) if best is None else self._is_slight(best)
                if rung < least or misses >= _MISSES or is_done:
                    break
                quicker = self._within(rung, target, 1, best)
                best, misses = (best, misses + 1) if quicker is None else (quicker, 0)
                if best is None:
                    self._missed[extra] = rung
                    break
                self.found.append(best)
            if best is not None:
                return best
        return None

    def price(self, schedule: FitSchedule) -> float:
        """Return what a schedule costs beyond the network as it is."""
        return _price(self.regions, schedule, self.wanted)

    def _is_slight(self, schedule: FitSchedule) -> bool:
        return _is_slight(self.regions, schedule, self.wanted)

    def _down(self, highest: int) -> Iterator[FitSchedule]:
        """Yield the points within the `highest` bytes: those that compute no row again, then those that do; the first is the network."""
        yield FitSchedule(tuple(self.regions.whole))
        self.regions.is_cut_short = not depths(len(self.regions.network.kernels))
        for target in self._targets():
            yield from self._phase(target, highest)

    def _targets(self) -> Iterator[FitTarget]:
        """Yield the target within a budget of none, and within the whole budget; none where the network is too large for a search."""
        for extra in dict.fromkeys((0.0, self.wanted.extra_macs)) if depths(len(self.regions.network.kernels)) else ():
            yield replace(self.wanted, extra_macs=extra)

    def _phase(self, target: FitTarget, highest: int) -> Iterator[FitSchedule]:
        """Yield the points below the last one, and within the `highest` bytes, within the budget of `target`.

        Where the bound of the work ended a search, this goes on with more work, as long as that finds more.
        """
        least, missed, known = _least(self.regions, target), 0, len(self.points)
        for depth in depths(len(self.regions.network.kernels)):
            self.regions.is_cut_short = False
            if len(self.points) == known:
                missed = yield from self._rungs(target, least, depth, highest)
            if self.points[-1].peak <= highest:
                yield from self._close_points(target, max(missed, least - 1), depth)
            if self.wanted.is_late or not self.regions.is_cut_short:
                return

    def _rungs(self, target: FitTarget, least: int, depth: int, highest: int) -> Generator[FitSchedule, None, int]:
        """Yield the points of rungs below the last point, within the budget of `target`; return the first rung without one, or 0."""
        for capacity in rungs_below(self.regions, min(self.points[-1].peak, highest + 1)):
            if capacity >= self.points[-1].peak:
                continue
            if capacity < least:
                break
            schedule = self._within(capacity, target, depth)
            if schedule is None:
                return capacity
            yield schedule
        return 0

    def _close_points(self, target: FitTarget, missed: int, depth: int) -> Iterator[FitSchedule]:
        """Yield points below the last one, to within 1% of the least peak above `missed` bytes, by bisection.

        At a larger depth this ends where nothing is found.
        """
        while self.points[-1].peak - missed > max(int(_CLOSE * self.points[-1].peak), 1):
            middle = (missed + self.points[-1].peak) // 2
            schedule = self._within(middle, target, depth)
            if schedule is not None:
                yield schedule
            elif depth > 1:
                return
            else:
                missed = middle

    def _within(
        self, capacity: int, target: FitTarget, depth: int, known: FitSchedule | None = None
    ) -> FitSchedule | None:
        """Return the quickest schedule within a capacity, and quicker than one that is `known`; none where the time is over."""
        if self.wanted.is_late:
            self.regions.is_cut_short = True
            return None

        def tell(stage: str, done: int = 0, total: int = 0, /) -> None:
            self._progress(self._reached + stage, done, total)

        return _within(self.regions, capacity, target, (PathSearch, PiecesSearch), tell, depth, known)


def rungs_below(regions: Regions, capacity: int) -> Iterator[int]:
    """Yield the capacities of the row that lie below one, the highest first, down to the least that any schedule takes."""
    highest = max((region.peak for region in regions.whole), default=0)
    number = 0 if capacity >= highest else max(int(_RUNGS * log2(highest / max(capacity, 1))) - 1, 0)
    while (rung := int(highest * 2 ** (-number / _RUNGS))) >= max(regions.least, ALIGNMENT):
        if rung < capacity:
            yield rung
        number += 1


def _is_slight(regions: Regions, schedule: FitSchedule | None, wanted: FitTarget) -> bool:
    """Return whether a schedule does no product twice, for a slight price, so that no other is looked for."""
    if schedule is None:
        return False
    return schedule.macs <= regions.network.macs and _price(regions, schedule, wanted) <= SLIGHT


def _price(regions: Regions, schedule: FitSchedule, wanted: FitTarget) -> float:
    return sum(wanted.prices.price_of(region, regions.network) for region in schedule.regions)


def _least(regions: Regions, wanted: FitTarget) -> int:
    """Return bytes that no schedule goes below: the floor, where it is counted at once, as it is without a budget."""
    return regions.least if wanted.extra_macs > 0 else max(floor_of(regions).bytes, regions.least)


def _within(
    regions: Regions,
    capacity: int,
    wanted: FitTarget,
    ways: Sequence[_SearchKind],
    progress: Progress,
    depth: int,
    known: FitSchedule | None = None,
) -> FitSchedule | None:
    """Return the schedule for the lowest price that meets everything, of `ways`, and cheaper than one that is `known`.

    With a budget, rows may be computed again: then a schedule without that is known not to fit.
    """
    if capacity < regions.least:
        return None
    best: FitSchedule | None = None
    counted, recomputes = regions.counted, wanted.extra_macs > 0
    cuts = RegionCuts(regions, capacity, recomputes=recomputes, depth=depth, budget=wanted.budget)
    for way in ways:
        if best is not None:
            cuts.share = max((1 if recomputes else _MULTIPLE) * (regions.counted - counted), _SHARE)
        cheapest = best or known
        below = inf if cheapest is None else _price(regions, cheapest, wanted)
        schedule = _priced(cuts, wanted, way, wanted.prices.macs if recomputes else _DEAR, progress, below)
        if schedule is not None and _price(regions, schedule, wanted) < below:
            best = schedule
        if _is_slight(regions, best, wanted):
            return best
    return best


def _priced(
    cuts: RegionCuts, wanted: FitTarget, way: _SearchKind, macs: float, progress: Progress, below: float = inf
) -> FitSchedule | None:
    """Return the cheapest schedule of `cuts`, and of a price `below` one; `macs` is the price of all multiply-accumulates once more.

    Where it has too many of these, the one with the fewest; where too many nodes, the cheapest one with a higher price for nodes.
    """
    prices = replace(wanted.prices, macs=macs)
    for _ in range(_ROUNDS):
        schedule = way(cuts, prices, progress, below).schedule()
        if schedule is None:
            return None
        over_macs = wanted.has_many_macs(schedule, cuts.regions.network.macs)
        over_nodes = wanted.has_many_nodes(schedule)
        if not over_macs and not over_nodes:
            return schedule
        if prices.macs >= _DEAR and over_macs:
            if cuts.refines_all or not cuts.recomputes:
                return None
            cuts.refines_all = True
        # By higher prices no other is as cheap.
        below = inf
        prices = replace(
            prices,
            macs=_DEAR if over_macs else prices.macs,
            node=prices.node * (4 if over_nodes else 1),
        )
    return None


@dataclass(frozen=True)
class WayOn:
    """The price of the cheapest way from a place to the end, and the `first` region on it; None at the end."""

    price: float
    first: RegionCost | None


class PathSearch:
    """Finds the cheapest schedule of regions that are cut in the ways of `cuts`; only of a price `below` one."""

    def __init__(self, cuts: RegionCuts, prices: Prices, progress: Progress = silent, below: float = inf) -> None:
        self.cuts, self.prices, self.progress, self.below = cuts, prices, progress, below
        self.regions, self.capacity = cuts.regions, cuts.capacity
        self.over = [region.start for region in self.regions.whole if region.peak > self.capacity]
        self.tried: dict[int | None, list[int]] = {}

    def price(self, region: RegionCost) -> float:
        """Return the price of a region beyond that of its kernels."""
        return self.prices.price_of(region, self.regions.network)

    def schedule(self) -> FitSchedule | None:
        """Return the cheapest schedule; None where none fits."""
        return self.cuts.refined(self._cheapest)

    def _cheapest(self) -> FitSchedule | None:
        """Return the cheapest schedule of the ways that are known, or found on the way.

        Places are taken from the last to the first. So ends of regions from which no way leads on are left out before they are cut.
        """
        count = len(self.regions.network.kernels)
        onward: list[WayOn | None] = [None] * count + [WayOn(0.0, None)]
        starts = self._starts()
        effort = SearchEffort(self.regions, sum(starts.values()), self.cuts.depth, self.cuts.share)
        for index in sorted(starts, reverse=True):
            self._enter_whole(index, onward)
            if starts[index]:
                most = effort.next_share()
                if self._is_start(index):
                    self._enter_cut(index, onward, most)
        return self._path(onward)

    def _starts(self) -> dict[int, bool]:
        """Return the places that some way may lead to, by the bytes at the ends of regions alone, and whether regions begin there.

        Empty where no way may lead to the end.
        """
        count = len(self.regions.whole)
        is_narrow = set(self.regions.narrow)
        reached = {0}
        for index, whole in enumerate(self.regions.whole):
            if index not in reached:
                continue
            if whole.peak <= self.capacity:
                reached.add(index + 1)
            if index in is_narrow:
                reached.update(stop for stop in ends_from(self.regions.narrow, index) if self._is_worth(index, stop))
        return {index: index in is_narrow for index in reached if index < count} if count in reached else {}

    def _is_start(self, index: int) -> bool:
        """Return whether regions from a place are tried.

        Before a kernel that does not fit whole a region may begin at many places. It begins at one of the nearest, or where fewer bytes
        live than at all of them.
        """
        at = bisect_left(self.over, index)
        over = self.over[at] if at < len(self.over) else None
        tried, live = self.tried.setdefault(over, []), self.regions.live_sizes[index]
        if len(tried) >= _STARTS and live >= min(tried):
            return False
        tried.append(live)
        return True

    def _path(self, onward: Sequence[WayOn | None]) -> FitSchedule | None:
        path: list[RegionCost] = []
        at = 0
        while (way := onward[at]) is not None:
            if way.first is None:
                return FitSchedule(tuple(path))
            path.append(way.first)
            at = way.first.stop
        return None

    def _enter_whole(self, index: int, onward: list[WayOn | None]) -> None:
        """Enter the way that begins with the kernel at `index` as it is."""
        whole, after = self.regions.whole[index], onward[index + 1]
        if after is not None and whole.peak <= self.capacity:
            onward[index] = WayOn(after.price, whole)

    def _enter_cut(self, index: int, onward: list[WayOn | None], most: int) -> None:
        """Enter the cheapest way that begins with a region from `index` on that is cut, where it is cheaper.

        The ends of regions are tried until `most` kernels were counted.
        """
        tried = fitting = 0
        self.cuts.most = most
        for stop in ends_from(self.regions.narrow, index):
            if self.cuts.is_spent:
                return
            here, after = onward[index], onward[stop]
            if after is None:
                continue
            # A region of two strips has at least twice the nodes.
            if after.price + self.prices.node * (stop - index) >= (self.below if here is None else here.price):
                continue
            if self._is_worth(index, stop):
                tried += 1
                self.progress("searching", self.regions.counted, self.cuts.bound)
                ways = self.cuts.costs_of(index, stop)
                fitting += bool(ways)
                for way in ways:
                    price = after.price + self.price(way)
                    if price < (self.below if here is None else here.price):
                        here = onward[index] = WayOn(price, way)
                if tried >= _STOPS or fitting >= _ENOUGH:
                    return

    def _is_worth(self, start: int, stop: int) -> bool:
        """Return whether a region holds a kernel that does not fit whole, and its operands and results could fit."""
        at = bisect_left(self.over, start)
        if at == len(self.over) or self.over[at] >= stop:
            return False
        before, after, results = self.regions.bytes_around(start, stop)
        # At the end all results are there, beside the operands or, where strips are joined by a copy, the strips of one.
        by_rows = sum(map(self.regions.size, self.regions.dying_by_rows(start, stop)))
        if max(before, max(before - by_rows, after) + results) > self.capacity:
            return False
        is_tight = after + 2 * results > self.capacity
        if is_tight and after + results + self.regions.largest_copied(start, stop) > self.capacity:
            return False
        # Between two strips the kept rows live, at the end beside nearly all results.
        return after + self.regions.least_kept(start, stop) + results * 3 // 4 <= self.capacity
