"""The cheapest way to run a network within a number of bytes: a shortest path over the places between kernels.

An edge runs one kernel whole, or a run of kernels cut into strips. Whole tensors are handed from edge to edge, so that the bytes of an edge
depend on the edge alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from onnxtile.fitting.channels import HiddenGroup, chunked
from onnxtile.fitting.estimate import cut_cost
from onnxtile.fitting.live_bytes import ALIGNMENT
from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel, FitTensor, Network
from onnxtile.fitting.region import Cut, PaddingOnly, RegionTrace, trace
from onnxtile.progress import Progress, silent

_LONGEST = 400
"""Kernels of a region, at most."""
_PARTS = (2, 3, 4, 6, 7, 8, 14, 16, 28, 32, 56, 112)
"""The numbers of strips that are tried."""
WHOLE = Cut()
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
class Prices:
    """The price of a piece of work: of all multiply-accumulates of the model once more, of one node, and of one copied byte."""

    macs: float = 1.0
    node: float = 2e-5
    copied: float = 1e-10


@dataclass(frozen=True)
class RegionCost:
    """The costs of a region that is cut in one way. `peak` counts all live bytes, also of tensors that pass by."""

    start: int
    stop: int
    cut: Cut
    peak: int
    macs: int
    nodes: int
    copied: int
    alive: frozenset[int] = field(default=frozenset(), compare=False, repr=False)
    """The tensors of the region that live at its peak."""

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
    def is_whole(self) -> bool:
        """Whether nothing is cut."""
        return all(region.is_whole for region in self.regions)


@dataclass(frozen=True)
class CutRegion:
    """The kernels and tensors of a region; `origin` has the tensor of the network that a tensor is a part of."""

    kernels: Sequence[FitKernel]
    tensors: Sequence[FitTensor]
    origin: Mapping[int, int]
    cut: Cut


class Regions:
    """The regions of a network, each counted once."""

    def __init__(self, network: Network, groups: Mapping[int, HiddenGroup] | None = None) -> None:
        self.network = network
        self.groups = groups or {}
        self._known: dict[tuple[int, int, Cut], RegionCost | None] = {}
        self._kept_rows: dict[tuple[int, int], dict[int, int]] = {}

    @cached_property
    def live(self) -> list[list[int]]:
        """The tensors that live at each place, from before the first kernel to behind the last."""
        found: list[list[int]] = [[]]
        last = self.network.last_reads
        for place, kernel in enumerate(self.network.kernels, start=1):
            found.append([t for t in found[-1] if last[t] >= place])
            found[-1].extend(made for made in kernel.makes if last[made] >= place)
        return found

    @cached_property
    def live_sizes(self) -> list[int]:
        """The bytes that live at each place."""
        return [sum(map(self.size, tensors)) for tensors in self.live]

    def size(self, tensor: int) -> int:
        """Return the aligned bytes of a whole tensor; 0 for one outside of the arena."""
        return self.size_of(self.network.tensors[tensor])

    @staticmethod
    def size_of(about: FitTensor) -> int:
        """Return the aligned bytes of a whole tensor; 0 for one outside of the arena."""
        return -(-about.size // ALIGNMENT) * ALIGNMENT

    @cached_property
    def narrow(self) -> list[int]:
        """The places where regions begin and end: where the fewest bytes live, and around kernels that are not cut."""
        sizes, kernels = self.live_sizes, self.network.kernels
        count = len(kernels)
        inner = [p for p in range(1, count) if sizes[p - 1] >= sizes[p] < sizes[p + 1] or sizes[p - 1] > sizes[p]]
        least = {p for p in inner if sizes[p] <= sizes[p + 1]}
        around = {place for p in range(count) if kernels[p].links[ROWS] is None for place in (p, p + 1)}
        inside = {p for p, tensors in enumerate(self.live) if any(self.network.tensors[t].is_inside for t in tensors)}
        return sorted({0, count, *least, *around} - inside)

    def results(self, start: int, stop: int) -> list[int]:
        """Return the tensors that a region makes for later kernels."""
        made = {made for kernel in self.network.kernels[start:stop] for made in kernel.makes}
        return [tensor for tensor in self.live[stop] if tensor in made]

    def region(self, start: int, stop: int, cut: Cut) -> CutRegion:
        """Return the kernels of a region, with hidden channels in chunks."""
        kernels = self.network.kernels[start:stop]
        if not cut.chunks:
            return CutRegion(kernels, self.network.tensors, {}, cut)
        own, tensors, origin = chunked(kernels, start, self.network.tensors, self.groups, cut.chunks)
        again = {part for part, tensor in origin.items() if tensor in cut.recomputed}
        return CutRegion(own, tensors, origin, replace(cut, recomputed=cut.recomputed | again))

    def within(self, start: int, stop: int) -> dict[int, HiddenGroup]:
        """Return the groups of hidden channels that lie in a region."""
        return {p: group for p, group in self.groups.items() if start <= p and group.places[-1] < stop}

    def cut(self, one: RegionCost) -> CutRegion:
        """Return the kernels of a region."""
        return self.region(one.start, one.stop, one.cut)

    def trace(self, one: RegionCost) -> RegionTrace:
        """Return the operations of a region. Raises PaddingOnly."""
        return self._trace(self.cut(one), one.start, one.stop)

    def _trace(self, region: CutRegion, start: int, stop: int) -> RegionTrace:
        return trace(region.kernels, region.tensors, self.results(start, stop), region.cut)

    def cost(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        """Return the costs of a region; None where it cannot be cut so."""
        key = (start, stop, cut)
        if key not in self._known:
            self._known[key] = self._cost(start, stop, cut)
        return self._known[key]

    def _cost(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        kernels, last = self.network.kernels[start:stop], self.network.last_reads
        here = set(self.live[start])
        dying = {tensor for kernel in kernels for tensor in kernel.reads if tensor in here and last[tensor] < stop}
        passing = sum(self.size(tensor) for tensor in here - dying)
        region = self.region(start, stop, cut)
        try:
            found = cut_cost(region.kernels, region.tensors, self.results(start, stop), region.cut, dying)
        except PaddingOnly:
            return None
        alive = frozenset(region.origin.get(tensor, tensor) for tensor in found.alive)
        return RegionCost(start, stop, cut, found.peak + passing, found.macs, found.nodes, found.copied, alive)

    @cached_property
    def whole(self) -> list[RegionCost]:
        """Each kernel as it is."""
        count = len(self.network.kernels)
        found = [self.cost(place, place + 1, WHOLE) for place in range(count)]
        return [one for one in found if one is not None]

    def rows(self, start: int, stop: int) -> int:
        """Return the rows of the largest operand of a region."""
        kernels = self.network.kernels[start:stop]
        made = {tensor for kernel in kernels for tensor in kernel.makes}
        given = {tensor for kernel in kernels for tensor in kernel.reads} - made
        return max((self.network.tensors[tensor].extent(ROWS) for tensor in given), default=1)

    def kept_rows(self, start: int, stop: int) -> dict[int, int]:
        """Return the rows of each tensor of a region that are kept between strips at least."""
        key = start, stop
        if key not in self._kept_rows:
            made, found = set[int](), dict[int, int]()
            for kernel in self.network.kernels[start:stop]:
                for place, tensor in enumerate(kernel.reads):
                    links = kernel.links[ROWS]
                    link = None if links is None else links[place]
                    if tensor in made and link is not None and link.window is not None:
                        rows = max(link.window.reach - link.window.stride, 0)
                        found[tensor] = max(found.get(tensor, 0), rows)
                made.update(kernel.makes)
            self._kept_rows[key] = found
        return self._kept_rows[key]

    def row_bytes(self, tensor: int) -> int:
        """Return the bytes of one row of a tensor."""
        about = self.network.tensors[tensor]
        return about.bytes(1, about.extent(COLUMNS))

    def least_kept(self, start: int, stop: int) -> int:
        """Return the bytes of the rows that are kept between strips at least, if those of hidden channels are computed again."""
        kept = self.kept_rows(start, stop)
        hidden = {tensor for group in self.within(start, stop).values() for tensor in group.tensors}
        return sum(rows * self.row_bytes(tensor) for tensor, rows in kept.items() if tensor not in hidden)

    @cached_property
    def makers(self) -> dict[int, int]:
        """The place of the kernel that makes each tensor."""
        return {made: place for place, kernel in enumerate(self.network.kernels) for made in kernel.makes}

    def from_narrower(self, start: int, tensor: int) -> frozenset[int]:
        """Return `tensor`, and those that it is computed from back to narrower ones, which stay kept."""
        found, pending = {tensor}, [tensor]
        while pending:
            one = pending.pop()
            for source in self.network.kernels[self.makers[one]].reads:
                wide = self.row_bytes(source) * 2 > self.row_bytes(one)
                if wide and source not in found and self.makers.get(source, -1) >= start:
                    found.add(source)
                    pending.append(source)
        return frozenset(found)

    def windowed(self, start: int, stop: int) -> frozenset[int]:
        """Return the tensors of a region of which rows are kept, that may be computed again instead."""
        results = set(self.results(start, stop))
        return frozenset(t for t, rows in self.kept_rows(start, stop).items() if rows and t not in results)

    def eager(self, start: int, stop: int) -> frozenset[int]:
        """Return the tensors of a region that alone live at a place in it."""
        found = set()
        for place in self.narrow:
            if start < place < stop and len(self.live[place]) == 1:
                found.update(self.live[place])
        return frozenset(found)


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
