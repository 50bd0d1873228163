"""The time that a network takes by the figures of a target: multiply-accumulates, bytes that are moved, and calls."""

from __future__ import annotations

from collections.abc import Mapping

from onnxtile.fitting.network import FitKernel, Network
from onnxtile.fitting.strips import Prices
from onnxtile.system.dataclass import dataclass

_TYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}
"""The names of the types of operands, by the bytes of an element."""


@dataclass(frozen=True)
class TargetSpeeds:
    """What a target called `name` does in a second: multiply-accumulates of each type, bytes that are copied, and calls of kernels.

    A type without a number has the lowest of the others.
    """

    name: str
    macs: Mapping[str, int]
    copied: int
    calls: int

    def seconds(self, network: Network) -> float:
        """Return the seconds that a network takes as it is.

        A kernel without products reads its operands and writes its results as fast as bytes are copied; a view takes no time.
        """
        return sum(self._of(kernel, network) for kernel in network.kernels)

    def _of(self, kernel: FitKernel, network: Network) -> float:
        tensors = [network.tensors[number] for number in (*kernel.reads, *kernel.makes)]
        if kernel.is_view:
            return 0.0
        if not kernel.macs:
            moved = sum(about.row_bytes * (1 if about.folds else about.rows) for about in tensors)
            return moved / self.copied + 1 / self.calls
        return kernel.macs / self._rate(kernel, network) + 1 / self.calls

    def _rate(self, kernel: FitKernel, network: Network) -> int:
        """Return the multiply-accumulates in a second of a kernel; one of a quantised island works on the integers that it reads."""
        item = max((network.tensors[number].item for number in kernel.reads), default=4)
        return self.macs.get(_TYPES.get(item, ""), min(self.macs.values()))

    def prices(self, network: Network) -> Prices:
        """Return the prices of further work as shares of the time of the network as it is."""
        whole = self.seconds(network) or 1.0
        products = sum(kernel.macs / self._rate(kernel, network) for kernel in network.kernels if kernel.macs)
        return Prices(products / whole, 1 / self.calls / whole, 1 / self.copied / whole)
