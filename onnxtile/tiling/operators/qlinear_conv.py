"""QLinearConv: a ConvInteger and an int32 bias, scaled and quantized; tiles add up in int32, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Bias, Contraction, Requantize, times_sign
from onnxtile.tiling.operators.conv import filters_of
from onnxtile.tiling.operators.conv_integer import integer_convolution
from onnxtile.tiling.operators.qlinear_matmul import parameter
from onnxtile.tiling.tileable import BYTES, Tileable, TilingFacts, required_input


class QLinearConv(Tileable):
    """https://onnx.ai/onnx/operators/onnx__QLinearConv.html, with one scale for X and Y, and one, or one a channel, for W."""

    name = "QLinearConv"
    windows = True

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction. Each tile is a ConvInteger; each finished block is scaled and quantized once."""
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (required_input(node, index) for index in range(8))
        found = integer_convolution(node, facts, (x, w), (x_zero, w_zero))
        zero = parameter(node, y_zero, None, found, facts)
        dtype = facts.dtype(y_zero, self.name, BYTES)
        scales = [
            parameter(node, value, columns, found, facts)
            for value, columns in ((x_scale, None), (w_scale, found.right), (y_scale, None))
        ]
        requantize = Requantize(scales[0], scales[1], scales[2], zero, dtype)
        bias = channel_bias(node.inputs[8] if len(node.inputs) > 8 else None, found, facts)
        return replace(found, bias=bias, requantize=requantize)


def channel_bias(value: ir.Value | None, found: Contraction, facts: TilingFacts) -> Bias | None:
    """Return an int32 bias of a convolution, None where it is missing. Raises NotApplicable unless it has one number for each channel."""
    if value is None:
        return None
    facts.require_dtype(value, ir.DataType.INT32)
    dims, filters = facts.known_dims(value), found.groups * filters_of(found)
    if dims != (filters,):
        raise NotApplicable(
            f"its bias of shape {times_sign(dims)} is not one number for each of {filters} output channels"
        )
    return Bias(value, dims, 1.0, value in facts.constants)


QLINEAR_CONV = QLinearConv()
