"""Operators on quantised tensors as the float operators that their rows say, between quantisations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import unpacked_weight, unpacked_zeros
from onnxtile.fusion.lower.lowering import (
    Literal,
    NotLowered,
    Operand,
    OperatorLowering,
    OperatorSite,
    QdqSteps,
    Replacement,
    Setting,
    known_dims,
    settings,
)
from onnxtile.operators.node_view import MICROSOFT
from onnxtile.operators.table import FloatMeaning, operators
from onnxtile.system.runtime import Array


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


# Products with one float operand or result: weights in blocks, attention, dynamic quantisation.


class ProductToFloat(OperatorLowering):
    """DynamicQuantizeMatMul and MatMulIntegerToFloat of onnxruntime's docs/ContribOperators.md.

    `left` are the places of the first operand, its scale and its zero point, of which the first alone is one that is quantised as the model
    runs. `right` are those of the second operand.
    """

    def __init__(self, name: str, left: tuple[int, ...], right: tuple[int, int, int], bias: int) -> None:
        self.name = name
        self._left = left
        self._right = right
        self._bias = bias

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return MatMul of what is dequantised, and the sum with the bias."""
        return self.dequantised(site, "MatMul", {}, len(known_dims(site.arguments[self._right[0]])) - 1)

    def dequantised(
        self, site: OperatorSite, operator: str, settings: Mapping[str, Setting], axis: int | None
    ) -> Replacement:
        """Return the `operator` of what is dequantised; several scales of the second operand lie along `axis`."""
        steps = QdqSteps(site)
        a = steps.stored(*self._left) if len(self._left) > 1 else steps.quantised_as_it_comes(*self._left)
        product = steps.compute(operator, (a, steps.stored(*self._right, axis=axis)), settings, since=1)
        return steps.finished(steps.summed(product, self._bias))


MATMUL_INTEGER_TO_FLOAT = ProductToFloat("com.microsoft::MatMulIntegerToFloat", (0, 2, 4), (1, 3, 5), 6)
DYNAMIC_QUANTIZE_MATMUL = ProductToFloat("com.microsoft::DynamicQuantizeMatMul", (0,), (1, 2, 3), 4)


# Attention with its input projections, of a stored tensor and a stored weight.


class QAttentionToQdq(OperatorLowering):
    """QAttention of onnxruntime's docs/ContribOperators.md: the standard has no attention with projections, onnxruntime has."""

    name = "com.microsoft::QAttention"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return com.microsoft.Attention of what is dequantised."""
        if site.argument(8) is not None or len(site.results) > 1:
            raise NotLowered("it reads or writes a cache of keys and values")
        steps, mask = QdqSteps(site), site.operand(5)
        inputs: tuple[Operand, ...] = (steps.stored(0, 3, 6), steps.stored(1, 4, 7, axis=1), site.operand(2))
        inputs = inputs if mask is None else (*inputs, mask)
        attention = steps.compute("Attention", inputs, settings(site.node), since=1, domain=MICROSOFT)
        return steps.finished(attention)


QATTENTION = QAttentionToQdq()


# A product with a weight in blocks of 4 or 8 bits.

_STORED = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class MatMulNBitsToQdq(OperatorLowering):
    """MatMulNBits of onnxruntime's docs/ContribOperators.md."""

    name = "com.microsoft::MatMulNBits"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return MatMul with a weight of unsigned integers that is dequantised by blocks, and the sum with the bias."""
        given = {name: site.node.attributes.get_int(name, 0) for name in ("K", "N", "bits", "block_size")}
        rows, columns, bits, block = given["K"], given["N"], given["bits"] or 4, given["block_size"]
        if bits not in _STORED or block < 1 or site.argument(4) is not None:
            raise NotLowered("its weight has another form than blocks of 4 or 8 bits in the order of its rows")
        count, dtype = -(-rows // block), _STORED[bits]
        scales = site.elements(2).reshape(columns, count)
        weight = unpacked_weight(site.elements(1).reshape(columns, count, -1), rows, bits)
        zeros = np.full((count, columns), 1 << (bits - 1), np.uint8)
        if site.argument(3) is not None:
            zeros = unpacked_zeros(_bytes(site.elements(3)), count, columns, bits)
        steps = QdqSteps(site)
        operands: list[Operand] = [
            Literal(weight.astype(dtype.numpy()), dtype, "weight"),
            Literal(np.ascontiguousarray(scales.T), ir.DataType.from_numpy(scales.dtype), "scales"),
            Literal(zeros.astype(dtype.numpy()), dtype, "zero_points"),
        ]
        product = steps.compute(
            "MatMul", (site.operand(0), steps.dequantised(operands, axis=0, block=block)), {}, since=1
        )
        return steps.finished(steps.summed(product, 5))


def _bytes(zeros: Array) -> Array:
    if zeros.dtype != np.uint8:
        raise NotLowered("its zero points are floats")
    return zeros


MATMUL_NBITS = MatMulNBitsToQdq()
