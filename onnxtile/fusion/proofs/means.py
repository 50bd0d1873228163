"""Means and variances in other forms: sums times 1 / n, and E[x²] - E[x]² for the mean of the squares of what is centred."""

from __future__ import annotations

import math

from onnxtile.fusion.lowering import NotLowered
from onnxtile.fusion.proofs.terms import (
    Atom,
    Monomial,
    Poly,
    TermsTooLarge,
    atom_power,
    mean,
    number,
    operands,
    power,
    product,
    total,
)
from onnxtile.model.infer import Dims


def in_means(poly: Poly, dims: Dims | None, tolerance: float) -> Poly:
    """Return `poly` with sums over axes of `dims`, the shape of what is summed, as means, and variances as means of squares.

    A coefficient within `tolerance` of a whole number becomes it: 1 / n is rounded in the file. Raises NotLowered where it grows too large.
    """
    try:
        return _Means(dims, tolerance).rewritten(poly)
    except TermsTooLarge:
        raise NotLowered("its body is too large to be proved") from None


class _Means:
    def __init__(self, dims: Dims | None, tolerance: float) -> None:
        self._dims = dims
        self._tolerance = tolerance

    def rewritten(self, poly: Poly) -> Poly:
        terms = (
            product(number(coefficient), *(self._raised(*factor) for factor in monomial))
            for monomial, coefficient in poly
        )
        return frozenset((monomial, self._whole(coefficient)) for monomial, coefficient in total(*terms))

    def _raised(self, base: Atom, exponent: float) -> Poly:
        if base[0] == "sum":
            return power(_centred(self.rewritten(next(operands(base)))), exponent)
        inner = tuple(self.rewritten(part) if isinstance(part, frozenset) else part for part in base)
        count = self._count(inner)
        if count is None:
            return atom_power(inner, exponent)
        return product(number(count**exponent), atom_power(("ReduceMean", *inner[1:]), exponent))

    def _count(self, base: Atom) -> float | None:
        """Return how many elements a sum that keeps its axes is of; None for any other operator, and where it is not known."""
        if (
            base[0] != "ReduceSum"
            or len(base) != 4
            or base[2] != 1
            or self._dims is None
            or not isinstance(base[1], tuple)
        ):
            return None
        rank = len(self._dims)
        sizes = [self._dims[axis] for axis in base[1] if -rank <= axis < rank]
        known = [size for size in sizes if isinstance(size, int) and size > 0]
        return float(math.prod(known)) if known and len(known) == len(base[1]) else None

    def _whole(self, coefficient: float) -> float:
        nearest = float(round(coefficient)) if math.isfinite(coefficient) else 0.0
        return nearest if nearest and abs(coefficient - nearest) <= self._tolerance * abs(nearest) else coefficient


def _centred(poly: Poly) -> Poly:
    """Return `poly` with E[x²] - E[x]² as E[(x - E[x])²]."""
    for monomial, coefficient in poly:
        squares = _only(monomial, 1.0)
        if coefficient != 1 or squares is None:
            continue
        for other, negative in poly:
            first = _only(other, 2.0)
            if negative != -1 or first is None or first[1:-1] != squares[1:-1]:
                continue
            x, axes = next(operands(first)), first[1]
            if power(x, 2.0) == next(operands(squares)) and isinstance(axes, tuple):
                rest = frozenset(term for term in poly if term[0] not in {monomial, other})
                return total(rest, mean(axes, power(total(x, product(number(-1.0), mean(axes, x))), 2.0)))
    return poly


def _only(monomial: Monomial, exponent: float) -> Atom | None:
    """Return the mean, its axes kept, that a monomial is to the power `exponent`; None for any other."""
    if len(monomial) != 1:
        return None
    base, found = next(iter(monomial))
    return base if found == exponent and base[0] == "ReduceMean" and len(base) == 4 and base[2] == 1 else None
