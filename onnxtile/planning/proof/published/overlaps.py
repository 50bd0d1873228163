"""Checks that no two buffers live at one step share a byte, by a sweep over the steps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.placing import Holder


def overlaps(holders: Iterable[Holder]) -> Iterator[PlanFailure]:
    """Yield a failure for each of `holders` of which a part overlaps a live one at its first step.

    The live ones are sorted by address. As long as none overlap, a new one can overlap only its two neighbours. One that does is left out,
    so this stays true. It takes about n log n steps.
    """
    by_arena: dict[str, list[Holder]] = {}
    for holder in holders:
        if holder.row.size > 0:
            by_arena.setdefault(holder.row.arena, []).append(holder)
    for together in by_arena.values():
        yield from _swept(list(_pieces(together)))


@dataclass(frozen=True)
class _PlacedPiece:
    """Live bytes of a holder at their address."""

    holder: Holder
    start: int
    end: int
    first: int
    last: int


def _pieces(holders: Iterable[Holder]) -> Iterator[_PlacedPiece]:
    for holder in holders:
        offset = holder.row.offset
        lives = (
            piece for piece in holder.pieces if piece.first <= piece.last
        )  # a part of no step is a fault of its own
        yield from (_PlacedPiece(holder, offset + p.start, offset + p.end, p.first, p.last) for p in lives)


def _swept(pieces: list[_PlacedPiece]) -> Iterator[PlanFailure]:
    births = sorted(range(len(pieces)), key=lambda i: pieces[i].first)
    deaths = sorted(range(len(pieces)), key=lambda i: pieces[i].last)
    live: list[tuple[int, int]] = []
    placed: set[int] = set()
    gone = 0
    for i in births:
        piece = pieces[i]
        while pieces[deaths[gone]].last < piece.first:
            dead = deaths[gone]
            if dead in placed:
                del live[bisect_left(live, (pieces[dead].start, dead))]
            gone += 1
        at = bisect_left(live, (piece.start, -1))
        touched = next((other for _, other in live[max(at - 1, 0) : at + 1] if _meet(pieces[other], piece)), None)
        if touched is None:
            insort(live, (piece.start, i))
            placed.add(i)
            continue
        one, other = pieces[touched].holder.row, piece.holder.row
        reason = f"{one.place} and {other.place} of {one.arena!r} are live together"
        yield PlanFailure(reason, (one.name, other.name), piece.first)


def _meet(one: _PlacedPiece, other: _PlacedPiece) -> bool:
    return one.start < other.end and other.start < one.end
