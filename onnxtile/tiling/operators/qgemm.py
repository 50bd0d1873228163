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
from onnxtile.tiling.tileable import Tileable, TilingFacts


class QGemm(Tileable):
    """https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QGemm."""

    name = "QGemm"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger; the bias is added to their sum, then all is scaled."""
        if facts.opset < 10:
            raise NotTiled(f"opset {facts.opset} has no MatMulInteger: raise the model to 10 at least")
        a = factor(node, 0, "transA", facts, BYTES)
        b = factor(node, 3, "transB", facts, BYTES)
        a = replace(a, zero=zero_point(node, a, 0, 2, facts))
        b = replace(b, zero=zero_point(node, b, 1, 5, facts))
        dims = (a.size(0), b.size(1))
        added = bias(node, dims, ir.DataType.INT32, facts, 6)
        product = matrix_product(a, b, dims, (0, 1), ir.DataType.INT32, bias=added, tile="MatMulInteger")
        a_scale, b_scale = parameter(node, 1, None, product, facts), parameter(node, 4, b, product, facts)
        quantized = [index < len(node.inputs) and node.inputs[index] is not None for index in (7, 8)]
        if quantized[0] != quantized[1]:
            raise NotTiled("it has only one of the scale and the zero point of its result")
        y = [parameter(node, index, None, product, facts) for index in (7, 8)] if all(quantized) else [None, None]
        dtype = ir.DataType.FLOAT if y[1] is None else y[1].dtype
        alpha = node.attributes.get_float("alpha", 1.0)
        return replace(product, requantize=Requantize(a_scale, b_scale, y[0], y[1], dtype, alpha))


QGEMM = QGemm()
