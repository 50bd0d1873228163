"""Proofs of scaled dot-product attention: softmax(scale · Q Kᵀ + mask) V on 4-D operands (batch, heads, sequence, size)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

import ml_dtypes
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
    NewNodes,
    NotLowered,
    Operand,
    held,
    known_dims,
    known_dtype,
    may_equal,
    operand_of,
    provable,
    require_type,
    shown,
)
from onnxtile.fusion.lower.terms import (
    Atom,
    Monomial,
    Poly,
    array_of,
    atom_of,
    atoms,
    operands,
    turned,
    turned_inwards,
    unturned,
    value_of,
)
from onnxtile.operators.node_view import Dim, Dims
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import HALVES

# Masks that hide scores from a softmax, and guards for rows that are hidden whole.

_ABSORBS = -1e30
"""A number so low that adding a score to it leaves it what it is, and so low that nothing is left of it after softmax."""


@dataclass(frozen=True)
class Mask:
    """What is added to the scores; with `keep`, a condition that is made into such: 0 where it is `keep`, else `fill`."""

    argument: Argument
    keep: bool | None = None
    fill: float = 0.0


MaskChoice: TypeAlias = tuple[Poly, bool, float]
"""A condition, and whether scores stay where it holds; the others become a number."""


def chosen(scores: Atom) -> tuple[Poly, MaskChoice]:
    """Return the scores of which a Where chooses some, and how. Raises NotLowered where the others are not as good as hidden."""
    condition, a, b = operands(scores)
    fill = [value_of(a), value_of(b)]
    if (fill[0] is None) == (fill[1] is None):
        raise NotLowered("a Where chooses among two kinds of scores")
    keep = fill[0] is None
    number = fill[1] if keep else fill[0]
    assert number is not None
    if not number < _ABSORBS:
        raise NotLowered(f"scores that are masked become {number:g}, which is not low enough to leave nothing of them")
    return (a if keep else b), (condition, keep, number)


def unguarded(weights: Poly) -> tuple[Poly, bool]:
    """Return the weights that a guard reads, and whether there is a guard: NaN becomes 0, as in nan_to_num; weights are never infinite.

    Raises NotLowered where a Where does something else.
    """
    guarded = False
    base = atom_of(weights)
    while base is not None and base[0] == "Where":
        condition, instead, inner = operands(base)
        kinds = _kinds(condition)
        if "IsNaN" in kinds and kinds <= {"IsNaN", "Cast"}:
            if value_of(instead) != 0:
                raise NotLowered("weights that are no number become another number than 0")
            guarded = True
        elif not ("And" in kinds and _asks_infinite(condition)):
            raise NotLowered("a Where changes the weights after softmax")
        weights, base = inner, atom_of(inner)
    return weights, guarded


def lowest_numbers(dtype: ir.DataType) -> tuple[float, float]:
    """Return the lowest number of a float type, and the next."""
    kind = dtype.numpy()
    lowest = ml_dtypes.finfo(kind).min  # type: ignore[no-untyped-call]
    return float(lowest), float(np.nextafter(lowest, kind.type(0)))


def may_be_lowest(masks: tuple[Mask, ...], dtype: ir.DataType) -> bool:
    """Tell whether a mask that is added may hold the lowest number of its type, so that a row may be of nothing else."""
    added = [mask.argument for mask in masks if mask.keep is None]
    return any(a.array is None or bool((a.array == lowest_numbers(dtype)[0]).any()) for a in added)


def _kinds(condition: Poly) -> set[object]:
    """Return the kinds of the operators of a condition, above what it asks about."""
    base = atom_of(condition)
    if base is None or base[0] not in {"IsNaN", "IsInf", "Cast", "And"}:
        return set()
    return {base[0]}.union(*(_kinds(part) for part in operands(base)))


def _asks_infinite(condition: Poly) -> bool:
    """Tell whether a condition can only hold of an infinite number: IsInf, or IsInf and something else."""
    base = atom_of(condition)
    if base is None or base[0] not in {"IsInf", "Cast", "And"}:
        return False
    return base[0] == "IsInf" or any(_asks_infinite(part) for part in operands(base))


def hides_a_row(masks: tuple[Mask, ...], facts: LoweringFacts) -> bool | None:
    """Tell whether the masks leave no score of some row; None where they are not constant."""
    if not all(mask.argument.constant for mask in masks):
        return None
    total: Array = np.zeros(())
    for mask in masks:
        array = facts.elements_of(mask.argument, "its mask is no constant")
        added = array.astype(np.float64) if mask.keep is None else np.where(array == mask.keep, 0.0, mask.fill)
        total = total + added
    return bool(masks) and not ((total > -math.inf).any(-1).all() and not np.isnan(total).any())


SWAPPED = (0, 2, 1, 3)
"""The permutation between (batch, sequence, heads, size) and (batch, heads, sequence, size), both ways."""
EXCHANGED = (0, 1, 3, 2)
"""The permutation that exchanges sequence and size."""


@dataclass(frozen=True)
class HeadTensor:
    """Q, K or V; where it is `turned`, the formula reads it with its last two axes exchanged."""

    argument: Argument
    turned: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether it has no axis of heads: (batch, sequence, size)."""
        return len(known_dims(self.argument)) == 3

    @property
    def dims(self) -> Dims:
        """The dimensions as the formula reads them, with one head if the tensor has no heads axis."""
        dims = known_dims(self.argument)
        if self.turned and len(dims) > 1:
            dims = (*dims[:-2], dims[-1], dims[-2])
        return (dims[0], 1, *dims[1:]) if self.is_flat else dims


