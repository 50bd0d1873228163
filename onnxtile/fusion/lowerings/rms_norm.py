"""Root mean square normalisation over the last axes."""

from __future__ import annotations

from onnxtile.fusion.lower.lowering import CallSite, Lowering, NotLowered, Replacement
from onnxtile.fusion.lower.norms import normalised, proved_norm, scale_of


class RMSNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__RMSNormalization.html.

    onnxruntime's own SimplifiedLayerNormalization stands in the standard domain, where no checker knows it; it has a kernel for this
    one as well.
    """

    name = "RMSNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return RMSNormalization-23."""
        norm = proved_norm(site, site.forms[0], "RMSNormalization", centred=False)
        if norm.bias is not None:
            raise NotLowered("RMSNormalization takes no bias")
        return normalised(norm, "RMSNormalization", (scale_of(norm),), since=23)


RMS_NORM = RMSNorm()
