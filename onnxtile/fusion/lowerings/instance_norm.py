"""Instance normalisation: each channel of each picture."""

from __future__ import annotations

from onnxtile.fusion.lower.elementwise import value_of
from onnxtile.fusion.lower.lowering import CallSite, Lowering, Replacement
from onnxtile.fusion.lower.norms import proved_instances, proved_spatial

_OPERATOR = "InstanceNormalization"


class InstanceNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html, for which onnxruntime has a kernel."""

    name = "InstanceNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return InstanceNormalization-6, which has one scale and one bias a channel."""
        if any(node.op_type == _OPERATOR for node in site.function):
            found = proved_instances(site, _OPERATOR)
            inputs = (value_of(found.x), found.scale, found.bias)
            return Replacement.one(_OPERATOR, inputs, {"epsilon": found.epsilon}, since=6)
        norm = proved_spatial(site, _OPERATOR)
        return Replacement.one(_OPERATOR, (value_of(norm.x), norm.scale, norm.bias), {"epsilon": norm.epsilon}, since=6)


INSTANCE_NORM = InstanceNorm()
