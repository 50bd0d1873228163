"""Operators on quantised tensors that have no float form here: they stay, with the reason."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import NotLowered, Replacement
from onnxtile.fusion.lower.operator_lowering import OperatorLowering, OperatorSite


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
