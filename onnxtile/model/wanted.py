"""Inputs for runs of a model: given arrays, or random ones inside ranges that the user may set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxtile.model.feeds import Ranges, Sizes, sample_feeds
from onnxtile.model.given import Feeds


@dataclass(frozen=True)
class Wanted:
    """The inputs `given` for every run; where there are none, random ones with numbers in `ranges` (see model.feeds)."""

    given: Feeds | None = None
    ranges: Ranges | None = None

    def feeds(self, model: ir.Model, sizes: Sizes, runs: int, *, seed: int = 0) -> list[Mapping[str, Any]]:
        """Return the inputs of each of `runs` runs. Raises ModelError, UsageError as `sample_feeds` does."""
        if self.given is not None:
            return [self.given] * runs
        return [sample_feeds(model, sizes, seed=seed + run, ranges=self.ranges) for run in range(runs)]


ANYTHING = Wanted()
