"""Rotary position embedding: each vector's halves turned by angles that its position gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.attention import NewNodes
from onnxtile.fusion.lower.elementwise import value_of
from onnxtile.fusion.lower.lowering import (
    HALVES,
    Argument,
    CallSite,
    FactsTable,
    Literal,
    Lowering,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    known_dims,
    require_type,
    shown,
)
from onnxtile.fusion.lower.terms import Atom, Monomial, Poly, atom, number, operands, product
from onnxtile.fusion.lower.terms import value_of as number_of
from onnxtile.model.known import Dims

_TYPES = HALVES | {ir.DataType.FLOAT}
_POINTWISE = {"Cos", "Sin", "Cast", "Identity"}
_LONGEST = 12


@dataclass(frozen=True)
class _Turn:
    x: Argument
    cos: Argument
    sin: Argument
    dims: Dims
    """(batch, heads, sequence, size)"""
    half: int


class RotaryEmbedding(Lowering):
    """https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html, for which onnxruntime has a kernel: x · cos + (-x₂, x₁) · sin."""

    name = "RotaryEmbedding"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return RotaryEmbedding-23, its cosines and sines once for both halves."""
        turn = _proved(site)
        steps = NewNodes([])
        cos, sin = (_cache(steps, turn, angles) for angles in (turn.cos, turn.sin))
        made = steps.add(NewNode("RotaryEmbedding", (value_of(turn.x), cos, sin), {"interleaved": 0}, since=23))
        twice = frozenset((value_of(turn.cos), value_of(turn.sin)))
        return Replacement(tuple(steps.steps), (made,), made.step, twice=twice)