@dataclass(frozen=True)
class Heads:
    """What a site was proved to be. `k_turned` has its last two axes exchanged: (batch, heads, size, sequence)."""

    q: HeadTensor
    k_turned: HeadTensor
    v: HeadTensor
    masks: tuple[Mask, ...]
    scale: float
    dims: Dims
    """(batch, heads, sequence of Q, sequence of K)"""
    size: Dim
    v_size: Dim
    widened: bool = False
    """Whether softmax is computed in float while the rest is of half precision."""
    guarded: bool = False
    """Whether weights that are NaN become 0."""
    may_hide_rows: bool = False
    """Whether weights are guarded, and there may be a row of which the masks hide all."""
    turned: bool = False
    """Whether the last two axes of the result are exchanged."""

    @property
    def is_flat(self) -> bool:
        """Whether the operands lack a heads axis."""
        return self.q.is_flat

    @property
    def dtype(self) -> ir.DataType:
        """The element type."""
        return known_dtype(self.q.argument)

    def numbers(self) -> tuple[int, int, int] | None:
        """Return how many heads Q, K and V have, and the sizes of a vector of Q and of V; None where they differ or are not known."""
        heads, size, v_size = self.dims[1], self.size, self.v_size
        known = isinstance(heads, int) and isinstance(size, int) and isinstance(v_size, int)
        return (heads, size, v_size) if known and self.v.dims[1] == heads else None  # type: ignore[return-value]


def proved_attention(site: CallSite, operator: str) -> Heads:
    """Return the attention that the site is. Raises NotLowered."""
    if site.function.opset_imports.get("", 13) < 13:
        raise NotLowered("before opset 13 Softmax flattens its input")
    if len(site.forms) != 1:
        raise NotLowered("something reads its inner values")
    with provable():
        product_of_all = turned_inwards(site.forms[0])
    weights, v = _matmul(product_of_all)
    transposed_weights = unturned(v)
    if transposed_weights is not None and atom_of(transposed_weights) is not None and not _is_input(transposed_weights):
        weights, v = transposed_weights, turned(weights)
    else:
        transposed_weights = None
    weights, guarded = unguarded(weights)
    scores, widened, inner_guard = _scores(site, weights)
    product, scale, added, choices = _split(scores)
    q, k = (_tensor(site, poly, name) for poly, name in zip(operands(product), ("Q", "K"), strict=True))
    masks = tuple(_mask(site, monomial, coefficient) for monomial, coefficient in added)
    masks += tuple(_condition(site, choice) for choice in choices)
    guarded = guarded or inner_guard
    heads = replace(
        _shapes(q, k, _tensor(site, v, "V"), masks, scale),
        widened=widened,
        guarded=guarded,
        may_hide_rows=guarded and hides_a_row(masks, site.facts) is not False,
        turned=transposed_weights is not None,
    )
    if q.is_flat and heads.may_hide_rows:
        raise NotLowered("its rows are guarded, and it has no axis of heads")
    tensors = (tensor.argument for tensor in (q, k, heads.v))
    for argument in (*tensors, *(mask.argument for mask in masks if mask.keep is None)):
        if require_type(operator, argument, FLOATS) != site.dtype:
            raise NotLowered("its inputs differ in their element types")
    if scale == 0:
        raise NotLowered("its scale is 0")
    result = HeadTensor(site.results[0], heads.turned)
    if (
        result.is_flat != heads.is_flat
        or len(result.dims) != 4
        or not all(map(may_equal, result.dims, (*heads.dims[:3], heads.v_size)))
    ):
        raise NotLowered(f"its result has the shape {shown(known_dims(site.results[0]))}")
    return heads


