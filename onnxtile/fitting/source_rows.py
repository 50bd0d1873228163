"""Elements of a result that are sums or copies of elements of an operand at places that follow no fixed stride."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxtile.runtime import Array


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The elements of an operand of `size` that each element of a result reads along one axis.

    `places` has for each element of the result the place of the operand that it is a copy of. Otherwise `weights` has a row for each
    element of the result, with the weight of each element of the operand.
    """

    size: int
    places: Array | None = None
    weights: Array | None = None

    @property
    def out(self) -> int:
        """The number of elements of the result."""
        return len(self.starts)

    @cached_property
    def starts(self) -> Array:
        """The first element that each element of the result reads."""
        if self.places is not None:
            return self.places
        assert self.weights is not None
        found: Array = np.argmax(self.weights != 0, axis=1)
        return found

    @cached_property
    def stops(self) -> Array:
        """The element behind the last that each element of the result reads."""
        if self.places is not None:
            return self.places + 1
        assert self.weights is not None
        found: Array = self.size - np.argmax(self.weights[:, ::-1] != 0, axis=1)
        return found

    @cached_property
    def overlap(self) -> int:
        """The elements that two neighbouring elements of the result both read, at most."""
        return int(np.max(np.maximum(self.stops[:-1] - self.starts[1:], 0), initial=0))

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of the elements that the results from `start` to `stop` read."""
        return int(self.starts[start:stop].min()), int(self.stops[start:stop].max())

    @cached_property
    def _needs(self) -> Array:
        """The elements of the operand that the results up to each one need."""
        return np.maximum.accumulate(self.stops).astype(np.float64)

    def results(self, available: Array) -> Array:
        """Return the number of results that operands up to `available` allow, beyond the ends as if the operand went on."""
        ratio = self.out / self.size
        within = np.searchsorted(self._needs, np.clip(available, 0, self.size), side="right")
        beyond = np.where(available > self.size, self.out + (available - self.size) * ratio, within)
        return np.where(available < 0, available * ratio, beyond)

    def operands(self, results: Array) -> Array:
        """Return the number of operands that results up to `results` need, beyond the ends as if the operand went on."""
        ratio = self.size / self.out
        places = np.clip(np.ceil(np.clip(results, 0, self.out)) - 1, 0, self.out - 1).astype(np.int64)
        beyond = np.where(results > self.out, self.size + (results - self.out) * ratio, self._needs[places])
        return np.where(results <= 0, results * ratio, beyond)
