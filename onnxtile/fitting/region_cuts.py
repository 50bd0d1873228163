"""The ways to cut one region that fit a number of bytes: strips, rows computed again, and chunks of hidden channels.

Chunks of one group change the bytes of no other kernel. So the chunks of each group follow from the bytes while its own kernels run.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from onnxtile.fitting.network import ROWS
from onnxtile.fitting.region import Cut
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.schedule import WHOLE, RegionCost

_PARTS = (2, 3, 4, 6, 7, 8, 14, 16, 28, 32, 56, 112)
"""The numbers of strips that are tried."""
_DEEP = 16
"""Rows of the operands for one row of the results, from which on tensors inside are also tried as those that set the pace."""
_LITTLE = 0.002
"""The share of all multiply-accumulates from which on more rows at a time are tried, where rows are computed again."""
_FINER = 2
"""Strips that are tried then, the longest first."""
_FEW = 4
"""Tensors of which one is chosen to be computed again, at most."""
_FAR = 1.1
"""The share of the capacity above which rows computed again are not tried one tensor after the other."""
_ROUNDS = 8
"""Times that chunks are added in one region, at most."""


@dataclass(frozen=True)
class ChunkLoad:
    """The bytes that live while kernels of a group run, with chunks of so many `channels` at most."""

    channels: int
    load: int

    def beyond(self, wider: ChunkLoad) -> int:
        """Return the bytes that live with chunks of any number of channels, by those with `wider` chunks.

        The bytes are the most of several sums of a constant and a part for each channel: so none is below the line through two of them.
        """
        return (self.load * wider.channels - wider.load * self.channels) // (wider.channels - self.channels)


class RegionCuts:
    """Finds the ways to cut regions within `capacity` bytes; `recomputes` says that rows may be computed again.

    `depth` is the multiple of their work that searches with these ways may take.
    """

    def __init__(self, regions: Regions, capacity: int, *, recomputes: bool, depth: int = 1) -> None:
        self.regions, self.capacity, self.recomputes, self.depth = regions, capacity, recomputes, depth
        self.most = sys.maxsize
        """The number of counted kernels from which on no better way to cut a region is looked for."""
        self._found: dict[tuple[int, int, Cut], list[RegionCost]] = {}

    @property
    def is_spent(self) -> bool:
        """Whether the effort is used up; the regions then note that a search was cut short."""
        spent = self.regions.counted >= self.most
        self.regions.is_cut_short |= spent
        return spent

    def of(self, start: int, stop: int, handed: Cut = WHOLE) -> list[RegionCost]:
        """Return the ways to cut a region, none of which costs more than another in each respect.

        `handed` says which tensors are handed over in pieces, to the region and by it.
        """
        key = start, stop, handed
        if key not in self._found:
            ways = list(self._ways(start, stop, handed))
            # Finer pieces may be dearer, but let the next region fit.
            self._found[key] = list(dict.fromkeys(ways)) if handed.parted else _front(ways)
        return self._found[key]

    def _ways(self, start: int, stop: int, handed: Cut) -> Iterator[RegionCost]:
        regions = self.regions
        rows, tensors, results = regions.rows(start, stop), regions.network.tensors, regions.results(start, stop)
        whole = self._fitted(start, stop, handed) if self._may_fit_in_chunks(start, stop, handed) else None
        if whole is not None:
            yield whole
        coarse = max((tensors[tensor].extent(ROWS) for tensor in results), default=1)
        eager = regions.eager(start, stop) if coarse * _DEEP <= rows else frozenset[int]()
        for way in dict.fromkeys([frozenset[int](), eager]):
            # Shorter strips than one row of the tensor that sets the pace change nothing.
            finest = min(rows, max((tensors[tensor].extent(ROWS) for tensor in (*way, *results)), default=1))
            steps = sorted({-(-rows // parts) for parts in _PARTS if parts < finest} | {rows // finest} - {rows})
            fits = list(self._longest(start, stop, steps, replace(handed, eager=way)))
            if self.recomputes and whole is None:
                fits += self._again(start, stop, steps, replace(handed, eager=way))
            yield from fits
            if fits:
                return

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
        found = list(self._longest(start, stop, steps, replace(cut, recomputed=recomputed)))
        if not found:
            one = (
                self._more_recomputed(start, stop, replace(cut, step=steps[0])) if steps and not self.is_spent else None
            )
            return [] if one is None else [one]
        found.append(self._fewer_recomputed(found[-1]))
        least = sum(kernel.macs for kernel in self.regions.network.kernels[start:stop])
        if found[-1].macs - least < _LITTLE * self.regions.network.macs or self.is_spent:
            return found
        checkpoints = self.regions.checkpoints(start, stop)
        for step in [step for step in reversed(steps) if step <= found[-1].cut.step][:_FINER]:
            seed = self._fitted(start, stop, replace(cut, step=step, eager=checkpoints, recomputed=recomputed))
            if seed is not None:
                coarse, kept = self._coarser(seed), self._fewer_recomputed(seed)
                found += [coarse, self._fewer_recomputed(coarse), kept, self._coarser(kept)]
        return found

    def _longest(self, start: int, stop: int, steps: Sequence[int], cut: Cut) -> Iterator[RegionCost]:
        """Yield cuts that fit, the one with the longest strips last, by bisection: longer strips take more bytes, as a rule."""
        if not steps:
            return
        found = self._fitted(start, stop, replace(cut, step=steps[0]))
        if found is None:
            return
        yield found
        low, high = 1, len(steps)
        while low < high:
            middle = (low + high) // 2
            one = self._fitted(start, stop, replace(cut, step=steps[middle]))
            if one is None:
                high = middle
                continue
            low = middle + 1
            yield one

    def _fitted(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        """Return the region with as many chunks of hidden channels as it takes to fit; None where that is not enough."""
        one = self._chunked(start, stop, cut, self.capacity)
        return one if one is not None and one.peak <= self.capacity else None

    def _chunked(self, start: int, stop: int, cut: Cut, capacity: int | None = None) -> RegionCost | None:
        """Return the region with more chunks of hidden channels until it fits, or more cannot help; None where it cannot be cut so.

        With a `capacity`, also None where more cannot help.
        """
        one = self.regions.cost(start, stop, cut, capacity)
        groups = self.regions.disjoint(start, stop)
        owners = {place: first for first, group in groups.items() for place in group.places}
        before: dict[int, ChunkLoad] = {}
        for _ in range(_ROUNDS):
            if one is None or one.peak <= self.capacity:
                return one
            counts = self._more_chunks(one, owners, before)
            if counts is None:
                return one
            one = self.regions.cost(start, stop, replace(cut, chunks=tuple(sorted(counts.items()))), capacity)
        return one

    def _more_chunks(
        self, one: RegionCost, owners: Mapping[int, int], before: dict[int, ChunkLoad]
    ) -> dict[int, int] | None:
        """Return the chunks of each group, with more of those whose kernels do not fit; None where that cannot help.

        `before` has the bytes that each group took with fewer chunks; it is brought up to date.
        """
        over: dict[int, int] = {}
        for place, load in enumerate(one.loads, start=one.start):
            if load > self.capacity:
                if place not in owners:
                    return None
                over[owners[place]] = max(over.get(owners[place], 0), load)
        if one.rest >= self.capacity or not over:
            return None
        counts = dict(one.cut.chunks)
        for first, load in over.items():
            group, count = self.regions.groups[first], counts.get(first, 1)
            if count > 1 and self._is_hopeless(first, ChunkLoad(ceil(group.channels / count), load), before):
                return None
            wanted = ceil(count * (load - one.rest) / (self.capacity - one.rest))
            more = group.after(count)
            while more is not None and more < wanted:
                more = group.after(more)
            if more is None:
                return None
            counts[first] = more
        return counts

    def _is_hopeless(self, first: int, now: ChunkLoad, before: dict[int, ChunkLoad]) -> bool:
        """Return whether no number of chunks makes a group fit; from two chunks on, since one chunk needs no sum."""
        wider, before[first] = before.get(first), now
        return wider is not None and wider.channels > now.channels and now.beyond(wider) > self.capacity

    def _more_recomputed(self, start: int, stop: int, cut: Cut) -> RegionCost | None:
        """Return the region with rows of one tensor after the other computed again, until it fits; None where that is not enough."""
        one = self._chunked(start, stop, cut)
        for _ in range(_ROUNDS):
            if one is None or one.peak <= self.capacity:
                return one
            if one.peak > _FAR * self.capacity or self.is_spent:
                return None
            one = self._one_more_recomputed(one)
        return None

    def _one_more_recomputed(self, one: RegionCost) -> RegionCost | None:
        """Return the region in which rows of one more tensor are computed again, for the fewest multiply-accumulates for each byte."""
        regions, start, stop = self.regions, one.start, one.stop
        rows = regions.kept_rows(start, stop)
        some: list[tuple[float, int, Cut]] = []
        for tensor in sorted(regions.windowed(start, stop) - one.cut.recomputed):
            cut = replace(one.cut, recomputed=one.cut.recomputed | regions.from_narrower(start, tensor))
            macs = regions.macs(start, stop, cut)
            if macs is not None:
                price = (macs - one.macs) / max(rows[tensor] * regions.row_bytes(tensor), 1)
                some.append((price, tensor, cut))
        best: tuple[float, RegionCost] | None = None
        for _, _, cut in sorted(some, key=lambda each: each[:2])[:_FEW]:
            found = self._chunked(start, stop, cut)
            if found is not None and found.peak < one.peak:
                price = (found.macs - one.macs) / min(one.peak - found.peak, one.peak - self.capacity)
                best = (price, found) if best is None or price < best[0] else best
        return None if best is None else best[1]

    def _fewer_recomputed(self, one: RegionCost) -> RegionCost:
        """Return the region with rows of fewer tensors computed again, those first that cost most multiply-accumulates for their bytes."""
        regions = self.regions
        rows = regions.kept_rows(one.start, one.stop)
        gains: dict[int, float] = {}
        for tensor in sorted(one.cut.recomputed & regions.windowed(one.start, one.stop)):
            kept = regions.macs(one.start, one.stop, self._keeping(one, tensor))
            if kept is not None and kept < one.macs:
                gains[tensor] = (one.macs - kept) / max(rows[tensor] * regions.row_bytes(tensor), 1)
        for tensor in sorted(gains, key=lambda tensor: (-gains[tensor], tensor)):
            found = None if self.is_spent else self._fitted(one.start, one.stop, self._keeping(one, tensor))
            one = one if found is None else found
        return one

    def _coarser(self, one: RegionCost) -> RegionCost:
        """Return the region with more rows at a time of tensors whose operands are computed again, as long as that fits."""
        # More rows of one tensor that do not fit seldom fit beside more rows of another.
        too_many = set[tuple[int, int]]()
        grown = True
        while grown and not self.is_spent:
            grown = False
            for grain, cut in self._grains(one, too_many):
                found = self._fitted(one.start, one.stop, cut)
                if found is not None:
                    one, grown = found, True
                    break
                too_many.add(grain)
        return one

    def _grains(self, one: RegionCost, too_many: Collection[tuple[int, int]]) -> list[tuple[tuple[int, int], Cut]]:
        """Return the cuts with more rows at a time of one tensor, each with both, those with the fewest multiply-accumulates first.

        Rows of tensors that are `too_many` are left out.
        """
        regions, before = self.regions, dict(one.cut.grains)
        found: list[tuple[int, int, int, Cut]] = []
        rows = regions.rows(one.start, one.stop)
        for tensor in sorted({*one.cut.eager, *regions.results(one.start, one.stop)}):
            size = regions.network.tensors[tensor].extent(ROWS)
            least = max(before.get(tensor, 1), one.cut.step * size // rows)
            grain = next((n for n in range(least + 1, size // 2 + 1) if size % n == 0 and 2 * n >= 3 * least), None)
            if grain is not None and (tensor, grain) not in too_many:
                cut = replace(one.cut, grains=tuple(sorted({**before, tensor: grain}.items())))
                macs = regions.macs(one.start, one.stop, cut)
                if macs is not None and macs < one.macs:
                    found.append((macs, tensor, grain, cut))
        return [((tensor, grain), cut) for _, tensor, grain, cut in sorted(found, key=lambda each: each[:2])]

    def _keeping(self, one: RegionCost, tensor: int) -> Cut:
        """Return the cut with rows of one tensor less computed again."""
        return replace(one.cut, recomputed=one.cut.recomputed - self.regions.from_narrower(one.start, tensor))


def _front(found: Sequence[RegionCost]) -> list[RegionCost]:
    """Return the ways of which no other has as few multiply-accumulates, nodes and copied bytes, and fewer of one."""
    kept: list[RegionCost] = []
    for one in sorted(found, key=lambda one: (one.macs, one.nodes, one.copied)):
        if not any(other.nodes <= one.nodes and other.copied <= one.copied for other in kept):
            kept.append(one)
    return kept