def _matmul(poly: Poly) -> tuple[Poly, Poly]:
    base = atom_of(poly)
    if base is None or base[0] != "MatMul":
        raise NotLowered("its result is no matrix product alone")
    a, b = operands(base)
    return a, b


def _scores(site: CallSite, weights: Poly) -> tuple[Poly, bool, bool]:
    """Return the scores of the softmax, whether they are float in a site of half precision, and whether they are guarded."""
    base, guarded = atom_of(weights), False
    narrowed = base is not None and base[0] == "Cast"
    if narrowed and base is not None:
        if ir.DataType(int(str(base[1]))) != site.dtype or site.dtype not in HALVES:
            raise NotLowered("a Cast changes the precision in which it computes")
        inner, guarded = unguarded(next(operands(base)))
        base = atom_of(inner)
    if base is not None and base[0] in {"Conv", "Transpose"}:
        raise NotLowered("its heads are mixed after softmax, which the operator does not do")
    if base is None or base[0] != "Softmax":
        raise NotLowered("the second product is not of a softmax")
    if base[1] not in {-1, len(known_dims(site.results[0])) - 1}:
        raise NotLowered(f"softmax is taken along axis {base[1]}, not along the last")
    scores = next(operands(base))
    if not narrowed:
        return scores, False, guarded
    cast = atom_of(scores)
    if cast is None or cast[0] != "Cast" or cast[1] != ir.DataType.FLOAT.value:
        raise NotLowered("a Cast changes the precision in which it computes")
    return next(operands(cast)), True, guarded


def _split(scores: Poly) -> tuple[Atom, float, list[tuple[Monomial, float]], list[MaskChoice]]:
    """Return the product among the terms of `scores`, the number it is multiplied by, the other terms, and which scores are chosen."""
    added: list[tuple[Monomial, float]] = []
    choices: list[MaskChoice] = []
    while True:
        product, others = _term(scores)
        added += others
        base, exponent = next(iter(product[0]))
        if base[0] != "Where":
            break
        if product[1] != 1 or exponent != 1:
            raise NotLowered("what a Where chooses is multiplied by a number")
        scores, choice = chosen(base)
        choices.append(choice)
    if exponent != 1:
        raise NotLowered("the product of Q and K is raised to a power")
    return base, product[1], sorted(added, key=repr), choices


def _term(scores: Poly) -> tuple[tuple[Monomial, float], list[tuple[Monomial, float]]]:
    """Return the term of `scores` that has the product in it, alone or chosen by a Where, and the others."""
    products = [term for term in scores if any(_is_product(base) for base, _ in term[0])]
    if len(products) != 1:
        kinds = {base[0] for monomial, _ in scores for base, _ in monomial}
        raise NotLowered(_why_no_product({str(kind) for kind in kinds}))
    if len(products[0][0]) != 1:
        raise NotLowered("its scale is no single number")
    return products[0], [term for term in scores if term is not products[0]]


def _is_product(base: Atom) -> bool:
    return base[0] == "MatMul" or (
        base[0] == "Where" and any(inner[0] == "MatMul" for part in operands(base) for inner, _ in atoms(part))
    )


def _why_no_product(kinds: set[str]) -> str:
    if "Tanh" in kinds:
        return "its scores are capped by Tanh"
    return f"softmax is not taken of one product and masks but of {', '.join(sorted(kinds)) or 'numbers'}"


def _argument(site: CallSite, poly: Poly, what: str) -> Argument:
    base = atom_of(poly)
    if base is None or base[0] != "input":
        raise NotLowered(f"{what} is not used as it comes: a scale is no single number, or it is cast")
    argument = site.arguments[int(str(base[1]))]
    if argument.value is None:
        raise NotLowered(f"{what} has no name")
    return argument


