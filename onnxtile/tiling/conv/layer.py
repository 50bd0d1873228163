"""A convolution as tile sees it, whichever way round it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import onnx_ir as ir

from onnxtile.tiling.conv.slide import Slide
from onnxtile.tiling.product import Dim, Dims, Operand


@dataclass(frozen=True)
class Convolution:
    """`groups` convolutions side by side, each of `channels` input channels into `filters` output channels, in `dtype`.

    As a matrix product, M are the pixels of the output (rows × columns), K the input channels of a group times the kernel's
    elements, N the output channels of a group; the groups and the batch are so many products side by side.
    `w` has its rows along the axis of output channels, its columns along that of input channels.
    """

    x: Operand
    w: Operand
    bias: Operand | None
    dims: Dims
    dtype: ir.DataType
    groups: int
    channels: int
    filters: int
    slides: tuple[Slide, ...]
    """One for each spatial axis: rows and columns, or columns only."""
    sums: ir.DataType | None = None
    """The element type in which partial sums are added; None where it is `dtype`."""
    tile: str = "Conv"
    """The operator that each tile is."""
    attributes: tuple[ir.Attr, ...] = field(default=(), compare=False)
    """Those of the node, save `group`, and how it is padded."""
    padding: tuple[ir.Attr, ...] = field(default=(), compare=False)
    """Those that say how the whole node is padded."""

    requantize = None
    matrices = False
    """Whether a tile could add a partial sum itself, as Gemm does."""

    @property
    def result_dtype(self) -> ir.DataType:
        """The element type of the result."""
        return self.dtype

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Input, weights and bias."""
        return (self.x, self.w) if self.bias is None else (self.x, self.w, self.bias)

    @property
    def values(self) -> list[ir.Value]:
        """The values of the operands."""
        return [operand.value for operand in self.operands]

    @property
    def transposed(self) -> bool:
        """Whether it is a ConvTranspose, whose weights lie the other way round."""
        return self.slides[0].transposed

    @property
    def kernel(self) -> int:
        """The elements of the kernel, which no cut goes through."""
        return prod(slide.kernel for slide in self.slides)

    @property
    def m(self) -> Dim:
        """The pixels of the output; None unless all its sizes are known."""
        sizes = [slide.out for slide in self.slides if isinstance(slide.out, int)]
        return prod(sizes) if len(sizes) == len(self.slides) else None

    @property
    def k(self) -> int:
        """The input channels of a group, times the elements of the kernel."""
        return self.channels * self.kernel

    @property
    def n(self) -> int:
        """The output channels of a group."""
        return self.filters
