"""ConvTranspose in one or two dimensions, in groups."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.operators.conv import convolution
from onnxtile.tiling.tileable import Tileable, TilingFacts


class ConvTranspose(Tileable):
    """https://onnx.ai/onnx/operators/onnx__ConvTranspose.html.

    M are the pixels of the output, K the input channels of a group times the kernel's elements, N the output channels of a group.
    """

    name = "ConvTranspose"
    windows = True

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction. Each tile is a ConvTranspose of some groups, rows, columns, input and output channels."""
        return convolution(node, facts, transposed=True)


CONV_TRANSPOSE = ConvTranspose()