def _tensor(site: CallSite, poly: Poly, what: str) -> HeadTensor:
    inner = unturned(poly)
    return HeadTensor(_argument(site, poly if inner is None else inner, what), inner is not None)


def _is_input(poly: Poly) -> bool:
    base = atom_of(poly)
    return base is not None and base[0] == "input"


def _mask(site: CallSite, monomial: Monomial, coefficient: float) -> Mask:
    if coefficient != 1 or len(monomial) != 1:
        raise NotLowered("what is added to the scores is no mask alone")
    base = next(iter(monomial))[0]
    if base[0] == "constant":
        return Mask(held(array_of(base)))
    return Mask(_argument(site, frozenset({(monomial, coefficient)}), "the mask"))


def _condition(site: CallSite, choice: MaskChoice) -> Mask:
    condition, keep, fill = choice
    base = atom_of(condition)
    while base is not None and base[0] in {"Not", "Cast"}:
        keep = keep != (base[0] == "Not")
        base = atom_of(next(operands(base)))
    if base is not None and base[0] == "constant":
        return Mask(held(array_of(base)), keep, fill)
    if base is None or base[0] != "input":
        raise NotLowered("the condition by which scores are chosen is computed in it")
    argument = site.arguments[int(str(base[1]))]
    if argument.dtype != ir.DataType.BOOL or argument.value is None:
        raise NotLowered("the condition by which scores are chosen is no input of booleans")
    return Mask(argument, keep, fill)


def _shapes(q: HeadTensor, k: HeadTensor, v: HeadTensor, masks: tuple[Mask, ...], scale: float) -> Heads:
    dq, dk, dv = (x.dims for x in (q, k, v))
    for what, dims in (("Q", dq), ("K", dk), ("V", dv)):
        if len(dims) != 4:
            raise NotLowered(f"{what} has {len(dims)} axes, not (batch, heads, sequence, size)")
    if len({x.is_flat for x in (q, k, v)}) > 1:
        raise NotLowered("Q, K and V have different numbers of axes")
    one_for_all = _is(dk[:2], (dq[0], 1)) and _is(dv[:2], (dq[0], 1))
    if not one_for_all and not (_is(dq[:2], dk[:2]) and _is(dq[:2], dv[:2])):
        raise NotLowered(
            f"the batches or heads of Q, K and V differ or are not known: {shown(dq)}, {shown(dk)}, {shown(dv)}"
        )
    size, v_size = dq[3], dv[3]
    if not _is(dk[2:], (size, dv[2])):
        raise NotLowered(f"K is not transposed as its shape {shown(dk)} should show")
    dims = (dq[0], dq[1], dq[2], dk[3])
    for mask in masks:
        mask_dims = known_dims(mask.argument)
        _require_broadcast((mask_dims[0], 1, *mask_dims[1:]) if q.is_flat and len(mask_dims) == 3 else mask_dims, dims)
    return Heads(q, k, v, masks, scale, dims, size, v_size)


def _is(dims: Dims, others: Dims) -> bool:
    """Tell whether two shapes are known to be the same."""
    return len(dims) == len(others) and all(a == b and a is not None for a, b in zip(dims, others, strict=True))


def _require_broadcast(mask: Dims, scores: Dims) -> None:
    fits = len(mask) <= len(scores) and all(
        m == 1 or (m is not None and m == s) for m, s in zip(reversed(mask), reversed(scores), strict=False)
    )
    if not fits:
        raise NotLowered(f"the mask's shape {shown(mask)} is not known to broadcast to the scores' {shown(scores)}")


# Nodes that a lowering adds: transposes, reshapes and masks around its operator.