def _proved(site: CallSite) -> _Turn:
    if len(site.forms) != 1 or len(site.forms[0]) != 2:
        raise NotLowered("its body is not x · cos + (-x₂, x₁) · sin")
    straight, crossed = sorted((m for m, _ in site.forms[0]), key=lambda m: any(b[0] == "Concat" for b, _ in m))
    turned = next((base for base, _ in crossed if base[0] == "Concat"), None)
    if turned is None or any(c != 1 for _, c in site.forms[0]):
        raise NotLowered("its body is not x · cos + (-x₂, x₁) · sin")
    (sin,) = _inputs(crossed - {(turned, 1.0)}, 1)
    first, second = _inputs(straight, 2)
    x = next((i for i in (first, second) if atom("input", i) in _slices(turned)), None)
    if x is None:
        raise NotLowered("what is turned is not what is multiplied by the cosines")
    cos = second if x == first else first
    argument = site.arguments[x]
    dims = known_dims(argument)
    _require_halves(turned, dims)
    for operand in (argument, site.arguments[cos], site.arguments[sin]):
        if require_type("RotaryEmbedding", operand, _TYPES) != site.dtype:
            raise NotLowered("its inputs differ in their element types")
    assert isinstance(dims[3], int)
    turn = _Turn(argument, site.arguments[cos], site.arguments[sin], dims, dims[3] // 2)
    for what, angles in (("cosines", turn.cos), ("sines", turn.sin)):
        _require_angles(what, angles, turn, site.facts)
    return turn


def _inputs(monomial: Monomial, count: int) -> list[int]:
    """Return the inputs that a product is of."""
    found = [int(str(base[1])) for base, exponent in monomial if base[0] == "input" and exponent == 1]
    if len(found) != count or len(monomial) != count:
        raise NotLowered("its body is not x · cos + (-x₂, x₁) · sin")
    return sorted(found)


def _slices(turned: Atom) -> Iterator[Poly]:
    """Yield the vectors from which the halves are cut."""
    for half in operands(turned):
        for monomial, _ in half:
            for base, _ in monomial:
                if base[0] == "Slice":
                    yield next(operands(base))


def _require_halves(turned: Atom, dims: Dims) -> None:
    """Raise NotLowered unless `turned` is the second half, negated, and the first, along the last of four axes."""
    if len(dims) != 4 or not isinstance(dims[3], int) or dims[3] % 2:
        raise NotLowered(f"it turns vectors of the shape {shown(dims)}, not (batch, heads, sequence, even size)")
    half = dims[3] // 2
    axis = dict(turned[4]).get("axis")  # type: ignore[call-overload]
    parts = list(operands(turned))
    if axis not in {"-1", "3"} or len(parts) != 2:
        raise NotLowered("its halves are not put together along the last axis")
    bounds = [_bounds(parts[0], -1.0), _bounds(parts[1], 1.0)]
    if bounds[0][0] != half or bounds[0][1] < dims[3] or bounds[1] != (0, half):
        raise NotLowered("it is not cut in the middle of the last axis, or where is not known")


def _bounds(poly: Poly, sign: float) -> tuple[float, float]:
    """Return from where to where a Slice along the last axis cuts, `sign` times its result being `poly`."""
    (monomial, _), *rest = product(number(sign), poly) or ((frozenset(), 0.0),)
    ((base, exponent),) = monomial if len(monomial) == 1 else ((("",), 0.0),)
    parts = list(operands(base))
    if (
        rest
        or exponent != 1
        or base[0] != "Slice"
        or product(number(sign), poly) != atom(*map(str, base[:1]), *base[1:])
    ):
        raise NotLowered("its halves are no slices, one of them negated")
    numbers = [number_of(part) for part in parts[1:]]
    if len(numbers) not in {3, 4} or numbers[2] not in {-1, 3} or numbers[3:] not in ([], [1.0]):
        raise NotLowered("its slices are not along the last axis")
    start, end = numbers[:2]
    if start is None or end is None:
        raise NotLowered("where it is cut is computed, and not known")
    return start, end


def _require_angles(what: str, angles: Argument, turn: _Turn, facts: FactsTable | None) -> None:
    """Raise NotLowered unless cosines or sines are the same for all heads, and for both halves."""
    dims = known_dims(angles)
    batch, _, sequence, size = turn.dims
    full = (*(1,) * (4 - len(dims)), *dims)
    if len(full) != 4 or full[1] != 1 or full[2:] != (sequence, size) or full[0] not in {1, batch}:
        raise NotLowered(f"its {what} have the shape {shown(dims)}, what it turns {shown(turn.dims)}")
    if facts is None or angles.value is None or not _is_twice(angles.value, angles.constant, facts):
        raise NotLowered(f"its {what} are not known to be the same for both halves")


def _is_twice(value: ir.Value, constant: bool, facts: FactsTable) -> bool:
    """Tell whether the last axis is one vector twice: seen in the elements, or above, where a Concat puts it together."""
    if constant:
        array = facts.elements(value)
        first, second = np.split(array, 2, -1)
        return bool(np.array_equal(first, second))
    current: ir.Value | None = value
    for _ in range(_LONGEST):
        node = None if current is None else current.producer()
        if node is None or node.domain not in {"", "ai.onnx"}:
            return False
        if node.op_type == "Concat":
            return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and _is_last(node, facts)
        current = _above(node, facts)
    return False


def _above(node: ir.Node, facts: FactsTable) -> ir.Value | None:
    """Return the value whose last axis is one vector twice where that of the result of `node` is; None where that is not known."""
    source = node.inputs[0]
    if node.op_type in _POINTWISE:
        return source
    if node.op_type == "Mul":
        arguments = [facts.argument(v) for v in node.inputs if v is not None]
        numbers = [a.dims is not None and all(dim == 1 for dim in a.dims) for a in arguments]
        return node.inputs[numbers.index(False)] if numbers.count(False) == 1 else None
    if node.op_type in {"Unsqueeze", "Squeeze"} and source is not None:
        before, after = facts.argument(source).dims, facts.argument(node.outputs[0]).dims
        last = before[-1] if before else None
        return source if after and last == after[-1] and last not in {1, None} else None
    return None


def _is_last(node: ir.Node, facts: FactsTable) -> bool:
    axis, dims = node.attributes.get_int("axis", 0), facts.argument(node.outputs[0]).dims
    return axis == -1 or (dims is not None and axis == len(dims) - 1)


def _cache(steps: NewNodes, turn: _Turn, angles: Argument) -> Operand:
    """Return the first halves as (batch, sequence, size / 2)."""
    dims = known_dims(angles)
    bounds = (Literal.ints(i, hint="bound") for i in (0, turn.half, -1))
    half: Operand = steps.add(NewNode("Slice", (value_of(angles), *bounds), since=10))
    if len(dims) == 4:
        half = steps.add(NewNode("Squeeze", (half, Literal.ints(1, hint="axes")), since=13))
    elif len(dims) == 2:
        half = steps.add(NewNode("Unsqueeze", (half, Literal.ints(0, hint="axes")), since=13))
    batch = turn.dims[0]
    if (len(dims) == 4 and dims[0] == batch) or batch == 1:
        return half
    return steps.add(NewNode("Expand", (half, _batched(steps, turn)), since=8))


def _batched(steps: NewNodes, turn: _Turn) -> Operand:
    """Return the shape (batch, 1, 1), read off what is turned where it is not known."""
    batch = turn.dims[0]
    if isinstance(batch, int):
        return Literal.ints(batch, 1, 1, hint="shape")
    first = steps.add(NewNode("Shape", (value_of(turn.x),), {"start": 0, "end": 1}, since=15))
    return steps.add(NewNode("Concat", (first, Literal.ints(1, 1, hint="ones")), {"axis": 0}, since=13))


ROTARY_EMBEDDING = RotaryEmbedding()
