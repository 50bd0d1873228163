"""The interface of plug-ins that lower a quantised island, and the reading of one: what it computes on stored operands.

A tensor x is stored as q: x = (q - zero point) · scale (https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.lowering import (
    Argument,
    CallSite,
    Literal,
    NotLowered,
    Operand,
    Replacement,
    held,
    known_dtype,
    operand_of,
)
from onnxtile.model.known import Dims
from onnxtile.model.quantising import dequantises, quantises
from onnxtile.runtime import Array

EIGHT_BITS = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
STANDARD = frozenset({"", "ai.onnx"})


@dataclass(frozen=True)
class QuantisationRule:
    """How a tensor is stored: scale and zero point, their elements where these are constant, the axis along which they differ.

    `zeros` are zeros where there is no zero point. `block` is the number of elements along the axis that share a scale; 0 for all.
    """

    dtype: ir.DataType
    scale: Operand
    zero_point: Operand
    scales: Array | None = field(repr=False)
    zeros: Array | None = field(repr=False)
    axis: int = 1
    block: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether one scale and one zero point are known to be those of the whole tensor."""
        return self.scales is not None and self.scales.size == 1 and self.zeros is not None and self.zeros.size == 1

    @property
    def number(self) -> float:
        """The scale of the whole tensor. Raises NotLowered where it has several, or one that is not constant."""
        if self.scales is None or self.scales.size != 1:
            raise NotLowered("a scale is not one constant number")
        return float(self.scales.ravel()[0])

    @property
    def zero(self) -> int:
        """The zero point of the whole tensor. Raises NotLowered where it has several, or one that is not constant."""
        if self.zeros is None or self.zeros.size != 1:
            raise NotLowered("a zero point is not one constant number")
        return int(self.zeros.ravel()[0])

    def same_as(self, other: QuantisationRule) -> bool:
        """Return whether both are of one type, one constant scale, finite and no subnormal, and one zero point."""
        if not (self.is_whole and other.is_whole) or self.dtype != other.dtype:
            return False
        usual = np.isfinite(self.number) and self.number > float(np.finfo(np.float32).tiny)
        return bool(usual) and self.number == other.number and self.zero == other.zero

    def stored(self, number: float) -> int:
        """Return the element that `number` is stored as: rounded to even, inside the range of the type. Raises NotLowered."""
        low, high = limits(self.dtype)
        if np.isnan(number):
            raise NotLowered("a bound of its Clip is NaN")
        if not 0 < self.number < np.inf:
            raise NotLowered("its scale is no positive finite number")
        quotient = np.clip(np.float32(number) / np.float32(self.number), -1e6, 1e6)
        return int(np.clip(int(np.rint(quotient)) + self.zero, low, high))


def limits(dtype: ir.DataType) -> tuple[int, int]:
    """Return the lowest and the highest number of an integer type."""
    bits = dtype.bitwidth
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed() else (0, (1 << bits) - 1)


@dataclass(frozen=True)
class StoredTensor:
    """A stored operand of an island. `array` holds its elements where a node inside moved them."""

    argument: Argument
    rule: QuantisationRule
    facts: CallSite = field(repr=False)
    array: Array | None = field(default=None, repr=False)

    @property
    def operand(self) -> Operand:
        """The tensor as an operand of a new node."""
        return self.argument.value if self.array is None else Literal(self.array, self.rule.dtype, "weight")

    @property
    def dims(self) -> Dims | None:
        """The dimensions, None where the rank is unknown."""
        return self.argument.dims if self.array is None else self.array.shape

    @property
    def is_constant(self) -> bool:
        """Whether its elements are known."""
        return self.array is not None or self.argument.constant

    def transposed(self, perm: Sequence[int] | None = None) -> StoredTensor:
        """Return the tensor with its axes in the order `perm`, by default the last first. Raises NotLowered where it is not constant."""
        array, rule = self.elements(), self.rule
        order = tuple(range(array.ndim))[::-1] if perm is None else tuple(perm)
        if array.ndim:
            rule = replace(rule, axis=order.index(rule.axis % array.ndim))
        if rule.block and rule.scales is not None and rule.zeros is not None:
            rule = replace(rule, scales=np.transpose(rule.scales, order), zeros=np.transpose(rule.zeros, order))
        return replace(self, array=np.asarray(np.transpose(array, order), order="C"), rule=rule)

    def elements(self) -> Array:
        """Return the stored elements. Raises NotLowered where they are not constant."""
        return self.array if self.array is not None else elements_of(self.argument, self.facts)


