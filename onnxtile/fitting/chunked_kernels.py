"""The kernels of a region of which some are cut into chunks of channels, and the rows and columns of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onnxtile.fitting.network import FitKernel, FitTensor
from onnxtile.fitting.strip_ranges import StripRanges


@dataclass(frozen=True)
class ChunkedKernels:
    """Kernels of which some are cut into chunks of channels.

    `tensors` are those of the network, and the parts behind them; `origin` has the tensor that each part is a part of. `bases` has, for
    each kernel, the number of the kernel that it is a part of, and `weights` the number of chunks that it stands for. `sums` are the
    kernels that add up or join parts of results, `partial` are these parts and their sums.
    """

    kernels: list[FitKernel]
    tensors: list[FitTensor]
    origin: dict[int, int] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    sums: set[int] = field(default_factory=set)
    partial: set[int] = field(default_factory=set)

    @staticmethod
    def whole(kernels: Sequence[FitKernel], tensors: list[FitTensor]) -> ChunkedKernels:
        """Return kernels of which none is cut into chunks; `tensors` are not copied, since no part is added to them."""
        return ChunkedKernels(list(kernels), tensors, bases=list(range(len(kernels))), weights=[1] * len(kernels))

    def add(self, kernel: FitKernel, base: int, weight: int = 1) -> None:
        """Append a kernel."""
        self.kernels.append(kernel)
        self.bases.append(base)
        self.weights.append(weight)

    def add_tensor(self, about: FitTensor, origin: int) -> int:
        """Append a part of a tensor, and return its number."""
        self.tensors.append(about)
        self.origin[len(self.tensors) - 1] = origin
        return len(self.tensors) - 1

    def ranges(self, whole: list[StripRanges]) -> list[StripRanges]:
        """Return the ranges of these kernels, from those of the whole kernels."""
        if not self.origin:
            return whole
        return [
            self._range(number, kernel, whole[base])
            for number, (kernel, base) in enumerate(zip(self.kernels, self.bases, strict=True))
        ]

    def _range(self, number: int, kernel: FitKernel, span: StripRanges) -> StripRanges:
        is_partial, is_sum = kernel.makes[0] in self.partial, number in self.sums
        if not (is_partial or is_sum):
            return span
        needs = [span.news] * len(kernel.reads) if is_sum else span.needs
        return StripRanges(span.news if is_partial else span.windows, span.news, needs)
