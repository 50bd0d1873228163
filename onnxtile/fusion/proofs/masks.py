"""Masks that hide scores from a softmax, and guards for rows that are hidden whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lowering import Argument, FactsTable, NotLowered
from onnxtile.fusion.proofs.terms import Atom, Poly, atom_of, operands, value_of
from onnxtile.runtime import Array

_ABSORBS = -1e30
"""A number so low that adding a score to it leaves it what it is, and so low that nothing is left of it after softmax."""


@dataclass(frozen=True)
class MaskChoice:
    """Scores where `condition` is `keep`, else `fill`."""

    condition: Poly
    keep: bool
    fill: float


@dataclass(frozen=True)
class Mask:
    """What is added to the scores; with `keep`, a condition that is made into such: 0 where it is `keep`, else `fill`."""

    argument: Argument
    keep: bool | None = None
    fill: float = 0.0


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
    return (a if keep else b), MaskChoice(condition, keep, number)


def unguarded(weights: Poly) -> tuple[Poly, bool]:
    """Return the weights behind a guard, and whether a guard exists: NaN becomes 0, as in nan_to_num; weights are never infinite.

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


def hides_a_row(masks: tuple[Mask, ...], facts: FactsTable | None) -> bool:
    """Tell whether it is known that a row has no score left: the masks are constant, and so they say."""
    known = facts is not None and bool(masks) and all(mask.argument.constant for mask in masks)
    return known and not hides_no_row(masks, facts)


def hides_no_row(masks: tuple[Mask, ...], facts: FactsTable | None) -> bool:
    """Tell whether it is known that of each row at least one score is left: the masks are constant, and so they say."""
    if not all(mask.argument.constant for mask in masks) or facts is None:
        return not masks
    total: Array = np.zeros(())
    for mask in masks:
        argument = mask.argument
        array = (
            argument.array if argument.value is None or argument.array is not None else facts.elements(argument.value)
        )
        assert array is not None
        added = array.astype(np.float64) if mask.keep is None else np.where(array == mask.keep, 0.0, mask.fill)
        total = total + added
    return bool((total > -math.inf).any(-1).all()) and not np.isnan(total).any()
