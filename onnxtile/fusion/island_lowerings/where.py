"""A choice between two stored tensors."""

from __future__ import annotations

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import ORT_DOMAIN, Argument, NewNode, NotLowered, Replacement


class WhereIsland(IslandLowering):
    """QLinearWhere of onnxruntime's docs/ContribOperators.md."""

    name = "Where"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearWhere."""
        condition, x, y, result = island.source(0), island.stored(1), island.stored(2), island.result
        if not isinstance(condition, Argument) or condition.value is None:
            raise NotLowered("its condition is computed in it")
        require_alike(x.rule, y.rule, result)
        inputs = (condition.value, *stored_triple(x), *stored_triple(y), *scale_pair(result))
        return clamped(island, NewNode("QLinearWhere", inputs, domain=ORT_DOMAIN))


WHERE = WhereIsland()
