"""ConvTranspose in one or two dimensions, in groups."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.conv.read import convolution
from onnxtile.tiling.product import Facts, Tileable


class ConvTranspose(Tileable):
    """https://onnx.ai/onnx/operators/onnx__ConvTranspose.html.

    M are the pixels of the output, K the input channels of a group times the kernel's elements, N the output channels of a group.
    """

    name = "ConvTranspose"
    slides = True

    def restate(self, node: ir.Node, facts: Facts) -> Convolution:
        """Return the convolution. Each tile is a ConvTranspose of some groups, rows, columns, input and output channels."""
        return convolution(node, facts, transposed=True)


CONV_TRANSPOSE = ConvTranspose()
