"""How tile writes what the limits make it cut."""

from __future__ import annotations

from dataclasses import dataclass

from onnxtile.errors import UsageError
from onnxtile.tile.accumulate import Accumulation


@dataclass(frozen=True)
class Options:
    """`accumulate`: how partial sums are added."""

    accumulate: Accumulation = Accumulation.SUM

    @classmethod
    def of(cls, *, accumulate: str = "sum") -> Options:
        """Return the options. Raises UsageError for a way to accumulate that does not exist."""
        if accumulate not in set(Accumulation):
            raise UsageError(f"--accumulate {accumulate} is not known", hint=f"there is {', '.join(Accumulation)}")
        return cls(Accumulation(accumulate))
