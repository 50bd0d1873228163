"""Convolutions: each output element sums the kernel's elements over the channels of its group."""

from __future__ import annotations

import math

from onnxtile.inspection.work import CountedNode, NotKnown, OperationCount, Rule

_WEIGHT = {"QLinearConv": 3, "NhwcConv": 1}
_BIAS = {"QLinearConv": 8, "ConvInteger": None, "DeformConv": 3}


def _count(site: CountedNode) -> OperationCount:
    op = site.node.op_type
    weight = site.input(_WEIGHT.get(op, 1))
    if site.node.domain == "" and op != "CausalConvWithState":
        _require_channels(site, weight)
    elements, bias = site.elements(), _BIAS.get(op, 2)
    additions = elements if bias is not None and site.has(bias) else 0
    # The weight is (channels out, channels in / groups, kernel ...), channels last where the name says NHWC.
    return OperationCount(
        elements * math.prod(weight[1:]), additions, 0 if site.operator in {"Conv", "ConvInteger"} else None
    )


def _require_channels(site: CountedNode, weight: tuple[int, ...]) -> None:
    given, wanted = site.input(0)[1], weight[1] * site.number("group", 1)
    if given != wanted:
        raise NotKnown(f"its weights are for {wanted:,} channels, and its input has {given:,}")


RULE = Rule(
    "convolution",
    frozenset(
        {
            *("Conv", "QLinearConv", "ConvInteger", "DeformConv", "CausalConvWithState"),
            *("com.microsoft::FusedConv", "com.microsoft::NhwcFusedConv", "com.microsoft.nchwc::Conv"),
            "com.microsoft::QLinearConv",
        }
    ),
    _count,
)
