"""The bytes of an arena as formulas of the dimensions that have a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxtile.errors import UsageError
from onnxtile.model.size_formula import SizeRanges
from onnxtile.model.size_pieces import SizePieces


@dataclass(frozen=True)
class ArenaFormula:
    """The bytes of an arena as formulas of the dimensions that have a range.

    `fixed` is the size with the offsets of the plan, `scaled` that with the scaled offsets of its buffers (None without such offsets).
    `peak` is the largest sum of live bytes in one step; None where buffers are live in parts, a state keeps
    its largest size, or the bytes of a tensor have no formula.
    """

    name: str
    fixed: SizePieces
    scaled: SizePieces | None
    peak: SizePieces | None

    @property
    def least(self) -> SizePieces:
        """The smaller of the sizes: with scaled offsets where there are some."""
        return self.fixed if self.scaled is None else self.scaled

    def to_dict(self) -> dict[str, Any]:
        """Return the formulas as Python expressions, and the pieces of which each is the largest."""
        forms = {"fixed": self.fixed, "scaled": self.scaled, "peak": self.peak}
        told = {
            key: form and {"bytes": str(form), "pieces": list(map(str, form.pieces))} for key, form in forms.items()
        }
        return {"name": self.name, **told}


def require_sizes(ranges: SizeRanges, sizes: Mapping[str, int]) -> None:
    """Raise UsageError unless `sizes` has a size in its range for each dimension of `ranges`, and no other dimension."""
    for name in sizes:
        if name not in ranges:
            listed = ", ".join(ranges) or "none"
            raise UsageError(f"the plan has no range of a dimension {name!r}", hint=f"those with a range: {listed}")
    for name, (low, high) in ranges.items():
        if name not in sizes:
            raise UsageError(f"the size of {name!r} is missing", hint=f"give one from {low} to {high}")
        if not low <= sizes[name] <= high:
            raise UsageError(
                f"the size {sizes[name]} of {name!r} is out of its range", hint=f"it is from {low} to {high}"
            )
