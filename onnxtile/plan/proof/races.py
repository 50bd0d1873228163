"""The check of a plan that must hold in every order: whoever shares bytes is kept apart by the graph itself.

Nodes are numbers here, as steps are: a plan for every order counts one step for each node of one of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from onnxtile.errors import CheckFailed
from onnxtile.plan.proof.tenant import BEFORE, Failure, Tenant

_Content: TypeAlias = list[tuple[int, int, str]]
"""Ranges of bytes of the arena, from start to end, and the name of the tensor whose node wrote them."""

_SAME_BYTES = {"view", "cut", "join"}


def races(tenants: Sequence[Tenant], followers: Sequence[Sequence[int]]) -> Iterator[Failure]:
    """Yield a failure for each two of `tenants` (of one arena) found that some order lets overwrite each other; for none, if none do.

    `followers[n]` are the nodes that depend directly on node n. Two tenants on one byte are lawful where all nodes that use the one come
    before the one that makes the other, where that one alone uses the first beside them and takes its place, or where the same bytes lie
    in both. Who is behind one that wrote a byte anew is behind all before that one, too: pairs with a writer between them are passed over.
    """
    ordered = sorted((t for t in tenants if t.size), key=lambda t: min(t.steps))
    pairs = [(ordered[i], ordered[k]) for i, k in sorted(set(_meetings(ordered)))]
    steps = [_steps_before(one, other) for one, other in pairs]
    asked = {(step, min(other.steps)) for (_, other), found in zip(pairs, steps, strict=True) for step in found or ()}
    lawful = _reached(asked, followers)
    for (one, other), found in zip(pairs, steps, strict=True):
        if found is None or any((step, min(other.steps)) not in lawful for step in found):
            reason = f"{one.name!r} and {other.name!r} share bytes, and the graph does not say which is first"
            yield Failure(reason, (one.name, other.name))


def require_no_races(tenants: Sequence[Tenant], followers: Sequence[Sequence[int]]) -> None:
    """Raise CheckFailed with the first of the `races`, if there is one."""
    for failure in races(tenants, followers):
        raise CheckFailed(f"the plan is not sound in every order: {failure}")


_AT_ONCE = 8192
"""Nodes for which it is found at once who is before them: a bit each, for every node."""


def _reached(pairs: Iterable[tuple[int, int]], followers: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """Return which of `pairs` of nodes are a node and one that depends on it, directly or not."""
    asked: dict[int, list[tuple[int, int]]] = {}
    for pair in pairs:
        asked.setdefault(pair[1] // _AT_ONCE, []).append(pair)
    found: set[tuple[int, int]] = set()
    for part, queries in asked.items():
        first, later = part * _AT_ONCE, [0] * len(followers)
        for node in range(min(first + _AT_ONCE, len(followers)) - 1, -1, -1):
            for follower in followers[node]:
                later[node] |= later[follower] | (1 << follower - first if 0 <= follower - first < _AT_ONCE else 0)
        found.update((node, end) for node, end in queries if later[node] >> end - first & 1)
    return found


def _steps_before(first: Tenant, second: Tenant) -> list[int] | None:
    """Return the nodes that must be before the maker of `second` for `first` to be done with by then; None where it never is."""
    maker = min(second.steps)
    if first.kept or maker == BEFORE:
        return None
    taken = any(take.source == first.name and take.rule == "in place" for take in second.takes)
    return [step for step in first.steps if step != BEFORE and not (taken and step == maker)]


_Span: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Bytes of the arena, from start to end, and the numbers of the tenants that may still be read there."""


def _meetings(tenants: Sequence[Tenant]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of two tenants that share a byte and hold other bytes there, the first made first.

    Of those that share a byte with a tenant, only these: all since the last that wrote the byte anew, and that one.
    """
    contents = _contents(tenants)
    spans: list[_Span] = []
    for number, tenant in enumerate(tenants):
        low, high = tenant.offset, tenant.offset + tenant.size
        first = bisect_right(spans, low, key=lambda span: span[1])
        end = bisect_left(spans, high, key=lambda span: span[0])
        old = spans[first:end]
        new: list[_Span] = [(start, low, held) for start, _, held in old[:1] if start < low]
        for start, stop, held in _covered(old, low, high):
            for begin, until, writer in _clipped(contents[tenant.name], start, stop):
                differ = [
                    one
                    for one in held
                    if _clipped(contents[tenants[one].name], begin, until) != [(begin, until, writer)]
                ]
                yield from ((one, number) for one in differ)
                new.append((begin, until, (number,) if writer == tenant.name else (*held, number)))
        new += ((high, stop, held) for _, stop, held in old[-1:] if high < stop)
        spans[first:end] = _joined(new)


def _covered(spans: Sequence[_Span], low: int, high: int) -> Iterator[_Span]:
    """Yield `spans` cut to the bytes from `low` to `high`, and what lies between them, which nobody holds."""
    for start, end, held in spans:
        if low < start:
            yield low, start, ()
        yield max(start, low), min(end, high), held
        low = min(end, high)
    if low < high:
        yield low, high, ()


def _joined(spans: Iterable[_Span]) -> list[_Span]:
    """Return `spans` with neighbours that the same tenants hold made one."""
    found: list[_Span] = []
    for start, end, held in spans:
        if found and found[-1][2] == held and found[-1][1] == start:
            found[-1] = (found[-1][0], end, held)
        else:
            found.append((start, end, held))
    return found


def _contents(tenants: Sequence[Tenant]) -> Mapping[str, _Content]:
    """Return what lies in the bytes of each tenant: who wrote them, from where to where."""
    found: dict[str, _Content] = {}
    for tenant in sorted(tenants, key=lambda t: min(t.steps)):
        start, end = tenant.offset, tenant.offset + tenant.size
        taken = [take.source for take in tenant.takes if take.rule in _SAME_BYTES and take.source in found]
        pieces: list[tuple[int, int, str]] = []
        for piece in sorted(piece for source in taken for piece in _clipped(found[source], start, end)):
            if piece[0] > start:
                pieces.append((start, piece[0], tenant.name))
            pieces.append(piece)
            start = max(start, piece[1])
        if start < end:
            pieces.append((start, end, tenant.name))
        found[tenant.name] = pieces
    return found


def _clipped(content: _Content, start: int, end: int) -> _Content:
    clipped = ((max(first, start), min(last, end), name) for first, last, name in content)
    joined: list[tuple[int, int, str]] = []
    for first, last, name in (piece for piece in clipped if piece[0] < piece[1]):
        if joined and joined[-1][1:] == (first, name):
            first = joined.pop()[0]  # noqa: PLW2901 - the piece goes on
        joined.append((first, last, name))
    return joined
