"""Lowerings of attention: scaled dot-product attention, and the rotary embedding of its queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.attention import (
    EXCHANGED,
    SWAPPED,
    AttentionSteps,
    Heads,
    hides_a_row,
    may_be_lowest,
    proved_attention,
)
from onnxtile.fusion.lower.lowering import (
    FLOATS,
    Argument,
    CallSite,
    Literal,
    Lowering,
    LoweringFacts,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    Setting,
    known_dims,
    require_type,
    shown,
    value_of,
)
from onnxtile.fusion.lower.terms import Atom, Monomial, Poly, atom, number, operands, product
from onnxtile.fusion.lower.terms import value_of as number_of
from onnxtile.operators.node_view import MICROSOFT, Dims
from onnxtile.operators.table import movement_of
from onnxtile.system.dataclass import dataclass

_AS_IS = (0, 1, 2, 3)


class ScaledDotProductAttention(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Attention.html, and MultiHeadAttention of onnxruntime's docs/ContribOperators.md."""

    name = "ScaledDotProductAttention"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Attention-23 on 4-D operands."""
        heads = proved_attention(site, "Attention")
        if heads.scale < 0:
            raise NotLowered(f"its scale is {heads.scale:.3g}, and onnxruntime's Attention takes no negative one")
        if not heads.guarded and hides_a_row(heads.masks, site.facts):
            raise NotLowered("its mask hides whole rows, whose softmax is NaN and in onnxruntime's Attention 0")
        settings: dict[str, Setting] = {"scale": heads.scale}
        if heads.widened:
            settings["softmax_precision"] = 1
        if heads.is_flat:
            settings |= {"q_num_heads": 1, "kv_num_heads": 1}
        return _as_laid_out(heads, NewNode("Attention", (), settings, since=23))

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.MultiHeadAttention, which takes (batch, sequence, heads · size): transpositions around it fall away.

        Where the numbers of heads differ, or numbers or sizes are not known, return the standard operator, which has a kernel, too.
        """
        heads = proved_attention(site, "MultiHeadAttention")
        if heads.is_flat:  # one head, which takes (batch, sequence, size) as it is
            return _as_laid_out(heads, _multi_head(heads, 1))
        steps = AttentionSteps()
        batch, _, rows, columns = heads.dims
        numbers = heads.numbers()
        if numbers is None:
            return self.to_onnx(site)
        count, size, v_size = numbers
        # To (batch, sequence, heads, size): Q and V by exchanging the middle axes, K from (batch, heads, size, sequence).
        turned = (
            (heads.q, SWAPPED, rows, size),
            (heads.k_turned, (0, 3, 1, 2), columns, size),
            (heads.v, SWAPPED, columns, v_size),
        )
        q, k, v = (
            steps.merged(steps.laid_out(tensor, perm), (batch, length), count, width, site)
            for tensor, perm, length, width in turned
        )
        mask, hidden = _bias(steps, heads)
        attention = steps.add(_reading(_multi_head(heads, count), q, k, v, mask))
        split = steps.reshaped(_guarded(steps, heads, attention), 0, 0, count, v_size)
        if hidden is not None:
            split = steps.without(steps.add(NewNode("Transpose", (hidden,), {"perm": SWAPPED})), split, site.dtype)
        # Back to (batch, heads, sequence, size), or with the last two exchanged.
        perm = (0, 2, 3, 1) if heads.turned else SWAPPED
        out = steps.add(NewNode("Transpose", (split,), {"perm": perm}))
        return steps.replacement(out, attention)


def _multi_head(heads: Heads, count: int) -> NewNode:
    return NewNode("MultiHeadAttention", (), {"num_heads": count, "scale": heads.scale}, MICROSOFT)


def _reading(attention: NewNode, q: Operand, k: Operand, v: Operand, mask: Operand) -> NewNode:
    """Return `attention` of Q, K, V and, where there is one, the mask; onnxruntime's operator has two operands between."""
    between = (None, None) if attention.domain else ()
    return replace(attention, inputs=(q, k, v, *(() if mask is None else (*between, mask))))


def _as_laid_out(heads: Heads, operator: NewNode) -> Replacement:
    """Return `operator` on operands that are laid out as the formula has them."""
    steps = AttentionSteps()
    q, k, v = (
        steps.laid_out(tensor, perm)
        for tensor, perm in ((heads.q, _AS_IS), (heads.k_turned, EXCHANGED), (heads.v, _AS_IS))
    )
    mask, hidden = _bias(steps, heads)
    if mask is not None and not operator.domain and may_be_lowest(heads.masks, heads.dtype):
        # onnxruntime's kernel takes the lowest number for -inf, and a row of it for one without scores; the standard does not.
        mask = steps.raised(mask, heads.dtype)
    attention = steps.add(_reading(operator, q, k, v, mask))
    out = _guarded(steps, heads, attention)
    out = out if hidden is None else steps.without(hidden, out, heads.dtype)
    if heads.turned:  # the result has its last two axes exchanged
        out = steps.add(NewNode("Transpose", (out,), {"perm": (0, 2, 1) if heads.is_flat else EXCHANGED}))
    return steps.replacement(out, attention)


def _guarded(steps: AttentionSteps, heads: Heads, out: Made) -> Made:
    """Return the result `out`, 0 in place of NaN where weights are guarded against it: Q, K and masks that are no numbers give 0."""
    if not heads.guarded:
        return out
    return steps.without(steps.add(NewNode("IsNaN", (out,), since=13)), out, heads.dtype)


