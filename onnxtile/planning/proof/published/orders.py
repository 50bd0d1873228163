"""The check of a plan for every order: the graph itself orders all tensors that share bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.ledger import NOBODY, Ledger
from onnxtile.planning.proof.published.links import Link
from onnxtile.planning.proof.published.placing import SHARED, Holder
from onnxtile.planning.proof.published.replay import OrderRule
from onnxtile.planning.proof.published.timeline import RunOrder

_AT_ONCE = 4096
"""The number of nodes whose predecessors are found together, one bit each."""


def disorders(
    holders: Sequence[Holder], used: dict[ir.Value, list[Link]], rules: Iterable[OrderRule], line: RunOrder
) -> Iterator[PlanFailure]:
    """Yield a failure for each two tensors that some order lets overwrite each other.

    `rules` are the rules of tensors in one holder. Of two holders on one byte, every user of the first must run before every first writer
    of the second. It suffices to check holders that follow each other on a byte, since the rule is transitive.
    """
    for holder in holders:
        if holder.row.name == SHARED and not holder.members:
            yield PlanFailure("one workspace for all kernels holds for one order only", (holder.row.name,))
    yield from _broken([*rules, *_between(holders, used, line)], line)


def _between(holders: Sequence[Holder], used: dict[ir.Value, list[Link]], line: RunOrder) -> Iterator[OrderRule]:
    arenas: dict[str, Ledger] = {}
    for i in sorted(range(len(holders)), key=lambda i: holders[i].first):
        row = holders[i].row
        if not row.size:
            continue
        before = arenas.setdefault(row.arena, Ledger()).write(row.offset, row.end, i)
        for k in {writer for *_, writer in before if writer != NOBODY}:
            names = (holders[k].row.name, row.name)
            starts = _starts(holders[i], used)
            yield from (OrderRule(end, start, names) for end in _ends(holders[k], line) for start in starts)


def _starts(holder: Holder, used: dict[ir.Value, list[Link]]) -> list[ir.Node]:
    """Return the first nodes that write to `holder`: every other writer comes after one of them."""
    if holder.user is not None:
        return [holder.user]
    makers = (value.producer() for value in holder.members if value not in used)
    return list(dict.fromkeys(maker for maker in makers if maker is not None))


def _ends(holder: Holder, line: RunOrder) -> list[ir.Node]:
    """Return the last users of `holder`: every other user comes before one of them."""
    if holder.user is not None:
        return [holder.user]
    found: dict[ir.Node, None] = {}
    makers = {value.producer() for value in holder.members if line.readers.get(value)}
    for value in holder.members:
        users = line.users(value)
        found.update((user, None) for user in users if user not in makers)
    return list(found)


def _broken(rules: Iterable[OrderRule], line: RunOrder) -> Iterator[PlanFailure]:
    """Yield a failure for each of `rules` that the graph does not keep."""
    open_ = [rule for rule in rules if not _is_direct(rule, line)]
    place = {node: number for number, node in enumerate(line.nodes)}
    followers: list[set[int]] = [set() for _ in line.nodes]
    for number, node in enumerate(line.nodes):
        for value in line.reads[node]:
            maker = value.producer()
            if maker in place:
                followers[place[maker]].add(number)
    targets = list(dict.fromkeys(place[rule.later] for rule in open_))
    broken: set[OrderRule] = set()
    for at in range(0, len(targets), _AT_ONCE):
        bit = {target: 1 << i for i, target in enumerate(targets[at : at + _AT_ONCE])}
        reached = _reached(followers, bit)
        chosen = (rule for rule in open_ if place[rule.later] in bit)
        broken.update(rule for rule in chosen if not reached[place[rule.earlier]] & bit[place[rule.later]])
    for rule in open_:
        if rule in broken:
            one, other = rule.names
            yield PlanFailure(
                f"{one!r} and {other!r} share bytes, and the graph does not say which is first", rule.names
            )
            broken.discard(rule)


def _is_direct(rule: OrderRule, line: RunOrder) -> bool:
    return any(value.producer() is rule.earlier for value in line.reads[rule.later])


def _reached(followers: Sequence[set[int]], bit: dict[int, int]) -> list[int]:
    """Return for each node the bits of those that depend on it, directly or not."""
    found = [0] * len(followers)
    for number in range(len(followers) - 1, -1, -1):
        for follower in followers[number]:
            found[number] |= found[follower] | bit.get(follower, 0)
    return found
