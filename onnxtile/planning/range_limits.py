"""The smallest sizes at which a plan over ranges of dimensions exceeds a capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onnxtile.errors import Infeasible
from onnxtile.model.size_formula import SizeRanges
from onnxtile.planning.offsets.memories import Capacity
from onnxtile.planning.result import PlanResult

_HINT = "make a range smaller or the capacity larger"


def does_not_fit(
    plan: PlanResult, capacity: Capacity, refusal: Callable[[SizeRanges], Infeasible | None], largest: Infeasible
) -> Infeasible:
    """Return the error for a `plan` over ranges, made without a limit, that exceeds `capacity`; `largest` is that of the largest sizes.

    `refusal` returns the error of a plan for smaller ranges. A plan up to the sizes that are named must be refused, too: sizes that have
    bounds instead of formulas count with their maximum in a plan over larger ranges.
    """
    limit = next(iter(capacity.values()), None) if isinstance(capacity, Mapping) else capacity
    found = [] if limit is None else list(smallest_over(plan, limit))
    if not found:
        return largest
    if any(
        refusal({name: (least, sizes[name]) for name, (least, _) in plan.ranges.items()}) is None for sizes in found
    ):
        return none_fits(plan.ranges, refusal, largest)
    listed = ", or ".join(map(_listed, found))
    needed = plan.arena_size_at(found[0])
    return Infeasible(
        f"DOES NOT FIT: the plan takes {needed:,} bytes of {limit:,} at {listed}, the smallest sizes that exceed the capacity",
        hint=_HINT,
    )


def none_fits(
    ranges: SizeRanges, refusal: Callable[[SizeRanges], Infeasible | None], largest: Infeasible
) -> Infeasible:
    """Return the error for `ranges` that no plan into several memories holds for; `largest` is that of the largest sizes.

    `refusal` returns the error of a plan for smaller ranges. Sizes are found for which a plan up to them is refused, and is not with the
    last of them smaller by one. The dimensions are made smaller in their order.
    """
    found, error = dict(ranges), largest
    for name, (least, most) in ranges.items():
        low, high = least, most
        while low < high:
            middle = (low + high) // 2
            refused = refusal({**found, name: (least, middle)})
            if refused is None:
                low = middle + 1
            else:
                high, error = middle, refused
        found[name] = (least, high)
    listed = _listed({name: high for name, (_, high) in found.items()})
    return Infeasible(f"DOES NOT FIT: at {listed}, the smallest sizes without a plan, {error}", hint=_HINT)


def _listed(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


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
