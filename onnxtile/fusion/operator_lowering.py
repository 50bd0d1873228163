"""The interface of plug-ins that lower an operator of the model itself, which no pattern fused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.fusion.lowering import Argument, FactsTable, NotLowered, Operand, Replacement
from onnxtile.runtime import Array


@dataclass(frozen=True)
class OperatorSite:
    """A node, and what is known of what it reads and makes."""

    node: ir.Node
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    facts: FactsTable = field(repr=False)

    def argument(self, place: int) -> Argument | None:
        """Return the operand at `place`, None where it is left out."""
        found = self.arguments[place] if place < len(self.arguments) else None
        return None if found is None or found.value is None else found

    def operand(self, place: int) -> Operand:
        """Return the operand at `place` for a new node, None where it is left out."""
        found = self.argument(place)
        return None if found is None else found.value

    def elements(self, place: int) -> Array:
        """Return the elements of the constant operand at `place`. Raises NotLowered where it is none."""
        found = self.argument(place)
        if found is None or not found.constant or found.value is None:
            raise NotLowered(f"the operand {place} of {self.node.op_type} is not constant")
        return self.facts.elements(found.value)


class OperatorLowering(ABC):
    """How one operator is lowered: one instance in one file of onnxtile/fusion/operator_lowerings.

    `name` is the operator, with its domain before it and two colons where that is not the standard's.
    """

    name: str

    @abstractmethod
    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return the float operator between DequantizeLinear and QuantizeLinear nodes. Raises NotLowered with the reason."""
