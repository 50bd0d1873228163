"""Attention with its input projections, of a stored tensor and a stored weight."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import ORT_DOMAIN, NotLowered, Replacement, settings
from onnxtile.fusion.lower.operator_lowering import OperatorLowering, OperatorSite, QdqSteps


class QAttentionToQdq(OperatorLowering):
    """QAttention of onnxruntime's docs/ContribOperators.md: the standard has no attention with projections, onnxruntime has."""

    name = "com.microsoft::QAttention"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return com.microsoft.Attention of what is dequantised."""
        if site.argument(8) is not None or len(site.results) > 1:
            raise NotLowered("it reads or writes a cache of keys and values")
        steps = QdqSteps(site)
        inputs = (steps.stored(0, 3, 6), steps.stored(1, 4, 7, axis=1), site.operand(2))
        mask = site.operand(5)
        made = steps.compute(
            "Attention", inputs if mask is None else (*inputs, mask), settings(site.node), since=1, domain=ORT_DOMAIN
        )
        return steps.finished(made, len(site.arguments), len(site.arguments))


QATTENTION = QAttentionToQdq()
