"""Functions of one or two stored tensors, element by element or over windows."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import NotLowered, Replacement, known_dims, settings
from onnxtile.fusion.lower.operator_lowering import OperatorLowering, OperatorSite, QdqSteps


class QLinearUnary(OperatorLowering):
    """QLinearSigmoid, QLinearAveragePool ... of onnxruntime's docs/ContribOperators.md; `since` is the version of the float operator."""

    def __init__(self, operator: str, since: int) -> None:
        self.name = f"com.microsoft::QLinear{operator}"
        self._operator = operator
        self._since = since

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return the float operator of what is dequantised."""
        given = settings(site.node)
        if given.pop("channels_last", 0):
            raise NotLowered("its channels are the last axis, which no float operator reads so")
        since = self._since
        if self._operator == "Softmax":
            since = _require_one_axis(site, given.pop("opset", 13), given.setdefault("axis", -1))
        steps = QdqSteps(site)
        return steps.finished(steps.compute(self._operator, (steps.stored(0, 1, 2),), given, since=since), 3, 4)


def _require_one_axis(site: OperatorSite, opset: object, axis: object) -> int:
    """Return the first version of Softmax that computes what QLinearSoftmax of an `opset` does along `axis`. Raises NotLowered."""
    if isinstance(opset, int) and opset >= 13:
        return 13
    if axis in {-1, len(known_dims(site.arguments[0])) - 1}:
        return 1
    raise NotLowered("its softmax runs over several axes together")


class QLinearBinary(OperatorLowering):
    """QLinearAdd and QLinearMul of onnxruntime's docs/ContribOperators.md."""

    def __init__(self, operator: str) -> None:
        self.name = f"com.microsoft::QLinear{operator}"
        self._operator = operator

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return the float operator of what is dequantised."""
        steps = QdqSteps(site)
        pair = steps.stored(0, 1, 2), steps.stored(3, 4, 5)
        return steps.finished(steps.compute(self._operator, pair, {}, since=7), 6, 7)


class QLinearWhere(OperatorLowering):
    """QLinearWhere of onnxruntime's docs/ContribOperators.md."""

    name = "com.microsoft::QLinearWhere"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return Where of what is dequantised."""
        steps = QdqSteps(site)
        inputs = (site.operand(0), steps.stored(1, 2, 3), steps.stored(4, 5, 6))
        return steps.finished(steps.compute("Where", inputs, {}, since=9), 7, 8)


class QLinearConcat(OperatorLowering):
    """QLinearConcat of onnxruntime's docs/ContribOperators.md."""

    name = "com.microsoft::QLinearConcat"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return Concat of what is dequantised."""
        steps = QdqSteps(site)
        inputs = tuple(steps.stored(place, place + 1, place + 2) for place in range(2, len(site.arguments), 3))
        return steps.finished(steps.compute("Concat", inputs, settings(site.node), since=4), 0, 1)


AVERAGE_POOL = QLinearUnary("AveragePool", 10)
GLOBAL_AVERAGE_POOL = QLinearUnary("GlobalAveragePool", 1)
LEAKY_RELU = QLinearUnary("LeakyRelu", 6)
SIGMOID = QLinearUnary("Sigmoid", 6)
SOFTMAX = QLinearUnary("Softmax", 13)
ADD = QLinearBinary("Add")
MUL = QLinearBinary("Mul")
WHERE = QLinearWhere()
CONCAT = QLinearConcat()


# Operators on quantised tensors that have no float form here: they stay, with the reason.


class StayingOperator(OperatorLowering):
    """An operator that is not lowered to QDQ."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Raise NotLowered."""
        raise NotLowered(f"{site.node.op_type} stays: {self._reason}")


_SCALES = "its integers of 32 bits are not scaled to floats by two scales, and no float32 holds them all"
_NONE = "no float operator is known that means it between DequantizeLinear and QuantizeLinear"

CONV_INTEGER = StayingOperator("ConvInteger", _SCALES)
MATMUL_INTEGER = StayingOperator("MatMulInteger", _SCALES)
DYNAMIC_QUANTIZE_LSTM = StayingOperator("com.microsoft::DynamicQuantizeLSTM", _NONE)
GATHER_BLOCK_QUANTIZED = StayingOperator("com.microsoft::GatherBlockQuantized", _NONE)
QEMBED_LAYER_NORMALIZATION = StayingOperator("com.microsoft::QEmbedLayerNormalization", _NONE)
QLINEAR_CONV_CHANNELS_LAST = StayingOperator("com.microsoft::QLinearConv", _NONE)
QLINEAR_REDUCE_MEAN = StayingOperator("com.microsoft::QLinearReduceMean", _NONE)
QMOE = StayingOperator("com.microsoft::QMoE", _NONE)
