"""The interface of plug-ins that lower an operator of the model itself, which no pattern fused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.lowering import (
    Argument,
    Literal,
    LoweringFacts,
    Made,
    NewNode,
    NewNodes,
    NotLowered,
    Operand,
    Replacement,
    Setting,
    operand_of,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array


@dataclass(frozen=True)
class OperatorSite:
    """A node, and what is known of what it reads and makes."""

    node: ir.Node
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    facts: LoweringFacts = field(repr=False)

    def argument(self, index: int) -> Argument | None:
        """Return the operand at `index`, None where it is left out."""
        argument = self.arguments[index] if index < len(self.arguments) else None
        return None if argument is None or (argument.value is None and argument.array is None) else argument

    def operand(self, index: int) -> Operand:
        """Return the operand at `index` for a new node, None where it is left out."""
        return operand_of(self.argument(index))

    def elements(self, index: int) -> Array:
        """Return the elements of the constant operand at `index`. Raises NotLowered where it is none."""
        argument, refusal = self.argument(index), f"the operand {index} of {self.node.op_type} is not constant"
        if argument is None or not argument.constant:
            raise NotLowered(refusal)
        return self.facts.elements_of(argument, refusal)


class OperatorLowering(ABC):
    """How one operator is lowered: one instance in one file of onnxtile/fusion/operator_lowerings.

    `name` is the operator, with its domain before it and two colons where that is not the standard's.
    """

    name: str

    @abstractmethod
    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return the float operator between DequantizeLinear and QuantizeLinear nodes. Raises NotLowered with the reason."""


# Float operators between DequantizeLinear and QuantizeLinear nodes, which stand for operators on stored tensors.

NUMBER = {(), (1,)}
"""The shapes of a scale or a zero point of a whole tensor."""


class QdqSteps(NewNodes):
    """Collects the nodes that stand for one operator: `stored` operands first, then `compute`, then `finished`."""

    def __init__(self, site: OperatorSite) -> None:
        super().__init__()
        self._site = site
        self._main = Made(0)

    def stored(self, index: int, scale: int, zero: int, *, axis: int | None = None) -> Made:
        """Dequantise the operand at `index`, whose scale and zero point are at `scale` and `zero`; several lie along `axis`."""
        operands = [self._site.operand(index), self._number(scale, axis), self._number(zero, axis)]
        several = axis is not None and any(not self._is_number(at) for at in (scale, zero))
        return self.dequantised(operands, axis=axis if several else None)

    def dequantised(self, operands: list[Operand], *, axis: int | None = None, block: int = 0) -> Made:
        """Dequantise a tensor with a scale and, where it is not None, a zero point."""
        given: dict[str, Setting] = {} if axis is None else {"axis": axis}
        since = 21 if block else 13 if axis is not None else 10
        if block:
            given["block_size"] = block
        inputs = tuple(operands if operands[2] is not None else operands[:2])
        return self.add(NewNode("DequantizeLinear", inputs, given, since=since))

    def quantised_as_it_comes(self, index: int) -> Made:
        """Quantise the float operand at `index` by its own range, and dequantise it."""
        quantised = self.add(NewNode("DynamicQuantizeLinear", (self._site.operand(index),), since=11, outputs=3))
        return self.dequantised([quantised, Made(quantised.step, 1), Made(quantised.step, 2)])

    def bias(self, index: int, *scales: int, factor: float = 1.0) -> Made | None:
        """Dequantise the bias at `index`: integers of 32 bits in units of the product of the constant `scales`; None without one."""
        if self._site.argument(index) is None:
            return None
        units: Array = np.full((), factor, np.float64)
        for scale in scales:
            units = units * self._site.elements(scale).astype(np.float64).ravel()
        whole = units.reshape(()) if units.size == 1 else units
        literal = Literal(whole.astype(np.float32), ir.DataType.FLOAT, "bias_scale")
        return self.dequantised([self._site.operand(index), literal, None], axis=0 if whole.ndim else None)

    def compute(
        self,
        operator: str,
        inputs: tuple[Operand, ...],
        settings: Mapping[str, Setting],
        *,
        since: int,
        domain: str = "",
    ) -> Made:
        """Add the float operator."""
        self._main = self.add(NewNode(operator, inputs, settings, domain, since))
        return self._main

    def summed(self, product: Made, index: int) -> Made:
        """Add the float operand at `index`, where there is one."""
        bias = self._site.operand(index)
        return product if bias is None else self.add(NewNode("Add", (product, bias), since=7))

    def finished(self, result: Made, scale: int | None = None, zero: int | None = None) -> Replacement:
        """Quantise the result with the scale and the zero point at these places, where there is a scale."""
        if scale is None or zero is None or self._site.argument(scale) is None:
            return self.replacement(result, self._main)
        operands = (result, self._number(scale, None), self._number(zero, None))
        inputs = operands if operands[2] is not None else operands[:2]
        stored = self.add(NewNode("QuantizeLinear", inputs, since=10))
        return self.replacement(stored, self._main, rounds=True)

    def _number(self, index: int, axis: int | None) -> Operand:
        """Return the scale or zero point at `index`; a list of one constant number as that number. Raises NotLowered."""
        argument = self._site.argument(index)
        if argument is None:
            return None
        if not self._is_number(index) and axis is None:
            raise NotLowered("a tensor has several scales or zero points where a float operator reads one")
        if argument.dims == (1,) and argument.constant:
            dtype = argument.dtype
            assert dtype is not None
            return Literal(self._site.elements(index).reshape(()), dtype, "quantisation")
        return operand_of(argument)

    def _is_number(self, index: int) -> bool:
        argument: Argument | None = self._site.argument(index)
        return argument is None or argument.dims in NUMBER
