"""Sizes of a graph with open dimensions, for the rules that count work: they compute with formulas as with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from onnxtile.model.size_formula import SizeFormula, SizeRanges, is_at_least


@dataclass(frozen=True, eq=False)
class SymbolicSize:
    """A size that depends on dimensions with a range; what it is compared with decides, or raises TypeError where both are possible."""

    formula: SizeFormula
    ranges: SizeRanges

    def __add__(self, other: SymbolicSize | int) -> SymbolicSize:
        """Return the sum."""
        return self._with(self.formula + _formula(other))

    def __sub__(self, other: SymbolicSize | int) -> SymbolicSize:
        """Return the difference."""
        return self._with(self.formula - _formula(other))

    def __rsub__(self, other: int) -> SymbolicSize:
        """Return the difference."""
        return self._with(-self.formula + other)

    def __mul__(self, other: SymbolicSize | int) -> SymbolicSize:
        """Return the product."""
        return self._with(self.formula * _formula(other))

    def __neg__(self) -> SymbolicSize:
        """Return the negative."""
        return self._with(-self.formula)

    def __floordiv__(self, divisor: int) -> SymbolicSize:
        """Return the quotient by a number, rounded down. Raises TypeError for a formula, ValueError for a number below 1."""
        if not isinstance(divisor, int):
            raise TypeError("a size is divided by a number")
        return self._with(self.formula // divisor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        """Return whether both are equal at all sizes, or at none."""
        if not isinstance(other, SymbolicSize | int):
            return NotImplemented
        low, high = (self.formula - _formula(other)).limits(self.ranges)
        return low == high == 0 or (low <= 0 <= high and self._undecided())

    def __lt__(self, other: SymbolicSize | int) -> bool:
        """Return whether it is smaller at all sizes, or at none."""
        theirs = _formula(other)
        if is_at_least(self.formula, theirs, self.ranges):
            return False
        return is_at_least(theirs, self.formula + 1, self.ranges) or self._undecided()

    def __gt__(self, other: SymbolicSize | int) -> bool:
        """Return whether it is larger at all sizes, or at none."""
        return (-self) < -other

    def __bool__(self) -> bool:
        """Return whether it is other than 0 at some size: as a count, it is then not left out."""
        return self.formula.limits(self.ranges) != (0, 0)

    __hash__ = None  # type: ignore[assignment]

    def _with(self, formula: SizeFormula) -> SymbolicSize:
        return SymbolicSize(formula, self.ranges)

    def _undecided(self) -> NoReturn:
        raise TypeError("the sizes decide")


def largest(size: SymbolicSize | int) -> int:
    """Return the size, or its upper bound over the ranges."""
    return size.formula.limits(size.ranges)[1] if isinstance(size, SymbolicSize) else size


def formula_of(size: SymbolicSize | int) -> SizeFormula:
    """Return the size as a formula."""
    return _formula(size)


def _formula(size: SymbolicSize | int) -> SizeFormula:
    return SizeFormula.number(size) if isinstance(size, int) else size.formula
