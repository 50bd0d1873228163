"""How tile writes what the limits make it cut, and how that is judged."""

from __future__ import annotations

from dataclasses import dataclass

from onnxtile.errors import UsageError
from onnxtile.sizes import MOST_RUNS
from onnxtile.tile.accumulate import Accumulation


@dataclass(frozen=True)
class Options:
    """`accumulate`: how partial sums are added. `nodes_at_most`: how many nodes may stand for all products together.
    `wrap`: whether each tiled layer becomes a local function. `runs`: on how many sets of random inputs each product is judged.
    """

    accumulate: Accumulation = Accumulation.SUM
    nodes_at_most: int | None = None
    wrap: bool = False
    runs: int = 1

    def __post_init__(self) -> None:
        if self.nodes_at_most is not None and self.nodes_at_most < 1:
            raise UsageError(
                f"--nodes-at-most {self.nodes_at_most}: a tiling has at least one node", hint="give 1 or more"
            )
        if not 1 <= self.runs <= MOST_RUNS:
            raise UsageError(
                f"--runs {self.runs}: a product is judged on one set of inputs at least", hint=f"up to {MOST_RUNS:,}"
            )

    @classmethod
    def of(
        cls, *, accumulate: str = "sum", nodes_at_most: int | None = None, wrap: bool = False, runs: int = 1
    ) -> Options:
        """Return the options. Raises UsageError for a way to accumulate that does not exist, and numbers below 1."""
        if accumulate not in set(Accumulation):
            raise UsageError(f"--accumulate {accumulate} is not known", hint=f"there is {', '.join(Accumulation)}")
        return cls(Accumulation(accumulate), nodes_at_most, wrap, runs)
