"""The bytes that live at once while a network runs as it is."""

from __future__ import annotations

from onnxtile.fitting.live_bytes import live_bytes
from onnxtile.fitting.network import Network
from onnxtile.fitting.region import Cut, UncutRegion
from onnxtile.fitting.region_tracer import RegionTracer


def uncut_peak(network: Network) -> int:
    """Return the most bytes that live at once, in one pass over the kernels.

    Views, and results in the place of operands, are followed from kernel to kernel. So it is no more than the largest peak of single
    kernels, which count every tensor that passes by.
    """
    count, whole = len(network.kernels), Cut()
    results = [made for kernel in network.kernels for made in kernel.makes if network.last_reads[made] >= count]
    ranges = UncutRegion(network.kernels, network.tensors, results).ranges(whole)
    trace = RegionTracer(network.kernels, network.tensors, results, ranges, whole).trace()
    return live_bytes(trace, network.kernels, network.tensors, ()).peak
