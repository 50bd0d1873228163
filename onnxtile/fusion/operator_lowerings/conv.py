"""A convolution of stored tensors."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import Replacement, settings
from onnxtile.fusion.lower.operator_lowering import OperatorLowering, OperatorSite, QdqSteps


class QLinearConvToQdq(OperatorLowering):
    """https://onnx.ai/onnx/operators/onnx__QLinearConv.html."""

    name = "QLinearConv"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return Conv of what is dequantised, its bias included."""
        steps = QdqSteps(site)
        x, weight = steps.stored(0, 1, 2), steps.stored(3, 4, 5, axis=0)
        bias = steps.bias(8, 1, 4)
        inputs = (x, weight) if bias is None else (x, weight, bias)
        return steps.finished(steps.compute("Conv", inputs, settings(site.node), since=1), 6, 7)


QLINEAR_CONV = QLinearConvToQdq()