def elements_of(argument: Argument, site: CallSite) -> Array:
    """Return the elements of a constant. Raises NotLowered."""
    if argument.array is not None:
        return argument.array
    if not argument.constant or argument.value is None or site.facts is None:
        raise NotLowered("an operand that must be constant is not")
    return site.facts.elements(argument.value)


IslandOperand: TypeAlias = "StoredTensor | Argument | IslandOutput | None"
"""An operand of a node in an island: stored, a float (or an axis, a shape), the result of another node, or left out."""


@dataclass(frozen=True)
class IslandOutput:
    """An output of one of the nodes that compute in an island."""

    step: int
    output: int = 0


@dataclass(frozen=True)
class IslandStep:
    """A node that computes in an island, and what it reads."""

    node: ir.Node
    sources: tuple[IslandOperand, ...]


@dataclass(frozen=True)
class IslandSite:
    """A quantised island: the nodes that compute in it, meta-ops opened, and how each of its results is stored.

    A result that is a float has no rule.
    """

    site: CallSite = field(repr=False)
    steps: tuple[IslandStep, ...]
    results: tuple[tuple[IslandOutput, QuantisationRule | None], ...]

    @property
    def first(self) -> ir.Node:
        """The operator that the island is named for."""
        return self.steps[0].node

    @cached_property
    def result(self) -> QuantisationRule:
        """How the only result is stored. Raises NotLowered where there are several, or where it is not stored."""
        rule = self.only_result
        if rule is None:
            raise NotLowered("its result is not quantised")
        return rule

    @cached_property
    def only_result(self) -> QuantisationRule | None:
        """How the only result is stored, None for a float. Raises NotLowered where there are several."""
        if len(self.results) != 1 or len(self.first.outputs) != 1:
            raise NotLowered("it has several results")
        return self.results[0][1]

    def without(self, place: int) -> IslandSite:
        """Return the island without the step at `place`, whose readers read what is made before it."""
        steps = [replace(step, sources=tuple(_before(one, place) for one in step.sources)) for step in self.steps]
        results = tuple((_earlier(output, place), rule) for output, rule in self.results)
        return IslandSite(self.site, (*steps[:place], *steps[place + 1 :]), results)

    def stored(self, place: int) -> StoredTensor:
        """Return the operand of the first operator at `place`. Raises NotLowered where it is not stored."""
        source = self.source(place)
        if not isinstance(source, StoredTensor):
            raise NotLowered(f"the operand {place} of {self.first.op_type} is not quantised")
        return source

    def source(self, place: int) -> IslandOperand:
        """Return the operand of the first operator at `place`, None where it is left out."""
        sources = self.steps[0].sources
        return sources[place] if place < len(sources) else None


def _before(source: IslandOperand, place: int) -> IslandOperand:
    return _earlier(source, place) if isinstance(source, IslandOutput) else source


def _earlier(output: IslandOutput, place: int) -> IslandOutput:
    return (
        IslandOutput(output.step - 1, 0 if output.step == place else output.output) if output.step >= place else output
    )


