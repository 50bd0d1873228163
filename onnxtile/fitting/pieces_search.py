"""The cheapest way to run a network where regions may hand over their results in pieces, which are never joined.

A whole tensor lives until its last reader ends. A piece lives until the last strip that reads it, so the operands of a region die while its
results are made. The bytes of a region then depend on the pieces that it is given: the search goes over places and pieces.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from onnxtile.fitting.network import ROWS
from onnxtile.fitting.region import Cut, PiecesOfTensors, row_pieces
from onnxtile.fitting.region_cuts import RegionCuts
from onnxtile.fitting.schedule import FitSchedule, Prices, RegionCost
from onnxtile.fitting.search_effort import SearchEffort, ends_from
from onnxtile.fitting.strip_ranges import read_whole
from onnxtile.progress import Progress, silent

_STOPS = 8
"""Ends of regions that are tried from one place, at most, the nearest first."""
_ENOUGH = 3
"""Ends of regions that fit, after which no further end is tried."""
_CHEAPEST = 2
"""Ways to hold the tensors at a place that are followed, the cheapest first; beside these, that of whole tensors and the finest."""


@dataclass(frozen=True)
class _Reached:
    """The price of the cheapest way to a place with some tensors in pieces; the last region of it, and the pieces before that."""

    price: float
    region: RegionCost | None = None
    before: PiecesOfTensors = ()


class PiecesSearch:
    """Finds the cheapest schedule of regions that are cut in the ways of `cuts`, and hand over whole tensors or pieces."""

    def __init__(self, cuts: RegionCuts, prices: Prices, progress: Progress = silent) -> None:
        self.cuts, self.prices, self.progress = cuts, prices, progress
        self.regions, self.capacity = cuts.regions, cuts.capacity
        self.network = cuts.regions.network
        self.macs = max(self.network.macs, 1)
        self.stops = frozenset(self.regions.level)
        self.over = [one.start for one in self.regions.whole if one.peak > self.capacity]

    def schedule(self) -> FitSchedule | None:
        """Return the cheapest schedule; None where none fits, or no tensor can be handed over in pieces."""
        if not self.row_by_row:
            return None
        count = len(self.network.kernels)
        effort = SearchEffort(self.regions, count, self.cuts.depth)
        reached: list[dict[PiecesOfTensors, _Reached]] = [{} for _ in range(count + 1)]
        reached[0][()] = _Reached(0.0)
        for place in range(count):
            most = effort.next_share()
            for given, price in self._followed(reached[place]):
                for one, left in self._edges(place, given, most):
                    total = price + self.prices.of(one, self.network)
                    there = reached[one.stop].get(left)
                    if there is None or total < there.price:
                        reached[one.stop][left] = _Reached(total, one, given)
            for given in set(reached[place]) - {given for given, _ in self._followed(reached[place])}:
                del reached[place][given]
        return self._path(reached)

    def _followed(self, here: dict[PiecesOfTensors, _Reached]) -> list[tuple[PiecesOfTensors, float]]:
        """Return the pieces at a place that are followed, with their prices."""
        ranked = sorted(here, key=lambda given: (here[given].price, given))
        parted = [given for given in ranked if given]
        finest = sorted(parted, key=lambda given: -sum(len(ends) for _, ends in given))[:1]
        chosen = dict.fromkeys([given for given in ranked if not given] + parted[:_CHEAPEST] + finest)
        return [(given, here[given].price) for given in chosen]

    def _path(self, reached: list[dict[PiecesOfTensors, _Reached]]) -> FitSchedule | None:
        found: list[RegionCost] = []
        at, given = len(reached) - 1, PiecesOfTensors()
        while at:
            last = reached[at].get(given)
            if last is None or last.region is None:
                return None
            found.append(last.region)
            at, given = last.region.start, last.before
        return FitSchedule(tuple(reversed(found)))

    def _edges(self, place: int, given: PiecesOfTensors, most: int) -> Iterator[tuple[RegionCost, PiecesOfTensors]]:
        """Yield the regions from a place on, with the pieces that are left behind each, until `most` kernels were counted."""
        if {tensor for tensor, _ in given}.isdisjoint(self.network.kernels[place].reads):
            whole = self.regions.whole[place]
            whole = replace(whole, peak=whole.peak + self._more(given))
            if whole.peak <= self.capacity:
                yield whole, given
        if place not in self.stops:
            return
        tried = fitting = 0
        self.cuts.most = most
        for stop in ends_from(self.regions.level, place):
            if self.cuts.is_spent:
                return
            ways: list[RegionCost] = []
            self.progress("searching", self.regions.counted)
            choices = [parted for parted in self.choices(place, stop) if self._is_worth(place, stop, given, parted)]
            for parted in choices:
                ways += self.cuts.of(place, stop, Cut(given=given, parted=parted))
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
            and not network.tensors[tensor].is_inside
            and not network.tensors[tensor].is_contiguous(ROWS)
        )

    def _is_worth(self, start: int, stop: int, given: PiecesOfTensors, parted: frozenset[int]) -> bool:
        """Return whether cutting a region so lets a kernel fit, and its operands and results could fit."""
        regions, capacity = self.regions, self.capacity
        before, after, made = regions.bytes_around(start, stop)
        pieces = {tensor for tensor, _ in given}
        joined = made - self._size(parted)
        if after + made + joined > capacity:
            joined = regions.largest_copied(start, stop, parted)
        # Operands in pieces die while the results are made; others live until the last strip is done.
        dying = self._size(regions.dying(start, stop) & pieces)
        if max(before, before - dying + made, after + made + joined) > capacity:
            return False
        if after + regions.least_kept(start, stop) + (0 if pieces else made * 3 // 4) > capacity:
            return False
        kernels = self.network.kernels
        if any(not pieces.isdisjoint(kernel.reads) for kernel in kernels[start:stop]):
            return True
        end = max((self.network.last_reads[tensor] + 1 for tensor in parted), default=stop)
        at = bisect_left(self.over, start)
        return at < len(self.over) and self.over[at] < end

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
        """Return the tensors in pieces behind a region: those that it was given and that live on, and its results."""
        kept = {tensor: ends for tensor, ends in way.cut.given if self.network.last_reads[tensor] >= way.stop}
        if way.cut.parted:
            rows = self.regions.ranges(way.start, way.stop, way.cut)
            for tensor in way.cut.parted:
                news = rows[self.regions.makers[tensor] - way.start].news.pairs
                ends = tuple(one[1] for one in news if one is not None)
                if len(ends) > 1:
                    kept[tensor] = ends
        return tuple(sorted(kept.items()))
