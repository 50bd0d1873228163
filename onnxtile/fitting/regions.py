"""The runs of kernels of a network, each cut in the ways that may pay, with their costs."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import accumulate, takewhile

from onnxtile.fitting.channels import ChunkedGroups, HiddenGroup
from onnxtile.fitting.live_bytes import (
    CutCost,
    CutRows,
    Overload,
    RegionTrace,
    RegionTracer,
    aligned,
    cut_cost,
    whole_kernel_bytes,
)
from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.fitting.strips import (
    WHOLE,
    ChunkedKernels,
    Cut,
    PaddingOnly,
    RegionCost,
    StripRanges,
    UncutRegion,
    coming_in,
    in_parts,
)
from onnxtile.system.dataclass import dataclass

# The bytes that live around the regions from one place on, which every way to cut such a region takes at least.


@dataclass(frozen=True)
class KernelEnd:
    """The tensors that a kernel reads last, each with its bytes and the place that makes it, and the groups of hidden channels that end
    with it, each with its first place and its tensors; the group that begins last is the first."""

    tensors: Sequence[tuple[int, int]]
    groups: Sequence[tuple[int, Collection[int]]]


class RegionBounds:
    """Counts the bytes around the regions from `start` on, of which `before` live there.

    Kernels are taken in one after the other, so the work grows with the last end that is asked for, not with the number of ends.
    """

    def __init__(self, network: Network, ends: Sequence[KernelEnd], start: int, before: int) -> None:
        self.kernels, self.tensors, self.ends, self.start = network.kernels, network.tensors, ends, start
        self._after, self._kept = [before], [0]
        self._made: set[int] = set()
        self._hidden: set[int] = set()
        self._rows: dict[int, int] = {}

    def after(self, stop: int) -> int:
        """Return the bytes from before a region that live on after it."""
        self._take_in(stop)
        return self._after[stop - self.start]

    def least_kept(self, stop: int) -> int:
        """Return the bytes of the rows that are kept between strips at least, if those of hidden channels are computed again."""
        self._take_in(stop)
        return self._kept[stop - self.start]

    def _take_in(self, stop: int) -> None:
        for index in range(self.start + len(self._after) - 1, stop):
            end = self.ends[index]
            dying = sum(size for size, maker in end.tensors if maker < self.start)
            self._after.append(self._after[-1] - dying)
            more = self._more_kept(self.kernels[index])
            for _, tensors in takewhile(lambda group: group[0] >= self.start, end.groups):
                more -= sum(self._rows.pop(tensor, 0) * self.tensors[tensor].row_bytes for tensor in tensors)
                self._hidden.update(tensors)
            self._kept.append(self._kept[-1] + more)

    def _more_kept(self, kernel: FitKernel) -> int:
        """Return the bytes of rows that are kept for one more kernel."""
        more = 0
        for tensor, link in zip(kernel.reads, kernel.links or (), strict=False):
            if link is not None and link.window is not None and tensor in self._made and tensor not in self._hidden:
                rows = max(link.window.reach - link.window.stride, self._rows.get(tensor, 0))
                more += (rows - self._rows.get(tensor, 0)) * self.tensors[tensor].row_bytes
                self._rows[tensor] = rows
        self._made.update(kernel.makes)
        return more


class Regions:
    """The regions of a network, each counted once."""

    def __init__(self, network: Network, groups: Mapping[int, HiddenGroup] | None = None) -> None:
        self.network = network
        self.groups = groups or {}
        self._chunked = ChunkedGroups(network, self.groups)
        self.counted = 0
        """The kernels of the regions whose costs were counted: the work that was done."""
        self.limit = sys.maxsize
        """No better way to cut a region is looked for once this many kernels are counted, at whatever place."""
        self.is_cut_short = False
        """Whether a bound of its work ended the last search, or one of the last attempts, so that a smaller schedule may exist."""
        self._known: dict[tuple[int, int, Cut], RegionCost | None] = {}
        self._rows: dict[tuple[int, int, Cut], CutRows] = {}
        self._overloads: dict[tuple[int, int, Cut], Overload] = {}
        self._unjoined: dict[tuple[int, int, Cut], CutCost | Overload] = {}
        """The costs of regions before the strips of results are joined."""
        self._uncut = cache(self._new_uncut)
        self._few_chunks = cache(self._new_few_chunks)
        self._bounds = cache(self._new_bounds)
        self.disjoint = cache(self._new_disjoint)
        self.kept_rows = cache(self._new_kept_rows)

    @cached_property
    def alone(self) -> dict[int, int]:
        """The places where one tensor lives, with this tensor."""
        count = len(self.network.kernels)
        tensors, numbers = [0] * (count + 2), [0] * (count + 2)
        for tensor, index in self.origins.items():
            last = self.network.last_reads[tensor]
            if last > index:
                for at, sign in ((index + 1, 1), (last + 1, -1)):
                    tensors[at] += sign
                    numbers[at] += sign * tensor
        sums = zip(accumulate(tensors), accumulate(numbers), strict=True)
        return {index: number for index, (living, number) in enumerate(sums) if living == 1}

    @cached_property
    def live_sizes(self) -> list[int]:
        """The bytes that live at each place."""
        changes, last = [0] * (len(self.network.kernels) + 2), self.network.last_reads
        for tensor, index in self.origins.items():
            if last[tensor] > index:
                changes[index + 1] += self.size(tensor)
                changes[last[tensor] + 1] -= self.size(tensor)
        return list(accumulate(changes[:-1]))

    def size(self, tensor: int) -> int:
        """Return the aligned bytes of a whole tensor; 0 for one outside of the arena."""
        return self.size_of(self.network.tensors[tensor])

    @staticmethod
    def size_of(about: FitTensor) -> int:
        """Return the aligned bytes of a whole tensor; 0 for one outside of the arena."""
        return aligned(about.size)

    @cached_property
    def narrow(self) -> list[int]:
        """The places where regions begin and end: where the fewest bytes live, and around kernels that are not cut."""
        sizes, kernels = self.live_sizes, self.network.kernels
        count = len(kernels)
        inner = [p for p in range(1, count) if sizes[p - 1] >= sizes[p] < sizes[p + 1] or sizes[p - 1] > sizes[p]]
        least = {p for p in inner if sizes[p] <= sizes[p + 1]}
        # A region may also begin where the bytes double: small tensors beside it, such as gates, are made before.
        least.update(p for p in range(1, count) if 2 * sizes[p] < sizes[p + 1])
        around = {boundary for p in range(count) if kernels[p].links is None for boundary in (p, p + 1)}
        return sorted({0, count, *least, *around})

    @cached_property
    def level(self) -> list[int]:
        """The places of `narrow`, those around which no fewer bytes live, and those after sums, which are complete there."""
        sizes, kernels = self.live_sizes, self.network.kernels
        flat = {p for p in range(1, len(kernels)) if sizes[p - 1] >= sizes[p] <= sizes[p + 1]}
        sums = {p + 1 for p, kernel in enumerate(kernels) if self.network.tensors[kernel.makes[0]].folds}
        return sorted(flat.union(sums, self.narrow))

    def size_of_rows(self, tensor: int, rows: int) -> int:
        """Return the aligned bytes of some rows of a tensor."""
        return aligned(self.row_bytes(tensor) * rows)

    def results(self, start: int, stop: int) -> list[int]:
        """Return the tensors that a region makes for later kernels."""
        last = self.network.last_reads
        return [
            tensor for kernel in self.network.kernels[start:stop] for tensor in kernel.makes if last[tensor] >= stop
        ]

    def largest_copied(self, start: int, stop: int, parted: frozenset[int] = frozenset()) -> int:
        """Return the bytes of the largest result of a region whose strips a copy joins: its rows are no consecutive bytes.

        Results of `parted` are not joined.
        """
        results = (tensor for tensor in self.results(start, stop) if tensor not in parted)
        return max(
            (self.size(tensor) for tensor in results if not self.network.tensors[tensor].has_contiguous_rows), default=0
        )

    def region(self, start: int, stop: int, cut: Cut, *, all_chunks: bool = True) -> ChunkedKernels:
        """Return the kernels of a region, with hidden channels in chunks; without `all_chunks`, with three of each group at most."""
        kernels = self.network.kernels[start:stop]
        if not cut.chunks:
            return ChunkedKernels.whole(kernels, self.all_tensors)
        return self._chunked.region(start, stop, cut.chunks, all_chunks=all_chunks)

    @property
    def all_tensors(self) -> list[FitTensor]:
        """The tensors of the network, and the parts of tensors in chunks after them."""
        return self._chunked.tensors

    def ranges(self, start: int, stop: int, cut: Cut) -> list[StripRanges]:
        """Return the rows that each kernel of a region computes in each strip. Raises PaddingOnly."""
        return self._rows_of(start, stop, cut).ranges

    def _rows_of(self, start: int, stop: int, cut: Cut) -> CutRows:
        """Return the rows of each strip of a region. Raises PaddingOnly."""
        key = start, stop, cut.plain
        if key not in self._rows:
            region = self._uncut(start, stop)
            self._rows[key] = CutRows(region.kernels, region.tensors, region.ranges(cut.plain))
        return self._rows[key]

    def _new_uncut(self, start: int, stop: int) -> UncutRegion:
        return UncutRegion(self.network.kernels[start:stop], self.network.tensors, self.results(start, stop))

    def within(self, start: int, stop: int) -> dict[int, HiddenGroup]:
        """Return the groups of hidden channels that lie in a region."""
        return {p: group for p, group in self.groups.items() if start <= p and group.places[-1] < stop}

    def _new_disjoint(self, start: int, stop: int) -> dict[int, HiddenGroup]:
        """Return groups that lie in a region and share no kernel, those with the most hidden bytes first."""
        tensors = self.network.tensors
        taken, groups = set[int](), dict[int, HiddenGroup]()
        within = self.within(start, stop)
        for first in sorted(within, key=lambda p: (-max(tensors[t].size for t in within[p].tensors), p)):
            if taken.isdisjoint(within[first].places):
                taken.update(within[first].places)
                groups[first] = within[first]
        return groups

    def macs(self, start: int, stop: int, cut: Cut) -> int | None:
        """Return the multiply-accumulates of a region; None where it cannot be cut so."""
        self.counted += 0 if (start, stop, cut.plain) in self._rows else stop - start
        if self._reorders_draws(start, stop):
            return None
        try:
            return self._rows_of(start, stop, cut).macs
        except PaddingOnly:
            return None

    def wide(self, start: int, stop: int) -> frozenset[int]:
        """Return the tensors of a region of which rows are kept, and that are computed from narrower ones."""
        wide = set[int]()
        for tensor in self.windowed(start, stop):
            wide |= self.from_narrower(start, tensor)
        return frozenset(wide)

    def cut(self, region: RegionCost) -> ChunkedKernels:
        """Return the kernels of a region."""
        return self.region(region.start, region.stop, region.cut)

    def trace(self, cost: RegionCost) -> RegionTrace:
        """Return the operations of a region. Raises PaddingOnly."""
        region = self.cut(cost)
        return self._traced(cost, region.kernels, region.ranges(self.ranges(cost.start, cost.stop, cost.cut)))

    def traced_nodes(self, cost: RegionCost) -> tuple[list[FitKernel], RegionTrace]:
        """Return the kernels of the single nodes of a region, and its operations node by node. Raises PaddingOnly."""
        region = self.cut(cost)
        ranges = region.ranges(self.ranges(cost.start, cost.stop, cost.cut))
        members, rows = in_parts(region.kernels, region.tensors, ranges)
        return members, self._traced(cost, members, rows)

    def _traced(self, cost: RegionCost, kernels: Sequence[FitKernel], rows: list[StripRanges]) -> RegionTrace:
        return RegionTracer(kernels, self.all_tensors, self.results(cost.start, cost.stop), rows, cost.cut).trace()

    def cost(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        """Return the costs of a region; None where it cannot be cut so."""
        cost = self.cost_within(start, stop, cut, sys.maxsize)
        assert not isinstance(cost, Overload)
        return cost

    def cost_within(self, start: int, stop: int, cut: Cut, capacity: int) -> RegionCost | Overload | None:
        """Return the costs of a region; what is known of it where it exceeds a capacity in bytes; None where it cannot be cut so."""
        key = (start, stop, cut)
        if key in self._known:
            return self._known[key]
        known = self._overloads.get(key)
        if known is not None and known.peak > capacity:
            return known
        cost = self._cost(start, stop, cut, capacity)
        if isinstance(cost, Overload):
            self._overloads[key] = cost
        else:
            self._known[key] = cost
        return cost

    @cached_property
    def _draws(self) -> list[int]:
        """The number of random kernels before each place."""
        return list(accumulate((kernel.is_random for kernel in self.network.kernels), initial=0))

    def _reorders_draws(self, start: int, stop: int) -> bool:
        """Return whether a region has several random kernels: those that are not cut run in the strip that needs them, in another order."""
        return self._draws[stop] - self._draws[start] > 1

    def _cost(self, start: int, stop: int, cut: Cut, capacity: int) -> RegionCost | Overload | None:
        """Return the costs of a region, as `cost_within` does."""
        self.counted += stop - start
        if self._reorders_draws(start, stop):
            return None
        dying, passing = self.dying(start, stop), self._passing(start, stop, cut)
        region = self._few_chunks(start, stop, cut.chunks)
        try:
            rows = self._rows_of(start, stop, cut)
        except PaddingOnly:
            return None
        key = start, stop, replace(cut, parted=WHOLE.parted)
        cost = self._unjoined.get(key)
        if cost is None or (isinstance(cost, Overload) and cost.peak <= capacity - passing):
            cost = cut_cost(region, rows, self.results(start, stop), cut, dying, capacity - passing)
            self._unjoined[key] = cost
        if isinstance(cost, CutCost):
            cost = cost.joined(cut.parted, capacity - passing)
        if isinstance(cost, Overload):
            return cost.beside(passing)
        loads = tuple(load + passing for load in cost.loads)
        return RegionCost(
            start,
            stop,
            cut,
            cost.peak + passing,
            rows.macs,
            cost.nodes,
            cost.copied,
            cost.calls,
            loads,
            cost.rest + passing,
        )

    def bytes_around(self, start: int, stop: int) -> tuple[int, int, int]:
        """Return the bytes that live before a region, those of them that live on after it, and those of its results."""
        after = self._bounds(start).after(stop)
        return self.live_sizes[start], after, self.live_sizes[stop] - after

    def _new_bounds(self, start: int) -> RegionBounds:
        return RegionBounds(self.network, self._ends, start, self.live_sizes[start])

    @cached_property
    def _ends(self) -> list[KernelEnd]:
        """The tensors that each kernel reads last, and the groups that end with it."""
        last_reads = self.network.last_reads
        tensors: list[list[tuple[int, int]]] = [[] for _ in self.network.kernels]
        groups: list[list[tuple[int, frozenset[int]]]] = [[] for _ in self.network.kernels]
        for tensor, maker in self.origins.items():
            if maker < last_reads[tensor] < len(tensors):
                tensors[last_reads[tensor]].append((self.size(tensor), maker))
        for first in sorted(self.groups, reverse=True):
            groups[self.groups[first].places[-1]].append((first, self.groups[first].tensors))
        return [KernelEnd(*both) for both in zip(tensors, groups, strict=True)]

    @cached_property
    def _read_last(self) -> list[list[int]]:
        """The tensors that each kernel reads last, inputs too."""
        last_reads, tensors = self.network.last_reads, [list[int]() for _ in self.network.kernels]
        for tensor in self.origins:
            if 0 <= last_reads[tensor] < len(tensors):
                tensors[last_reads[tensor]].append(tensor)
        return tensors

    def dying(self, start: int, stop: int) -> set[int]:
        """Return the tensors from before a region that it reads last."""
        return {tensor for read in self._read_last[start:stop] for tensor in read if self.origins[tensor] < start}

    @cached_property
    def _by_rows(self) -> dict[int, int]:
        """The last read of each tensor whose rows die one after the other where it is cut."""
        return {t: self.network.last_reads[t] for t in self.origins if self.network.tensors[t].dies_by_rows}

    def dying_by_rows(self, start: int, stop: int) -> set[int]:
        """Return the tensors from before a region that it reads last, and whose rows die one after the other where it is cut."""
        return {t for t, last in self._by_rows.items() if start <= last < stop and self.origins[t] < start}

    def _passing(self, start: int, stop: int, cut: Cut = WHOLE) -> int:
        """Return the bytes from before a region that live throughout it, without tensors in pieces."""
        apart = self.dying(start, stop).union(tensor for tensor, _ in cut.given)
        return self.live_sizes[start] - sum(map(self.size, apart))

    @cached_property
    def least(self) -> int:
        """The bytes that every schedule takes at least: those of a kernel that is cut neither into rows nor into channels."""
        in_chunks = {index for group in self.groups.values() for index in group.places}
        uncut = (region for region in self.whole if self.network.kernels[region.start].links is None)
        alone = (self.alone_bytes(region.start) for region in uncut if region.start not in in_chunks)
        return max(alone, default=0)

    def alone_bytes(self, index: int) -> int:
        """Return the bytes of the operands and results of a kernel as it is, without those of tensors that pass by."""
        return self.whole[index].peak - self._passing(index, index + 1)

    def fixed(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the numbers of the kernels of a region that lie in no group of hidden channels."""
        taken = {index for group in self.disjoint(start, stop).values() for index in group.places}
        return tuple(index - start for index in range(start, stop) if index not in taken)

    def _new_few_chunks(self, start: int, stop: int, chunks: tuple[tuple[int, int], ...]) -> ChunkedKernels:
        return self.region(start, stop, Cut(chunks=chunks), all_chunks=False)

    @cached_property
    def whole(self) -> list[RegionCost]:
        """Each kernel as it is."""
        return [self._whole(index) for index in range(len(self.network.kernels))]

    def _whole(self, index: int) -> RegionCost:
        """Return the costs of a kernel as it is, those of a region of one kernel and one strip."""
        kernel, end = self.network.kernels[index], index + 1
        live = whole_kernel_bytes(kernel, self.network.tensors, self.results(index, end), self.dying(index, end))
        passing = self._passing(index, end)
        loads, rest = (live.loads[0] + passing,), live.first + passing
        nodes = len(kernel.members)
        return RegionCost(index, end, WHOLE, live.peak + passing, kernel.macs, nodes, 0, 1, loads, rest)

    def rows(self, start: int, stop: int) -> int:
        """Return the rows of the largest operand of a region that comes in strip by strip."""
        coming = coming_in(self.network.kernels[start:stop], self.network.tensors)
        return max((self.network.tensors[tensor].rows for tensor in coming), default=1)

    def _new_kept_rows(self, start: int, stop: int) -> dict[int, int]:
        """Return the rows of each tensor of a region that are kept between strips at least."""
        results, rows = set[int](), dict[int, int]()
        for kernel in self.network.kernels[start:stop]:
            for tensor, link in zip(kernel.reads, kernel.links or (), strict=False):
                if tensor in results and link is not None and (link.window or link.sources):
                    rows[tensor] = max(rows.get(tensor, 0), link.overlap)
            results.update(kernel.makes)
        return rows

    def row_bytes(self, tensor: int) -> int:
        """Return the bytes of one row of a tensor."""
        return self.network.tensors[tensor].row_bytes

    def least_kept(self, start: int, stop: int) -> int:
        """Return the bytes of the rows that are kept between strips at least, if those of hidden channels are computed again."""
        return self._bounds(start).least_kept(stop)

    @cached_property
    def makers(self) -> dict[int, int]:
        """The place of the kernel that makes each tensor."""
        return {tensor: index for index, kernel in enumerate(self.network.kernels) for tensor in kernel.makes}

    @cached_property
    def origins(self) -> dict[int, int]:
        """The place of the kernel that makes each tensor; -1 for a graph input in the arena."""
        return {**dict.fromkeys(self.network.given, -1), **self.makers}

    def from_narrower(self, start: int, tensor: int) -> frozenset[int]:
        """Return `tensor`, and those that it is computed from back to narrower ones, or to those of uncut kernels, which stay kept."""
        tensors, pending = {tensor}, [tensor]
        while pending:
            operand = pending.pop()
            for source in self.network.kernels[self.makers[operand]].reads:
                wide = self.row_bytes(source) * 2 > self.row_bytes(operand) and not self.network.tensors[source].folds
                if wide and source not in tensors and self.makers.get(source, -1) >= start and self._is_cut(source):
                    tensors.add(source)
                    pending.append(source)
        return frozenset(tensors)

    def windowed(self, start: int, stop: int) -> frozenset[int]:
        """Return the tensors of a region of which rows are kept, that may be computed again instead."""
        results = set(self.results(start, stop))
        kept = self.kept_rows(start, stop).items()
        return frozenset(t for t, rows in kept if rows and t not in results and self._is_cut(t))

    def _is_cut(self, tensor: int) -> bool:
        """Return whether the kernel that makes a tensor is cut into rows; another one would make all of them again."""
        return self.network.kernels[self.makers[tensor]].links is not None

    @property
    def repeated(self) -> frozenset[int]:
        """The tensors of which rows may be computed again, in some region or other."""
        kept = self.kept_rows(0, len(self.network.kernels)).items()
        windowed = (tensor for tensor, rows in kept if rows and self._is_cut(tensor))
        return frozenset[int]().union(*(self.from_narrower(0, tensor) for tensor in windowed))

    def checkpoints(self, start: int, stop: int) -> frozenset[int]:
        """Return the tensors of a region that alone live at a place in it, and lie in no group of hidden channels."""
        hidden = {tensor for group in self.disjoint(start, stop).values() for tensor in group.tensors}
        return self.eager(start, stop) - hidden

    def eager(self, start: int, stop: int) -> frozenset[int]:
        """Return the tensors of a region that alone live at a place in it."""
        places = self.narrow[bisect_right(self.narrow, start) : bisect_left(self.narrow, stop)]
        return frozenset(self.alone[index] for index in places if index in self.alone)
