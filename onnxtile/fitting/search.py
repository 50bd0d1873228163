"""The cheapest way to run a network within a number of bytes: a shortest path over the places between kernels.

An edge runs one kernel whole, or a run of kernels cut into strips. Whole tensors are handed from edge to edge, so that the bytes of an edge
depend on the edge alone. Where nothing fits so, regions may hand over pieces: see `pieces_search`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxtile.fitting.pieces_search import PiecesSearch
from onnxtile.fitting.region_cuts import RegionCuts
from onnxtile.fitting.regions import FitSchedule, Prices, RegionCost, Regions
from onnxtile.progress import Progress, silent

_LONGEST = 400
"""Kernels of a region, at most."""
_STOPS = 8
"""Ends of regions that are tried from one place, at most, the nearest first."""
_ENOUGH = 3
"""Ends of regions that fit, after which no further end is tried."""
_DEAR = 1e6
"""The price of multiply-accumulates from which on none is done twice."""
_ROUNDS = 8
"""Prices that are tried, at most."""


@dataclass(frozen=True)
class FitTarget:
    """What a schedule must meet: bytes (None: as few as possible), extra multiply-accumulates as a share, and nodes (None: any)."""

    capacity: int | None
    extra_macs: float
    nodes: int | None = None


def search(regions: Regions, wanted: FitTarget, progress: Progress = silent) -> FitSchedule:
    """Return the cheapest schedule within the capacity; the one with the least peak where none is, or no capacity is wanted."""
    if wanted.capacity is not None:
        for way in (PathSearch, PiecesSearch):
            found = _within(regions, wanted.capacity, wanted, way, progress)
            if found is not None:
                return found
    best = FitSchedule(tuple(regions.whole))
    for way in (PathSearch, PiecesSearch):
        best = _smaller(regions, best, wanted, way, progress)
    return best


def _within(
    regions: Regions,
    capacity: int,
    wanted: FitTarget,
    way: type[PathSearch | PiecesSearch],
    progress: Progress,
) -> FitSchedule | None:
    """Return the cheapest schedule that meets everything, with higher prices for what the last one had too much of."""
    if capacity < regions.least:
        return None
    cuts = RegionCuts(regions, capacity, recomputes=wanted.extra_macs > 0)
    prices = Prices(_DEAR if wanted.extra_macs == 0 else 1.0)
    for _ in range(_ROUNDS):
        found = way(cuts, prices, progress).schedule()
        if found is None:
            return None
        over_macs = found.macs > (1 + wanted.extra_macs) * regions.network.macs
        over_nodes = wanted.nodes is not None and found.nodes > wanted.nodes
        if not over_macs and not over_nodes:
            return found
        if prices.macs >= _DEAR and not over_nodes:
            return None
        prices = replace(
            prices,
            macs=min(prices.macs * (4 if over_macs else 1), _DEAR),
            node=prices.node * (4 if over_nodes else 1),
        )
    return None


def _smaller(
    regions: Regions, best: FitSchedule, wanted: FitTarget, way: type[PathSearch | PiecesSearch], progress: Progress
) -> FitSchedule:
    """Return the schedule with the least peak, to within 1%, by bisection below the `best` known one."""
    low, high = max(min(regions.live_sizes), regions.least - 1), best.peak
    while high - low > max(high // 100, 1):
        middle = (low + 3 * high) // 4 if best.is_whole else (low + high) // 2
        found = _within(regions, middle, wanted, way, progress)
        if found is None:
            low = middle
        else:
            best, high = found, found.peak
    return best


class PathSearch:
    """Finds the cheapest schedule of regions that are cut in the ways of `cuts`."""

    def __init__(self, cuts: RegionCuts, prices: Prices, progress: Progress = silent) -> None:
        self.cuts, self.prices, self.progress = cuts, prices, progress
        self.regions, self.capacity = cuts.regions, cuts.capacity

    def price(self, one: RegionCost) -> float:
        """Return the price of a region beyond that of its kernels."""
        return self.prices.of(one, self.regions.network)

    def schedule(self) -> FitSchedule | None:
        """Return the cheapest schedule; None where none fits."""
        count = len(self.regions.network.kernels)
        best: list[tuple[float, RegionCost | None] | None] = [None] * (count + 1)
        best[0] = (0.0, None)
        stops = set(self.regions.narrow)
        for place in range(count):
            here = best[place]
            if here is None:
                continue
            self.progress("searching", place, count)
            for one in self._edges(place, place in stops, best):
                price = here[0] + self.price(one)
                there = best[one.stop]
                if there is None or price < there[0]:
                    best[one.stop] = (price, one)
        return self._path(best)

    def _path(self, best: list[tuple[float, RegionCost | None] | None]) -> FitSchedule | None:
        found: list[RegionCost] = []
        at = len(best) - 1
        while at:
            reached = best[at]
            if reached is None or reached[1] is None:
                return None
            found.append(reached[1])
            at = reached[1].start
        return FitSchedule(tuple(reversed(found)))

    def _edges(
        self, place: int, is_narrow: bool, best: Sequence[tuple[float, RegionCost | None] | None]
    ) -> Iterator[RegionCost]:
        here = best[place]
        assert here is not None
        whole = self.regions.whole[place]
        if whole.peak <= self.capacity:
            yield whole
        if not is_narrow:
            return
        tried = fitting = 0
        for stop in self.regions.narrow:
            there = best[stop]
            # A region of two strips has at least twice the nodes.
            if there is not None and there[0] <= here[0] + self.prices.node * (stop - place):
                continue
            if place < stop <= place + _LONGEST and self._is_worth(place, stop):
                tried += 1
                ways = self.cuts.of(place, stop)
                fitting += bool(ways)
                yield from ways
                if tried >= _STOPS or fitting >= _ENOUGH:
                    return

    def _is_worth(self, start: int, stop: int) -> bool:
        """Return whether a region holds a kernel that does not fit whole, and its operands and results could fit."""
        regions = self.regions
        before, after, results = regions.bytes_around(start, stop)
        # At the end all results are there, beside the operands or, once more, their strips.
        if max(before + results, after + 2 * results) > self.capacity:
            return False
        # Between two strips the kept rows live, at the end beside nearly all results.
        if after + regions.least_kept(start, stop) + results * 3 // 4 > self.capacity:
            return False
        return any(one.peak > self.capacity for one in regions.whole[start:stop])
