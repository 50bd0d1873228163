"""The outline of a buffer: the parts of its bytes, each with a live range of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def by_steps(parts: Iterable[LivePart]) -> Iterator[LivePart]:
    """Yield the same bytes and steps, cut by steps: as many bytes in a row as are live together, for as long as they are.

    >>> [tuple(part) for part in by_steps([LivePart(0, 4, 1, 3), LivePart(4, 8, 0, 3)])]
    [(4, 8, 0, 1), (0, 8, 1, 3)]
    """
    parts = sorted(parts)
    steps = sorted({step for part in parts for step in (part.lower, part.upper)})
    open_: dict[tuple[int, int], int] = {}
    for step in steps:
        runs: list[tuple[int, int]] = []
        for part in parts:
            if part.lower <= step < part.upper:
                is_next = bool(runs) and runs[-1][1] == part.start
                runs.append((runs.pop()[0] if is_next else part.start, part.end))
        for run in [run for run in open_ if run not in runs]:
            yield LivePart(*run, open_.pop(run), step)
        open_.update((run, step) for run in runs if run not in open_)
