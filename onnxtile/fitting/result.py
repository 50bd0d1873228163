"""The result of fit: the costs of a model before and after, the steps between, and the reason where nothing fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnxtile.fitting.network import ROWS
from onnxtile.fitting.region_tracer import RegionTrace
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.schedule import RegionCost
from onnxtile.fitting.unblocking.unblock import ModelRewrite


@dataclass(frozen=True)
class ModelCost:
    """The costs of a model: the bytes of its arena and of its peak, multiply-accumulates, nodes, and the bytes that cutting copies."""

    arena: int
    peak: int
    macs: int
    nodes: int
    copied: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class FitStep:
    """A run of kernels that was cut: how, and what that costs. `peak` is the largest sum of live bytes in it."""

    kind: str
    nodes: tuple[str, ...]
    strips: int
    kept: int
    chunks: int
    hand_over: str
    extra_macs: int
    peak: int
    pieces: int
    copied: int
    rewrite: str = ""
    """The rewrite that was made before the model was cut; empty for a run that was cut."""

    @property
    def text(self) -> str:
        """The nodes, and how they are cut or rewritten, in a line."""
        if self.rewrite:
            return f"{', '.join(self.nodes[:3])}{', ...' if len(self.nodes) > 3 else ''}: {self.rewrite}"
        first, last = self.nodes[0], self.nodes[-1]
        cuts = [f"{self.strips} strips"] * (self.strips > 1)
        cuts += ["rows kept"] * (self.kept > 0) + [f"channels by {self.chunks}"] * (self.chunks > 1)
        cuts += ["handed over in pieces"] * (self.hand_over == "pieces")
        run = first if first == last else f"{first} to {last}"
        return f"{run}: {', '.join(cuts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), "nodes": list(self.nodes), "grid": [self.strips, 1], "text": self.text}


def steps_of(regions: Regions, chosen: tuple[RegionCost, ...]) -> tuple[FitStep, ...]:
    """Return a step for each region that is cut."""
    return tuple(_step(regions, one) for one in chosen if not one.is_whole)


def steps_before(rewrites: tuple[ModelRewrite, ...]) -> tuple[FitStep, ...]:
    """Return a step for each rewrite that was made before the model was cut."""
    return tuple(FitStep(one.kind, one.nodes, 1, 0, 1, "", 0, 0, 0, 0, one.text) for one in rewrites)


def _step(regions: Regions, one: RegionCost) -> FitStep:
    found = regions.trace(one)
    before = regions.network.kernels[one.start : one.stop]
    kind = "patch" if one.cut.recomputed else "strip" if found.strips > 1 else "channels"
    return FitStep(
        kind=kind,
        nodes=tuple(kernel.name for kernel in before),
        strips=found.strips,
        kept=found.kept,
        chunks=max((count for _, count in one.cut.chunks), default=1),
        hand_over=_hand_over(regions, one, found),
        extra_macs=one.macs - sum(kernel.macs for kernel in before),
        peak=one.peak,
        pieces=one.nodes,
        copied=one.copied,
    )


def _hand_over(regions: Regions, one: RegionCost, found: RegionTrace) -> str:
    """Return `pieces` for results that are not joined, `join` for strips that are copied into one tensor; else `in place`."""
    if any(tensor in found.pieces for tensor in one.cut.parted):
        return "pieces"
    results = [regions.network.tensors[tensor] for tensor in regions.results(one.start, one.stop)]
    is_joined = found.strips > 1 and any(not about.is_contiguous(ROWS) for about in results)
    return "join" if is_joined else "in place"


@dataclass(frozen=True)
class Obstacle:
    """The reason why nothing smaller was found: the peak that is left, the kernels around it, and the tensors that live there.

    `outputs` are the bytes of the outputs of the model, which live to the end. `search` says why the search ended: `exhausted` where it
    tried all ways that it knows, `bound` where the bound of its work ended it, so that a smaller arena may exist.
    """

    peak: int
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    reasons: tuple[str, ...]
    outputs: int = 0
    search: str = "exhausted"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in vars(self).items()}


def obstacle_of(regions: Regions, chosen: tuple[RegionCost, ...], *, is_cut_short: bool) -> Obstacle:
    """Return the region with the largest peak as the obstacle; `is_cut_short` says that the bound of its work ended the search."""
    worst = max(chosen, key=lambda one: one.peak)
    kernels, tensors = regions.network.kernels[worst.start : worst.stop], regions.network.tensors
    alive = sorted(worst.alive, key=lambda tensor: (-regions.size_of(tensors[tensor]), tensor))
    reasons = dict.fromkeys(f"{kernel.name}: {kernel.reason}" for kernel in kernels if kernel.reason)
    return Obstacle(
        worst.peak,
        tuple(kernel.name for kernel in kernels),
        tuple(f"{tensors[tensor].name} ({regions.size_of(tensors[tensor]):,} bytes)" for tensor in alive),
        tuple(reasons),
        sum(regions.size_of(about) for about in tensors if about.is_kept),
        "bound" if is_cut_short else "exhausted",
    )
