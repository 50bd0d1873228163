"""The check of a plan that must hold in every order: whoever shares bytes is kept apart by the graph itself.

Nodes are numbers here, as steps are: a plan for every order counts one step for each node of one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from onnxtile.errors import CheckFailed
from onnxtile.plan.proof.tenant import BEFORE, Failure, Tenant

_Content: TypeAlias = list[tuple[int, int, str]]
"""Ranges of bytes of the arena, from start to end, and the name of the tensor whose node wrote them."""

_SAME_BYTES = {"view", "cut", "join"}


def races(tenants: Sequence[Tenant], followers: Sequence[Sequence[int]]) -> Iterator[Failure]:
    """Yield a failure for each two of `tenants` (of one arena) that some order lets overwrite each other.

    `followers[n]` are the nodes that depend directly on node n. Two tenants on one byte are lawful where all nodes that use the one come
    before the one that makes the other, where that one alone uses the first beside them and takes its place, or where the same bytes lie
    in both. Takes as many steps as there are pairs on one byte.
    """
    later = _reachable(followers)
    contents = _contents(tenants)
    for one, other in _pairs(tenants):
        if _apart(one, other, later) or _apart(other, one, later):
            continue
        if not _agree(one, other, contents):
            reason = f"{one.name!r} and {other.name!r} share bytes, and the graph does not say which is first"
            yield Failure(reason, (one.name, other.name))


def require_no_races(tenants: Sequence[Tenant], followers: Sequence[Sequence[int]]) -> None:
    """Raise CheckFailed with the first of the `races`, if there is one."""
    for failure in races(tenants, followers):
        raise CheckFailed(f"the plan is not sound in every order: {failure}")


def _reachable(followers: Sequence[Sequence[int]]) -> list[int]:
    """Return for each node the nodes that depend on it, directly or not, as bits."""
    found = [0] * len(followers)
    for node in range(len(followers) - 1, -1, -1):
        for follower in followers[node]:
            found[node] |= found[follower] | 1 << follower
    return found


def _pairs(tenants: Sequence[Tenant]) -> Iterator[tuple[Tenant, Tenant]]:
    """Yield those that share a byte, each two once."""
    live: list[Tenant] = []
    for tenant in sorted((t for t in tenants if t.size), key=lambda t: t.offset):
        live = [other for other in live if other.offset + other.size > tenant.offset]
        yield from ((other, tenant) for other in live)
        live.append(tenant)


def _apart(first: Tenant, second: Tenant, later: Sequence[int]) -> bool:
    """Return whether every use of `first` comes before `second` is made, in every order."""
    if first.kept:
        return False
    maker = min(second.steps)
    if maker == BEFORE:
        return False
    taken = any(take.source == first.name and take.rule == "in place" for take in second.takes)
    return all(later[step] >> maker & 1 or (taken and step == maker) for step in first.steps if step != BEFORE)


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


def _agree(one: Tenant, other: Tenant, contents: Mapping[str, _Content]) -> bool:
    """Return whether the bytes that both share hold the same in both."""
    start = max(one.offset, other.offset)
    end = min(one.offset + one.size, other.offset + other.size)
    return _clipped(contents[one.name], start, end) == _clipped(contents[other.name], start, end)
