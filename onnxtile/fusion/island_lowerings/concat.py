"""A concatenation of tensors that are stored with scales of their own."""

from __future__ import annotations

from onnxtile.fusion.island_lowerings.moved import moves
from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import ORT_DOMAIN, NewNode, NotLowered, Replacement, settings


class ConcatIsland(IslandLowering):
    """QLinearConcat of onnxruntime's docs/ContribOperators.md; between equal scales Concat."""

    name = "Concat"

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return Concat-4 on the stored tensors, where all are stored alike."""
        operands = [island.stored(place) for place in range(len(island.steps[0].sources))]
        if not all(one.rule.same_as(island.result) for one in operands):
            raise NotLowered("its operands and its result have different scales")
        return moves(island, tuple(one.operand for one in operands), since=4)

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return Concat-4, or QLinearConcat where scales differ."""
        operands = [island.stored(place) for place in range(len(island.steps[0].sources))]
        if all(one.rule.same_as(island.result) for one in operands):
            return self.to_onnx(island)
        require_alike(*(one.rule for one in operands), island.result)
        triples = (part for one in operands for part in stored_triple(one))
        inputs = (*scale_pair(island.result), *triples)
        return clamped(island, NewNode("QLinearConcat", inputs, settings(island.first), ORT_DOMAIN))


CONCAT = ConcatIsland()
