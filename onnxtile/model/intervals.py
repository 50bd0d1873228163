"""Interval arithmetic: the operators of shape arithmetic on numbers whose lowest and highest value alone are known.

An operator that nothing makes larger where an operand gets smaller has its least result from the least operands, and its most from the
most; where it falls with an operand (the second of Sub), from the most of that one. Booleans count as 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from onnxtile.runtime import Array

Interval: TypeAlias = tuple[Array, Array]
"""The least and the most that each element may be."""

Evaluate: TypeAlias = Callable[[Sequence[Array | None]], Sequence[Array]]
"""Computes the results of an operator from its operands."""

_RISING = {
    *("Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Expand", "Flatten", "Floor", "Gather", "Identity"),
    *("Max", "Min", "Mul", "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice"),
    *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
_FALLING = {
    **{"Div": {1}, "Greater": {1}, "GreaterOrEqual": {1}, "Less": {0}, "LessOrEqual": {0}, "Neg": {0}, "Not": {0}},
    "Sub": {1},
}
"""The operands with which an operator falls; it rises with the others."""

_OF_THE_FIRST = {
    "Gather",
    "Slice",
    "Split",
    "Squeeze",
    "Unsqueeze",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
}
"""Operators whose other operands say which elements are meant: an interval says nothing of that."""


def results(operator: str, operands: Sequence[Interval | None], evaluate: Evaluate) -> list[Interval] | None:
    """Return the least and the most of each result of `operator`; None where nothing is known of them."""
    given = [operand for operand in operands if operand is not None]
    if operator == "Equal":
        return [_equal(*given)]
    if operator == "Where":
        return [_where(*given)]
    if operator not in _RISING and operator not in _FALLING:
        return None
    if operator in _OF_THE_FIRST and not all(_is_known(operand) for operand in given[1:]):
        return None
    if operator == "Range" and not (_is_known(given[0]) and _is_known(given[2])):
        return None
    if operator in {"Div", "Mul", "ReduceProd"} and any((least < 0).any() for least, _ in given):
        return None
    if operator == "Div" and (given[1][0] <= 0).any():
        return None
    falling = _FALLING.get(operator, set())
    ends = [[None if o is None else o[end ^ (i in falling)] for i, o in enumerate(operands)] for end in (0, 1)]
    least, most = (evaluate(end) for end in ends)
    pairs = [_pair(low, high) for low, high in zip(least, most, strict=False)]
    return [pair for pair in pairs if pair is not None] if len(least) == len(most) and None not in pairs else None


def keeps_its_sign(operand: Interval) -> bool:
    """Return whether no element may be negative and also positive or 0: a place in an axis is counted from one of its ends."""
    least, most = operand
    return bool(((least >= 0) | (most < 0)).all())


def _is_known(operand: Interval) -> bool:
    return bool(np.array_equal(*operand))


def _pair(low: Array, high: Array) -> Interval | None:
    """Return the interval of results; where there may be fewer elements, those that are not there count as 0."""
    if low.shape == high.shape:
        return low, high
    return (np.zeros_like(high), high) if (high >= 0).all() else None


def _equal(a: Interval, b: Interval) -> Interval:
    return (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0]), (a[0] <= b[1]) & (b[0] <= a[1])


def _where(chosen: Interval, a: Interval, b: Interval) -> Interval:
    never, always = ~chosen[1].astype(bool), chosen[0].astype(bool)
    low, high = np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
    least = np.where(always, a[0], np.where(never, b[0], low))
    return least, np.where(always, a[1], np.where(never, b[1], high))
