"""The options of tile beside the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.errors import UsageError
from onnxtile.sizes import MOST_RUNS
from onnxtile.tiling.accumulate import Accumulation

SUM_TYPES = {"float32": ir.DataType.FLOAT}
"""The element types in which partial sums of 16 bits can be added, by name."""


@dataclass(frozen=True)
class TilingPolicy:
    """The way to tile and to verify, beside the limits.

    `accumulate`: the way to add partial sums. `nodes_at_most`: the most nodes of all tiles together. `wrap`: whether each
    tiled layer becomes a local function. `runs`: the sets of random inputs that each product is verified on. `sums`: the element
    type in which partial sums of 16 bits are added, None for their own type. `skip`: the names of nodes to leave as they are.
    `strict`: whether a node that cannot meet the limits is an error; otherwise it is left as it is.
    """

    accumulate: Accumulation = Accumulation.CHAIN
    nodes_at_most: int | None = None
    wrap: bool = False
    runs: int = 1
    sums: ir.DataType | None = None
    skip: tuple[str, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        if self.nodes_at_most is not None and self.nodes_at_most < 1:
            raise UsageError(f"invalid --nodes-at-most {self.nodes_at_most}: give 1 or more")
        if not 1 <= self.runs <= MOST_RUNS:
            raise UsageError(f"invalid --runs {self.runs}: give 1 or more, up to {MOST_RUNS:,}")

    @classmethod
    def of(
        cls,
        *,
        accumulate: str = "chain",
        accumulate_type: str | None = None,
        nodes_at_most: int | None = None,
        wrap: bool = False,
        runs: int = 1,
        skip: Sequence[str] = (),
        strict: bool = False,
    ) -> TilingPolicy:
        """Return the options. Raises UsageError for a way to accumulate or a type that does not exist, and numbers below 1."""
        if accumulate not in set(Accumulation):
            raise UsageError(f"invalid --accumulate {accumulate!r} (choose {', '.join(Accumulation)})")
        if accumulate_type not in {None, *SUM_TYPES}:
            raise UsageError(f"invalid --accumulate-type {accumulate_type!r} (choose {', '.join(SUM_TYPES)})")
        sums = None if accumulate_type is None else SUM_TYPES[accumulate_type]
        return cls(Accumulation(accumulate), nodes_at_most, wrap, runs, sums, tuple(skip), strict)
