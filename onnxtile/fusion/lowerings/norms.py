"""Lowerings of normalisations: layer, root mean square, group, instance and L2 norms, and a norm after a sum."""

from __future__ import annotations

from onnxtile.fusion.lower.definition import definition, require_operator
from onnxtile.fusion.lower.lowering import (
    WITH_DOUBLE,
    CallSite,
    Lowering,
    NotLowered,
    Replacement,
    inlined,
    require_type,
    value_of,
)
from onnxtile.fusion.lower.norms import normalised, only_axis, proved_channels, proved_instances


class Norm(Lowering):
    """A normalisation over the last axes, which is a standard operator of the opset `since`.

    https://onnx.ai/onnx/operators/onnx__LayerNormalization.html, which is also the operator that onnxruntime runs best, and
    onnx__RMSNormalization.html: onnxruntime's own SimplifiedLayerNormalization stands in the standard domain, where no checker knows it.
    """

    def __init__(self, name: str, operator: str, since: int) -> None:
        self.name = name
        self._operator = operator
        self._since = since

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return the standard operator."""
        return normalised(site, self._operator, self._since)


LAYER_NORM = Norm("LayerNorm", "LayerNormalization", 17)
RMS_NORM = Norm("RMSNorm", "RMSNormalization", 23)


# Group normalisation.


class GroupNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__GroupNormalization.html."""

    name = "GroupNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return GroupNormalization-21, whose scale and bias have one element a channel; before, they had one a group."""
        norm = proved_instances(site, "GroupNormalization")
        settings = {"num_groups": norm.groups, "epsilon": norm.epsilon}
        return Replacement.one("GroupNormalization", norm.inputs, settings, since=21)

    def to_ort(self, site: CallSite) -> Replacement:
        """Raise NotLowered: onnxruntime has a kernel for instances, none on the CPU for groups."""
        del site
        raise NotLowered(
            "onnxruntime has no kernel for groups on the CPU, and one for the instances that it is made of"
        )


GROUP_NORM = GroupNorm()


# Instance normalisation: each channel of each picture.

_OPERATOR = "InstanceNormalization"


class InstanceNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html, for which onnxruntime has a kernel."""

    name = "InstanceNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return InstanceNormalization-6, which has one scale and one bias a channel."""
        has_operator = any(node.op_type == _OPERATOR for node in site.function)
        norm = (proved_instances if has_operator else proved_channels)(site, _OPERATOR)
        return Replacement.one(_OPERATOR, norm.inputs, {"epsilon": norm.epsilon}, since=6)


INSTANCE_NORM = InstanceNorm()


# A vector divided by its length.


class L2Norm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__LpNormalization.html: x / ‖x‖, and nothing that keeps the length from 0."""

    name = "L2Norm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return LpNormalization-1 with p = 2."""
        axis = only_axis(site.forms[0], "ReduceSum")
        reason = "LpNormalization does not keep the length from 0, by a bound or an addend"
        (x,) = require_operator(site, lambda x: definition("LpNormalization", 1, (x,), axes=(axis,)), reason)
        require_type("LpNormalization", x, WITH_DOUBLE)
        return Replacement.one("LpNormalization", (value_of(x),), {"axis": axis, "p": 2}, since=1)


L2_NORM = L2Norm()


# A residual sum and its normalisation.

_SINCE = {"LayerNormalization": 17, "RMSNormalization": 23}


class SkipNorm(Lowering):
    """A sum and a normalisation: the standard has no operator for both.

    onnxruntime has, SkipLayerNormalization and SkipSimplifiedLayerNormalization, but on the CPU two operators beat them: of 128 rows of 768
    floats, with one thread of an EPYC, 72 µs against 498 and 46 against 114 (onnxruntime 1.31).
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return the sum and the normalisation, where that is a standard operator already; else both are lowered on their own."""
        nodes = list(site.function)
        if any(node.op_identifier() in site.functions for node in nodes):
            raise NotLowered(
                "no standard operator adds before it normalises, and onnxruntime's is slower than a sum and a norm"
            )
        if (
            [node.op_type for node in nodes[:1]] != ["Add"]
            or len(nodes) != 2
            or nodes[1].domain
            or nodes[1].op_type not in _SINCE
        ):
            raise NotLowered("its body is not a sum and a normalisation")
        return inlined(site, {"Add": 7, **_SINCE}, main=1)


SKIP_LAYER_NORM = SkipNorm("SkipLayerNorm")
SKIP_RMS_NORM = SkipNorm("SkipRMSNorm")
