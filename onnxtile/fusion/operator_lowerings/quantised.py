"""Operators on quantised tensors as the float operators that their rows say, between quantisations."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import NotLowered, Operand, Replacement, known_dims, settings
from onnxtile.fusion.lower.operator_lowering import OperatorLowering, OperatorSite, QdqSteps
from onnxtile.operators.node_view import MICROSOFT
from onnxtile.operators.row import FloatMeaning
from onnxtile.operators.table import operators


class QuantisedOperator(OperatorLowering):
    """An operator whose row says its float operator and the places of its scales; `since` is the first version of the float operator.

    https://onnx.ai/onnx/operators for QLinearConv and QLinearMatMul, else onnxruntime's docs/ContribOperators.md.
    """

    def __init__(self, name: str, since: int) -> None:
        self.name = name
        self._since = since

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return the float operator of what is dequantised; to floats where the result has no scale."""
        meaning = operators()[self.name].quantised
        assert isinstance(meaning, FloatMeaning) and meaning.result is not None
        given, since = settings(site.node), self._since
        if given.pop("channels_last", 0):
            raise NotLowered("its channels are the last axis, which no float operator reads so")
        if meaning.op_type == "Softmax":
            since = _require_one_axis(site, given.pop("opset", 13), given.setdefault("axis", -1))
        steps = QdqSteps(site)
        read = [position for position in meaning.places(site.node) if position < len(site.arguments)]
        scaled = {
            position: self._stored(steps, site, meaning, position) for position in read if meaning.is_scaled(position)
        }
        factors = operators()[self.name].factors
        operands: list[Operand] = []
        for position in read:
            if position in scaled:
                operands.append(scaled[position])
            elif factors is None:
                operands.append(site.operand(position))
            elif site.argument(position) is not None:
                alpha = given.get("alpha", 1.0)
                factor = float(alpha) if isinstance(alpha, int | float) else 1.0
                operands.append(steps.bias(position, *(index + 1 for index in factors), factor=factor))
        result = steps.compute(meaning.op_type, tuple(operands), given, since=since)
        return steps.finished(result, *meaning.result)

    def _stored(self, steps: QdqSteps, site: OperatorSite, meaning: FloatMeaning, position: int) -> Operand:
        axis = meaning.axis_of(site.node, position)
        if axis is not None and axis < 0:
            axis += len(known_dims(site.arguments[position]))
        return steps.stored(position, position + 1, position + 2, axis=axis)


def _require_one_axis(site: OperatorSite, opset: object, axis: object) -> int:
    """Return the first version of Softmax that computes what QLinearSoftmax of an `opset` does along `axis`. Raises NotLowered."""
    if isinstance(opset, int) and opset >= 13:
        return 13
    if axis in {-1, len(known_dims(site.arguments[0])) - 1}:
        return 1
    raise NotLowered("its softmax runs over several axes together")


QLINEAR_CONV = QuantisedOperator("QLinearConv", 1)
QLINEAR_MATMUL = QuantisedOperator("QLinearMatMul", 1)
QGEMM = QuantisedOperator(f"{MICROSOFT}::QGemm", 11)
AVERAGE_POOL = QuantisedOperator(f"{MICROSOFT}::QLinearAveragePool", 10)
GLOBAL_AVERAGE_POOL = QuantisedOperator(f"{MICROSOFT}::QLinearGlobalAveragePool", 1)
LEAKY_RELU = QuantisedOperator(f"{MICROSOFT}::QLinearLeakyRelu", 6)
SIGMOID = QuantisedOperator(f"{MICROSOFT}::QLinearSigmoid", 6)
SOFTMAX = QuantisedOperator(f"{MICROSOFT}::QLinearSoftmax", 13)
ADD = QuantisedOperator(f"{MICROSOFT}::QLinearAdd", 7)
MUL = QuantisedOperator(f"{MICROSOFT}::QLinearMul", 7)
WHERE = QuantisedOperator(f"{MICROSOFT}::QLinearWhere", 9)
CONCAT = QuantisedOperator(f"{MICROSOFT}::QLinearConcat", 4)


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
