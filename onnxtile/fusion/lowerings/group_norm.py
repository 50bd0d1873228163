"""Group normalisation."""

from __future__ import annotations

from onnxtile.fusion.lower.elementwise import value_of
from onnxtile.fusion.lower.lowering import CallSite, Lowering, NotLowered, Replacement
from onnxtile.fusion.lower.norms import proved_instances


class GroupNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__GroupNormalization.html."""

    name = "GroupNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return GroupNormalization-21, whose scale and bias have one element a channel; before, they had one a group."""
        found = proved_instances(site, "GroupNormalization")
        settings = {"num_groups": found.groups, "epsilon": found.epsilon}
        inputs = (value_of(found.x), found.scale, found.bias)
        return Replacement.one("GroupNormalization", inputs, settings, since=21)

    def to_ort(self, site: CallSite) -> Replacement:
        """Raise NotLowered: onnxruntime has a kernel for instances, none on the CPU for groups."""
        del site
        raise NotLowered(
            "onnxruntime has no kernel for groups on the CPU, and one for the instances that it is made of"
        )


GROUP_NORM = GroupNorm()
