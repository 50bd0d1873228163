"""Proofs that rows do not fit into an arena: trees of decisions, each of which puts one of two rows below the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

OffsetTree: TypeAlias = dict[str, Any]
"""{"chain": rows, each above the last} or {"pair": [a, b], "sides": [the tree with a below b, the tree with b below a]}."""


class FixedRow(NamedTuple):
    """A row of `size` bytes that is live in the steps from `first` to `last`; `pin` is its offset, where that is given."""

    size: int
    first: int
    last: int
    pin: int | None = None


class _Ends(NamedTuple):
    """The chains of rows, each above the last, that end in a row, and that begin in it: their bytes and rows."""

    bottom: dict[str, tuple[int, list[str]]]
    top: dict[str, tuple[int, list[str]]]


def offset_tree(rows: Mapping[str, FixedRow], limit: int, steps: int) -> OffsetTree | None:
    """Return the tree that proves that `rows` need more than `limit` bytes; None where `steps` decisions do not find it."""
    pairs = [(a, b) for a, b in combinations(sorted(rows), 2) if _meet(rows[a], rows[b])]
    budget = [steps]
    return _tree(rows, pairs, limit, {}, budget)


def _meet(one: FixedRow, other: FixedRow) -> bool:
    return max(one.first, other.first) <= min(one.last, other.last)


def _tree(
    rows: Mapping[str, FixedRow],
    pairs: list[tuple[str, str]],
    limit: int,
    above: dict[str, set[str]],
    budget: list[int],
) -> OffsetTree | None:
    budget[0] -= 1
    if budget[0] < 0:
        return None
    ends = _ends(rows, above)
    chain = next(_too_long(rows, ends, limit), None)
    if chain is not None:
        return {"chain": chain}
    pair = _next_pair(pairs, ends, above, limit)
    if pair is None:
        return None
    low, high = pair
    sides = []
    for below, over in ((low, high), (high, low)):
        tree = _tree(rows, pairs, limit, {**above, below: above.get(below, set()) | {over}}, budget)
        if tree is None:
            return None
        sides.append(tree)
    return {"pair": [low, high], "sides": sides}


def _ends(rows: Mapping[str, FixedRow], above: Mapping[str, set[str]]) -> _Ends:
    below: dict[str, set[str]] = {}
    for low, highs in above.items():
        for high in highs:
            below.setdefault(high, set()).add(low)
    return _Ends(_longest(rows, below, bottom=True), _longest(rows, above, bottom=False))


def _longest(
    rows: Mapping[str, FixedRow], beside: Mapping[str, set[str]], *, bottom: bool
) -> dict[str, tuple[int, list[str]]]:
    """Return the longest chain of each row; pins at the bottom count as bytes below."""
    found: dict[str, tuple[int, list[str]]] = {}

    def longest(name: str) -> tuple[int, list[str]]:
        if name not in found:
            size, chain = max((longest(other) for other in sorted(beside.get(name, ()))), default=(0, []))
            pin = rows[name].pin
            if bottom and pin is not None and pin >= size:
                size, chain = pin, []
            found[name] = size + rows[name].size, [*chain, name] if bottom else [name, *chain]
        return found[name]

    for name in rows:
        longest(name)
    return found


def _too_long(rows: Mapping[str, FixedRow], ends: _Ends, limit: int) -> Iterator[list[str]]:
    """Yield the chains that end above the limit, or above the offset of a pinned row."""
    for name, (size, chain) in ends.bottom.items():
        pin = rows[name].pin
        if size > limit or (pin is not None and size - rows[name].size > pin):
            yield chain


def _all_above(above: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the rows above each row, directly or not."""
    found: dict[str, set[str]] = {}

    def over(name: str) -> set[str]:
        if name not in found:
            direct = above.get(name, set())
            found[name] = direct.union(*map(over, sorted(direct)))
        return found[name]

    for name in above:
        over(name)
    return found


def _next_pair(
    pairs: list[tuple[str, str]], ends: _Ends, above: Mapping[str, set[str]], limit: int
) -> tuple[str, str] | None:
    """Return the pair to decide next: one of which both sides are impossible at once, or one, or which leaves the least room."""
    best, most = None, (-1, 0)
    over = _all_above(above)
    for low, high in pairs:
        # A pair that other pairs have decided closes no circle, and lengthens no chain.
        if high in over.get(low, ()) or low in over.get(high, ()):
            continue
        sides = [ends.bottom[a][0] + ends.top[b][0] for a, b in ((low, high), (high, low))]
        room = (sum(side > limit for side in sides), min(sides) if max(sides) <= limit else sum(sides))
        if room > most:
            best, most = (low, high), room
    return best
