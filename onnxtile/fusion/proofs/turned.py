"""Exchanges of the last two axes in a formula, moved inwards: (A B)ᵀ = Bᵀ Aᵀ, and (Aᵀ)ᵀ = A."""

from __future__ import annotations

import ast

from onnxtile.fusion.proofs.terms import (
    Atom,
    Poly,
    atom,
    atom_of,
    atom_power,
    matmul,
    number,
    operands,
    power,
    product,
    total,
)

_PERMS = {(0, 2, 1), (0, 1, 3, 2)}
_TURNED = "turned"


def turned_inwards(poly: Poly) -> Poly:
    """Return `poly` with each Transpose that exchanges the last two axes moved inwards, to what is no product. Raises TermsTooLarge."""
    return total(
        *(
            product(number(coefficient), *(_inner(base, exponent) for base, exponent in monomial))
            for monomial, coefficient in poly
        )
    )


def turned(poly: Poly) -> Poly:
    """Return `poly` with its last two axes exchanged."""
    terms = []
    for monomial, coefficient in poly:
        base, exponent = next(iter(monomial), (None, 1.0))
        if base is None or len(monomial) != 1 or exponent != 1:
            return atom(_TURNED, poly)
        terms.append(product(number(coefficient), _turned_atom(base)))
    return total(*terms)


def unturned(poly: Poly) -> Poly | None:
    """Return what is turned in `poly`; None where `poly` is nothing that is turned."""
    base = atom_of(poly)
    return next(operands(base)) if base is not None and base[0] == _TURNED else None


def _turned_atom(base: Atom) -> Poly:
    if base[0] == _TURNED:
        return next(operands(base))
    if base[0] == "MatMul":
        a, b = operands(base)
        return matmul(turned(b), turned(a))
    return atom(_TURNED, atom_power(base, 1.0))


def _inner(base: Atom, exponent: float) -> Poly:
    if base[0] == "sum":
        return power(turned_inwards(next(operands(base))), exponent)
    parts = tuple(turned_inwards(part) if isinstance(part, frozenset) else part for part in base)
    if base[0] == "MatMul" and exponent == 1:
        return matmul(*(part for part in parts if isinstance(part, frozenset)))
    if base[0] == "Transpose" and exponent == 1 and _exchanges(base):
        return turned(next(operands(parts)))
    return atom_power(parts, exponent)


def _exchanges(base: Atom) -> bool:
    """Return whether a Transpose exchanges the last two of three or four axes."""
    attributes = dict(base[4]) if isinstance(base[4], tuple) else {}
    return ast.literal_eval(attributes.get("perm", "()")) in _PERMS
