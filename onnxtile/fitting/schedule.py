"""Regions that follow each other, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxtile.fitting.network import Network
from onnxtile.fitting.region import Cut

WHOLE = Cut()


@dataclass(frozen=True)
class Prices:
    """The price of a piece of work: of all multiply-accumulates of the model once more, of one node, and of one copied byte."""

    macs: float = 1.0
    node: float = 2e-5
    copied: float = 1e-10

    def of(self, one: RegionCost, network: Network) -> float:
        """Return the price of a region beyond that of its kernels."""
        kernels = network.kernels[one.start : one.stop]
        extra = max(one.macs - sum(kernel.macs for kernel in kernels), 0) / max(network.macs, 1)
        return self.macs * extra + self.node * (one.nodes - len(kernels)) + self.copied * one.copied


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
    loads: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The largest sum of live bytes while each kernel runs; that of all its chunks."""
    rest: int = field(default=0, compare=False, repr=False)
    """The largest sum of live bytes between two strips."""

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
