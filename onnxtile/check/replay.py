"""Replays the writes and reads of bytes that several tensors share, and finds overwritten tensors and unlawful aliases.

A view, and a part that is taken or joined in place, writes nothing: it holds the bytes that the node of its operand wrote. Any other tensor
writes all its bytes. That is lawful over an operand that the operator may write over and no other node still reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

from onnxtile.check.addresses import Holder, Placing, bytes_read
from onnxtile.check.graph import GraphNode, Value
from onnxtile.check.operators import DECLARED, PURE_DOMAINS
from onnxtile.check.sharing import Link, RunOrder, links
from onnxtile.declare.plan_document import SHARED, PlanFailure, PlannedBuffer
from onnxtile.system.dataclass import dataclass

# The last writer of each byte.

WrittenRange: TypeAlias = tuple[int, int, int]
"""The bytes from start to end, and the number of their last writer."""

NOBODY = -1


class Ledger:
    """Ranges of bytes, in order and without gaps, each with the number of its last writer; NOBODY at first."""

    def __init__(self) -> None:
        self._starts = [-(2**62)]
        self._writers = [NOBODY]

    def writers(self, start: int, end: int) -> list[WrittenRange]:
        """Return the writers of the bytes from `start` to `end`."""
        first, writers = bisect_right(self._starts, start) - 1, []
        if first + 1 == len(self._starts) or self._starts[first + 1] >= end:
            return [(start, end, self._writers[first])] if start < end else []
        for i in range(first, len(self._starts)):
            low, high = (
                max(self._starts[i], start),
                end if i + 1 == len(self._starts) else min(self._starts[i + 1], end),
            )
            if low >= end:
                break
            writers.append((low, high, self._writers[i]))
        return joint(writers)

    def write(self, start: int, end: int, writer: int) -> list[WrittenRange]:
        """Note that `writer` wrote the bytes from `start` to `end`; return the writers before."""
        before = self.writers(start, end)
        first, last = bisect_right(self._starts, start) - 1, bisect_right(self._starts, end) - 1
        after = self._writers[last]
        starts, writers = [start, end], [writer, after]
        if self._starts[first] < start:
            starts, writers = [self._starts[first], *starts], [self._writers[first], *writers]
        self._starts[first : last + 1], self._writers[first : last + 1] = starts, writers
        return before


def joint(pieces: Iterable[WrittenRange]) -> list[WrittenRange]:
    """Return `pieces`, which are in order, with adjacent ranges of one writer merged."""
    ranges: list[WrittenRange] = []
    for start, end, writer in pieces:
        if ranges and ranges[-1][1:] == (start, writer):
            ranges[-1] = (ranges[-1][0], end, writer)
        elif start < end:
            ranges.append((start, end, writer))
    return ranges


def clipped(pieces: Sequence[WrittenRange], start: int, end: int) -> list[WrittenRange]:
    """Return the part of `pieces` from `start` to `end`."""
    return [(max(low, start), min(high, end), writer) for low, high, writer in pieces if low < end and start < high]


_BEFORE = -1
"""The step at which inputs are written: before the first."""


@dataclass(frozen=True)
class OrderRule:
    """`later` must run after `earlier` in every order; `names` are the tensors whose bytes are the reason."""

    earlier: GraphNode
    later: GraphNode
    names: tuple[str, str]


@dataclass
class Shared:
    """The result of a replay: the links that the plan uses, the failures, and the rules for plans of every order."""

    links: dict[Value, list[Link]] = field(default_factory=dict)
    failures: list[PlanFailure] = field(default_factory=list)
    rules: list[OrderRule] = field(default_factory=list)


def replay(placing: Placing) -> Shared:
    """Replay each holder of `placing` that has several tensors."""
    shared = Shared()
    rules = shared.rules if placing.terms.every_order else None
    for holder in placing.holders:
        if len(holder.members) > 1:
            used = _used(holder, placing)
            shared.links.update(used)
            shared.failures += _unconnected(holder, used, placing, tuple(_states_in(holder, placing)))
            if holder.row.size:
                shared.failures += _Replay(holder, used, placing, rules).run()
    return shared


def _used(holder: Holder, placing: Placing) -> dict[Value, list[Link]]:
    """Return the links between members of `holder` that lie where these links say."""
    members = set(holder.members)
    makers = dict.fromkeys(maker for value in holder.members if (maker := value.maker) is not None)
    links_of: dict[Value, list[Link]] = {}
    for node in makers:
        if members.isdisjoint(node.reads()):
            continue
        for link in links(node, placing.states):
            both = members.issuperset((link.result, link.operand))
            if both and placing.rows[link.result].offset == placing.rows[link.operand].offset + link.at:
                links_of.setdefault(link.result, []).append(link)
    return links_of


def _states_in(holder: Holder, placing: Placing) -> Iterator[tuple[Value, Value]]:
    """Yield the inputs and outputs in `holder` that are one state and have one address."""
    members = set(holder.members)
    for before, after in placing.states.next_states.items():
        if {before, after} <= members and placing.rows[before].offset == placing.rows[after].offset:
            yield before, after


def _unconnected(
    holder: Holder, used: dict[Value, list[Link]], placing: Placing, states: Iterable[tuple[Value, Value]]
) -> Iterator[PlanFailure]:
    """Yield each member of `holder` that has bytes, and that no lawful alias ties to its owner.

    A tensor without elements touches no byte, so its address says nothing; that it has none was compared with its shape before.
    """
    near: dict[Value, list[Value]] = {}
    for link in (link for several in used.values() for link in several):
        near.setdefault(link.result, []).append(link.operand)
        near.setdefault(link.operand, []).append(link.result)
    for before, after in states:
        near.setdefault(before, []).append(after)
        near.setdefault(after, []).append(before)
    reached, todo = {holder.members[0]}, [holder.members[0]]
    while todo:
        for value in near.get(todo.pop(), ()):
            if value not in reached:
                reached.add(value)
                todo.append(value)
    for value in holder.members:
        row = placing.rows[value]
        if value not in reached and row.size:
            maker = value.maker
            operator = "a graph input" if maker is None else maker.op_type
            reason, hint = f"{row.place} ({operator}) is no lawful alias of {holder.row.place}", ""
            if maker is not None and maker.function is None and maker.domain not in PURE_DOMAINS:
                reason += f": no entry point of the group {DECLARED} lets {maker.operator} write over it"
                hint = "docs/extending.md, An operator, says how a package declares that"
            yield PlanFailure(reason, (row.name, holder.row.name), row.first, hint=hint)


class _Read(NamedTuple):
    """A read of the bytes from `start` to `end` of the arena, which are of the member with this number."""

    member: int
    start: int
    end: int


class _Replay:
    """The bytes of one holder. A writer is the place of the tensor among the members."""

    def __init__(
        self,
        holder: Holder,
        used: dict[Value, list[Link]],
        placing: Placing,
        rules: list[OrderRule] | None,
    ) -> None:
        self._members = holder.members
        self._place = {value: i for i, value in enumerate(holder.members)}
        self._used = used
        self._rows: list[PlannedBuffer] = [placing.rows[value] for value in holder.members]
        self._line = placing.line
        self._states = placing.states
        self._rules = rules
        self._ledger = Ledger()
        self._expected: dict[int, list[WrittenRange]] = {}
        self._writes = [self._written(i) for i in range(len(self._rows))]
        self._holding: dict[int, list[int]] = {}
        """By writer, the members that hold its bytes; only for plans of every order."""

    def run(self) -> Iterator[PlanFailure]:
        born: dict[int, list[int]] = {}
        read: dict[int, list[_Read]] = {}
        for value, i in self._place.items():
            if not self._rows[i].size:
                continue
            born.setdefault(_BEFORE if value.maker is None else self._line.first(value), []).append(i)
            for node in self._line.readers.get(value, ()):
                read.setdefault(self._line.step_of[node], []).extend(self._reads(node, value, i))
        for step in sorted({*born, *read}):
            yield from self._changed(dict.fromkeys(read.get(step, ())), step)
            yield from self._write(born.get(step, ()), dict.fromkeys(read.get(step, ())), step)
        kept = (i for value, i in self._place.items() if value in self._line.kept and self._rows[i].size)
        yield from self._changed((_Read(i, self._rows[i].offset, self._rows[i].end) for i in kept), None)

    def _reads(self, node: GraphNode, value: Value, i: int) -> Iterator[_Read]:
        """Yield the bytes that `node` reads of `value`, the member `i`."""
        row = self._rows[i]
        spans = bytes_read(node, value, self._states)
        if spans is None:
            yield _Read(i, row.offset, row.end)
        else:
            yield from (_Read(i, row.offset + start, row.offset + end) for start, end in spans)

    def _changed(self, reads: Iterable[_Read], step: int | None) -> Iterator[PlanFailure]:
        """Yield the members of which bytes that are read have changed since they were written."""
        for i, start, end in reads:
            row = self._rows[i]
            writers, expected = self._ledger.writers(start, end), clipped(self._expected.get(i, []), start, end)
            if writers == expected:
                continue
            other = next(
                (self._rows[w].name for _, _, w in writers if w not in {i, *(w for *_, w in expected)}), row.name
            )
            when = "at the end of the run" if step is None else "when it is read"
            yield PlanFailure(f"{row.place} is overwritten {when}, by {other!r}", (row.name, other), step)

    def _write(self, born: Sequence[int], read: Iterable[_Read], step: int) -> Iterator[PlanFailure]:
        """Write the members `born` in one step, in which `read` are read."""
        for i in born:
            for start, end in self._writes[i]:
                yield from self._over_what_is_read(i, start, end, read, step)
                before = self._ledger.write(start, end, i)
                if self._rules is not None:
                    self._note_order(i, before, self._rules)
        for i in born:
            row = self._rows[i]
            self._expected[i] = self._ledger.writers(row.offset, row.end)
            for writer in {writer for *_, writer in self._expected[i]} if self._rules is not None else ():
                self._holding.setdefault(writer, []).append(i)
            if self._expected[i] != self._should(i):
                yield PlanFailure(f"{row.place} is written over in the step that makes it", (row.name,), step)

    def _should(self, i: int) -> list[WrittenRange]:
        """Return the expected writers of the bytes of member `i`: those in place by its links, and its own node."""
        row, pieces = self._rows[i], []
        for link in (link for link in self._used.get(self._members[i], ()) if link.holds):
            pieces += clipped(self._expected.get(self._place[link.operand], []), row.offset, row.end)
        written = [(start, end, i) for start, end in self._writes[i]]
        if not pieces:
            return written
        writers: list[WrittenRange] = []
        for start, end, writer in sorted((*pieces, *written)):
            low = max(start, writers[-1][1]) if writers else start
            if low < end:
                writers.append((low, end, writer))
        return joint(writers)

    def _written(self, i: int) -> list[tuple[int, int]]:
        """Return the bytes that the node of member `i` writes: all except those already in place."""
        row, there = self._rows[i], []
        if not row.size:
            return []
        for link in self._used.get(self._members[i], ()):
            if link.holds:
                operand = self._rows[self._place[link.operand]]
                there.append((max(row.offset, operand.offset), min(row.end, operand.end)))
        ranges, at = [], row.offset
        for start, end in (*sorted(there), (row.end, row.end)):
            if at < start:
                ranges.append((at, start))
            at = max(at, end)
        return ranges

    def _over_what_is_read(
        self, i: int, start: int, end: int, read: Iterable[_Read], step: int
    ) -> Iterator[PlanFailure]:
        """Yield the members in `read` whose bytes member `i` overwrites, unless only its own node reads them and may write over them."""
        value, maker = self._members[i], self._members[i].maker
        over = {link.operand for link in self._used.get(value, ()) if not link.holds}
        for k, low, high in read:
            other, row = self._members[k], self._rows[k]
            if not (low < end and start < high):
                continue
            together = [node for node in self._line.readers[other] if self._line.step_of[node] == step]
            if other in over and together == [maker]:
                continue
            reason = f"{self._rows[i].place} is written over {row.place}, which is read in the same step"
            yield PlanFailure(reason, (self._rows[i].name, row.name), step)

    def _note_order(self, i: int, before: Iterable[WrittenRange], rules: list[OrderRule]) -> None:
        """Note that every user of the bytes `before`, which member `i` overwrites, must run before its node."""
        maker = self._members[i].maker
        for start, end, writer in before if maker is not None else ():
            for k in self._holding.get(writer, ()):
                row = self._rows[k]
                if maker is not None and row.offset < end and start < row.end:
                    users = self._line.users(self._members[k])
                    rules += (
                        OrderRule(user, maker, (row.name, self._rows[i].name)) for user in users if user is not maker
                    )


# The check of a plan for every order: the graph itself orders all tensors that share bytes.

_AT_ONCE = 4096
"""The number of nodes whose predecessors are found together, one bit each."""


def disorders(placing: Placing, shared: Shared) -> Iterator[PlanFailure]:
    """Yield a failure for each two tensors that some order lets overwrite each other.

    `shared` has the rules of tensors in one holder. Of two holders on one byte, every user of the first must run before every first writer
    of the second. It suffices to check holders that follow each other on a byte, since the rule is transitive.
    """
    line = placing.line
    for holder in placing.holders:
        if holder.row.name == SHARED and not holder.members:
            yield PlanFailure("one workspace for all kernels holds for one order only", (holder.row.name,))
    yield from _broken([*shared.rules, *_between(placing.holders, shared.links, line)], line)


def _between(holders: Sequence[Holder], used: dict[Value, list[Link]], line: RunOrder) -> Iterator[OrderRule]:
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


def _starts(holder: Holder, used: dict[Value, list[Link]]) -> list[GraphNode]:
    """Return the first nodes that write to `holder`: every other writer comes after one of them."""
    if holder.user is not None:
        return [holder.user]
    makers = (value.maker for value in holder.members if value not in used)
    return list(dict.fromkeys(maker for maker in makers if maker is not None))


def _ends(holder: Holder, line: RunOrder) -> list[GraphNode]:
    """Return the last users of `holder`: every other user comes before one of them."""
    if holder.user is not None:
        return [holder.user]
    last_users: dict[GraphNode, None] = {}
    makers = {value.maker for value in holder.members if line.readers.get(value)}
    for value in holder.members:
        users = line.users(value)
        last_users.update((user, None) for user in users if user not in makers)
    return list(last_users)


def _broken(rules: Iterable[OrderRule], line: RunOrder) -> Iterator[PlanFailure]:
    """Yield a failure for each of `rules` that the graph does not keep."""
    open_ = [rule for rule in rules if not any(value.maker is rule.earlier for value in line.reads[rule.later])]
    positions = {node: number for number, node in enumerate(line.nodes)}
    followers: list[set[int]] = [set() for _ in line.nodes]
    for number, node in enumerate(line.nodes):
        for value in line.reads[node]:
            maker = value.maker
            if maker in positions:
                followers[positions[maker]].add(number)
    targets = list(dict.fromkeys(positions[rule.later] for rule in open_))
    broken: set[OrderRule] = set()
    for at in range(0, len(targets), _AT_ONCE):
        bit = {target: 1 << i for i, target in enumerate(targets[at : at + _AT_ONCE])}
        reached = _reached(followers, bit)
        chosen = (rule for rule in open_ if positions[rule.later] in bit)
        broken.update(rule for rule in chosen if not reached[positions[rule.earlier]] & bit[positions[rule.later]])
    for rule in open_:
        if rule in broken:
            first, second = rule.names
            yield PlanFailure(
                f"{first!r} and {second!r} share bytes, and the graph does not say which is first", rule.names
            )
            broken.discard(rule)


def _reached(followers: Sequence[set[int]], bit: dict[int, int]) -> list[int]:
    """Return for each node the bits of those that depend on it, directly or not."""
    reached = [0] * len(followers)
    for number in range(len(followers) - 1, -1, -1):
        for follower in followers[number]:
            reached[number] |= reached[follower] | bit.get(follower, 0)
    return reached