class IslandLowering(ABC):
    """How the islands of one operator are lowered: one instance in one file of onnxtile/fusion/island_lowerings.

    `name` is the operator, with its domain before it and two colons where that is not the standard's. Both methods are pure, and raise
    NotLowered with the reason.
    """

    name: str

    @abstractmethod
    def to_ort(self, island: IslandSite) -> Replacement:
        """Return the operator of onnxruntime that computes on the stored operands."""

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return the standard operator that does so."""
        raise NotLowered(f"no standard operator means {island.first.op_type} on quantised operands")


def read_island(site: CallSite) -> IslandSite:
    """Return what the body of an island computes. Raises NotLowered where it is not read."""
    reader = _IslandReader(site)
    known = dict(zip(site.function.inputs, site.arguments, strict=True))
    outputs = reader.read(site.function, dict(known))
    results = tuple(reader.result(output) for output in outputs)
    if not reader.steps:
        raise NotLowered("it only requantises")
    return IslandSite(site, tuple(reader.steps), results)


@dataclass(frozen=True)
class _Requantised:
    """The result of a QuantizeLinear: its source, and how it is stored."""

    source: IslandOperand
    rule: QuantisationRule


_IslandValues: TypeAlias = "dict[ir.Value | None, IslandOperand | _Requantised]"


class _IslandReader:
    def __init__(self, site: CallSite) -> None:
        self._site = site
        self.steps: list[IslandStep] = []

    def read(
        self, function: ir.Function, known: Mapping[ir.Value, IslandOperand]
    ) -> list[IslandOperand | _Requantised]:
        """Note what `function` computes of the sources `known`; return what its outputs are."""
        values: _IslandValues = {None: None}
        for value, source in known.items():
            values[value] = source
        for node in function:
            for value, made in zip(node.outputs, self._made(node, values), strict=False):
                values[value] = made
        return [values[value] for value in function.outputs]

    def result(self, output: IslandOperand | _Requantised) -> tuple[IslandOutput, QuantisationRule | None]:
        source, rule = (output.source, output.rule) if isinstance(output, _Requantised) else (output, None)
        if not isinstance(source, IslandOutput):
            raise NotLowered("it only requantises")
        return source, rule

    def _made(self, node: ir.Node, values: _IslandValues) -> Sequence[IslandOperand | _Requantised]:
        if node.op_type == "Constant" and node.domain in STANDARD:
            return [held(node)]
        read = [values[value] for value in node.inputs]
        if dequantises(node):
            return [self._stored(node, read)]
        if quantises(node):
            return [_Requantised(_plain(read[0]), self._rule(node, read))]
        sources = tuple(_plain(one) for one in read)
        inner = self._site.functions.get(node.op_identifier())
        if inner is not None and keys.META_OP in inner.metadata_props:
            return self.read(inner, dict(zip(inner.inputs, sources, strict=False)))
        moved = _moved(node, sources)
        if moved is not None:
            return [moved]
        self.steps.append(IslandStep(node, sources))
        return [IslandOutput(len(self.steps) - 1, i) for i in range(len(node.outputs))]

    def _stored(self, node: ir.Node, read: Sequence[IslandOperand | _Requantised]) -> StoredTensor:
        if not isinstance(read[0], Argument):
            raise NotLowered("a tensor is quantised inside it")
        return StoredTensor(read[0], self._rule(node, read), self._site)

    def _rule(self, node: ir.Node, read: Sequence[IslandOperand | _Requantised]) -> QuantisationRule:
        scale, zero = read[1], read[2] if len(read) > 2 else None
        if not isinstance(scale, Argument) or not (zero is None or isinstance(zero, Argument)):
            raise NotLowered("a scale or a zero point is computed inside it")
        if zero is not None:
            dtype = known_dtype(zero)
        elif dequantises(node):
            dtype = known_dtype(read[0]) if isinstance(read[0], Argument) else ir.DataType.UINT8
        else:
            dtype = ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8.value)
        scales, zeros = self._elements(scale), None if zero is None else self._elements(zero)
        if zero is None:
            zeros = np.zeros((), np.int32) if scales is None else np.zeros(scales.shape, np.int32)
        axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
        return QuantisationRule(dtype, operand_of(scale), operand_of(zero), scales, zeros, axis, block)

    def _elements(self, argument: Argument) -> Array | None:
        return elements_of(argument, self._site) if argument.constant or argument.array is not None else None


def _plain(source: IslandOperand | _Requantised) -> IslandOperand:
    if isinstance(source, _Requantised):
        raise NotLowered("a tensor is quantised inside it")
    return source


def _moved(node: ir.Node, sources: Sequence[IslandOperand]) -> StoredTensor | None:
    """Return the constant that a Transpose makes of a stored one; None for any other node."""
    source = sources[0] if sources else None
    if node.op_type != "Transpose" or not isinstance(source, StoredTensor) or not source.is_constant:
        return None
    return source.transposed(node.attributes.get_ints("perm"))
