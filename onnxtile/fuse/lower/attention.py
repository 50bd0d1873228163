"""Proofs of scaled dot-product attention: softmax(scale · Q Kᵀ + mask) V on 4-D operands (batch, heads, sequence, size)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.fuse.lower.contract import (
    FLOATS,
    HALVES,
    Argument,
    Literal,
    Made,
    NotLowered,
    Operand,
    Site,
    Step,
    known_dims,
    require_type,
    shown,
)
from onnxtile.fuse.lower.terms import Atom, Monomial, Poly, array_of, atom_of, operands
from onnxtile.model.infer import Dim, Dims

SWAPPED = (0, 2, 1, 3)
"""The permutation between (batch, sequence, heads, size) and (batch, heads, sequence, size), both ways."""


@dataclass(frozen=True)
class Heads:
    """What a site was proved to be. `k_turned` has its last two axes exchanged: (batch, heads, size, sequence)."""

    q: Argument
    k_turned: Argument
    v: Argument
    masks: tuple[Argument, ...]
    scale: float
    dims: Dims
    """(batch, heads, sequence of Q, sequence of K)"""
    size: int
    v_size: int
    widened: bool
    """Whether softmax is computed in float while the rest is of half precision."""

    @property
    def count(self) -> int:
        """How many heads there are."""
        assert isinstance(self.dims[1], int)
        return self.dims[1]


def proved_attention(site: Site, operator: str) -> Heads:
    """Return the attention that the site is. Raises NotLowered."""
    if site.function.opset_imports.get("", 13) < 13:
        raise NotLowered("before opset 13 Softmax flattens its input")
    if len(site.forms) != 1:
        raise NotLowered("something reads its inner values")
    weights, v = _matmul(site.forms[0], 1.0, "its result")
    scores, widened = _scores(site, weights)
    product, scale, added = _split(scores)
    q, k = (_argument(site, poly, name) for poly, name in zip(operands(product), ("Q", "K"), strict=True))
    masks = tuple(_mask(site, monomial, coefficient) for monomial, coefficient in added)
    heads = _shapes(q, k, _argument(site, v, "V"), masks, scale, widened)
    for argument in (q, k, heads.v, *masks):
        if require_type(operator, argument, FLOATS) != site.dtype:
            raise NotLowered("its inputs differ in their element types")
    if scale == 0:
        raise NotLowered("its scale is 0")
    if not _is(known_dims(site.results[0]), (*heads.dims[:3], heads.v_size)):
        raise NotLowered(f"its result has the shape {shown(known_dims(site.results[0]))}")
    return heads


def _matmul(poly: Poly, wanted: float, what: str) -> tuple[Poly, Poly]:
    base = atom_of(poly)
    if base is None or base[0] != "MatMul" or wanted != 1.0:
        raise NotLowered(f"{what} is no matrix product alone")
    a, b = operands(base)
    return a, b


def _scores(site: Site, weights: Poly) -> tuple[Poly, bool]:
    """Return what softmax is taken of, and whether that is in float while the site is of half precision."""
    base = atom_of(weights)
    if base is not None and base[0] == "Where":
        raise NotLowered("rows that are masked as a whole are guarded against NaN, which the operator does not do")
    narrowed = base is not None and base[0] == "Cast"
    if narrowed and base is not None:
        if ir.DataType(int(str(base[1]))) != site.dtype or site.dtype not in HALVES:
            raise NotLowered("a Cast changes the precision in which it computes")
        base = atom_of(next(operands(base)))
    if base is None or base[0] != "Softmax":
        raise NotLowered("the second product is not of a softmax")
    if base[1] not in {-1, 3}:
        raise NotLowered(f"softmax is taken along axis {base[1]}, not along the last")
    scores = next(operands(base))
    if not narrowed:
        return scores, False
    inner = atom_of(scores)
    if inner is None or inner[0] != "Cast" or inner[1] != ir.DataType.FLOAT.value:
        raise NotLowered("a Cast changes the precision in which it computes")
    return next(operands(inner)), True


def _split(scores: Poly) -> tuple[Atom, float, list[tuple[Monomial, float]]]:
    """Return the product among the terms of `scores`, the number it is multiplied by, and the other terms."""
    products, added = [], []
    for monomial, coefficient in scores:
        kinds = {base[0] for base, _ in monomial}
        if "MatMul" in kinds:
            products.append((monomial, coefficient))
        else:
            added.append((monomial, coefficient))
    if len(products) != 1:
        kinds = {base[0] for monomial, _ in scores for base, _ in monomial}
        raise NotLowered(_why_no_product({str(kind) for kind in kinds}))
    monomial, scale = products[0]
    if len(monomial) != 1:
        raise NotLowered("its scale is no single number")
    base, exponent = next(iter(monomial))
    if exponent != 1:
        raise NotLowered("the product of Q and K is raised to a power")
    return base, scale, sorted(added, key=repr)


def _why_no_product(kinds: set[str]) -> str:
    if "Where" in kinds:
        return "its mask is chosen by Where, not added"
    if "Tanh" in kinds:
        return "its scores are capped by Tanh"
    return f"softmax is not taken of one product and masks but of {', '.join(sorted(kinds)) or 'numbers'}"


def _argument(site: Site, poly: Poly, what: str) -> Argument:
    base = atom_of(poly)
    if base is None or base[0] != "input":
        raise NotLowered(f"{what} is not used as it comes: a scale is no single number, or it is cast")
    argument = site.arguments[int(str(base[1]))]
    if argument.value is None:
        raise NotLowered(f"{what} has no name")
    return argument


def _mask(site: Site, monomial: Monomial, coefficient: float) -> Argument:
    if coefficient != 1 or len(monomial) != 1:
        raise NotLowered("what is added to the scores is no mask alone")
    base = next(iter(monomial))[0]
    if base[0] == "constant":
        array = array_of(base)
        return Argument(None, ir.DataType.from_numpy(array.dtype), array.shape, array, constant=True)
    return _argument(site, frozenset({(monomial, coefficient)}), "the mask")


def _shapes(q: Argument, k: Argument, v: Argument, masks: tuple[Argument, ...], scale: float, widened: bool) -> Heads:
    dq, dk, dv = (known_dims(x) for x in (q, k, v))
    for what, dims in (("Q", dq), ("K", dk), ("V", dv)):
        if len(dims) != 4:
            raise NotLowered(f"{what} has {len(dims)} axes, not (batch, heads, sequence, size)")
    if not (_is(dq[:2], dk[:2]) and _is(dq[:2], dv[:2])):
        raise NotLowered(
            f"the batches or heads of Q, K and V differ or are not known: {shown(dq)}, {shown(dk)}, {shown(dv)}"
        )
    heads, size, v_size = dq[1], dq[3], dv[3]
    if not (isinstance(heads, int) and isinstance(size, int) and isinstance(v_size, int)):
        raise NotLowered("the number of heads or their size is not known")
    if not _is(dk[2:], (size, dv[2])):
        raise NotLowered(f"K is not transposed as its shape {shown(dk)} should show")
    dims = (dq[0], heads, dq[2], dk[3])
    for mask in masks:
        _require_broadcast(known_dims(mask), dims)
    return Heads(q, k, v, masks, scale, dims, size, v_size, widened)


def _is(dims: Dims, others: Dims) -> bool:
    """Tell whether two shapes are known to be the same."""
    return len(dims) == len(others) and all(a == b and a is not None for a, b in zip(dims, others, strict=True))


def _require_broadcast(mask: Dims, scores: Dims) -> None:
    fits = len(mask) <= len(scores) and all(
        m == 1 or (m is not None and m == s) for m, s in zip(reversed(mask), reversed(scores), strict=False)
    )
    if not fits:
        raise NotLowered(f"the mask's shape {shown(mask)} is not known to broadcast to the scores' {shown(scores)}")


@dataclass
class Steps:
    """Collects steps; each method returns what stands for its result."""

    steps: list[Step]

    def add(self, step: Step) -> Made:
        """Append a step."""
        self.steps.append(step)
        return Made(len(self.steps) - 1)

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
        return self.add(Step("Transpose", (operand,), {"perm": perm}))

    def reshaped(self, operand: Operand, *shape: int) -> Made:
        """Return `operand` in another shape."""
        return self.add(Step("Reshape", (operand, Literal.ints(*shape, hint="shape")), since=5))

    def mask(self, heads: Heads) -> Operand:
        """Return the sum of the masks; None where there is none."""
        operand: Operand = None
        for mask in heads.masks:
            own = mask.value if mask.value is not None else literal_of(mask, "mask")
            operand = own if operand is None else self.add(Step("Add", (operand, own), since=7))
        return operand

    def merged(self, operand: Operand, dims: tuple[Dim, Dim], heads: int, size: int, site: Site) -> Operand:
        """Return a value of shape (batch, sequence, heads, size) as (batch, sequence, heads · size).

        Where a Reshape has just split the last axis so, what it split.
        """
        producer = operand.producer() if isinstance(operand, ir.Value) else None
        if producer is not None and producer.op_type == "Reshape" and not producer.domain and site.facts is not None:
            source = producer.inputs[0]
            assert source is not None
            if known_dims_or(site.facts.argument(source)) == (*dims, heads * size) and None not in dims:
                return source
        return self.reshaped(operand, 0, 0, heads * size)


def literal_of(argument: Argument, hint: str) -> Literal:
    """Return a constant of the function's own as one of the graph."""
    assert argument.array is not None and argument.dtype is not None
    return Literal(argument.array, argument.dtype, hint)


def known_dims_or(argument: Argument) -> Dims:
    """Return the dimensions, none where the rank is unknown."""
    return argument.dims or ()
