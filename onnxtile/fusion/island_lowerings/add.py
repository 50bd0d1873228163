"""A sum, a difference or a product of two stored tensors, element by element."""

from __future__ import annotations

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import ORT_DOMAIN, Literal, Made, NewNode, NotLowered, Replacement


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


class SubIsland(IslandLowering):
    """A difference: QLinearAdd of the first operand and the second with the other sign.

    Of the bits of a stored element and of its zero point, the complement stands for the negative number: ~q - ~z = z - q.
    """

    name = "Sub"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return BitwiseNot and QLinearAdd."""
        a, b, result = island.stored(0), island.stored(1), island.result
        require_alike(a.rule, b.rule, result)
        stored, scale, _ = stored_triple(b)
        assert b.rule.zeros is not None
        zero = Literal(~b.rule.zeros.astype(b.rule.dtype.numpy()), b.rule.dtype, "zero_point")
        complement = NewNode("BitwiseNot", (stored,), since=18)
        inputs = (*stored_triple(a), Made(0), scale, zero, *scale_pair(result))
        return clamped(island, complement, NewNode("QLinearAdd", inputs, domain=ORT_DOMAIN), main=1)


ADD = BinaryIsland("Add", "QLinearAdd")
MUL = BinaryIsland("Mul", "QLinearMul")
SUB = SubIsland()
SUM = BinaryIsland("Sum", "QLinearAdd")
