"""Reads the sizes that shape inference writes as texts ("2*seq", "floor(h/2) + 1", "Min(64, seq)") as formulas."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxtile.model.size_formula import SizeFormula, SizeRanges, exact_quotient, extreme

if TYPE_CHECKING:
    from onnxtile.model.known import Dim, Dims


class _NotASize(Exception):
    """The text is not a size made of known symbols."""


@dataclass(frozen=True)
class _Fraction:
    """A formula divided by a number of at least 1."""

    numerator: SizeFormula
    divisor: int = 1


def read_sizes(dims: Dims | None, ranges: SizeRanges) -> tuple[SizeFormula, ...] | None:
    """Return the formulas of all `dims`; None where one is not known, or depends on more than the symbols of `ranges`."""
    found = [read_size(dim, ranges) for dim in dims] if dims is not None else [None]
    known = tuple(one for one in found if one is not None)
    return known if len(known) == len(found) else None


def read_size(dim: Dim, ranges: SizeRanges) -> SizeFormula | None:
    """Return the formula of a dimension; None where it is not known, or depends on more than the symbols of `ranges`."""
    if dim is None:
        return None
    if isinstance(dim, int):
        return SizeFormula.number(dim)
    if dim in ranges:
        return SizeFormula.symbol(dim)
    try:
        found = _read(ast.parse(dim.strip(), mode="eval").body, ranges)
    except (SyntaxError, ValueError, _NotASize):
        return None
    return found.numerator if found.divisor == 1 else None


def _read(tree: ast.expr, ranges: SizeRanges) -> _Fraction:
    match tree:
        case ast.Constant(value=int(number)):
            return _Fraction(SizeFormula.number(number))
        case ast.Name(id=name) if name in ranges:
            return _Fraction(SizeFormula.symbol(name))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _read(operand, ranges)
            return _Fraction(-inner.numerator, inner.divisor)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_read(left, ranges), _read(right, ranges))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if arguments:
            return _call(name.lower(), [_read(argument, ranges) for argument in arguments], ranges)
    raise _NotASize


def _call(name: str, operands: list[_Fraction], ranges: SizeRanges) -> _Fraction:
    if name == "floor" and len(operands) == 1:
        return _Fraction(operands[0].numerator // operands[0].divisor)
    if name in {"ceiling", "ceil"} and len(operands) == 1:
        return _Fraction((operands[0].numerator + (operands[0].divisor - 1)) // operands[0].divisor)
    if name in {"min", "max"} and all(one.divisor == 1 for one in operands):
        return _Fraction(extreme("min" if name == "min" else "max", [one.numerator for one in operands], ranges))
    raise _NotASize


def _sum(a: _Fraction, b: _Fraction) -> _Fraction:
    common = math.lcm(a.divisor, b.divisor)
    return _Fraction(a.numerator * (common // a.divisor) + b.numerator * (common // b.divisor), common)


def _product(a: _Fraction, b: _Fraction) -> _Fraction:
    return _reduced(_Fraction(a.numerator * b.numerator, a.divisor * b.divisor))


def _quotient(a: _Fraction, b: _Fraction) -> _Fraction:
    divisor = b.numerator.constant
    if divisor is None:
        whole = exact_quotient(a.numerator * b.divisor, b.numerator)
        if whole is None:
            raise _NotASize
        return _reduced(_Fraction(whole, a.divisor))
    if divisor < 1:
        raise _NotASize
    return _reduced(_Fraction(a.numerator * b.divisor, a.divisor * divisor))


def _reduced(fraction: _Fraction) -> _Fraction:
    common = math.gcd(fraction.divisor, *(times for _, times in fraction.numerator.terms))
    terms = tuple((product, times // common) for product, times in fraction.numerator.terms)
    return _Fraction(SizeFormula(terms), fraction.divisor // common)


def _whole_quotient(a: _Fraction, b: _Fraction) -> _Fraction:
    exact = _quotient(a, b)
    return _Fraction(exact.numerator // exact.divisor)


def _power(a: _Fraction, b: _Fraction) -> _Fraction:
    exponent = b.numerator.constant
    if exponent is None or b.divisor != 1 or not 0 <= exponent <= _HIGHEST:
        raise _NotASize
    found = _Fraction(SizeFormula.number(1))
    for _ in range(exponent):
        found = _product(found, a)
    return found


_HIGHEST = 16
"""The highest power of a size that is read: tensors have fewer dimensions."""

_OPERATORS: Mapping[type[ast.operator], Callable[[_Fraction, _Fraction], _Fraction]] = {
    ast.Add: _sum,
    ast.Sub: lambda a, b: _sum(a, _Fraction(-b.numerator, b.divisor)),
    ast.Mult: _product,
    ast.Div: _quotient,
    ast.FloorDiv: _whole_quotient,
    ast.Pow: _power,
}
