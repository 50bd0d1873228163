"""The smallest sizes at which a plan over ranges of dimensions exceeds a capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnxtile.errors import Infeasible
from onnxtile.planning.offsets.memories import Capacity
from onnxtile.planning.result import PlanResult


def does_not_fit(plan: PlanResult, capacity: Capacity, largest: Infeasible) -> Infeasible:
    """Return the error for a `plan` over ranges, made without a limit, that exceeds `capacity`; `largest` is that of the largest sizes."""
    limit = sum(capacity.values()) if isinstance(capacity, Mapping) else capacity
    found = [] if limit is None else list(smallest_over(plan, limit))
    if not found:
        return largest
    listed = ", or ".join(" ".join(f"{name}={size}" for name, size in sizes.items()) for sizes in found)
    needed = plan.arena_size_at(found[0])
    return Infeasible(
        f"DOES NOT FIT: the plan takes {needed:,} bytes of {limit:,} at {listed}, the smallest sizes that exceed the capacity",
        hint="make a range smaller or the capacity larger",
    )


def smallest_over(plan: PlanResult, limit: int) -> Iterator[dict[str, int]]:
    """Yield sizes at which the arenas of `plan` take more than `limit` bytes, and with any size smaller no more than that.

    There is one for each dimension that is made as small as possible last, each once. Nothing is yielded for formulas that may fall
    where a size grows.
    """
    if not all(piece.grows for arena in plan.formulas for piece in arena.least.pieces):
        return
    largest = {name: high for name, (_, high) in plan.ranges.items()}
    if plan.arena_size_at(largest) <= limit:
        return
    names, seen = list(plan.ranges), []
    for start in range(len(names)):
        sizes = dict(largest)
        for name in (*names[start:], *names[:start]):
            sizes[name] = _least(plan, sizes, name, limit)
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def _least(plan: PlanResult, sizes: Mapping[str, int], name: str, limit: int) -> int:
    """Return the least size of the dimension `name` that exceeds `limit` where the others have these `sizes`."""
    low, high = plan.ranges[name]
    while low < high:
        middle = (low + high) // 2
        if plan.arena_size_at({**sizes, name: middle}) > limit:
            high = middle
        else:
            low = middle + 1
    return high
