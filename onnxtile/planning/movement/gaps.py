"""The problem of movement as plain data: tensors between two uses, and the bytes that are free in each step meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class Gap:
    """The steps from `first` to `last` inclusive between two uses of a tensor, which takes `size` bytes if it stays in the fast memory.

    If it does not stay, `loaded` bytes are copied back before the next use. Its bytes are copied out once for all gaps with its `store`, a
    number of `MovementProblem.stores`; None for a tensor that is in the slow memory already.
    """

    first: int
    last: int
    size: int
    loaded: int
    store: int | None = None


@dataclass(frozen=True)
class MovementProblem:
    """The gaps of all tensors, of which those that stay in the fast memory fit the bytes that are `free` in each step.

    `stores` has the bytes of each copy into the slow memory.
    """

    free: tuple[int, ...]
    gaps: tuple[Gap, ...]
    stores: tuple[int, ...] = ()

    @cached_property
    def full_steps(self) -> tuple[int, ...]:
        """The steps in which not all tensors can stay."""
        return tuple(step for step, held in enumerate(self.held(range(len(self.gaps)))) if held > self.free[step])

    def held(self, kept: Collection[int]) -> list[int]:
        """Return for each step the bytes of the gaps numbered `kept`."""
        change = [0] * (len(self.free) + 1)
        for number in kept:
            gap = self.gaps[number]
            change[gap.first] += gap.size
            change[gap.last + 1] -= gap.size
        return list(accumulate(change))[:-1]

    def cost(self, evicted: Collection[int]) -> int:
        """Return the bytes that are copied if the gaps numbered `evicted` do not stay."""
        stores = {self.gaps[number].store for number in evicted} - {None}
        loaded = sum(self.gaps[number].loaded for number in evicted)
        return loaded + sum(self.stores[store] for store in stores if store is not None)
