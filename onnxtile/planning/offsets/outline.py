"""The outline of a buffer: the parts of its bytes, each with a live range of its own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple


class LivePart(NamedTuple):
    """The bytes [start, end) of a buffer, counted from its start, are live in the steps [lower, upper)."""

    start: int
    end: int
    lower: int
    upper: int


def union(parts: Iterable[LivePart]) -> tuple[LivePart, ...]:
    """Return disjoint parts of the same bytes and steps, ordered by bytes, then by steps: the same for every way to cut them.

    Neighbouring bytes with equal live ranges are one part. Parts without bytes or steps are left out.
    """
    given = sorted(part for part in parts if part.start < part.end and part.lower < part.upper)
    cuts = sorted({byte for part in given for byte in (part.start, part.end)})
    found: list[LivePart] = []
    # The live ranges of the bytes before the present ones, and the place of their first part in `found`.
    before: tuple[tuple[int, int], ...] = ()
    begin, taken = 0, 0
    active: list[LivePart] = []
    for start, end in pairwise(cuts):
        while taken < len(given) and given[taken].start <= start:
            active.append(given[taken])
            taken += 1
        active = [part for part in active if part.end > start]
        live = joined_ranges((part.lower, part.upper) for part in active)
        if live == before and found and found[-1].end == start:
            found[begin:] = [part._replace(end=end) for part in found[begin:]]
            continue
        before, begin = live, len(found)
        found += (LivePart(start, end, lower, upper) for lower, upper in live)
    return tuple(found)


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the steps of `ranges` as ordered ranges with steps between them."""
    found: list[tuple[int, int]] = []
    for lower, upper in sorted(ranges):
        if found and lower <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], upper))
        else:
            found.append((lower, upper))
    return tuple(found)


def rounded(parts: Iterable[LivePart], unit: int) -> tuple[LivePart, ...]:
    """Return `parts` with their bytes rounded outwards to multiples of `unit`."""
    return union(part._replace(start=part.start // unit * unit, end=-(-part.end // unit) * unit) for part in parts)
