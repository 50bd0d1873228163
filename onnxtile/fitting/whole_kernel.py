"""The bytes that live while a kernel runs as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onnxtile.fitting.live_bytes import LiveBytes, aligned, live_bytes
from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel, FitTensor, Network
from onnxtile.fitting.region_tracer import Patch, PieceOp, RegionTrace


def whole_kernel_bytes(
    kernel: FitKernel, tensors: Sequence[FitTensor], results: Iterable[int], dying: Collection[int]
) -> LiveBytes:
    """Return the live bytes of a kernel that is not cut: operands of `dying` are not read later, `results` are."""
    numbers = {tensor: number for number, tensor in enumerate(dict.fromkeys((*kernel.reads, *kernel.makes)))}
    patches = [Patch(t, (0, tensors[t].extent(ROWS)), (0, tensors[t].extent(COLUMNS))) for t in numbers]
    reads, makes = (tuple(numbers[tensor] for tensor in ends) for ends in (kernel.reads, kernel.makes))
    lives_on = {tensor: numbers[tensor] for tensor in (*kernel.reads, *results)}
    trace = RegionTrace(patches, [PieceOp(0, reads, makes)], whole=lives_on)
    return live_bytes(trace, [kernel], tensors, dying, above=0)


def shared_by_island(network: Network, place: int) -> set[int]:
    """Return the operands of an island whose bytes the result of its last node, at `place`, takes: they die there."""
    kernel, tensors = network.kernels[place], network.tensors
    ending = {tensor for tensor in kernel.island_overwrites if network.last_reads[tensor] == place}
    if kernel.is_island_join:
        return ending
    size = aligned(tensors[kernel.makes[0]].size)
    return set(sorted(tensor for tensor in ending if aligned(tensors[tensor].size) == size)[:1])
