"""com.microsoft's QGemm: a Gemm of bytes with an int32 bias, scaled and, where it has a zero point for that, quantized."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.tiling.contraction import Contraction, Requantize, matrix_product
from onnxtile.tiling.element_types import BYTES
from onnxtile.tiling.operators.gemm import bias, factor
from onnxtile.tiling.operators.matmul_integer import zero_point
from onnxtile.tiling.operators.qlinear_matmul import parameter
from onnxtile.tiling.tensors import NotTiled
from onnxtile.tiling.tileable import Tileable, TilingFacts, required_input


class QGemm(Tileable):
    """https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QGemm."""

    name = "QGemm"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger; the bias is added to each finished block, which is scaled then."""
        if facts.opset < 10:
            raise NotTiled(f"opset {facts.opset} has no MatMulInteger: raise the model to 10 at least")
        a = factor(node, 0, "transA", facts, BYTES)
        b = factor(node, 3, "transB", facts, BYTES)
        a = replace(a, zero=zero_point(a, 0, node.inputs[2], facts))
        b = replace(b, zero=zero_point(b, 1, node.inputs[5], facts))
        dims = (a.size(0), b.size(1))
        added = bias(node, dims, ir.DataType.INT32, facts, 6)
        product = matrix_product(a, b, dims, (0, 1), ir.DataType.INT32, bias=added, tile="MatMulInteger")
        a_scale = parameter(node, required_input(node, 1), None, product, facts)
        b_scale = parameter(node, required_input(node, 4), b, product, facts)
        quantized = [index < len(node.inputs) and node.inputs[index] is not None for index in (7, 8)]
        if quantized[0] != quantized[1]:
            raise NotTiled("it has only one of the scale and the zero point of its result")
        values = [required_input(node, index) for index in (7, 8)] if all(quantized) else []
        y = [parameter(node, value, None, product, facts) for value in values]
        y_scale, y_zero = y or (None, None)
        dtype = ir.DataType.FLOAT if y_zero is None else y_zero.dtype
        alpha = node.attributes.get_float("alpha", 1.0)
        return replace(product, requantize=Requantize(a_scale, b_scale, y_scale, y_zero, dtype, alpha))


QGEMM = QGemm()
