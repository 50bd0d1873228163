"""Conv in one or two dimensions, in groups, depthwise and pointwise."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.conv.read import convolution
from onnxtile.tiling.product import Facts, Tileable


class Conv(Tileable):
    """https://onnx.ai/onnx/operators/onnx__Conv.html.

    M are the pixels of the output, K the input channels of a group times the kernel's elements, N the output channels of a group.
    """

    name = "Conv"
    slides = True

    def restate(self, node: ir.Node, facts: Facts) -> Convolution:
        """Return the convolution. Each tile is a Conv of some groups, rows, columns, input and output channels."""
        return convolution(node, facts, transposed=False)


CONV = Conv()
