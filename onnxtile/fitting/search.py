"""The cheapest way to run a network within a number of bytes: a shortest path over the places between kernels.

An edge runs one kernel whole, or a run of kernels cut into strips. Whole tensors are handed from edge to edge, so that the bytes of an edge
depend on the edge alone. Where nothing fits so, regions may hand over pieces: see `pieces_search`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from onnxtile.fitting.pieces_search import PiecesSearch
from onnxtile.fitting.region_cuts import RegionCuts
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.schedule import FitSchedule, Prices, RegionCost
from onnxtile.fitting.search_effort import SearchEffort, depths, ends_from
from onnxtile.progress import Progress, silent

_STOPS = 8
"""Ends of regions that are tried from one place, at most, the nearest first."""
_ENOUGH = 3
"""Ends of regions that fit, after which no further end is tried."""
_STARTS = 4
"""Starts of regions before a kernel that does not fit whole, at most, the nearest first; beside these, those with fewer live bytes."""
_DEAR = 1e6
"""The price of multiply-accumulates from which on none is done twice."""
_ROUNDS = 8
"""Prices that are tried, at most."""
_ROUGHLY = 6_000
"""Kernels that may be counted for a small peak where nothing fits the capacity, beside as many as showed that."""


_SearchKind: TypeAlias = "type[PathSearch | PiecesSearch]"


@dataclass(frozen=True)
class FitTarget:
    """What a schedule must meet: bytes (None: as few as possible), extra multiply-accumulates as a share, and nodes (None: any)."""

    capacity: int | None
    extra_macs: float
    nodes: int | None = None


def search(regions: Regions, wanted: FitTarget, progress: Progress = silent) -> FitSchedule:
    """Return the cheapest schedule within the capacity; the one with the least peak where none is, or no capacity is wanted."""
    found = search_within(regions, wanted, progress)
    return smallest_peak(regions, wanted, progress) if found is None else found


def search_soon(regions: Regions, wanted: FitTarget, progress: Progress = silent) -> FitSchedule:
    """Return what `search` does; where none is within the capacity, one with a small peak, looked for with as much work again."""
    before = regions.counted
    found = search_within(regions, wanted, progress)
    if found is not None:
        return found
    most = None if wanted.capacity is None else 2 * regions.counted - before + _ROUGHLY
    return smallest_peak(regions, wanted, progress, most)


def search_within(regions: Regions, wanted: FitTarget, progress: Progress = silent) -> FitSchedule | None:
    """Return the cheapest schedule within the capacity; None where none is found, or no capacity is wanted."""
    if wanted.capacity is None:
        return None
    regions.is_cut_short = True
    for depth in depths(len(regions.network.kernels)):
        regions.is_cut_short = False
        found = _within(regions, wanted.capacity, wanted, (PathSearch, PiecesSearch), progress, depth)
        if found is not None or not regions.is_cut_short:
            return found
    return None


def smallest_peak(
    regions: Regions, wanted: FitTarget, progress: Progress = silent, most: int | None = None
) -> FitSchedule:
    """Return the schedule with the least peak that is found, whatever the capacity, until `most` kernels were counted (None: no bound)."""
    best = FitSchedule(tuple(regions.whole))
    regions.is_cut_short = True
    for depth in depths(len(regions.network.kernels)):
        regions.is_cut_short = False
        for way in (PathSearch, PiecesSearch):
            best = _smaller(regions, best, wanted, way, progress, depth, most)
        if not regions.is_cut_short or _is_spent(regions, most):
            break
    return best


def _is_spent(regions: Regions, most: int | None) -> bool:
    return most is not None and regions.counted >= most


def _within(
    regions: Regions, capacity: int, wanted: FitTarget, ways: Sequence[_SearchKind], progress: Progress, depth: int
) -> FitSchedule | None:
    """Return the schedule with the fewest multiply-accumulates that meets everything, of the first of `ways` with so few.

    Rows are computed again only where no way has one without that.
    """
    if capacity < regions.least:
        return None
    best: FitSchedule | None = None
    for recomputes in (False, True) if wanted.extra_macs > 0 else (False,):
        cuts = RegionCuts(regions, capacity, recomputes=recomputes, depth=depth)
        for way in ways:
            found = _priced(cuts, wanted, way, 1.0 if recomputes else _DEAR, progress)
            if found is not None and (best is None or found.macs < best.macs):
                best = found
            if best is not None and best.macs <= regions.network.macs:
                return best
    return best


def _priced(
    cuts: RegionCuts, wanted: FitTarget, way: _SearchKind, macs: float, progress: Progress
) -> FitSchedule | None:
    """Return the schedule of `cuts` with the fewest multiply-accumulates.

    Where it has too many nodes, the cheapest one with higher prices for what the last one had too much of; `macs` is the first price.
    """
    prices = Prices(_DEAR)
    for _ in range(_ROUNDS):
        found = way(cuts, prices, progress).schedule()
        if found is None:
            return None
        over_macs = found.macs > (1 + wanted.extra_macs) * cuts.regions.network.macs
        over_nodes = wanted.nodes is not None and found.nodes > wanted.nodes
        if not over_macs and not over_nodes:
            return found
        if prices.macs >= _DEAR and over_macs:
            return None
        prices = replace(
            prices,
            macs=min(prices.macs * 4, _DEAR) if over_macs else min(prices.macs, macs),
            node=prices.node * (4 if over_nodes else 1),
        )
    return None


def _smaller(
    regions: Regions,
    best: FitSchedule,
    wanted: FitTarget,
    way: _SearchKind,
    progress: Progress,
    depth: int,
    most: int | None,
) -> FitSchedule:
    """Return the schedule with the least peak, to within 1%, by bisection below the `best` known one, until `most` kernels were counted."""
    low, high = max(min(regions.live_sizes), regions.least - 1), best.peak
    while high - low > max(high // 100, 1):
        if _is_spent(regions, most):
            regions.is_cut_short = True
            break
        middle = (low + 3 * high) // 4 if best.is_whole else (low + high) // 2
        found = _within(regions, middle, wanted, (way,), progress, depth)
        if found is None:
            low = middle
        else:
            best, high = found, found.peak
    return best


@dataclass(frozen=True)
class WayOn:
    """The price of the cheapest way from a place to the end, and the `first` region on it; None at the end."""

    price: float
    first: RegionCost | None


class PathSearch:
    """Finds the cheapest schedule of regions that are cut in the ways of `cuts`."""

    def __init__(self, cuts: RegionCuts, prices: Prices, progress: Progress = silent) -> None:
        self.cuts, self.prices, self.progress = cuts, prices, progress
        self.regions, self.capacity = cuts.regions, cuts.capacity
        self.over = [one.start for one in self.regions.whole if one.peak > self.capacity]
        self.tried: dict[int | None, list[int]] = {}

    def price(self, one: RegionCost) -> float:
        """Return the price of a region beyond that of its kernels."""
        return self.prices.of(one, self.regions.network)

    def schedule(self) -> FitSchedule | None:
        """Return the cheapest schedule; None where none fits.

        Places are taken from the last to the first. So ends of regions from which no way leads on are left out before they are cut.
        """
        count = len(self.regions.network.kernels)
        onward: list[WayOn | None] = [None] * count + [WayOn(0.0, None)]
        starts = self._starts()
        effort = SearchEffort(self.regions, sum(starts.values()), self.cuts.depth)
        for place in sorted(starts, reverse=True):
            self._enter_whole(place, onward)
            if starts[place]:
                most = effort.next_share()
                if self._is_start(place):
                    self._enter_cut(place, onward, most)
        return self._path(onward)

    def _starts(self) -> dict[int, bool]:
        """Return the places that some way may lead to, by the bytes at the ends of regions alone, and whether regions begin there.

        Empty where no way may lead to the end.
        """
        count = len(self.regions.whole)
        is_narrow = set(self.regions.narrow)
        found = {0}
        for place, whole in enumerate(self.regions.whole):
            if place not in found:
                continue
            if whole.peak <= self.capacity:
                found.add(place + 1)
            if place in is_narrow:
                found.update(stop for stop in ends_from(self.regions.narrow, place) if self._is_worth(place, stop))
        return {place: place in is_narrow for place in found if place < count} if count in found else {}

    def _is_start(self, place: int) -> bool:
        """Return whether regions from a place are tried.

        Before a kernel that does not fit whole a region may begin at many places. It begins at one of the nearest, or where fewer bytes
        live than at all of them.
        """
        at = bisect_left(self.over, place)
        over = self.over[at] if at < len(self.over) else None
        tried, live = self.tried.setdefault(over, []), self.regions.live_sizes[place]
        if len(tried) >= _STARTS and live >= min(tried):
            return False
        tried.append(live)
        return True

    def _path(self, onward: Sequence[WayOn | None]) -> FitSchedule | None:
        found: list[RegionCost] = []
        at = 0
        while (way := onward[at]) is not None:
            if way.first is None:
                return FitSchedule(tuple(found))
            found.append(way.first)
            at = way.first.stop
        return None

    def _enter_whole(self, place: int, onward: list[WayOn | None]) -> None:
        """Enter the way that begins with the kernel at `place` as it is."""
        whole, after = self.regions.whole[place], onward[place + 1]
        if after is not None and whole.peak <= self.capacity:
            onward[place] = WayOn(after.price, whole)

    def _enter_cut(self, place: int, onward: list[WayOn | None], most: int) -> None:
        """Enter the cheapest way that begins with a region from `place` on that is cut, where it is cheaper.

        The ends of regions are tried until `most` kernels were counted.
        """
        tried = fitting = 0
        self.cuts.most = most
        for stop in ends_from(self.regions.narrow, place):
            if self.cuts.is_spent:
                return
            here, after = onward[place], onward[stop]
            if after is None:
                continue
            # A region of two strips has at least twice the nodes.
            if here is not None and here.price <= after.price + self.prices.node * (stop - place):
                continue
            if self._is_worth(place, stop):
                tried += 1
                self.progress("searching", self.regions.counted)
                ways = self.cuts.of(place, stop)
                fitting += bool(ways)
                for one in ways:
                    price = after.price + self.price(one)
                    if here is None or price < here.price:
                        here = onward[place] = WayOn(price, one)
                if tried >= _STOPS or fitting >= _ENOUGH:
                    return

    def _is_worth(self, start: int, stop: int) -> bool:
        """Return whether a region holds a kernel that does not fit whole, and its operands and results could fit."""
        at = bisect_left(self.over, start)
        if at == len(self.over) or self.over[at] >= stop:
            return False
        before, after, results = self.regions.bytes_around(start, stop)
        # At the end all results are there, beside the operands or, where strips are joined by a copy, the strips of one.
        if max(before, after) + results > self.capacity:
            return False
        is_tight = after + 2 * results > self.capacity
        if is_tight and after + results + self.regions.largest_copied(start, stop) > self.capacity:
            return False
        # Between two strips the kept rows live, at the end beside nearly all results.
        return after + self.regions.least_kept(start, stop) + results * 3 // 4 <= self.capacity
