"""The smallest sizes at which a plan over ranges of dimensions exceeds a capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from onnxtile.errors import Infeasible
from onnxtile.model.size_formula import SizeRanges
from onnxtile.planning.offsets.memories import Capacity
from onnxtile.planning.result import PlanResult

_LISTED = 8
"""The most sizes in a message."""
_HINT = "make a range smaller or the capacity larger"


def does_not_fit(
    plan: PlanResult, capacity: Capacity, refusal: Callable[[SizeRanges], Infeasible | None], largest: Infeasible
) -> Infeasible:
    """Return the error for a `plan` over ranges, made without a limit, that exceeds `capacity`; `largest` is that of the largest sizes.

    `refusal` returns the error of a plan for smaller ranges. A plan up to the sizes that are named must be refused, too: sizes that have
    bounds instead of formulas count with their maximum in a plan over larger ranges.
    """
    limit = next(iter(capacity.values()), None) if isinstance(capacity, Mapping) else capacity
    found = [] if limit is None else list(islice(smallest_over(plan, limit), _LISTED + 1))
    listed = sorted(found[:_LISTED], key=lambda sizes: tuple(sizes.values()))
    if not found:
        return largest
    if any(
        refusal({name: (least, sizes[name]) for name, (least, _) in plan.ranges.items()}) is None for sizes in listed
    ):
        return none_fits(plan.ranges, refusal, largest)
    which = "the smallest sizes" if len(found) <= _LISTED else f"{_LISTED} of the smallest sizes"
    needed, places = plan.arena_size_at(listed[0]), ", or ".join(map(_listed, listed))
    return Infeasible(
        f"DOES NOT FIT: the plan takes {needed:,} bytes of {limit:,} at {places}, {which} that exceed the capacity",
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
    """Yield all sizes at which the arenas of `plan` take more than `limit` bytes, and with any size smaller no more than that.

    Nothing is yielded for formulas that may fall where a size grows.
    """
    if not all(piece.grows for arena in plan.formulas for piece in arena.least.pieces):
        return
    # Every other size that exceeds the limit is no larger than one of these, and no smaller than one that was yielded.
    tops = [{name: high for name, (_, high) in plan.ranges.items()}]
    while tops:
        sizes = dict(tops[0])
        if plan.arena_size_at(sizes) <= limit:
            del tops[0]
            continue
        for name in plan.ranges:
            sizes[name] = _least(plan, sizes, name, limit)
        yield sizes
        tops = _below(tops, sizes, plan.ranges)


def _below(tops: list[dict[str, int]], sizes: Mapping[str, int], ranges: SizeRanges) -> list[dict[str, int]]:
    """Return the largest of those sizes up to one of `tops` that have a dimension smaller than in `sizes`."""
    found: list[dict[str, int]] = []
    for top in tops:
        if any(top[name] < size for name, size in sizes.items()):
            found.append(top)
            continue
        found += ({**top, name: size - 1} for name, size in sizes.items() if size > ranges[name][0])
    unique = [one for place, one in enumerate(found) if one not in found[:place]]
    return [
        one
        for one in unique
        if not any(other is not one and all(other[name] >= one[name] for name in ranges) for other in unique)
    ]


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
