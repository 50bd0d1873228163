"""QLinearMatMul: a MatMulInteger, scaled and quantized; tiles add up in int32, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Contraction, Parameter, Requantize, TensorOperand, times_sign
from onnxtile.tiling.operators.matmul_integer import integer_product
from onnxtile.tiling.tileable import BYTES, Tileable, TilingFacts, required_input


class QLinearMatMul(Tileable):
    """https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html, with one scale for A and Y, and one, or one a column, for B."""

    name = "QLinearMatMul"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger; each finished block is scaled and quantized once."""
        factors, zeros = ((required_input(node, first), required_input(node, first + 3)) for first in (0, 2))
        product = integer_product(node, facts, factors, zeros)
        y_zero = parameter(node, required_input(node, 7), None, product, facts)
        dtype = facts.dtype(y_zero.value, self.name, BYTES)
        scales = [
            parameter(node, required_input(node, index), product.right if index == 4 else None, product, facts)
            for index in (1, 4, 6)
        ]
        return replace(product, requantize=Requantize(scales[0], scales[1], scales[2], y_zero, dtype))


def parameter(
    node: ir.Node, value: ir.Value, columns: TensorOperand | None, product: Contraction, facts: TilingFacts
) -> Parameter:
    """Return a scale or zero point: a single number, or with `columns` one for each. Raises NotApplicable for any other."""
    dims, constant = facts.dims(value), value in facts.constants
    known = {ir.DataType.FLOAT, *BYTES}
    parameter = Parameter(value, dims, facts.dtype(value, node.op_type, known), constant)
    if columns is not None and dims == (columns.size(1),) and columns.axes[1] is not None:
        return parameter
    if dims not in {(), (1,)}:
        raise NotApplicable(f"its parameter {value.name!r} of shape {times_sign(dims)} is not a single number")
    if dims == (1,) and not constant and not product.dims:
        raise NotApplicable(f"its parameter {value.name!r} is a vector, and the result is a single number")
    return parameter


QLINEAR_MATMUL = QLinearMatMul()