class AttentionSteps(NewNodes):
    """Collects the nodes around attention; each method returns the operand that its node makes."""

    def transposed(self, operand: Operand, perm: tuple[int, ...]) -> Operand:
        """Return `operand` with its axes permuted: where it is made by a Transpose, that is undone, not added to."""
        value = operand if isinstance(operand, ir.Value) else None
        producer = value.producer() if value is not None else None
        if producer is not None and producer.op_type == "Transpose" and "perm" in producer.attributes:
            before = producer.attributes["perm"].as_ints()
            perm = tuple(before[axis] for axis in perm)
            operand = producer.inputs[0]
        if perm == tuple(range(len(perm))):
            return operand
        return self.add(NewNode("Transpose", (operand,), {"perm": perm}))

    def laid_out(self, tensor: HeadTensor, perm: tuple[int, ...]) -> Operand:
        """Return `tensor` with the axes (batch, heads, sequence, size) of the formula in the order `perm`.

        Without an axis of heads it stays without one; `perm` may then exchange the last two axes only.
        """
        value, exchanged = tensor.argument.value, perm[2:] == EXCHANGED[2:]
        if tensor.is_flat:
            return self.transposed(value, (0, 2, 1)) if exchanged != tensor.turned else value
        order = tuple(EXCHANGED[axis] for axis in perm) if tensor.turned else perm
        return value if order == tuple(range(4)) else self.transposed(value, order)

    def reshaped(self, operand: Operand, *shape: int) -> Made:
        """Return `operand` in another shape."""
        return self.add(NewNode("Reshape", (operand, Literal.ints(*shape, hint="shape")), since=5))

    def mask(self, heads: Heads) -> Operand:
        """Return the sum of the masks; None where there is none."""
        operand: Operand = None
        for mask in heads.masks:
            summand = self._added(mask, heads.dtype)
            operand = summand if operand is None else self.add(NewNode("Add", (operand, summand), since=7))
        return operand

    def _added(self, mask: Mask, dtype: ir.DataType) -> Operand:
        elements = operand_of(mask.argument, "mask")
        if mask.keep is None:
            return elements
        fill = max(mask.fill, lowest_numbers(dtype)[1]) if np.isfinite(mask.fill) else mask.fill
        kept, hidden = (Literal(np.asarray(n, dtype.numpy()), dtype, "fill") for n in (0.0, fill))
        return self.add(NewNode("Where", (elements, kept, hidden) if mask.keep else (elements, hidden, kept), since=9))

    def hidden_rows(self, mask: Operand, dtype: ir.DataType) -> Made:
        """Return where the masks, 4-D and summed, hide a row as a whole, as (…, 1)."""
        mask = self._in_float(mask, dtype)
        top = self.add(NewNode("ReduceMax", (mask, Literal.ints(-1, hint="axes")), {"keepdims": 1}, since=18))
        hidden = Literal(np.asarray(-np.inf, np.float32), ir.DataType.FLOAT, "hidden")
        return self.add(NewNode("Equal", (top, hidden), since=11))

    def raised(self, mask: Operand, dtype: ir.DataType) -> Made:
        """Return the masks, the lowest number of the element type made the lowest but one."""
        lowest, next_one = lowest_numbers(dtype)
        wide = Literal(np.asarray(lowest, np.float32), ir.DataType.FLOAT, "lowest")
        is_lowest = self.add(NewNode("Equal", (self._in_float(mask, dtype), wide), since=11))
        instead = Literal(np.asarray(next_one, dtype.numpy()), dtype, "low")
        return self.add(NewNode("Where", (is_lowest, instead, mask), since=9))

    def _in_float(self, mask: Operand, dtype: ir.DataType) -> Operand:
        """Return a mask as floats: onnxruntime compares and reduces few other types."""
        if dtype not in HALVES:
            return mask
        return self.add(NewNode("Cast", (mask,), {"to": ir.DataType.FLOAT.value}, since=13))

    def without(self, hidden: Operand, operand: Operand, dtype: ir.DataType) -> Made:
        """Return `operand`, 0 where rows are `hidden`."""
        zero = Literal(np.zeros((), dtype.numpy()), dtype, "zero")
        return self.add(NewNode("Where", (hidden, zero, operand), since=9))

    def merged(self, operand: Operand, dims: tuple[Dim, Dim], heads: int, size: int, site: CallSite) -> Operand:
        """Return a value of shape (batch, sequence, heads, size) as (batch, sequence, heads · size).

        Where a Reshape has just split the last axis so, what it split.
        """
        producer = operand.producer() if isinstance(operand, ir.Value) else None
        if producer is not None and producer.op_type == "Reshape" and not producer.domain:
            source = producer.inputs[0]
            assert source is not None
            if site.facts.argument(source).dims == (*dims, heads * size) and None not in dims:
                return source
        return self.reshaped(operand, 0, 0, heads * size)
