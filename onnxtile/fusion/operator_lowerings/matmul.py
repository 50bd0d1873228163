"""Matrix products of stored tensors."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import Replacement, known_dims, settings
from onnxtile.fusion.lower.operator_lowering import OperatorLowering, OperatorSite, QdqSteps


class QLinearMatMulToQdq(OperatorLowering):
    """https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html."""

    name = "QLinearMatMul"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return MatMul of what is dequantised."""
        steps = QdqSteps(site)
        a, b = steps.stored(0, 1, 2), steps.stored(3, 4, 5, axis=len(known_dims(site.arguments[3])) - 1)
        return steps.finished(steps.compute("MatMul", (a, b), {}, since=1), 6, 7)


class QGemmToQdq(OperatorLowering):
    """QGemm of onnxruntime's docs/ContribOperators.md."""

    name = "com.microsoft::QGemm"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return Gemm of what is dequantised, its bias included; to floats where the result has no scale."""
        given = settings(site.node)
        alpha = given.get("alpha", 1.0)
        steps = QdqSteps(site)
        a, b = steps.stored(0, 1, 2), steps.stored(3, 4, 5, axis=0 if given.get("transB") else 1)
        bias = steps.bias(6, 1, 4, factor=float(alpha) if isinstance(alpha, int | float) else 1.0)
        inputs = (a, b) if bias is None else (a, b, bias)
        return steps.finished(steps.compute("Gemm", inputs, given, since=11), 7, 8)


class MatMulIntegerToFloat(OperatorLowering):
    """MatMulIntegerToFloat of onnxruntime's docs/ContribOperators.md."""

    name = "com.microsoft::MatMulIntegerToFloat"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return MatMul of what is dequantised, and the sum with the bias."""
        steps = QdqSteps(site)
        a, b = steps.stored(0, 2, 4), steps.stored(1, 3, 5, axis=len(known_dims(site.arguments[1])) - 1)
        made = steps.summed(steps.compute("MatMul", (a, b), {}, since=1), 6)
        return steps.finished(made, len(site.arguments), len(site.arguments))


class DynamicQuantizeMatMul(OperatorLowering):
    """DynamicQuantizeMatMul of onnxruntime's docs/ContribOperators.md."""

    name = "com.microsoft::DynamicQuantizeMatMul"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return DynamicQuantizeLinear, MatMul of what is dequantised, and the sum with the bias."""
        steps = QdqSteps(site)
        a = steps.quantised_as_it_comes(0)
        b = steps.stored(1, 2, 3, axis=len(known_dims(site.arguments[1])) - 1)
        made = steps.summed(steps.compute("MatMul", (a, b), {}, since=1), 4)
        return steps.finished(made, len(site.arguments), len(site.arguments))


QLINEAR_MATMUL = QLinearMatMulToQdq()
QGEMM = QGemmToQdq()
MATMUL_INTEGER_TO_FLOAT = MatMulIntegerToFloat()
DYNAMIC_QUANTIZE_MATMUL = DynamicQuantizeMatMul()
