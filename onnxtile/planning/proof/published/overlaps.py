"""Checks that no two buffers live at one step share a byte, by a sweep over the steps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.placing import Holder


def overlaps(holders: Iterable[Holder]) -> Iterator[PlanFailure]:
    """Yield a failure for each of `holders` that overlaps a live one at its first step.

    The live ones are sorted by address. As long as none overlap, a new one can overlap only its two neighbours. One that does is left out,
    so this stays true. It takes about n log n steps.
    """
    by_arena: dict[str, list[Holder]] = {}
    for holder in holders:
        if holder.row.size > 0:
            by_arena.setdefault(holder.row.arena, []).append(holder)
    for together in by_arena.values():
        yield from _swept(together)


def _swept(holders: list[Holder]) -> Iterator[PlanFailure]:
    births = sorted(range(len(holders)), key=lambda i: holders[i].first)
    deaths = sorted(range(len(holders)), key=lambda i: holders[i].last)
    live: list[tuple[int, int]] = []
    placed: set[int] = set()
    gone = 0
    for i in births:
        holder = holders[i]
        while holders[deaths[gone]].last < holder.first:
            dead = deaths[gone]
            if dead in placed:
                del live[bisect_left(live, (holders[dead].row.offset, dead))]
            gone += 1
        at = bisect_left(live, (holder.row.offset, -1))
        touched = next((other for _, other in live[max(at - 1, 0) : at + 1] if _meet(holders[other], holder)), None)
        if touched is None:
            insort(live, (holder.row.offset, i))
            placed.add(i)
            continue
        other = holders[touched].row
        reason = f"{other.place} and {holder.row.place} of {other.arena!r} are live together"
        yield PlanFailure(reason, (other.name, holder.row.name), holder.first)


def _meet(one: Holder, other: Holder) -> bool:
    return one.row.offset < other.row.end and other.row.offset < one.row.end
