"""Layer normalisation over the last axes."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import CallSite, Lowering, Replacement
from onnxtile.fusion.lower.norms import normalised, proved_norm, scale_of


class LayerNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__LayerNormalization.html, which is also the operator that onnxruntime runs best."""

    name = "LayerNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return LayerNormalization-17."""
        norm = proved_norm(site, site.forms[0], "LayerNormalization", centred=True)
        inputs = (scale_of(norm), *(() if norm.bias is None else (norm.bias,)))
        return normalised(norm, "LayerNormalization", inputs, since=17)


LAYER_NORM = LayerNorm()
