"""The arena as a function of symbolic dimensions: formulas for a plan whose offsets hold at all sizes in ranges.

Fixed offsets hold for the largest sizes, so for all. Scaled offsets move down with the sizes: a buffer begins where the highest of the
buffers below it ends that are live with it. Two buffers that are live at once keep their order at all sizes, so they never overlap.
An offset is the largest of few formulas: where it would be the largest of many, two are replaced by one that is no smaller than either.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxtile.kernels.kernel_graph import Ints
from onnxtile.model.formula import SizeFormula, SizePieces, SizeProduct, SizeRanges, is_at_least
from onnxtile.planning.offsets.gaps import Stacking
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.planning.offsets.skyline import Floats
from onnxtile.system.dataclass import dataclass

_MOST_PIECES = 16
"""Pieces of an offset, at most: a longer formula is of little use."""
_PARTS = (0.9, 0.1, 0.4, 0.7, 0.2, 0.55, 0.8)
"""Parts of a range, so that the sizes of several dimensions differ."""
_UNEVEN = 8.0
"""How much more a large growth at one size counts than small ones at many."""
_TOO_MANY = 2 * _MOST_PIECES
"""Pieces of an offset that is not scaled."""


@dataclass(frozen=True)
class ScaledOffsets:
    """The offset of each buffer, by name, and the end of the last one."""

    offsets: Mapping[str, SizePieces]
    size: SizePieces


class RangeFormulas:
    """Formulas for buffers at `offsets`; `sizes` has their bytes as formulas, by name."""

    def __init__(
        self, problem: Problem, offsets: Mapping[str, int], sizes: Mapping[str, SizeFormula], ranges: SizeRanges
    ) -> None:
        self._problem = problem
        self._offsets = offsets
        self._ranges = ranges
        self._samples: dict[SizeFormula, tuple[int, ...]] = {}
        self._points = sample_sizes(ranges)
        self._limits: dict[SizeFormula, int] = {}
        self._known: dict[frozenset[SizeFormula], frozenset[SizeFormula]] = {}
        self._buffers = [buffer for buffer in problem.buffers if buffer.name in offsets and buffer.size]
        self._footprints = {buffer.name: _aligned(sizes[buffer.name], problem.granule) for buffer in self._buffers}

    def fixed(self) -> SizePieces:
        """Return the end of the last buffer at its fixed offset."""
        highest: dict[SizeFormula, int] = {}
        for buffer in self._buffers:
            footprint, offset = self._footprints[buffer.name], self._offsets[buffer.name]
            highest[footprint] = max(offset, highest.get(footprint, 0))
        return self._pieces(footprint + offset for footprint, offset in highest.items())

    def peak(self) -> SizePieces | None:
        """Return the largest sum of the bytes that are live in one step; None for buffers that are live in parts."""
        if self._problem.has_outlines:
            return None
        changes: dict[int, SizeFormula] = {}
        zero = SizeFormula.number(0)
        for buffer in self._buffers:
            footprint = self._footprints[buffer.name]
            changes[buffer.lower] = changes.get(buffer.lower, zero) + footprint
            changes[buffer.upper] = changes.get(buffer.upper, zero) - footprint
        live, sums = zero, dict[SizeFormula, None]()
        for step in sorted(changes):
            live += changes[step]
            sums[live] = None
        return self._pieces(sums)

    def scaled(self, limit: int) -> ScaledOffsets | None:
        """Return offsets that grow with the sizes, and take at most `limit` bytes at the largest; None for buffers live in parts or in
        every order, and where no formulas are short enough.
        """
        if self._problem.has_outlines or self._problem.conflicts or not self._buffers:
            return None
        footprints = [self._sampled(self._footprints[buffer.name]) for buffer in self._buffers]
        problem = replace(self._problem, buffers=tuple(self._buffers), clique=frozenset())
        stacking = Stacking(problem, np.array(footprints, np.int64), limit)
        order = stacking.best([self._offsets[buffer.name] for buffer in self._buffers])
        highest = stacking.highest(order)
        offsets = self._placed([self._buffers[i] for i in order], [int(highest[i]) for i in order], limit)
        return offsets if offsets is not None and offsets.size.at(self._points[0]) <= limit else None

    def _placed(self, buffers: Sequence[Buffer], highest: Sequence[int], limit: int) -> ScaledOffsets | None:
        """Return the offsets of buffers from below to above; None where their formulas cannot be short.

        At the largest sizes, no offset is above the one in `highest`, and the arena ends below `limit`.
        """
        short = _Shortened(self._points, self._ranges).few_of
        first = sorted({buffer.lower for buffer in buffers})
        tops: list[frozenset[SizeFormula]] = [_NOTHING] * len(first)
        pieces: dict[str, SizePieces] = {}
        for buffer, most in zip(buffers, highest, strict=True):
            begin, end = bisect_left(first, buffer.lower), bisect_left(first, buffer.upper)
            unit, ends = self._problem.alignment_of(buffer), frozenset().union(*set(tops[begin:end]))
            if unit != self._problem.granule:
                ends = frozenset(_aligned(offset, unit) for offset in ends)
            below = short(self._largest(ends), most)
            if below is None:
                return None
            pieces[buffer.name] = SizePieces.from_formulas(below)
            footprint = self._footprints[buffer.name]
            tops[begin:end] = [frozenset(offset + footprint for offset in below)] * (end - begin)
        size = short(self._largest(frozenset().union(*set(tops))), limit)
        return None if size is None else ScaledOffsets(pieces, SizePieces.from_formulas(size))

    def _pieces(self, formulas: Iterable[SizeFormula]) -> SizePieces:
        return SizePieces.from_formulas(self._largest(frozenset(formulas)))

    def _covers(self, larger: SizeFormula, smaller: SizeFormula) -> bool:
        """Return whether `larger` is proved to be the larger one. A few sizes show at once where it is not."""
        samples = zip(self._sampled(larger), self._sampled(smaller), strict=True)
        return all(a >= b for a, b in samples) and is_at_least(larger, smaller, self._ranges)

    def _sampled(self, formula: SizeFormula) -> tuple[int, ...]:
        if formula not in self._samples:
            self._samples[formula] = tuple(formula.at(sizes) for sizes in self._points)
        return self._samples[formula]

    def _most(self, formula: SizeFormula) -> int:
        if formula not in self._limits:
            self._limits[formula] = formula.limits(self._ranges)[1]
        return self._limits[formula]

    def _largest(self, formulas: frozenset[SizeFormula]) -> frozenset[SizeFormula]:
        """Return the formulas of which another is not always at least as large; 0 of none."""
        if len(formulas) < 2:
            return formulas or _NOTHING
        if formulas not in self._known:
            kept: list[SizeFormula] = []
            # The largest at the largest sizes come first, so that few are compared with many.
            for formula in sorted(formulas, key=lambda f: (-self._most(f), str(f))):
                if not any(self._covers(other, formula) for other in kept):
                    kept.append(formula)
            self._known[formulas] = frozenset(kept)
        return self._known[formulas]


class _Shortened:
    """Makes the largest of many formulas the largest of few: larger by as little as possible at `points`."""

    def __init__(self, points: Sequence[Mapping[str, int]], ranges: SizeRanges) -> None:
        self._points = points
        self._ranges = ranges
        self._values: dict[SizeProduct, list[int] | None] = {}

    def few_of(self, formulas: frozenset[SizeFormula], most: int) -> frozenset[SizeFormula] | None:
        """Return few formulas, of which the largest is no smaller than that of `formulas`, and at most `most` at the first point.

        They are up to `_MOST_PIECES`, more where that needs it; None where they would be too many.
        """
        if len(formulas) <= _MOST_PIECES:
            return formulas
        products = sorted({product for formula in formulas for product, _ in formula.terms}, key=str)
        values = [self._value(product) for product in products]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        places = {product: column for column, product in enumerate(products)}
        times = np.zeros((len(formulas), len(products)), np.int64)
        for row, formula in enumerate(sorted(formulas, key=str)):
            for product, coefficient in formula.terms:
                times[row, places[product]] = coefficient
        times = _merged(times, np.array(known, np.float64), most)
        if len(times) > _TOO_MANY:
            return None
        return frozenset(SizeFormula.from_terms(dict(zip(products, map(int, row), strict=True))) for row in times)

    def _value(self, product: SizeProduct) -> list[int] | None:
        """Return the product at all points; None where it may be negative."""
        if product not in self._values:
            formula = SizeFormula.from_terms({product: 1})
            is_positive = formula.limits(self._ranges)[0] >= 0
            self._values[product] = [formula.at(sizes) for sizes in self._points] if is_positive else None
        return self._values[product]


def _merged(times: Ints, products: Floats, most: int) -> Ints:
    """Return the factors of few formulas for those of many, by formula and product; `products` are never negative.

    In place of two formulas stands one with the larger factor of each product, which is nowhere smaller than either.
    """
    while len(times) > _MOST_PIECES:
        largest = np.maximum((times @ products).max(axis=0), 1.0)
        first, second = np.triu_indices(len(times), 1)
        pairs = np.maximum(times[first], times[second])
        values = pairs @ products
        grown = np.maximum(values / largest, 1.0) - 1.0
        loss = (grown + _UNEVEN * grown**2).sum(axis=1)
        loss[values[:, 0] > most] = np.inf
        chosen = int(loss.argmin())
        if not np.isfinite(loss[chosen]):
            break
        times = np.vstack([times[(times > pairs[chosen]).any(axis=1)], pairs[chosen]])
    return times


_NOTHING = frozenset({SizeFormula.number(0)})


def _aligned(size: SizeFormula, alignment: int) -> SizeFormula:
    """Return `size` rounded up to a multiple of `alignment`."""
    return (size + (alignment - 1)) // alignment * alignment


def sample_sizes(ranges: SizeRanges) -> list[dict[str, int]]:
    """Return some sizes: the largest, the least, some between, and with each dimension at its largest or least."""
    least = {name: low for name, (low, _) in ranges.items()}
    largest = {name: high for name, (_, high) in ranges.items()}
    between = [{name: low + (high - low) // part for name, (low, high) in ranges.items()} for part in (2, 7, 31)]
    mixed = [
        {
            name: low + round((high - low) * _PARTS[(number * 3 + start) % len(_PARTS)])
            for number, (name, (low, high)) in enumerate(ranges.items())
        }
        for start in range(len(_PARTS))
    ]
    single = [{**most, name: other[name]} for name in ranges for most, other in ((least, largest), (largest, least))]
    all_sizes = [largest, least, *between, *single, *mixed]
    return [sizes for number, sizes in enumerate(all_sizes) if sizes not in all_sizes[:number]]
