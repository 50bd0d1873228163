"""The rows of one graph, each compared with its value."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from onnxtile.check.graph import Graph, GraphNode, Value
from onnxtile.check.operators import TAKES_PARTS
from onnxtile.check.sharing import RunOrder, SharedStates, held, runs_read
from onnxtile.declare.layout_rules import FIXED
from onnxtile.declare.plan_document import (
    NO_SHAPE,
    SHARED,
    UNIQUE,
    UNSAID,
    WORKSPACE,
    Arena,
    PlanDocument,
    PlanFailure,
    PlannedBuffer,
)
from onnxtile.system.dataclass import dataclass

# Whether a schedule is an order in which the nodes of a graph can run.

_NAMED = 3
"""The most nodes in a message."""


def timeline(
    graph: Graph,
    schedule: Sequence[str],
    steps: Sequence[int],
    kept: frozenset[Value],
    given: tuple[Value, ...],
    fixed: FixedPlaces | None = None,
    throughout: frozenset[Value] = frozenset(),
) -> RunOrder | list[PlanFailure]:
    """Return the order in which the nodes of `graph` run, or the faults of `schedule` and `steps` that are not an order of them.

    `fixed` has the rules for tensors of `graph` that a user names.
    """
    waiting: dict[str, list[GraphNode]] = {}
    for node, name in graph.names.items():
        waiting.setdefault(name, []).append(node)
    nodes, unknown = [], []
    for name in schedule:
        if waiting.get(name):
            nodes.append(waiting[name].pop(0))
        else:
            unknown.append(name)
    missing = [name for name, left in waiting.items() if left]
    failures = []
    if unknown:
        failures.append(
            PlanFailure(f"the schedule has {_listed(unknown)}, which the graph does not have, or has fewer times")
        )
    if missing:
        failures.append(PlanFailure(f"the schedule lacks {_listed(missing)}"))
    if len(steps) != len(schedule):
        failures.append(PlanFailure(f"there are {len(steps)} steps for the {len(schedule)} nodes of the schedule"))
    if failures:
        return failures
    apart = frozenset[Value]() if fixed is None else fixed.apart(graph, given)
    order = RunOrder(graph, tuple(nodes), tuple(steps), tuple(schedule), kept, given, apart, throughout)
    return list(_disorder(order)) or order


def _disorder(line: RunOrder) -> Iterator[PlanFailure]:
    """Yield each step that does not follow the one before, and each node that runs before a value it reads is made."""
    before = -1
    for name, step in zip(line.names, line.steps, strict=True):
        if step not in {before, before + 1} or step < 0:
            yield PlanFailure(
                f"step {step} of {name!r} follows step {before}"
                if before >= 0
                else f"{name!r} is in step {step}, not 0"
            )
            return
        before = step
    positions = {node: number for number, node in enumerate(line.nodes)}
    for number, node in enumerate(line.nodes):
        for value in line.reads[node]:
            maker = value.maker
            if maker is None or maker not in positions:
                continue
            if positions[maker] >= number or line.steps[positions[maker]] >= line.steps[number]:
                reason = (
                    f"{line.names[number]!r} reads {value.name!r}, which {line.names[positions[maker]]!r} makes later"
                )
                yield PlanFailure(reason, (value.name,), line.steps[number])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more


# The steps in which each byte of a buffer is live, by the graph: found from the tensors over it and the nodes that read them.


class HeldBytes(NamedTuple):
    """The bytes from `start` to `end` are live from step `first` to step `last` inclusive."""

    start: int
    end: int
    first: int
    last: int


def bytes_read(node: GraphNode, value: Value, states: SharedStates) -> list[tuple[int, int]] | None:
    """Return the bytes of `value` that `node` reads; None for all. A node that takes parts reads no other bytes than these."""
    if node.op_type not in TAKES_PARTS or not node.is_standard or sum(v is value for v in node.inputs) != 1:
        return None
    taken = {link.result: link.at for link in held(node, states) if link.operand is value and link.rule == "part"}
    if set(taken) != {result for result in node.outputs if result.name}:
        is_spread = any(tensor in states.spread for tensor in (value, *node.outputs))
        return runs_read(node) if node.inputs[0] is value and not is_spread else None
    return [(at, at + (result.bytes or 0)) for result, at in taken.items()]


def lives_of(value: Value, offset: int, line: RunOrder, states: SharedStates) -> Iterator[HeldBytes]:
    """Yield the live bytes of the tensor `value` at `offset`; they may overlap."""
    end, first, last = offset + (value.bytes or 0), line.first(value), line.last(value)
    if value in line.throughout:
        yield HeldBytes(offset, end, 0, line.end)
        return
    if value in line.kept or value in line.apart:
        yield HeldBytes(offset, end, first, last)
        return
    yield HeldBytes(offset, end, first, first)
    for node in line.readers.get(value, ()):
        for start, stop in bytes_read(node, value, states) or [(0, end - offset)]:
            yield HeldBytes(offset + start, offset + stop, first, line.step_of[node])


def disjoint(held_bytes: Iterable[HeldBytes]) -> list[HeldBytes]:
    """Return disjoint pieces of the same bytes and steps, by bytes: equal lists hold equal bytes in equal steps."""
    events: dict[int, list[tuple[int, HeldBytes]]] = {}
    for piece in held_bytes:
        if piece.start < piece.end and piece.first <= piece.last:
            events.setdefault(piece.start, []).append((1, piece))
            events.setdefault(piece.end, []).append((-1, piece))
    open_: dict[HeldBytes, int] = {}
    ranges: list[HeldBytes] = []
    before: Sequence[tuple[int, int]] = ()
    since = None
    for byte in sorted(events):
        if since is not None:
            lives = _together(open_)
            if lives == before and ranges and ranges[-1].end == since:
                ranges[-len(lives) :] = [piece._replace(end=byte) for piece in ranges[-len(lives) :]]
            else:
                ranges += (HeldBytes(since, byte, *live) for live in lives)
            before = lives
        for sign, piece in events[byte]:
            open_[piece] = open_.get(piece, 0) + sign
            if not open_[piece]:
                del open_[piece]
        since = byte if open_ else None
    return ranges


def _together(pieces: Iterable[HeldBytes]) -> list[tuple[int, int]]:
    """Return the steps of `pieces` as ranges, inclusive, with steps between them."""
    ranges: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=attrgetter("first")):
        if ranges and piece.first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], piece.last))
        else:
            ranges.append((piece.first, piece.last))
    return ranges


def in_blocks(pieces: Sequence[HeldBytes], unit: int) -> list[HeldBytes]:
    """Return disjoint `pieces` of one buffer in whole blocks of `unit` bytes, which count from its start at 0."""
    whole = [HeldBytes(-(-p.start // unit) * unit, p.end // unit * unit, p.first, p.last) for p in pieces]
    blocks = [piece for piece in whole if piece.start < piece.end]
    shared = [HeldBytes(block, block + unit, p.first, p.last) for p in pieces for block in _cut_blocks(p, unit)]
    for block, together in groupby(sorted(shared), key=attrgetter("start")):
        blocks += (HeldBytes(block, block + unit, *live) for live in _together(together))
    return blocks


def _cut_blocks(piece: HeldBytes, unit: int) -> set[int]:
    """Return the starts of the blocks that `piece` has bytes of, but not all."""
    first, last = piece.start // unit * unit, (piece.end - 1) // unit * unit
    return ({first} if first < piece.start else set()) | ({last} if piece.end < last + unit else set())


@dataclass(frozen=True)
class SizedBuffer(PlannedBuffer):
    """A row of a plan over ranges at one size of each dimension; `most` are its bytes at the largest sizes."""

    most: int = UNSAID


_NAMED_PARTS = 3
"""The most parts in a message."""


@dataclass(frozen=True)
class Holder:
    """A row that owns its bytes, the `members` in them (itself first), and the steps from `first` to `last` in which one is live.

    A workspace has no members; `user` is its node, None for one of several nodes. `unit` is its alignment in bytes. `lives` are its live
    bytes by the graph, where the plan says neither steps nor parts.
    """

    row: PlannedBuffer
    members: tuple[Value, ...]
    first: int
    last: int
    unit: int
    user: GraphNode | None = None
    lives: tuple[HeldBytes, ...] = ()

    @property
    def pieces(self) -> Sequence[HeldBytes]:
        """Its live bytes and their steps, counted from its start: the parts that the plan claims, or all bytes in all of its steps."""
        if not self.row.parts:
            return self.lives or [HeldBytes(0, self.row.size, self.first, self.last)]
        return [HeldBytes(part.start, part.start + part.size, part.first, part.last) for part in self.row.parts]


@dataclass(frozen=True)
class Placing:
    """The addresses of the values of the graph of `line`: their `rows`, and the owners of bytes."""

    rows: Mapping[Value, PlannedBuffer]
    holders: tuple[Holder, ...]
    workspaces: Mapping[GraphNode, PlannedBuffer]
    line: RunOrder
    terms: CheckTerms

    @property
    def states(self) -> SharedStates:
        """The states of the model."""
        return self.terms.states

    @property
    def all_rows(self) -> list[PlannedBuffer]:
        """The rows of the values and of all workspaces."""
        return [*self.rows.values(), *(holder.row for holder in self.holders if not holder.members)]


@dataclass(frozen=True)
class CheckTerms:
    """The common terms of all graphs of a plan: the model, the alignment, the arenas by name, and whether the plan is for every order."""

    states: SharedStates
    alignment: int
    arenas: Mapping[str, Arena]
    every_order: bool


def placing(rows: Sequence[PlannedBuffer], line: RunOrder, terms: CheckTerms) -> tuple[Placing, list[PlanFailure]]:
    """Return the addresses of the values of the graph of `line`, as far as `rows` are valid, and their faults."""
    results = (value for node in line.graph.nodes for value in node.outputs if value.name)
    values = {value.name: value for value in (*line.graph.inputs, *results)}
    tensors, workspaces, failures = {}, [], []
    for row in rows:
        if row.kind == WORKSPACE:
            workspaces.append(row)
        elif row.name not in values:
            failures.append(PlanFailure(f"{row.name!r} is not a value of this graph", (row.name,)))
        elif values[row.name] in tensors:
            failures.append(PlanFailure(f"{row.name!r} has two rows", (row.name,)))
        else:
            tensors[values[row.name]] = _sized(row, values[row.name])
    holders = list(_holders(tensors, line, terms))
    workspace_of, workspace_holders = {}, list(_workspace_holders(workspaces, line, terms.alignment, failures))
    for holder in workspace_holders:
        if holder.user is not None and holder.row.name != SHARED and not holder.row.name.endswith(f" {UNIQUE}"):
            workspace_of[holder.user] = holder.row
    for value, row in tensors.items():
        failures += (PlanFailure(text, (row.name,), line.first(value)) for text in _wrong(value, row, line))
    owners = {holder.row.name: holder for holder in holders}
    failures += _alias_failures(tensors, owners)
    failures += _live_range_failures(tensors, owners, line)
    failures += _part_failures(tensors, (*holders, *workspace_holders), line, terms.states)
    failures += _address_failures(tensors, (*holders, *workspace_holders), terms)
    return Placing(tensors, (*holders, *workspace_holders), workspace_of, line, terms), failures


def _sized(row: PlannedBuffer, value: Value) -> PlannedBuffer:
    """Return `row`, the size of the graph where it says none."""
    return replace(row, size=value.bytes or 0) if row.size == UNSAID else row


def aligned_to_bodies(placing: Placing, units: Mapping[GraphNode, int]) -> Placing:
    """Return `placing` with the workspaces of nodes in `units` aligned to these bytes at least: their bodies lie in them."""

    larger = {id(row): units[node] for node, row in placing.workspaces.items() if node in units}

    def aligned(holder: Holder) -> Holder:
        unit = larger.get(id(holder.row), 1)
        return replace(holder, unit=unit) if unit > holder.unit else holder

    return replace(placing, holders=tuple(map(aligned, placing.holders)))


def _holders(tensors: Mapping[Value, PlannedBuffer], line: RunOrder, terms: CheckTerms) -> Iterator[Holder]:
    occupants: dict[str, list[Value]] = {}
    for value, row in tensors.items():
        if row.alias is not None:
            occupants.setdefault(row.alias, []).append(value)
    for value, row in tensors.items():
        if row.alias is None:
            members = (value, *occupants.get(row.name, ()))
            unit = max(terms.alignment, *(member.alignment for member in members))
            owner = _widest(row, [tensors[member] for member in members])
            is_bare = owner.parts is None and owner.first == UNSAID
            lives = tuple(_lives(owner, members, tensors, line, terms.states)) if is_bare else ()
            steps = (min(map(line.first, members)), max(map(line.last, members)))
            yield Holder(owner, members, *steps, unit, lives=lives)


def _widest(row: PlannedBuffer, members: Iterable[PlannedBuffer]) -> PlannedBuffer:
    """Return the owner `row` with the bytes of all its `members` at some sizes of a range.

    A tensor that is no larger than the owner at the largest sizes may be larger at these: the owner grows faster.
    """
    if not isinstance(row, SizedBuffer):
        return row
    end = max((member.end for member in members if member.arena == row.arena), default=0)
    return replace(row, size=max(row.size, min(end - row.offset, row.most)))


def _lives(
    row: PlannedBuffer,
    members: Iterable[Value],
    tensors: Mapping[Value, PlannedBuffer],
    line: RunOrder,
    states: SharedStates,
) -> list[HeldBytes]:
    """Return the live bytes of the owner `row` of `members`, by the graph."""
    lives = (lives_of(value, tensors[value].offset - row.offset, line, states) for value in members)
    return disjoint(piece for pieces in lives for piece in pieces)


def in_parts(placing: Placing) -> list[Holder]:
    """Return the holders of `placing`, of which each byte lives from its first write to its last read."""
    lives = (
        (holder, _lives(holder.row, holder.members, placing.rows, placing.line, placing.states))
        for holder in placing.holders
    )
    bare = ((holder, replace(holder.row, parts=None), tuple(pieces)) for holder, pieces in lives)
    return [replace(holder, row=row, lives=pieces) if holder.members else holder for holder, row, pieces in bare]


def _workspace_holders(
    rows: Iterable[PlannedBuffer], line: RunOrder, alignment: int, failures: list[PlanFailure]
) -> Iterator[Holder]:
    """Yield the workspaces; faults are added to `failures`."""
    users = {f"{name} {end}": node for node, name in line.name_of.items() for end in (SHARED, UNIQUE)}
    named = {name: node for node, name in line.name_of.items()}
    seen: set[str] = set()
    for row in rows:
        user = named.get(row.node or "") if row.name == SHARED else users.get(row.name)
        if row.name in seen or (user is None and row.name != SHARED):
            failures.append(PlanFailure(f"{row.name!r} is not the workspace of a node, or has two rows", (row.name,)))
            continue
        seen.add(row.name)
        first, last = _workspace_steps(row, user, line)
        name = None if user is None else line.name_of[user]
        truth = {"first": first, "last": last, "node": name, "alias": None, "dtype": None, "shape": None}
        failures += (PlanFailure(text, (row.name,), first) for text in _unlike(row, truth))
        yield Holder(row, (), first, max(first, last), alignment, user)


def _workspace_steps(row: PlannedBuffer, user: GraphNode | None, line: RunOrder) -> tuple[int, int]:
    """Return the first and the last step of the workspace of `user`; those that `row` claims for one of several nodes."""
    if user is None:
        return max(row.first, 0), min(max(row.last, 0), line.end)
    return (0, line.end) if row.name.endswith(f" {UNIQUE}") else (line.step_of[user],) * 2


def _wrong(value: Value, row: PlannedBuffer, line: RunOrder) -> Iterator[str]:
    """Yield the fields of `row` that differ from the graph."""
    maker = value.maker
    size = value.bytes
    if size is None:
        yield f"{row.name!r} has an address, and no fixed number of bytes"
        return
    if isinstance(row, SizedBuffer) and size > row.most:
        yield f"{row.name!r} has {size} bytes, more than the {row.most} at the largest sizes"
    kind = "activation" if value not in line.given else "input"
    kind = "output" if value in line.handed_out else kind
    node = None if maker is None else line.name_of[maker]
    type_, shape = value.type_name, value.shape
    if (row.size, row.kind, row.node, row.dtype, row.shape) != (size, kind, node, type_, shape):
        yield from _unlike(row, {"size": size, "kind": kind, "node": node, "dtype": type_, "shape": shape})


_LEFT_OUT = (UNSAID, "", NO_SHAPE)


def _unlike(row: PlannedBuffer, truth: Mapping[str, object]) -> Iterator[str]:
    for name, right in truth.items():
        claimed = getattr(row, name)
        if claimed != right and claimed not in _LEFT_OUT:
            yield f"{name} of {row.name!r} is {_claim_text(claimed)}, not {_claim_text(right)}"


def _claim_text(claim: object) -> str:
    return str(list(claim)) if isinstance(claim, tuple) else repr(claim)


def _alias_failures(tensors: Mapping[Value, PlannedBuffer], owners: Mapping[str, Holder]) -> Iterator[PlanFailure]:
    for row in (row for row in tensors.values() if row.alias is not None):
        owner = owners.get(row.alias or "")
        names = (row.name, row.alias or "")
        if owner is None:
            yield PlanFailure(f"{row.name!r} lies in {row.alias!r}, which owns no bytes of this graph", names)
        elif owner.row.arena != row.arena or not owner.row.offset <= row.offset <= row.end <= owner.row.end:
            yield PlanFailure(
                f"{row.place} of {row.arena!r} is not inside of {owner.row.place} of {owner.row.arena!r}", names
            )


def _live_range_failures(
    tensors: Mapping[Value, PlannedBuffer], owners: Mapping[str, Holder], line: RunOrder
) -> Iterator[PlanFailure]:
    for value, row in tensors.items():
        owner = owners.get(row.name) if row.alias is None else None
        live_range = (line.first(value), line.last(value)) if owner is None else (owner.first, owner.last)
        claimed = (row.first, row.last)
        if any(claim not in {right, UNSAID} for claim, right in zip(claimed, live_range, strict=True)):
            what = "is live" if owner is None or len(owner.members) == 1 else "has bytes that are live"
            reason = (
                f"{row.name!r} {what} in the steps {live_range[0]} to {live_range[1]}, not {claimed[0]} to {claimed[1]}"
            )
            yield PlanFailure(reason, (row.name,), live_range[0])


def _part_failures(
    tensors: Mapping[Value, PlannedBuffer], holders: Iterable[Holder], line: RunOrder, states: SharedStates
) -> Iterator[PlanFailure]:
    """Yield a failure for each row with parts that are not its live bytes."""
    for row in tensors.values():
        if row.alias is not None and row.parts:
            yield PlanFailure(f"{row.name!r} lies in {row.alias!r}, and has parts of its own", (row.name,))
    for holder in holders:
        row = holder.row
        if not row.parts:
            continue
        right = _lives(row, holder.members, tensors, line, states)
        if disjoint(holder.pieces) != right or len(holder.pieces) != len(set(holder.pieces)):
            live_parts = ", ".join(
                f"[{p.start}, {p.end}) in the steps {p.first} to {p.last}" for p in right[:_NAMED_PARTS]
            )
            more = f" and {len(right) - _NAMED_PARTS} more" if len(right) > _NAMED_PARTS else ""
            yield PlanFailure(
                f"the parts of {row.name!r} are not its live bytes: {live_parts}{more}", (row.name,), holder.first
            )


def _address_failures(
    tensors: Mapping[Value, PlannedBuffer], holders: Iterable[Holder], terms: CheckTerms
) -> Iterator[PlanFailure]:
    """Yield a failure for each row outside its arena, and for each address that is not aligned."""
    for holder in holders:
        row = holder.row
        arena = terms.arenas.get(row.arena)
        if arena is None and (row.size or row.arena):
            yield PlanFailure(
                f"{row.name!r} lies in {row.arena!r}, which is not an arena of the plan", (row.name,), holder.first
            )
        elif arena is not None and (row.offset < 0 or (row.size and row.end > arena.size)):
            yield PlanFailure(
                f"{row.place} leaves the arena {row.arena!r} of {arena.size} bytes", (row.name,), holder.first
            )
        if row.offset % terms.alignment:
            yield PlanFailure(
                f"{row.name!r} at {row.offset} is not aligned to {terms.alignment}", (row.name,), holder.first
            )
    for value, row in tensors.items():
        unit = value.alignment
        if row.size and row.offset % unit:
            reason = f"{row.name!r} at {row.offset} is not aligned to its elements of {unit} bytes"
            yield PlanFailure(reason, (row.name,))


# Checks that no two buffers live at one step share a byte, by a sweep over the steps.


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


class _PlacedPiece(NamedTuple):
    """Live bytes of a holder at their address."""

    holder: Holder
    start: int
    end: int
    first: int
    last: int


def _pieces(holders: Iterable[Holder]) -> Iterator[_PlacedPiece]:
    """Yield the live bytes of `holders`. A part of no step is a fault of its own."""
    for holder in holders:
        at = holder.row.offset
        lives = (piece for piece in holder.pieces if piece.first <= piece.last)
        yield from (_PlacedPiece(holder, at + p.start, at + p.end, p.first, p.last) for p in lives)


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
        lower, upper = pieces[touched].holder.row, piece.holder.row
        reason = f"{lower.place} and {upper.place} of {lower.arena!r} are live together"
        yield PlanFailure(reason, (lower.name, upper.name), piece.first)


def _meet(a: _PlacedPiece, b: _PlacedPiece) -> bool:
    return a.start < b.end and b.start < a.end


# Checks pins, places and kept tensors: those that the plan names, and those in the metadata of the model.


@dataclass(frozen=True)
class FixedPlaces:
    """The offset of each pinned row in bytes, the arena of each placed one, and the names of tensors that share bytes with nothing.

    Offsets are texts, as metadata have them.
    """

    pins: Mapping[str, str]
    places: Mapping[str, str]
    keeps: frozenset[str]

    @classmethod
    def from_marks(cls, claims: PlanDocument, graph: Graph) -> FixedPlaces:
        """Return those in the metadata of the values of `graph`, and those of `claims`, which come first."""
        values = [*graph.inputs, *(value for node in graph.nodes for value in node.outputs)]
        pin, place, keep = rules = [FIXED[rule].mark for rule in ("pins", "places", "keeps")]
        marked = ((value.name, value.marks) for value in values if value.infos)
        ruled = ((name, entries) for name, entries in marked if not entries.keys().isdisjoint(rules))
        marks = [(_row_of(name, entries, claims), entries) for name, entries in ruled]
        pins = {name: entries[pin] for name, entries in marks if pin in entries}
        places = {name: entries[place] for name, entries in marks if place in entries}
        keeps = {name for name, entries in marks if entries.get(keep) == "true"}
        pins |= {name: str(offset) for name, offset in claims.pins.items()}
        return cls(pins, places | dict(claims.places), frozenset(keeps.union(claims.keeps)))

    def apart(self, graph: Graph, given: Iterable[Value]) -> frozenset[Value]:
        """Return the values of `graph`, and of those `given` to it, that share bytes with nothing."""
        results = (value for node in graph.nodes for value in node.outputs) if self.keeps else ()
        return frozenset(value for value in (*given, *results) if value.name in self.keeps)

    def failures(self, claims: PlanDocument) -> Iterator[PlanFailure]:
        """Yield each row of `claims` that is at another address or in another arena, and each that shares the bytes of a kept tensor."""
        rows = {row.name: row for row in claims.buffers}
        for name in dict.fromkeys((*self.pins, *self.places, *sorted(self.keeps))):
            if name not in rows:
                yield PlanFailure(f"{name!r} is pinned, placed or kept, and has no address", (name,))
        for name, offset in self.pins.items():
            if name in rows and str(rows[name].offset) != offset:
                yield PlanFailure(f"{name!r} is at {rows[name].offset}, not at its pin {offset}", (name,))
        for name, arena in self.places.items():
            if name in rows and rows[name].arena != arena:
                yield PlanFailure(f"{name!r} is in {rows[name].arena!r}, not in {arena!r}", (name,))
        for row in claims.buffers:
            if row.alias is not None and not self.keeps.isdisjoint((row.name, row.alias)):
                kept, other = (row.name, row.alias) if row.name in self.keeps else (row.alias, row.name)
                yield PlanFailure(f"{other!r} shares the bytes of {kept!r}, which is kept", (kept, other))


def _row_of(name: str, marks: Mapping[str, str], claims: PlanDocument) -> str:
    """Return the name of the row that `marks` of the tensor `name` are for: with copies, the one in its memory, by default the slow one."""
    if claims.movement is None:
        return name
    memory = marks.get(FIXED["places"].mark, claims.movement.slow)
    copies = [copy.result for copy in claims.movement.copies or () if copy.tensor == name and copy.memory == memory]
    arenas = {row.name: row.arena for row in claims.buffers}
    return next((row_name for row_name in (name, *copies) if arenas.get(row_name) == memory), name)
