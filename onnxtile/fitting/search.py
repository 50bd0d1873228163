"""The cheapest way to run a network within a number of bytes: a shortest path over the places between kernels.

An edge runs one kernel whole, or a run of kernels cut into strips. Whole tensors are handed from edge to edge, so that the bytes of an edge
depend on the edge alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxtile.fitting.channels import HiddenGroup
from onnxtile.fitting.network import ROWS
from onnxtile.fitting.region import Cut
from onnxtile.fitting.regions import FitSchedule, Prices, RegionCost, Regions
from onnxtile.progress import Progress, silent

_LONGEST = 400
"""Kernels of a region, at most."""
_PARTS = (2, 3, 4, 6, 7, 8, 14, 16, 28, 32, 56, 112)
"""The numbers of strips that are tried."""
_LEVEL = 4
"""Moves in a row that do not lower the peak of a region, at most."""
_WIDEST = 3
"""Tensors that are tried to be computed again, at most."""
_DEEP = 16
"""Rows of the operands for one row of the results, from which on tensors inside are also tried as those that set the pace."""
_MOVES = 14
"""Moves that are made in one region, at most."""
_FAR = 1.6
"""The share of the capacity above which a region is given up after a few moves."""
_STOPS = 8
"""Ends of regions that are tried from one place, at most, the nearest first."""
_ENOUGH = 3
"""Ends of regions that fit, after which no further end is tried."""
_DEAR = 1e6
"""The price of multiply-accumulates from which on none is done twice."""


@dataclass(frozen=True)
class FitTarget:
    """What a schedule must meet: bytes (None: as few as possible), extra multiply-accumulates as a share, and nodes (None: any)."""

    capacity: int | None
    extra_macs: float
    nodes: int | None = None


def search(regions: Regions, wanted: FitTarget, progress: Progress = silent) -> FitSchedule:
    """Return the cheapest schedule within the capacity; the one with the least peak where none is, or no capacity is wanted."""
    if wanted.capacity is not None:
        found = _within(regions, wanted.capacity, wanted, progress)
        if found is not None:
            return found
    return _smallest(regions, wanted, progress)


def _within(regions: Regions, capacity: int, wanted: FitTarget, progress: Progress) -> FitSchedule | None:
    """Return the cheapest schedule that meets everything, with higher prices for what the last one had too much of."""
    prices = Prices(_DEAR if wanted.extra_macs == 0 else 1.0)
    for _ in range(4):
        found = PathSearch(regions, capacity, prices, progress).schedule()
        if found is None:
            return None
        over_macs = found.macs > (1 + wanted.extra_macs) * regions.network.macs
        over_nodes = wanted.nodes is not None and found.nodes > wanted.nodes
        if not over_macs and not over_nodes:
            return found
        prices = Prices(prices.macs * (8 if over_macs else 1), prices.node * (8 if over_nodes else 1))
    return None


def _smallest(regions: Regions, wanted: FitTarget, progress: Progress) -> FitSchedule:
    """Return the schedule with the least peak, to within 1%, by bisection."""
    best = FitSchedule(tuple(regions.whole))
    low, high = min(regions.live_sizes), best.peak
    while high - low > high // 100:
        middle = (low + 3 * high) // 4 if best.is_whole else (low + high) // 2
        found = _within(regions, middle, wanted, progress)
        if found is None:
            low = middle
        else:
            best, high = found, found.peak
    return best


class PathSearch:
    """Finds the cheapest schedule within `capacity` bytes."""

    def __init__(self, regions: Regions, capacity: int, prices: Prices, progress: Progress = silent) -> None:
        self.regions, self.capacity, self.prices, self.progress = regions, capacity, prices, progress
        self.macs = max(regions.network.macs, 1)

    def price(self, one: RegionCost) -> float:
        """Return the price of a region beyond that of its kernels."""
        kernels = self.regions.network.kernels[one.start : one.stop]
        extra = max(one.macs - sum(kernel.macs for kernel in kernels), 0)
        nodes = one.nodes - len(kernels)
        return self.prices.macs * extra / self.macs + self.prices.node * nodes + self.prices.copied * one.copied

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
                one = self.cheapest(place, stop)
                tried += 1
                if one is not None:
                    fitting += 1
                    yield one
                if tried >= _STOPS or fitting >= _ENOUGH:
                    return

    def _is_worth(self, start: int, stop: int) -> bool:
        """Return whether a region holds a kernel that does not fit whole, and its operands and results could fit."""
        regions = self.regions
        here, there = set(regions.live[start]), set(regions.live[stop])
        results = sum(map(regions.size, there - here))
        # At the end all results are there, beside the operands or, once more, their strips.
        before, after = sum(map(regions.size, here)), sum(map(regions.size, here & there))
        if max(before + results, after + 2 * results) > self.capacity:
            return False
        # Between two strips the kept rows live, at the end beside nearly all results.
        if after + regions.least_kept(start, stop) + results * 3 // 4 > self.capacity:
            return False
        return any(one.peak > self.capacity for one in regions.whole[start:stop])

    def cheapest(self, start: int, stop: int) -> RegionCost | None:
        """Return the cheapest way to cut a region that fits; None where none was found."""
        rows, tensors = self.regions.rows(start, stop), self.regions.network.tensors
        results = self.regions.results(start, stop)
        coarse = max((tensors[tensor].extent(ROWS) for tensor in results), default=1)
        eager = self.regions.eager(start, stop) if coarse * _DEEP <= rows else frozenset[int]()
        for way in dict.fromkeys([frozenset[int](), eager]):
            # Shorter strips than one row of the tensor that sets the pace change nothing.
            finest = min(rows, max((tensors[tensor].extent(ROWS) for tensor in (*way, *results)), default=1))
            steps = sorted({-(-rows // parts) for parts in (*_PARTS, finest) if parts <= finest})
            if self.regions.within(start, stop):
                steps.append(0)
            found = self._longest_step(start, stop, steps, way)
            if found is not None:
                return found
        return None

    def _longest_step(self, start: int, stop: int, steps: Sequence[int], eager: frozenset[int]) -> RegionCost | None:
        """Return the cut with the longest strips that fit, by bisection: longer strips take more bytes, as a rule."""
        found = self._improved(start, stop, Cut(steps[0], eager=eager)) if steps else None
        if found is None:
            return None
        low, high = 1, len(steps)
        while low < high:
            middle = (low + high) // 2
            one = self._improved(start, stop, Cut(steps[middle], eager=eager))
            if one is None:
                high = middle
                continue
            low = middle + 1
            if self.price(one) < self.price(found):
                found = one
        return found

    def _improved(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        """Return the region with as many chunks of hidden channels, and rows computed again, as it takes to fit; else None."""
        regions = self.regions
        one = regions.cost(start, stop, cut)
        groups = regions.within(start, stop)
        level = moves = 0
        while one is not None and one.peak > self.capacity:
            moves += 1
            better = self._best(one, self._moves(one, groups))
            # Several strips may reach the peak: a move that lowers one of them leaves it as it is.
            level = level + 1 if better is not None and better.peak == one.peak else 0
            is_far = one.peak > _FAR * self.capacity and moves > _LEVEL
            one = None if level > _LEVEL or moves > _MOVES or is_far else better
        return None if one is None else self._fewer_chunks(one)

    def _best(self, one: RegionCost, moves: Iterable[RegionCost]) -> RegionCost | None:
        """Return the move that saves most bytes for its price; one that keeps the peak counts least, None is returned for no other."""
        found = [move for move in moves if move.peak <= one.peak]
        before = self.price(one)
        return max(
            found,
            key=lambda move: (
                (min(one.peak - move.peak, one.peak - self.capacity)) / max(self.price(move) - before, self.prices.node)
            ),
            default=None,
        )

    def _fewer_chunks(self, one: RegionCost) -> RegionCost:
        """Return the region with as few chunks in each group as fit."""
        for place, _ in one.cut.chunks:
            fits = True
            while fits and place in (counts := dict(one.cut.chunks)):
                less = self.regions.groups[place].before(counts[place])
                counts = {**counts, place: less} if less > 1 else {p: n for p, n in counts.items() if p != place}
                found = self.regions.cost(one.start, one.stop, replace(one.cut, chunks=tuple(sorted(counts.items()))))
                fits = found is not None and found.peak <= self.capacity
                one = found if found is not None and fits else one
        return one

    def _moves(self, one: RegionCost, groups: Mapping[int, HiddenGroup]) -> Iterator[RegionCost]:
        """Yield the region with more chunks, then with rows of one tensor more computed again."""
        more = self._more_chunks(one, groups)
        for cut in ([] if more is None else [more], self._fewer_kept(one)):
            for each in cut:
                found = self.regions.cost(one.start, one.stop, each)
                if found is not None:
                    yield found

    @staticmethod
    def _more_chunks(one: RegionCost, groups: Mapping[int, HiddenGroup]) -> Cut | None:
        """Return the cut with more chunks in each group that lives at the peak; None for none."""
        counts = dict(one.cut.chunks)
        grown = dict(counts)
        for place, group in groups.items():
            # A kernel that reduces one group may expand the next: only one of the two is cut.
            others = {p for other in grown if other != place for p in groups[other].places}
            count = group.after(counts.get(place, 1))
            if count is not None and not group.tensors.isdisjoint(one.alive) and others.isdisjoint(group.places):
                grown[place] = count
        if grown == counts:
            return None
        return replace(one.cut, chunks=tuple(sorted(grown.items())))

    def _fewer_kept(self, one: RegionCost) -> Iterator[Cut]:
        """Yield cuts in which one more tensor alive at the peak is computed again, those with the most bytes kept first."""
        if not one.cut.step or self.prices.macs >= _DEAR:
            return
        regions = self.regions
        rows = regions.kept_rows(one.start, one.stop)
        kept = one.alive & regions.windowed(one.start, one.stop) - one.cut.recomputed
        widest = sorted(kept, key=lambda tensor: (-rows[tensor] * regions.row_bytes(tensor), tensor))
        for tensor in widest[:_WIDEST]:
            again = regions.from_narrower(one.start, tensor)
            yield replace(one.cut, recomputed=one.cut.recomputed | again)
