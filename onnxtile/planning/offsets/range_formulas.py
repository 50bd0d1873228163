"""The arena as a function of symbolic dimensions: formulas for a plan whose offsets hold at all sizes in ranges.

Fixed offsets hold for the largest sizes, so for all. Scaled offsets move down with the sizes: a buffer begins where the highest of the
buffers below it ends that are live with it. Two buffers that are live at once keep their order at all sizes, so they never overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnxtile.model.size_formula import SizeFormula, SizeRanges, is_at_least
from onnxtile.model.size_pieces import SizePieces
from onnxtile.planning.offsets.problem import Problem

_MOST_PIECES = 12
"""Pieces of an offset, at most: a longer formula is of little use."""
_SMALL = (0, 1024, 128, 16)
"""Parts of the largest buffer up to which buffers keep their largest size, one after the other, 0 for none."""


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
        self._points = _points(ranges)
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

    def scaled(self) -> ScaledOffsets | None:
        """Return offsets that grow with the sizes; None for buffers live in parts or in every order, and for formulas that are too long.

        Where the formulas are too long, small buffers keep their largest size throughout.
        """
        if self._problem.has_outlines or self._problem.conflicts:
            return None
        largest = max((self._most(footprint) for footprint in self._footprints.values()), default=0)
        attempts = (self._placed(largest // share if share else 0) for share in _SMALL)
        return next((found for found in attempts if found is not None), None)

    def _placed(self, small: int) -> ScaledOffsets | None:
        """Return scaled offsets where buffers of up to `small` bytes keep their largest size; None where one has too many pieces."""
        first = sorted({buffer.lower for buffer in self._buffers})
        tops: list[frozenset[SizeFormula]] = [_NOTHING] * len(first)
        found: dict[str, SizePieces] = {}
        for buffer in sorted(self._buffers, key=lambda b: (self._offsets[b.name], b.name)):
            begin, end = bisect_left(first, buffer.lower), bisect_left(first, buffer.upper)
            unit = self._problem.alignment_of(buffer)
            ends = self._largest(frozenset().union(*set(tops[begin:end])))
            below = ends if unit == self._problem.granule else self._largest(frozenset(_aligned(e, unit) for e in ends))
            if len(below) > _MOST_PIECES:
                return None
            found[buffer.name] = SizePieces.of(below)
            footprint = self._footprints[buffer.name]
            most = self._most(footprint)
            taken = SizeFormula.number(most) if most <= small else footprint
            tops[begin:end] = [frozenset(offset + taken for offset in below)] * (end - begin)
        return ScaledOffsets(found, self._pieces(frozenset().union(*set(tops))))

    def _pieces(self, formulas: Iterable[SizeFormula]) -> SizePieces:
        return SizePieces.of(self._largest(frozenset(formulas)))

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
            for one in sorted(formulas, key=lambda f: (-self._most(f), str(f))):
                if not any(self._covers(other, one) for other in kept):
                    kept.append(one)
            self._known[formulas] = frozenset(kept)
        return self._known[formulas]


_NOTHING = frozenset({SizeFormula.number(0)})


def _aligned(size: SizeFormula, alignment: int) -> SizeFormula:
    """Return `size` rounded up to a multiple of `alignment`."""
    return (size + (alignment - 1)) // alignment * alignment


def _points(ranges: SizeRanges) -> list[dict[str, int]]:
    """Return some sizes: the least, some between, and with each dimension at its largest."""
    least = {name: low for name, (low, _) in ranges.items()}
    between = [{name: low + (high - low) // part for name, (low, high) in ranges.items()} for part in (2, 7, 31)]
    return [least, *between, *({**least, name: high} for name, (_, high) in ranges.items())]
