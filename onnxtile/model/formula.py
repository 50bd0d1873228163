"""Formulas of sizes: sums of products of symbolic dimensions, with whole quotients, minima and maxima where they are needed.

A formula has one normal form: two polynomials are equal if and only if they have the same value at all sizes of the symbols.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeAlias

from onnxtile.system.dataclass import dataclass

if TYPE_CHECKING:
    from onnxtile.operators.node_view import Dim, Dims


SizeRange: TypeAlias = tuple[int, int]
"""The least and the largest size of a symbolic dimension, both included."""
SizeRanges: TypeAlias = Mapping[str, SizeRange]
"""By the name of the dimension."""


@dataclass(frozen=True)
class Quotient:
    """`numerator` divided by the number `divisor`, rounded down."""

    numerator: SizeFormula
    divisor: int


@dataclass(frozen=True)
class Extreme:
    """The least or the largest of several sizes.

    `kind` says which, `operands` are the sizes.
    """

    kind: Literal["min", "max"]
    operands: tuple[SizeFormula, ...]


SizeFactor: TypeAlias = str | Quotient | Extreme
"""The name of a symbol, or a size that is no polynomial."""
SizeProduct: TypeAlias = tuple[SizeFactor, ...]
"""Factors in the order of their texts; one that is squared stands twice. Empty for the number 1."""


@dataclass(frozen=True)
class SizeFormula:
    """A size in elements or bytes: the sum of products of factors, each with a whole coefficient other than 0.

    `terms` has each product with its coefficient.
    """

    terms: tuple[tuple[SizeProduct, int], ...]

    @classmethod
    def from_terms(cls, terms: Mapping[SizeProduct, int]) -> SizeFormula:
        """Return the sum of `terms`, the highest powers first."""
        known = [(product, coefficient) for product, coefficient in terms.items() if coefficient]
        return cls(tuple(sorted(known, key=lambda term: (-len(term[0]), [_key(factor) for factor in term[0]]))))

    @classmethod
    @lru_cache(2**12, typed=True)
    def number(cls, size: int) -> SizeFormula:
        """Return the size that no symbol changes."""
        return cls.from_terms({(): size})

    @classmethod
    def symbol(cls, name: str) -> SizeFormula:
        """Return the size of the dimension `name`."""
        return cls.from_terms({(name,): 1})

    @property
    def constant(self) -> int | None:
        """The number that it is; None where it has a symbol."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () else None

    @property
    def grows(self) -> bool:
        """Whether it is known never to fall where a symbol grows: no term is subtracted."""
        return all(times > 0 and all(map(_grows, product)) for product, times in self.terms if product)

    @property
    def symbols(self) -> list[str]:
        """The names of its symbols, each once."""
        return list(dict.fromkeys(name for product, _ in self.terms for factor in product for name in _names(factor)))

    def __add__(self, other: SizeFormula | int) -> SizeFormula:
        """Return the sum."""
        terms = dict(self.terms)
        for product, coefficient in _formula(other).terms:
            terms[product] = terms.get(product, 0) + coefficient
        return SizeFormula.from_terms(terms)

    def __neg__(self) -> SizeFormula:
        """Return the negative."""
        return SizeFormula(tuple((product, -coefficient) for product, coefficient in self.terms))

    def __sub__(self, other: SizeFormula | int) -> SizeFormula:
        """Return the difference."""
        return self + -_formula(other)

    def __mul__(self, other: SizeFormula | int) -> SizeFormula:
        """Return the product."""
        terms: dict[SizeProduct, int] = {}
        for mine, times in self.terms:
            for yours, further in _formula(other).terms:
                product = tuple(sorted((*mine, *yours), key=_key))
                terms[product] = terms.get(product, 0) + times * further
        return SizeFormula.from_terms(terms)

    def __floordiv__(self, divisor: int) -> SizeFormula:
        """Return the quotient by a number of at least 1, rounded down. Raises ValueError for another divisor."""
        if divisor < 1:
            raise ValueError(f"a size is divided by a number of at least 1, not by {divisor}")
        whole = SizeFormula.from_terms({product: times // divisor for product, times in self.terms})
        rest = {product: times % divisor for product, times in self.terms}
        left = rest.pop((), 0)
        common = math.gcd(divisor, *rest.values())
        numerator = (
            SizeFormula.from_terms({product: times // common for product, times in rest.items()}) + left // common
        )
        if numerator.constant is not None:
            return whole + numerator.constant // (divisor // common)
        return whole + SizeFormula.from_terms({(Quotient(numerator, divisor // common),): 1})

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the size at these sizes of the symbols. Raises KeyError where one is missing."""
        return sum(
            coefficient * math.prod(_factor_at(factor, sizes) for factor in product)
            for product, coefficient in self.terms
        )

    def limits(self, ranges: SizeRanges) -> SizeRange:
        """Return a lower and an upper bound over `ranges`; both are reached by a polynomial that grows with each symbol."""
        least, most = 0, 0
        for product, coefficient in self.terms:
            low, high = reduce(_interval_product, (_factor_limits(factor, ranges) for factor in product), (1, 1))
            least += coefficient * (low if coefficient > 0 else high)
            most += coefficient * (high if coefficient > 0 else low)
        return least, most

    def text(self, times: str = "*", power: str = "**") -> str:
        """Return the formula as a Python expression, or with other signs."""
        return _text(self, lambda factor, exponent: _python_factor(factor, exponent, times, power), times)

    def __str__(self) -> str:
        """Return the formula as a Python expression."""
        return self.text()

    def in_c(self, names: Mapping[str, str]) -> str:
        """Return the formula as an expression of C, with the texts of its symbols."""
        return _text(self, lambda factor, exponent: "*".join([_c_factor(factor, names)] * exponent), "*", "u")


def product_of(sizes: Iterable[SizeFormula | int]) -> SizeFormula:
    """Return the product of `sizes`."""
    return reduce(lambda a, b: a * b, sizes, SizeFormula.number(1))


def exact_quotient(total: SizeFormula, divisor: SizeFormula) -> SizeFormula | None:
    """Return `total` divided by `divisor` where that leaves nothing at any size of the symbols; None where it may leave something.

    Long division of polynomials: the highest term of what is left is divided by the highest of the divisor.
    """
    if not divisor.terms:
        return None
    (highest, times), *_ = divisor.terms
    quotient, left = SizeFormula.number(0), total
    while left.terms:
        product, coefficient = left.terms[0]
        rest = _without(product, highest)
        if rest is None or coefficient % times:
            return None
        part = SizeFormula.from_terms({rest: coefficient // times})
        quotient, left = quotient + part, left - part * divisor
    return quotient


def _without(product: SizeProduct, factors: SizeProduct) -> SizeProduct | None:
    """Return `product` without these of its factors; None where it does not have them all."""
    left = list(product)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def extreme(kind: Literal["min", "max"], operands: Iterable[SizeFormula], ranges: SizeRanges) -> SizeFormula:
    """Return the least or the largest of `operands`: one of them where it is so at all sizes in `ranges`."""
    left = list(dict.fromkeys(inner for size in operands for inner in _operands(size, kind) or (size,)))
    for size in list(left):
        pairs = [(size, other) if kind == "min" else (other, size) for other in left if other is not size]
        if any(is_at_least(larger, smaller, ranges) for larger, smaller in pairs):
            left.remove(size)
    if len(left) == 1:
        return left[0]
    return SizeFormula.from_terms({(Extreme(kind, tuple(sorted(left, key=str))),): 1})


def _operands(size: SizeFormula, kind: str) -> tuple[SizeFormula, ...]:
    """Return the sizes of which `size` is the least or the largest; none where it is something else."""
    (product, times), *others = size.terms or (((), 0),)
    factor = product[0] if len(product) == 1 and times == 1 and not others else None
    return factor.operands if isinstance(factor, Extreme) and factor.kind == kind else ()


def is_at_least(larger: SizeFormula, smaller: SizeFormula, ranges: SizeRanges) -> bool:
    """Return whether `larger` is proved to be no smaller than `smaller` at all sizes in `ranges`.

    The symbols are counted from their least sizes: then a difference without negative terms is never negative.
    """
    difference = larger - smaller
    if not difference.terms:
        return True
    lowered = _lowered(difference, ranges)
    spans = {name: (0, ranges[name][1] - ranges[name][0]) for name in difference.symbols}
    if lowered is not None and _shifted(lowered, ranges).limits(spans)[0] >= 0:
        return True
    return any(is_at_least(larger, operand, ranges) for operand in _operands(smaller, "min")) or any(
        is_at_least(operand, smaller, ranges) for operand in _operands(larger, "max")
    )


def _lowered(formula: SizeFormula, ranges: SizeRanges) -> SizeFormula | None:
    """Return a polynomial that has no larger sign than `formula` anywhere; None where a factor has both signs.

    A quotient n // d lies between (n - d + 1) / d and n / d, a minimum or maximum between its limits.
    """
    while True:
        factor = next((f for product, _ in formula.terms for f in product if not isinstance(f, str)), None)
        if factor is None:
            return formula
        low, high, divisor = _polynomials(factor, ranges)
        lowered = SizeFormula.from_terms({})
        for product, times in formula.terms:
            others = list(product)
            if factor not in others:
                lowered += SizeFormula.from_terms({product: times * divisor})
                continue
            others.remove(factor)
            rest = SizeFormula.from_terms({tuple(others): times})
            least, most = rest.limits(ranges)
            if least < 0 < most:
                return None
            lowered += rest * (low if least >= 0 else high)
        formula = lowered


def _polynomials(factor: Quotient | Extreme, ranges: SizeRanges) -> tuple[SizeFormula, SizeFormula, int]:
    """Return formulas that are never larger, and never smaller, than the factor times the number that follows."""
    if isinstance(factor, Quotient):
        return factor.numerator - (factor.divisor - 1), factor.numerator, factor.divisor
    low, high = _factor_limits(factor, ranges)
    return SizeFormula.number(low), SizeFormula.number(high), 1


def _shifted(formula: SizeFormula, ranges: SizeRanges) -> SizeFormula:
    """Return the polynomial with each symbol replaced by its least size and a rest of at least 0."""
    total = SizeFormula.from_terms({})
    for product, times in formula.terms:
        total += product_of(SizeFormula.from_terms({(name,): 1, (): ranges[str(name)][0]}) for name in product) * times
    return total


def _formula(size: SizeFormula | int) -> SizeFormula:
    return SizeFormula.number(size) if isinstance(size, int) else size


def _grows(factor: SizeFactor) -> bool:
    if isinstance(factor, str):
        return True
    return all(operand.grows for operand in ((factor.numerator,) if isinstance(factor, Quotient) else factor.operands))


def _names(factor: SizeFactor) -> list[str]:
    if isinstance(factor, str):
        return [factor]
    operands = (factor.numerator,) if isinstance(factor, Quotient) else factor.operands
    return [name for operand in operands for name in operand.symbols]


@lru_cache(maxsize=4096)
def _key(factor: SizeFactor) -> tuple[bool, str]:
    return not isinstance(factor, str), factor if isinstance(factor, str) else _python_factor(factor, 1, "*", "**")


def _factor_at(factor: SizeFactor, sizes: Mapping[str, int]) -> int:
    if isinstance(factor, str):
        return sizes[factor]
    if isinstance(factor, Quotient):
        return factor.numerator.at(sizes) // factor.divisor
    chosen = min if factor.kind == "min" else max
    return chosen(operand.at(sizes) for operand in factor.operands)


def _factor_limits(factor: SizeFactor, ranges: SizeRanges) -> SizeRange:
    if isinstance(factor, str):
        return ranges[factor]
    if isinstance(factor, Quotient):
        low, high = factor.numerator.limits(ranges)
        return low // factor.divisor, high // factor.divisor
    chosen = min if factor.kind == "min" else max
    limits = [operand.limits(ranges) for operand in factor.operands]
    return chosen(low for low, _ in limits), chosen(high for _, high in limits)


def _interval_product(a: SizeRange, b: SizeRange) -> SizeRange:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _python_factor(factor: SizeFactor, exponent: int, times: str, power: str) -> str:
    if isinstance(factor, str):
        text = factor
    elif isinstance(factor, Quotient):
        text = f"(({factor.numerator.text(times, power)}) // {factor.divisor})"
    else:
        text = f"{factor.kind}({', '.join(operand.text(times, power) for operand in factor.operands)})"
    return text if exponent == 1 else f"{text}{power}{exponent}"


def _c_factor(factor: SizeFactor, names: Mapping[str, str]) -> str:
    if isinstance(factor, str):
        return names[factor]
    if isinstance(factor, Quotient):
        return f"(({factor.numerator.in_c(names)})/{factor.divisor}u)"
    return c_extreme(factor.kind, [operand.in_c(names) for operand in factor.operands])


def c_extreme(kind: str, operands: list[str]) -> str:
    """Return the least or largest of expressions of C: halves are compared, because each comparison writes its operands twice."""
    if len(operands) == 1:
        return operands[0]
    half = len(operands) // 2
    first, second = c_extreme(kind, operands[:half]), c_extreme(kind, operands[half:])
    return f"(({first}) {'<' if kind == 'min' else '>'} ({second}) ? ({first}) : ({second}))"


def _text(formula: SizeFormula, write: Callable[[SizeFactor, int], str], times: str, unit: str = "") -> str:
    parts: list[str] = []
    # Positive terms come first, so that no difference of unsigned numbers is negative on the way.
    for product, coefficient in sorted(formula.terms, key=lambda term: term[1] < 0):
        factors = [write(factor, len(list(group))) for factor, group in groupby(product)]
        size = abs(coefficient)
        written = times.join([f"{size}{unit}", *factors] if size != 1 or not factors else factors)
        sign = "-" if coefficient < 0 else "+" if parts else ""
        parts.append(f" {sign} {written}" if parts else f"{sign}{written}")
    return "".join(parts) or f"0{unit}"


# A size that is the largest of several formulas.


@dataclass(frozen=True)
class SizePieces:
    """The largest of the formulas `pieces` at each size of the symbols."""

    pieces: tuple[SizeFormula, ...]

    @classmethod
    def from_formulas(cls, formulas: Iterable[SizeFormula]) -> SizePieces:
        """Return the largest of `formulas`, in the order of their texts."""
        return cls(tuple(sorted(set(formulas), key=lambda formula: (-len(formula.terms), str(formula)))))

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the size at these sizes of the symbols. Raises KeyError where one is missing."""
        return max(piece.at(sizes) for piece in self.pieces)

    def __add__(self, other: int) -> SizePieces:
        """Return the size and a number of bytes more."""
        return SizePieces(tuple(piece + other for piece in self.pieces))

    def __str__(self) -> str:
        """Return the size as a Python expression."""
        texts = list(map(str, self.pieces))
        return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"

    def in_c(self, names: Mapping[str, str]) -> str:
        """Return the size as an expression of C, with the texts of its symbols."""
        return c_extreme("max", [piece.in_c(names) for piece in self.pieces])


# Reads the sizes that shape inference writes as texts ("2*seq", "floor(h/2) + 1", "Min(64, seq)") as formulas.


class _NotASize(Exception):
    """The text is not a size made of known symbols."""


@dataclass(frozen=True)
class _Fraction:
    """A formula divided by a number of at least 1."""

    numerator: SizeFormula
    divisor: int = 1


def read_sizes(dims: Dims | None, ranges: SizeRanges) -> tuple[SizeFormula, ...] | None:
    """Return the formulas of all `dims`; None where one is not known, or depends on more than the symbols of `ranges`."""
    formulas = [read_size(dim, ranges) for dim in dims] if dims is not None else [None]
    known = tuple(formula for formula in formulas if formula is not None)
    return known if len(known) == len(formulas) else None


def read_size(dim: Dim, ranges: SizeRanges) -> SizeFormula | None:
    """Return the formula of a dimension; None where it is not known, or depends on more than the symbols of `ranges`."""
    if dim is None:
        return None
    if isinstance(dim, int):
        return SizeFormula.number(dim)
    if dim in ranges:
        return SizeFormula.symbol(dim)
    try:
        fraction = _read(ast.parse(dim.strip(), mode="eval").body, ranges)
    except (SyntaxError, ValueError, _NotASize):
        return None
    return fraction.numerator if fraction.divisor == 1 else None


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
    if name in {"min", "max"} and all(operand.divisor == 1 for operand in operands):
        return _Fraction(
            extreme("min" if name == "min" else "max", [operand.numerator for operand in operands], ranges)
        )
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
    power = _Fraction(SizeFormula.number(1))
    for _ in range(exponent):
        power = _product(power, a)
    return power


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