def _bias(steps: AttentionSteps, heads: Heads) -> tuple[Operand, Operand]:
    """Return the masks as both operators take them, and which rows they hide as a whole where that is guarded.

    A guard turns such rows to 0. Here the masks leave these rows alone, and the result is made 0 there: whatever a kernel makes of a row
    that is hidden as a whole is not used.
    """
    operand = _full(steps, heads)
    if operand is None or not heads.may_hide_rows:
        return operand, None
    dtype = heads.dtype
    hidden = steps.hidden_rows(operand, dtype)
    return steps.without(hidden, operand, dtype), hidden


def _full(steps: AttentionSteps, heads: Heads) -> Operand:
    """Return the masks, summed, as both operators take them in onnxruntime: 4-D, the last two axes in full."""
    operand = steps.mask(heads)
    if operand is None:
        return None
    _, _, rows, columns = heads.dims
    shapes = [mask.argument.dims or () for mask in heads.masks]
    batched = heads.is_flat and max(len(shape) for shape in shapes) == 3
    full = [(*(1,) * (4 - len(shape)), *shape) for shape in shapes]
    wide = any(shape[2] == rows for shape in full), any(shape[3] == columns for shape in full)
    if not all(wide):
        if batched:
            raise NotLowered("its mask is of length 1 along an axis, and has one of batches, but none of heads")
        if not (isinstance(rows, int) and isinstance(columns, int)):
            raise NotLowered("its mask is of length 1 along an axis whose length is not known")
        return steps.add(NewNode("Expand", (operand, Literal.ints(1, 1, rows, columns, hint="shape")), since=8))
    if max(len(shape) for shape in shapes) < 4:
        missing = (1,) if batched else range(4 - max(len(shape) for shape in shapes))
        return steps.add(NewNode("Unsqueeze", (operand, Literal.ints(*missing, hint="axes")), since=13))
    return operand


ATTENTION = ScaledDotProductAttention()


# Rotary position embedding: each vector's halves turned by angles that its position gives.

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
        steps = AttentionSteps()
        cos, sin = (_cache(steps, turn, angles) for angles in (turn.cos, turn.sin))
        rotated = steps.add(NewNode("RotaryEmbedding", (value_of(turn.x), cos, sin), {"interleaved": 0}, since=23))
        twice = frozenset((value_of(turn.cos), value_of(turn.sin)))
        return steps.replacement(rotated, rotated, twice=twice)


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
        if require_type("RotaryEmbedding", operand, FLOATS) != site.dtype:
            raise NotLowered("its inputs differ in their element types")
    assert isinstance(dims[3], int)
    turn = _Turn(argument, site.arguments[cos], site.arguments[sin], dims, dims[3] // 2)
    for what, angles in (("cosines", turn.cos), ("sines", turn.sin)):
        _require_angles(what, angles, turn, site.facts)
    return turn


def _inputs(monomial: Monomial, count: int) -> list[int]:
    """Return the inputs that a product is of."""
    numbers = [int(str(base[1])) for base, exponent in monomial if base[0] == "input" and exponent == 1]
    if len(numbers) != count or len(monomial) != count:
        raise NotLowered("its body is not x · cos + (-x₂, x₁) · sin")
    return sorted(numbers)


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


def _require_angles(what: str, angles: Argument, turn: _Turn, facts: LoweringFacts) -> None:
    """Raise NotLowered unless cosines or sines are the same for all heads, and for both halves."""
    dims = known_dims(angles)
    batch, _, sequence, size = turn.dims
    full = (*(1,) * (4 - len(dims)), *dims)
    if len(full) != 4 or full[1] != 1 or full[2:] != (sequence, size) or full[0] not in {1, batch}:
        raise NotLowered(f"its {what} have the shape {shown(dims)}, what it turns {shown(turn.dims)}")
    if angles.value is None or not _is_twice(angles.value, angles.constant, facts):
        raise NotLowered(f"its {what} are not known to be the same for both halves")


def _is_twice(value: ir.Value, constant: bool, facts: LoweringFacts) -> bool:
    """Tell whether the last axis is one vector twice: seen in the elements, or above, where a Concat puts it together."""
    if constant:
        array = facts.elements(value)
        first, second = np.split(array, 2, -1)
        return bool(np.array_equal(first, second))
    current: ir.Value | None = value
    for _ in range(_LONGEST):
        node = None if current is None else current.producer()
        if node is None or node.domain:
            return False
        if node.op_type == "Concat":
            return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and _is_last(node, facts)
        current = _above(node, facts)
    return False


def _above(node: ir.Node, facts: LoweringFacts) -> ir.Value | None:
    """Return the value whose last axis is one vector twice where that of the result of `node` is; None where that is not known."""
    source = node.inputs[0]
    if node.op_type in {"Cos", "Sin", "Identity"} or movement_of(node) == "converts":
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


def _is_last(node: ir.Node, facts: LoweringFacts) -> bool:
    axis, dims = node.attributes.get_int("axis", 0), facts.argument(node.outputs[0]).dims
    return axis == -1 or (dims is not None and axis == len(dims) - 1)


def _cache(steps: AttentionSteps, turn: _Turn, angles: Argument) -> Operand:
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


def _batched(steps: AttentionSteps, turn: _Turn) -> Operand:
    """Return the shape (batch, 1, 1), read off what is turned where it is not known."""
    batch = turn.dims[0]
    if isinstance(batch, int):
        return Literal.ints(batch, 1, 1, hint="shape")
    first = steps.add(NewNode("Shape", (value_of(turn.x),), {"start": 0, "end": 1}, since=15))
    return steps.add(NewNode("Concat", (first, Literal.ints(1, 1, hint="ones")), {"axis": 0}, since=13))


ROTARY_EMBEDDING = RotaryEmbedding()
