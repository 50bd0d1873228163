"""The bytes that live around the regions from one place on, which every way to cut such a region takes at least."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from onnxtile.fitting.channels import HiddenGroup
from onnxtile.fitting.network import ROWS, FitKernel, Network


@dataclass(frozen=True)
class KernelEnd:
    """The tensors that a kernel reads last, each with its bytes and the place that makes it, and the groups of hidden channels that end
    with it, each with its first place and its tensors; the group that begins last is the first."""

    tensors: Sequence[tuple[int, int]]
    groups: Sequence[tuple[int, Collection[int]]]


class BoundsByStart:
    """The bounds of the regions of a network, by the place where they begin.

    `groups` are those of hidden channels, by their first place; `size` and `row_bytes` return the bytes of a tensor and of one of its rows.
    """

    def __init__(
        self,
        network: Network,
        makers: Mapping[int, int],
        groups: Mapping[int, HiddenGroup],
        size: Callable[[int], int],
        row_bytes: Callable[[int], int],
        live_sizes: Sequence[int],
    ) -> None:
        self.kernels, self.live_sizes = network.kernels, live_sizes
        self.row_bytes = {made: row_bytes(made) for made in makers}
        tensors: list[list[tuple[int, int]]] = [[] for _ in network.kernels]
        ending: list[list[tuple[int, frozenset[int]]]] = [[] for _ in network.kernels]
        for made, maker in makers.items():
            if maker < network.last_reads[made] < len(tensors):
                tensors[network.last_reads[made]].append((size(made), maker))
        for first in sorted(groups, reverse=True):
            ending[groups[first].places[-1]].append((first, groups[first].tensors))
        self.ends = [KernelEnd(*both) for both in zip(tensors, ending, strict=True)]
        self._found: dict[int, RegionBounds] = {}

    def of(self, start: int) -> RegionBounds:
        """Return the bounds of the regions from a place on."""
        if start not in self._found:
            self._found[start] = RegionBounds(self.kernels, self.ends, self.row_bytes, start, self.live_sizes[start])
        return self._found[start]


class RegionBounds:
    """Counts the bytes around the regions from `start` on, of which `before` live there.

    Kernels are taken in one after the other, so the work grows with the last end that is asked for, not with the number of ends.
    """

    def __init__(
        self,
        kernels: Sequence[FitKernel],
        ends: Sequence[KernelEnd],
        row_bytes: Mapping[int, int],
        start: int,
        before: int,
    ) -> None:
        self.kernels, self.ends, self.row_bytes, self.start = kernels, ends, row_bytes, start
        self._after, self._kept = [before], [0]
        self._made: set[int] = set()
        self._hidden: set[int] = set()
        self._rows: dict[int, int] = {}

    def after(self, stop: int) -> int:
        """Return the bytes from before a region that live on behind it."""
        self._take_in(stop)
        return self._after[stop - self.start]

    def least_kept(self, stop: int) -> int:
        """Return the bytes of the rows that are kept between strips at least, if those of hidden channels are computed again."""
        self._take_in(stop)
        return self._kept[stop - self.start]

    def _take_in(self, stop: int) -> None:
        for place in range(self.start + len(self._after) - 1, stop):
            end = self.ends[place]
            dying = sum(size for size, maker in end.tensors if maker < self.start)
            self._after.append(self._after[-1] - dying)
            more = self._more_kept(self.kernels[place])
            for _, tensors in takewhile(lambda group: group[0] >= self.start, end.groups):
                more -= sum(self._rows.pop(tensor, 0) * self.row_bytes[tensor] for tensor in tensors)
                self._hidden.update(tensors)
            self._kept.append(self._kept[-1] + more)

    def _more_kept(self, kernel: FitKernel) -> int:
        """Return the bytes of rows that are kept for one more kernel."""
        more = 0
        links = kernel.links[ROWS]
        for tensor, link in zip(kernel.reads, links or (), strict=False):
            if link is not None and link.window is not None and tensor in self._made and tensor not in self._hidden:
                rows = max(link.window.reach - link.window.stride, self._rows.get(tensor, 0))
                more += (rows - self._rows.get(tensor, 0)) * self.row_bytes[tensor]
                self._rows[tensor] = rows
        self._made.update(kernel.makes)
        return more
