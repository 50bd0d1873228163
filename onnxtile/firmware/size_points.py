"""Numbers of a program over ranges of sizes, as formulas of the sizes: found from what they are at several sizes.

Each tensor has one address at all sizes. So the texts of a program at two sizes differ in whole numbers alone: bounds of loops, strides,
bytes of copies. Such a number is a size of a tensor, or a product of some, times a number and plus another. Two values tell these two
numbers, and all further values have to agree. The sizes are in the ranges, and beyond their ends where a range has few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations_with_replacement
from typing import TypeAlias

from onnxtile.model.formula import SizeFormula, SizeRanges, product_of
from onnxtile.system.dataclass import dataclass

OpenNumber: TypeAlias = int | SizeFormula
"""A whole number, or a formula of the sizes where it differs from size to size."""

_SPARE = 4
"""Points beside one for each dimension, and the first: each is one more value that a formula must have."""
_WIDTH = 16
"""The least number of sizes of a dimension among which points are chosen."""
_STRIDES = (0.6180339887498949, 0.4142135623730951, 0.7320508075688772, 0.2360679774997897)
"""Steps through the ranges, as parts of them, so that the sizes of several dimensions do not keep step."""
_DEGREE = 3
"""Sizes in a product, at most."""


@dataclass(frozen=True)
class OpenSize:
    """A dimension with a range, from `least` to `most`. Where it is the length of states, each run makes it longer by `step`.

    `name` is that of the dimension; sizes are in elements.
    """

    name: str
    least: int
    most: int
    step: SizeFormula | None = None


@dataclass(frozen=True)
class SizePoints:
    """Sizes at which a program is written, the largest first, and the formulas of the sizes of its tensors."""

    ranges: SizeRanges
    points: tuple[Mapping[str, int], ...]
    formulas: tuple[SizeFormula, ...]

    @classmethod
    def of(cls, ranges: SizeRanges, formulas: Iterable[SizeFormula]) -> SizePoints:
        """Return the points of `ranges`, of tensors whose sizes are `formulas`. No size is 1: text of a size of 1 may be for that alone."""
        largest = {name: high for name, (_, high) in ranges.items()}
        others = (
            {name: _inside(ends, number, dimension) for dimension, (name, ends) in enumerate(ranges.items())}
            for number in range(1, 1 + _SPARE + len(ranges))
        )
        sizes = sorted(
            {size for size in formulas if size.constant is None}, key=lambda size: (len(str(size)), str(size))
        )
        return cls(ranges, (largest, *others), tuple(sizes))

    @cached_property
    def _products(self) -> tuple[tuple[SizeFormula, tuple[int, ...]], ...]:
        """The sizes of tensors and their products, with the values at all points; of several with equal values the first."""
        by_values: dict[tuple[int, ...], SizeFormula] = {}
        for degree in range(1, _DEGREE + 1):
            for factors in combinations_with_replacement(self.formulas, degree):
                product = product_of(factors)
                by_values.setdefault(tuple(product.at(point) for point in self.points), product)
        return tuple((product, values) for values, product in by_values.items())

    def number(self, values: Sequence[int]) -> OpenNumber | None:
        """Return the number that has `values` at the points; None where no formula has them."""
        if len(set(values)) == 1:
            return values[0]
        formulas = (
            formula for product, known in self._products if (formula := _line(values, product, known)) is not None
        )
        return next(formulas, None)

    def numbers(self, rows: Sequence[Sequence[int]]) -> Iterator[OpenNumber | None]:
        """Yield the numbers that `rows` have at the points, one row a point."""
        return (self.number(values) for values in zip(*rows, strict=True))

    def most(self, formula: OpenNumber) -> int:
        """Return the largest value of a number."""
        return formula if isinstance(formula, int) else formula.limits(self.ranges)[1]


def _inside(ends: tuple[int, int], number: int, dimension: int) -> int:
    if ends[0] == ends[1]:
        return ends[0]
    low = max(ends[0], 2)
    width = max(ends[1] + 1 - low, _WIDTH)
    step = int(width * _STRIDES[dimension % len(_STRIDES)]) | 1  # odd, so that every second size is even
    return low + number * step % width


def _line(values: Sequence[int], product: SizeFormula, known: Sequence[int]) -> SizeFormula | None:
    """Return the `product`, whose values are `known`, times a number plus a number, with `values`; None where there are no such numbers."""
    run = next((index for index in range(1, len(known)) if known[index] != known[0]), None)
    if run is None:
        return None
    times, rest = divmod(values[run] - values[0], known[run] - known[0])
    start = values[0] - times * known[0]
    if rest or any(value != times * size + start for value, size in zip(values, known, strict=True)):
        return None
    return product * times + start
