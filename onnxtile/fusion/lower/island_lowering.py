"""The interface of plug-ins that lower a quantised island, and the reading of one: what it computes on stored operands.

A tensor x is stored as q: x = (q - zero point) · scale (https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.lowering import (
    FLOATS,
    Argument,
    CallSite,
    Literal,
    LoweringFacts,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    Setting,
    held,
    known_dtype,
    operand_of,
)
from onnxtile.model import keys
from onnxtile.model.constants import constant_array
from onnxtile.model.node_kinds import dequantises, quantises
from onnxtile.operators.node_view import MICROSOFT, Dims
from onnxtile.operators.table import FloatMeaning, operators
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

EIGHT_BITS = frozenset({ir.DataType.INT8, ir.DataType.UINT8})


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
    facts: LoweringFacts = field(repr=False)
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


def elements_of(argument: Argument, facts: LoweringFacts) -> Array:
    """Return the elements of a constant. Raises NotLowered."""
    return facts.elements_of(argument, "an operand that must be constant is not")


IslandOperand: TypeAlias = "StoredTensor | Argument | Made | None"
"""An operand of a node in an island: stored, a float (or an axis, a shape), the result of another node, or left out."""


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
    results: tuple[tuple[Made, QuantisationRule | None], ...]

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

    def without(self, number: int) -> IslandSite:
        """Return the island without the step at `number`, whose readers read what is made before it."""
        steps = [
            replace(step, sources=tuple(_earlier(s, number) if isinstance(s, Made) else s for s in step.sources))
            for step in self.steps
        ]
        results = tuple((_earlier(output, number), rule) for output, rule in self.results)
        return IslandSite(self.site, (*steps[:number], *steps[number + 1 :]), results)

    def stored(self, index: int) -> StoredTensor:
        """Return the operand of the first operator at `index`. Raises NotLowered where it is not stored."""
        source = self.source(index)
        if not isinstance(source, StoredTensor):
            raise NotLowered(f"the operand {index} of {self.first.op_type} is not quantised")
        return source

    def source(self, index: int) -> IslandOperand:
        """Return the operand of the first operator at `index`, None where it is left out."""
        sources = self.steps[0].sources
        return sources[index] if index < len(sources) else None


def _earlier(output: Made, number: int) -> Made:
    """Return an output as it is without the step at `number`."""
    if output.step < number:
        return output
    return Made(output.step - 1, 0 if output.step == number else output.output)


class IslandLowering:
    """How the islands of one operator are lowered: one instance in one file of onnxtile/fusion/island_lowerings.

    `name` is the operator, with its domain before it and two colons where that is not the standard's. Both methods are pure, and raise
    NotLowered with the reason.
    """

    name: str

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return the operator of onnxruntime that computes on the stored operands: by default the standard one."""
        return self.to_onnx(island)

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return the standard operator that does so."""
        raise NotLowered(f"no standard operator means {island.first.op_type} on quantised operands")


def read_island(site: CallSite) -> IslandSite:
    """Return what the body of an island computes. Raises NotLowered where it is not read."""
    reader = _IslandReader(site)
    outputs = reader.read(site.function, dict(zip(site.function.inputs, site.arguments, strict=True)))
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
        values.update(known.items())
        for node in function:
            values.update(zip(node.outputs, self._results(node, values), strict=False))
        return [values[value] for value in function.outputs]

    def result(self, output: IslandOperand | _Requantised) -> tuple[Made, QuantisationRule | None]:
        source, rule = (output.source, output.rule) if isinstance(output, _Requantised) else (output, None)
        if not isinstance(source, Made):
            raise NotLowered("it only requantises")
        return source, rule

    def _results(self, node: ir.Node, values: _IslandValues) -> Sequence[IslandOperand | _Requantised]:
        if node.op_type == "Constant" and not node.domain:
            return [held(constant_array(node))]
        read = [values[value] for value in node.inputs]
        if dequantises(node):
            return [self._stored(node, read)]
        if quantises(node):
            return [_Requantised(_plain(read[0]), self._rule(node, read))]
        sources = tuple(_plain(source) for source in read)
        inner = self._site.functions.get(node.op_identifier())
        if inner is not None and keys.META_OP in inner.metadata_props:
            return self.read(inner, dict(zip(inner.inputs, sources, strict=False)))
        moved = _moved(node, sources)
        if moved is not None:
            return [moved]
        self.steps.append(IslandStep(node, sources))
        return [Made(len(self.steps) - 1, i) for i in range(len(node.outputs))]

    def _stored(self, node: ir.Node, read: Sequence[IslandOperand | _Requantised]) -> StoredTensor:
        if not isinstance(read[0], Argument):
            raise NotLowered("a tensor is quantised inside it")
        return StoredTensor(read[0], self._rule(node, read), self._site.facts)

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
        return elements_of(argument, self._site.facts) if argument.constant or argument.array is not None else None


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


# Operands, bounds and biases of operators that compute on stored tensors.

_MOST_OFF = 0.25
"""Largest error of a rounded bias, in steps of the result."""


def stored_triple(tensor: StoredTensor, *, axis: int | None = None) -> tuple[Operand, Operand, Operand]:
    """Return tensor, scale and zero point as operators of 8 bits take them; scales along `axis` are admitted. Raises NotLowered."""
    return tensor.operand, *scale_pair(tensor.rule, axis=axis, rank=None if tensor.dims is None else len(tensor.dims))


def scale_pair(rule: QuantisationRule, *, axis: int | None = None, rank: int | None = None) -> tuple[Operand, Operand]:
    """Return scale and zero point as operators of 8 bits take them; scales along `axis` of `rank` axes are admitted. Raises NotLowered."""
    if rule.dtype not in EIGHT_BITS:
        raise NotLowered(f"its kernel takes no {rule.dtype.name.lower()}")
    if rule.block:
        raise NotLowered("a tensor has a scale for each block of elements")
    if rule.scales is None or rule.zeros is None:
        raise NotLowered("a scale or a zero point is not constant")
    if rule.scales.dtype != np.float32:
        raise NotLowered("a scale is no float32")
    along = axis is not None and rank is not None and rule.axis % rank == axis % rank
    if rule.scales.size != 1 and not along:
        raise NotLowered("a tensor has a scale for each channel, which the operator does not take there")
    zeros = np.zeros(rule.scales.shape, rule.dtype.numpy())
    zero = rule.zero_point if rule.zero_point is not None else Literal(zeros, rule.dtype, "zero_point")
    return rule.scale, zero


def on_stored(
    island: IslandSite, operator: str, given: Mapping[str, Setting] | None = None, *, bias: Operand = None
) -> NewNode:
    """Return `operator` on what the first operator of `island` reads, each operand with its scale at the place that its row says.

    `bias` is the last operand, where it has one. Raises NotLowered.
    """
    row = operators()[operator]
    meaning, weight = row.quantised, None if row.factors is None else row.factors[1]
    assert isinstance(meaning, FloatMeaning) and meaning.result is not None
    count = len(island.steps[0].sources)
    positions = meaning.operands or range(meaning.repeated or 0, (meaning.repeated or 0) + 3 * count, 3)
    stored = {position: island.stored(index) for index, position in enumerate(positions) if meaning.is_scaled(position)}
    require_alike(*(tensor.rule for position, tensor in stored.items() if position != weight), island.result)
    inputs: dict[int, Operand] = {positions[-1]: bias} if bias is not None else {}
    for index, position in enumerate(positions):
        if position in stored:
            columns = meaning.columns
            axis = columns[1] if columns is not None and columns[0] == position else None
            inputs |= dict(enumerate(stored_triple(stored[position], axis=axis), start=position))
        elif position != positions[-1] or weight is None:
            inputs[position] = _argument(island.source(index)).value
    inputs |= dict(zip(meaning.result, scale_pair(island.result), strict=True))
    domain, _, name = operator.rpartition("::")
    return NewNode(
        name, tuple(inputs[position] for position in sorted(inputs)), dict(given or {}), domain, 1 if domain else 10
    )


def _argument(source: IslandOperand) -> Argument:
    if not isinstance(source, Argument) or source.value is None:
        raise NotLowered("an operand that is not quantised is computed in it")
    return source


def require_alike(*rules: QuantisationRule) -> None:
    """Raise NotLowered unless all are of one element type."""
    names = dict.fromkeys(rule.dtype.name.lower() for rule in rules)
    if len(names) > 1:
        raise NotLowered(f"its operands and its result are of different types: {' and '.join(names)}")


def require_alone(island: IslandSite) -> None:
    """Raise NotLowered where something follows the first operator."""
    if len(island.steps) > 1:
        raise NotLowered(f"{island.steps[1].node.op_type} follows {island.first.op_type} in it")


def clamped(
    island: IslandSite, *steps: NewNode, main: int = 0, within: tuple[float, float] = (-np.inf, np.inf)
) -> Replacement:
    """Return `steps`, which compute the first operator, and what follows in the island: Relu and Clip with constant bounds.

    The first operator itself has no results beyond the bounds `within`, which `steps` leave to this function.
    Quantisation is monotonic and saturates, so a bound is its stored element, and no operator where that is the end of the type.
    """
    low, high = _bounds(island, within)
    if (low, high) == limits(island.result.dtype):
        return Replacement(steps, (Made(len(steps) - 1),), main, rounds=True)
    dtype = island.result.dtype
    bounds = [Literal(np.asarray(bound, dtype.numpy()), dtype, "bound") for bound in (low, high)]
    clip = NewNode("Clip", (Made(len(steps) - 1), *bounds), since=12)
    return Replacement((*steps, clip), (Made(len(steps)),), main, rounds=True)


def _bounds(island: IslandSite, within: tuple[float, float]) -> tuple[int, int]:
    """Return the lowest and the highest element that the result can be stored as. Raises NotLowered."""
    rule = island.result
    low, high = (rule.stored(bound) for bound in within)
    for number, step in enumerate(island.steps[1:]):
        if not step.sources or step.sources[0] != Made(number) or step.node.domain:
            raise NotLowered(f"{step.node.op_type} follows {island.first.op_type} in it")
        least, most = (rule.stored(bound) for bound in _clip(island, step))
        low, high = (min(max(bound, least), most) for bound in (low, high))
    if island.results[0][0] != Made(len(island.steps) - 1):
        raise NotLowered("its result is not that of its last operator")
    return low, high


def _clip(island: IslandSite, step: IslandStep) -> tuple[float, float]:
    """Return the bounds of a Relu or a Clip. Raises NotLowered."""
    node = step.node
    if node.op_type == "Relu":
        return 0.0, np.inf
    if node.op_type != "Clip":
        raise NotLowered(f"{node.op_type} follows {island.first.op_type} in it")
    given = [node.attributes.get_float("min", -np.inf), node.attributes.get_float("max", np.inf)]
    for index, source in enumerate(step.sources[1:3]):
        if source is not None:
            given[index] = float(real_elements(island, source).ravel()[0])
    return given[0], given[1]


def real_elements(island: IslandSite, source: IslandOperand) -> Array:
    """Return the floats that a constant operand stands for. Raises NotLowered where it is not constant."""
    if isinstance(source, Argument):
        return elements_of(source, island.site.facts)
    if not isinstance(source, StoredTensor):
        raise NotLowered("an operand that must be constant is computed")
    rule, stored = source.rule, source.elements().astype(np.float32)
    if rule.scales is None or rule.zeros is None or rule.block:
        raise NotLowered("an operand has scales that are not constant, or one for each block")
    shape = [1] * stored.ndim
    if rule.scales.size > 1:
        shape[rule.axis % stored.ndim] = rule.scales.size
    dequantised: Array = (stored - rule.zeros.reshape(shape)) * rule.scales.reshape(shape)
    return dequantised


def stored_bias(island: IslandSite, source: IslandOperand, factors: Sequence[StoredTensor], count: int) -> Operand:
    """Return the bias of a product of `factors` as operators take it: `count` numbers of 32 bits in units of the product.

    Raises NotLowered where it is not constant, or where rounding it to such units changes the result by more than a quarter of a step.
    """
    if source is None:
        return None
    units = np.ones((), np.float64)
    for factor in factors:
        if factor.rule.scales is None:
            raise NotLowered("a scale is not constant")
        units = units * factor.rule.scales.astype(np.float64).ravel()
    if isinstance(source, StoredTensor) and _is_in(source, units, count):
        return source.operand
    real = real_elements(island, source).astype(np.float64)
    if real.size not in {1, count}:
        raise NotLowered(f"its bias has {real.size} elements for {count} channels")
    if units.max() * 0.5 > _MOST_OFF * (np.inf if island.only_result is None else island.result.number):
        raise NotLowered("its bias is not a whole number of units of its product")
    whole = np.broadcast_to(np.rint(real.ravel() / units), (count,))
    if not (np.abs(whole) < 2**31).all():
        raise NotLowered("its bias is too large for 32 bits")
    return Literal(whole.astype(np.int32), ir.DataType.INT32, "bias")


def _is_in(bias: StoredTensor, units: Array, count: int) -> bool:
    """Return whether `bias` is stored in `units`, one element for each channel."""
    rule = bias.rule
    fits = rule.dtype == ir.DataType.INT32 and bias.dims == (count,) and rule.scales is not None
    if not fits or rule.scales is None or rule.zeros is None or rule.zeros.any():
        return False
    return bool(np.allclose(rule.scales.astype(np.float64).ravel(), units, rtol=1e-6, atol=0.0))


# Weights that are stored in blocks of 4 or 8 bits, as DequantizeLinear and as onnxruntime's MatMulNBits have them.

_WIDTHS = {ir.DataType.INT4: 4, ir.DataType.UINT4: 4, ir.DataType.INT8: 8, ir.DataType.UINT8: 8}
_LEAST_BLOCK = 16


def product_by_blocks(island: IslandSite, x: IslandOperand, weight: StoredTensor, bias: IslandOperand) -> Replacement:
    """Return MatMulNBits of the floats `x` and a `weight` of K x N elements in blocks along K. Raises NotLowered.

    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
    """
    require_alone(island)
    if island.only_result is not None:
        raise NotLowered("its result is quantised, and its first operand is not")
    if not isinstance(x, Argument) or x.value is None or known_dtype(x) not in FLOATS:
        raise NotLowered("its first operand is no float")
    bits = _WIDTHS.get(weight.rule.dtype)
    if bits is None:
        raise NotLowered(f"MatMulNBits takes no weight of {weight.rule.dtype.name.lower()}")
    scales, zeros = _in_blocks(weight)
    if scales.dtype != known_dtype(x).numpy():
        raise NotLowered("the scales of its weight are of another type than its operand")
    middle = 1 << (bits - 1)
    offset = middle if weight.rule.dtype.is_signed() else 0
    packed = packed_weight(weight.elements().astype(np.int16) + offset, weight.rule.block, bits)
    inputs: list[Operand] = [
        x.value,
        Literal(packed, ir.DataType.UINT8, "weight"),
        Literal(np.ascontiguousarray(scales.T), ir.DataType.from_numpy(scales.dtype), "scales"),
    ]
    shifted = np.broadcast_to(zeros.astype(np.int16) + offset, scales.shape)
    rows, columns = weight.elements().shape
    if (shifted != middle).any():
        inputs.append(Literal(packed_zeros(shifted, bits), ir.DataType.UINT8, "zero_points"))
    if bias is not None:
        if not isinstance(bias, Argument) or bias.value is None or bias.dims != (columns,):
            raise NotLowered("its bias must be a vector of floats")
        inputs += [None] * (5 - len(inputs)) + [bias.value]
    given = {"K": rows, "N": columns, "bits": bits, "block_size": weight.rule.block}
    return Replacement((NewNode("MatMulNBits", tuple(inputs), given, MICROSOFT),), (Made(0),))


def _in_blocks(weight: StoredTensor) -> tuple[Array, Array]:
    """Return scales and zero points of a constant matrix in blocks along its rows, blocks x N. Raises NotLowered."""
    rule = weight.rule
    if not rule.block:
        raise NotLowered("its weight alone is quantised, and not in blocks")
    if rule.block < _LEAST_BLOCK or rule.block & (rule.block - 1):
        raise NotLowered(f"MatMulNBits takes no blocks of {rule.block} elements")
    if weight.elements().ndim != 2 or rule.axis % 2 != 0 or rule.scales is None or rule.zeros is None:
        raise NotLowered("the blocks of its weight do not lie along the rows of a constant matrix")
    return rule.scales, rule.zeros


def packed_weight(weight: Array, block: int, bits: int) -> Array:
    """Return a weight of K x N unsigned elements as MatMulNBits has it: N x blocks x bytes, of two elements the first in the low bits."""
    rows, columns = weight.shape
    count = -(-rows // block)
    padded = np.zeros((columns, count * block), np.uint8)
    padded[:, :rows] = weight.T
    return _in_bytes(padded.reshape(columns, count, block), bits)


def packed_zeros(zeros: Array, bits: int) -> Array:
    """Return zero points of blocks x N unsigned elements as MatMulNBits has them: N x bytes, of two elements the first in the low bits."""
    count, columns = zeros.shape
    # Padding holds the zero point of symmetric weights, as onnxruntime's quantiser has it.
    padded = np.full((columns, count + count % 2 if bits < 8 else count), 1 << (bits - 1), np.uint8)
    padded[:, :count] = zeros.T
    return _in_bytes(padded, bits)


def unpacked_weight(packed: Array, rows: int, bits: int) -> Array:
    """Return the K x N unsigned elements of a weight as MatMulNBits has it, the inverse of `packed_weight`."""
    elements = _from_bytes(packed, bits)
    return np.ascontiguousarray(elements.reshape(len(packed), -1)[:, :rows].T)


def unpacked_zeros(packed: Array, count: int, columns: int, bits: int) -> Array:
    """Return the blocks x N unsigned zero points of a weight as MatMulNBits has it, the inverse of `packed_zeros`."""
    elements = _from_bytes(packed.reshape(columns, -1), bits)
    return np.ascontiguousarray(elements[:, :count].T)


def _in_bytes(elements: Array, bits: int) -> Array:
    if bits == 8:
        return elements
    low, high = elements[..., 0::2], elements[..., 1::2]
    return np.asarray(low | (high << 4), np.uint8)


def _from_bytes(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed
    pairs = np.stack([packed & 15, packed >> 4], -1)
    return pairs.reshape(*packed.shape[:-1], -1)
