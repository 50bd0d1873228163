"""The costs of a region that is cut: counted on one strip of each kind, since most strips of a region are alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from onnxtile.fitting.live_bytes import ALIGNMENT, LiveBytes, live_bytes
from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel, FitTensor
from onnxtile.fitting.region import Cut, RegionTracer, tracer


@dataclass(frozen=True)
class CutCost:
    """The largest sum of live bytes, the tensors alive there, and the multiply-accumulates, nodes and copied bytes of all strips."""

    peak: int
    alive: frozenset[int]
    macs: int
    nodes: int
    copied: int


def cut_cost(
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    results: Sequence[int],
    cut: Cut,
    dying: Collection[int],
) -> CutCost:
    """Return the costs of a region, of whose operands those of `dying` are not read later. Raises PaddingOnly."""
    about = tracer(kernels, tensors, results, cut)
    if cut.step == 0 or cut.bands > 1:
        trace = about.trace(cut)
        live = live_bytes(trace, kernels, tensors, dying)
        return CutCost(live.peak, live.tensors, trace.macs, len(trace.ops), live.copied)
    return _by_strips(about, results, dying)


def _by_strips(about: RegionTracer, results: Sequence[int], dying: Collection[int]) -> CutCost:
    count = len(about.rows[0].news)
    kinds: dict[tuple[object, ...], list[int]] = {}
    for strip in range(count):
        kinds.setdefault(about.outline(strip), []).append(strip)
    operands = sum(_aligned(about.tensors[tensor].size) for tensor in dying)
    worst, nodes, copied = LiveBytes(0, frozenset(), 0), 0, 0
    for strips in kinds.values():
        # Of equal strips the last has most results beside it.
        last = strips[-1]
        at_end = last == count - 1
        found = about.strip(last)
        live = live_bytes(found.trace, about.kernels, about.tensors, dying if at_end else (), found.given, found.left)
        beside = _done(about, results, last) + (0 if at_end else operands)
        if live.peak + beside > worst.peak:
            worst = LiveBytes(live.peak + beside, live.tensors, 0)
        nodes += len(strips) * len(found.trace.ops)
        copied += len(strips) * live.copied
    joined = _joined(about, results)
    whole = sum(_aligned(about.tensors[tensor].size) for tensor in results)
    peak = whole + max((_aligned(about.tensors[tensor].size) for tensor in joined), default=0)
    if peak > worst.peak:
        worst = LiveBytes(peak, frozenset(joined), 0)
    copied += sum(_aligned(about.tensors[tensor].size) for tensor in joined)
    return CutCost(worst.peak, worst.tensors, about.macs(), nodes + len(joined), copied)


def _done(about: RegionTracer, results: Sequence[int], strip: int) -> int:
    """Return the bytes of the strips of results that are complete before `strip`."""
    total = 0
    for tensor in results:
        tensor_about = about.tensors[tensor]
        for new in about.rows[about.makers[tensor]].news[:strip]:
            if new is not None:
                total += _aligned(tensor_about.bytes(new[1] - new[0], tensor_about.extent(COLUMNS)))
    return total


def _joined(about: RegionTracer, results: Sequence[int]) -> list[int]:
    """Return the results whose strips are copied into one tensor."""
    return [
        tensor
        for tensor in results
        if not about.tensors[tensor].is_contiguous(ROWS)
        and sum(new is not None for new in about.rows[about.makers[tensor]].news) > 1
    ]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
