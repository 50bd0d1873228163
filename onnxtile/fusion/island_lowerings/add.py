"""A sum or a product of two stored tensors, element by element."""

from __future__ import annotations

from onnxtile.fusion.island_lowering import IslandLowering, IslandSite
from onnxtile.fusion.lowering import ORT_DOMAIN, NewNode, Replacement
from onnxtile.fusion.proofs.quantised import clamped, require_alike, scale_pair, stored_triple


class BinaryIsland(IslandLowering):
    """QLinearAdd and QLinearMul of onnxruntime's docs/ContribOperators.md."""

    def __init__(self, name: str) -> None:
        self.name = name

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return the operator of onnxruntime of that name."""
        a, b, result = island.stored(0), island.stored(1), island.result
        require_alike(a.rule, b.rule, result)
        inputs = (*stored_triple(a), *stored_triple(b), *scale_pair(result))
        return clamped(island, NewNode(f"QLinear{self.name}", inputs, domain=ORT_DOMAIN))


ADD = BinaryIsland("Add")
MUL = BinaryIsland("Mul")
