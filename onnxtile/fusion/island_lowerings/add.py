"""A sum or a product of two stored tensors, element by element."""

from __future__ import annotations

from onnxtile.fusion.island_lowering import IslandLowering, IslandSite
from onnxtile.fusion.lowering import ORT_DOMAIN, NewNode, NotLowered, Replacement
from onnxtile.fusion.proofs.quantised import clamped, require_alike, scale_pair, stored_triple


class BinaryIsland(IslandLowering):
    """QLinearAdd and QLinearMul of onnxruntime's docs/ContribOperators.md."""

    def __init__(self, name: str, operator: str) -> None:
        self.name = name
        self._operator = operator

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return the operator of onnxruntime of that name."""
        if len(island.steps[0].sources) != 2:
            raise NotLowered(f"{self._operator} takes two operands")
        a, b, result = island.stored(0), island.stored(1), island.result
        require_alike(a.rule, b.rule, result)
        inputs = (*stored_triple(a), *stored_triple(b), *scale_pair(result))
        return clamped(island, NewNode(self._operator, inputs, domain=ORT_DOMAIN))


ADD = BinaryIsland("Add", "QLinearAdd")
MUL = BinaryIsland("Mul", "QLinearMul")
SUM = BinaryIsland("Sum", "QLinearAdd")
