"""A size that is the largest of several formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnxtile.model.size_formula import SizeFormula, c_extreme


@dataclass(frozen=True)
class SizePieces:
    """The largest of the formulas `pieces` at each size of the symbols."""

    pieces: tuple[SizeFormula, ...]

    @classmethod
    def of(cls, formulas: Iterable[SizeFormula]) -> SizePieces:
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
