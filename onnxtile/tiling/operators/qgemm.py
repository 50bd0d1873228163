"""com.microsoft's QGemm: a Gemm of bytes with an int32 bias, scaled and, where it has a zero point for that, quantized."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Contraction, Requantize, matrix_product
from onnxtile.tiling.operators.gemm import bias, matrix_factor
from onnxtile.tiling.operators.matmul_integer import zero_point
from onnxtile.tiling.operators.qlinear_matmul import parameter
from onnxtile.tiling.tileable import BYTES, Tileable, TilingFacts, required_input


class QGemm(Tileable):
    """https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QGemm."""

    name = "QGemm"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger; the bias is added to each finished block, which is scaled then."""
        if facts.opset < 10:
            raise NotApplicable(f"opset {facts.opset} has no MatMulInteger: raise the model to 10 at least")
        added = node.inputs[6] if len(node.inputs) > 6 else None
        factors, zeros = ((required_input(node, first), required_input(node, first + 3)) for first in (0, 2))
        product = integer_gemm(node, facts, factors, zeros, added)
        a_scale = parameter(node, required_input(node, 1), None, product, facts)
        b_scale = parameter(node, required_input(node, 4), product.right, product, facts)
        quantized = [index < len(node.inputs) and node.inputs[index] is not None for index in (7, 8)]
        if quantized[0] != quantized[1]:
            raise NotApplicable("it has only one of the scale and the zero point of its result")
        values = [required_input(node, index) for index in (7, 8)] if all(quantized) else []
        y = [parameter(node, value, None, product, facts) for value in values]
        y_scale, y_zero = y or (None, None)
        dtype = ir.DataType.FLOAT if y_zero is None else y_zero.dtype
        alpha = node.attributes.get_float("alpha", 1.0)
        return replace(product, requantize=Requantize(a_scale, b_scale, y_scale, y_zero, dtype, alpha))


def integer_gemm(
    node: ir.Node,
    facts: TilingFacts,
    factors: tuple[ir.Value, ir.Value],
    zeros: tuple[ir.Value | None, ir.Value | None],
    added: ir.Value | None,
) -> Contraction:
    """Return the product of two matrices of bytes, less their zero points, plus an int32 bias, transposed as `node` says.

    Raises NotApplicable where it cannot be cut so.
    """
    a, b = (
        matrix_factor(node, value, attribute, facts, BYTES)
        for value, attribute in zip(factors, ("transA", "transB"), strict=True)
    )
    a, b = (replace(o, zero=zero_point(o, side, zeros[side], facts)) for side, o in enumerate((a, b)))
    dims = (a.size(0), b.size(1))
    bias_ = bias(node, added, dims, ir.DataType.INT32, facts)
    return matrix_product(a, b, dims, (0, 1), ir.DataType.INT32, bias=bias_, tile="MatMulInteger")


QGEMM = QGemm()
