"""Attention with its input projections, of a stored tensor and a stored weight."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import IslandLowering, IslandSite, require_alone, scale_pair, stored_triple
from onnxtile.fusion.lower.lowering import (
    ORT_DOMAIN,
    Argument,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    operand_of,
    settings,
)

_TAKEN = {"num_heads", "unidirectional", "mask_filter_value", "scale", "do_rotary", "past_present_share_buffer"}


class AttentionIsland(IslandLowering):
    """QAttention of onnxruntime's docs/ContribOperators.md, where com.microsoft.Attention has a quantised input and weight."""

    name = "com.microsoft::Attention"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QAttention, and QuantizeLinear of its result where that is stored."""
        require_alone(island)
        x, weight, rule = island.stored(0), island.stored(1), island.only_result
        if x.rule.dtype != ir.DataType.UINT8:
            raise NotLowered(f"the input of QAttention is of uint8, not of {x.rule.dtype.name.lower()}")
        given = settings(island.first)
        unknown = sorted(given.keys() - _TAKEN)
        if unknown:
            raise NotLowered(f"QAttention has no attribute {unknown[0]}")
        if any(island.source(place) is not None for place in range(4, len(island.steps[0].sources))):
            raise NotLowered("QAttention takes no past and no bias of the scores here")
        (left, x_scale, x_zero), (right, w_scale, w_zero) = stored_triple(x), stored_triple(weight, axis=-1)
        inputs = (left, right, _float(island, 2), x_scale, w_scale, _float(island, 3), x_zero, w_zero)
        steps = [NewNode("QAttention", inputs, given, ORT_DOMAIN)]
        if rule is None:
            return Replacement(tuple(steps), (Made(0),))
        steps.append(NewNode("QuantizeLinear", (Made(0), *scale_pair(rule)), since=10))
        return Replacement(tuple(steps), (Made(1),), rounds=True)


def _float(island: IslandSite, place: int) -> Operand:
    source = island.source(place)
    if source is None:
        return None
    if not isinstance(source, Argument):
        raise NotLowered("the bias or the mask of its attention is quantised, which QAttention takes as it is")
    return operand_of(source)


ATTENTION = AttentionIsland()
