"""Chooses the aliases of a plan, to lower the peak and avoid copies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from typing import NamedTuple

from onnxtile.declare.plan_document import CopyCount
from onnxtile.kernels.kernel_graph import (
    IN_PLACE,
    NONE,
    ByteSpan,
    GraphKernel,
    Ints,
    KernelGraph,
    LiveChange,
    LivePart,
    LiveRange,
    LiveSums,
    Precedence,
    Schedule,
    Share,
    joined_ranges,
    merged,
    union,
)
from onnxtile.planning.offsets.problem import Buffer, align
from onnxtile.system.dataclass import dataclass

# The live ranges of the bytes of a buffer, kept while tensors are added to it.

Lives = tuple[LiveRange, ...]
"""The live ranges of some bytes, in order, with steps between them."""


class ByteColumns(NamedTuple):
    """Neighbouring ranges of bytes: those from `cuts[i]` to `cuts[i + 1]` are live in the steps of `lives[i]`."""

    cuts: tuple[int, ...]
    lives: tuple[Lives, ...]

    @classmethod
    def from_parts(cls, parts: Sequence[LivePart]) -> ByteColumns:
        """Return the columns of `parts`, which are ordered and cover each byte once."""
        return cls((*(part.start for part in parts), parts[-1].end), tuple(((p.lower, p.upper),) for p in parts))

    def parts(self, base: int) -> Iterator[LivePart]:
        """Yield the bytes and steps as parts; bytes count from `base`."""
        for start, end, lives in zip(self.cuts, self.cuts[1:], self.lives, strict=False):
            yield from (LivePart(start - base, end - base, *live) for live in lives)

    def changes(self, sign: int) -> Iterator[LiveChange]:
        """Yield the bytes of all columns as additions or, with a `sign` of -1, as removals."""
        for start, end, lives in zip(self.cuts, self.cuts[1:], self.lives, strict=False):
            yield from (LiveChange(sign * (end - start), *live) for live in lives)

    def joined(self, other: ByteColumns, shift: int) -> tuple[ByteColumns, list[LiveChange]]:
        """Return the columns of both, with `other` moved by `shift` bytes, and the change against both by themselves.

        The work grows with the columns of `other` and those that it meets, apart from copying a tuple.
        """
        if not other.lives:
            return self, []
        if len(self.lives) == len(other.lives) == 1 and self.cuts == (other.cuts[0] + shift, other.cuts[1] + shift):
            return self._overlaid_whole(other)
        low, high = other.cuts[0] + shift, other.cuts[-1] + shift
        # The columns of this set that `other` touches are those from `first` to `last`.
        first = max(bisect_right(self.cuts, low) - 1, 0)
        last = min(max(bisect_left(self.cuts, high), first), len(self.lives))
        mine = ByteColumns(self.cuts[first : last + 1], self.lives[first:last])
        moved = ByteColumns(tuple(cut + shift for cut in other.cuts), other.lives)
        both = mine.overlaid(moved) if mine.lives else moved
        changes = [*mine.changes(-1), *other.changes(-1), *both.changes(1)]
        cuts = (*self.cuts[:first], *both.cuts, *self.cuts[last + 1 :])
        return ByteColumns(cuts, (*self.lives[:first], *both.lives, *self.lives[last:])), changes

    def _overlaid_whole(self, other: ByteColumns) -> tuple[ByteColumns, list[LiveChange]]:
        """Return the same as `joined` for one column each, over the same bytes: a tensor that is written over another, as a rule."""
        size = self.cuts[1] - self.cuts[0]
        lives = joined_ranges((*self.lives[0], *other.lives[0]))
        changes = [LiveChange(-size, *live) for live in (*self.lives[0], *other.lives[0])]
        return ByteColumns(self.cuts, (lives,)), [*changes, *(LiveChange(size, *live) for live in lives)]

    def overlaid(self, other: ByteColumns) -> ByteColumns:
        """Return the columns of both, which touch each other; neighbours with the same live ranges become one."""
        cuts: list[int] = []
        lives: list[Lives] = []
        points = sorted({*self.cuts, *other.cuts})
        for start in points[:-1]:
            live = joined_ranges((*self._at(start), *other._at(start)))
            if not lives or lives[-1] != live:
                cuts.append(start)
                lives.append(live)
        return ByteColumns((*cuts, points[-1]), tuple(lives))

    def _at(self, byte: int) -> Lives:
        index = bisect_right(self.cuts, byte) - 1
        return self.lives[index] if 0 <= index < len(self.lives) else ()


# Alias sets: tensors that share the bytes of one buffer, each at its own offset in it, and none overwritten before its last read.


class OriginRange(NamedTuple):
    """The bytes [start, end) of a tensor are those of `origin` from `begin` on."""

    start: int
    end: int
    origin: int
    begin: int


@dataclass(frozen=True)
class Contents:
    """The content of each tensor, as ranges of the tensors that it is a view of, a part of, or joined from."""

    sizes: Mapping[int, int]
    _pieces: dict[int, tuple[OriginRange, ...]] = field(default_factory=dict, repr=False)
    _places: dict[tuple[int, int], set[int]] = field(default_factory=dict, repr=False)

    def add(self, value: int, known: Iterable[Share]) -> None:
        """Note the content of `value`, after its operands', given the views and parts `known` of it."""
        size = self.sizes[value]
        pieces: list[OriginRange] = []
        for alias in known:
            self._places.setdefault((value, alias.operand), set()).add(alias.at)
            inner = self._pieces.get(alias.operand, ())
            # In bytes of `value`; the operands of a Concat come one after the other.
            moved = (OriginRange(p.start - alias.at, p.end - alias.at, p.origin, p.begin) for p in inner)
            pieces.extend(clipped(moved, pieces[-1].end if pieces else 0, size))
        self._pieces[value] = tuple(_filled(value, pieces, size))

    def pieces(self, value: int) -> tuple[OriginRange, ...]:
        """Return the content of `value`, from its first byte to its last."""
        return self._pieces[value]

    def agree(self, a: int, b: int, shift: int) -> bool:
        """Return whether `a` and `b` have the same content wherever they overlap, with `b` starting `shift` bytes after `a`.

        A part that lies elsewhere in its whole than it is cut from would be copied there by the kernel that reads the whole.
        """
        if self._is_copied(b, a, shift) or self._is_copied(a, b, -shift):
            return False
        low, high = max(0, shift), min(self.sizes[a], shift + self.sizes[b])
        if len(self._pieces[a]) == len(self._pieces[b]) == 1:
            (left,), (right,) = self._pieces[a], self._pieces[b]
            return low >= high or (left.origin == right.origin and left.begin + shift == right.begin)
        first = _joint(clipped(self._pieces[a], low, high))
        second = _joint(
            clipped(
                (OriginRange(p.start + shift, p.end + shift, p.origin, p.begin) for p in self._pieces[b]), low, high
            )
        )
        return first == second

    def _is_copied(self, value: int, source: int, at: int) -> bool:
        """Return whether `value` is a view or a part of `source`, or joined from it, and starts elsewhere than `at`."""
        places = self._places.get((value, source))
        return places is not None and at not in places


def clipped(pieces: Iterable[OriginRange], low: int, high: int) -> Iterator[OriginRange]:
    """Yield the bytes of `pieces` from `low` to `high`."""
    for piece in pieces:
        start, end = max(piece.start, low), min(piece.end, high)
        if start < end:
            yield OriginRange(start, end, piece.origin, piece.begin + start - piece.start)


def _filled(value: int, pieces: Iterable[OriginRange], size: int) -> Iterator[OriginRange]:
    """Yield `pieces`, and the value's own bytes between them."""
    at = 0
    for piece in pieces:
        if at < piece.start:
            yield OriginRange(at, piece.start, value, at)
        yield piece
        at = piece.end
    if at < size:
        yield OriginRange(at, size, value, at)


def _joint(pieces: Iterable[OriginRange]) -> list[OriginRange]:
    """Return `pieces` with adjacent ranges of one origin merged."""
    joint: list[OriginRange] = []
    for piece in pieces:
        last = joint[-1] if joint else None
        if (
            last
            and last.end == piece.start
            and last.origin == piece.origin
            and last.begin + last.end - last.start == piece.begin
        ):
            joint[-1] = OriginRange(last.start, piece.end, last.origin, last.begin)
        else:
            joint.append(piece)
    return joint


class FixedBytes(NamedTuple):
    """The constraints on the bytes of a tensor or of an alias set: an address in bytes, and a memory.

    The bytes end at `limit` at the latest, the capacity of the memory of an address.
    """

    at: int | None = None
    memory: str | None = None
    limit: int | None = None

    def moved(self, distance: int) -> FixedBytes:
        """Return the constraints on bytes that start `distance` bytes after these."""
        return self if self.at is None else self._replace(at=self.at + distance)

    def joined(self, other: FixedBytes) -> FixedBytes | None:
        """Return the constraints on bytes that start at both addresses; None where there are no such bytes."""
        is_other = None not in {self.at, other.at} and self.at != other.at
        if is_other or (None not in {self.memory, other.memory} and self.memory != other.memory):
            return None
        limit = min((fixed.limit for fixed in (self, other) if fixed.limit is not None), default=None)
        return FixedBytes(other.at if self.at is None else self.at, self.memory or other.memory, limit=limit)


FREE = FixedBytes()
"""No constraints."""


@dataclass
class AliasSet:
    """Tensors in one buffer of `size` bytes; `owner` is one that fills it.

    A tensor starts at `starts[tensor] - base` bytes from the start of the buffer: a tensor that extends the buffer to the left moves the
    base, not every start. All tensors are dead by the time that one of the `front` over their bytes is made, unless they are of the front
    themselves. So a tensor that comes after the front comes after all. `columns` has the live ranges of the bytes, which count as those
    in `starts`; None where all bytes count as live in the whole `live_range`. `fixed` are the constraints on the bytes at which `starts`
    counts from 0.
    """

    owner: int
    size: int
    live_range: LiveRange
    starts: dict[int, int]
    front: tuple[int, ...]
    base: int = 0
    columns: ByteColumns | None = None
    fixed: FixedBytes = FREE

    @property
    def pin(self) -> int | None:
        """The offset that the buffer must have; None without one."""
        return self.fixed.moved(self.base).at

    @property
    def outline(self) -> tuple[LivePart, ...]:
        """The parts of the buffer with live ranges of their own; empty where all bytes are live in the whole live range."""
        if self.columns is None or (len(self.columns.lives) == 1 and len(self.columns.lives[0]) == 1):
            return ()
        parts = union(self.columns.parts(self.base))
        return () if len(parts) == 1 else parts

    def copy(self) -> AliasSet:
        """Return a set with the same fields; `dataclasses.replace` takes six times as long."""
        fields = (self.owner, self.size, self.live_range, self.starts, self.front, self.base)
        return AliasSet(*fields, columns=self.columns, fixed=self.fixed)

    @property
    def tensors(self) -> KeysView[int]:
        """The tensors in the buffer."""
        return self.starts.keys()

    def start(self, value: int) -> int:
        """Return the start of `value` in the buffer, in bytes."""
        return self.starts[value] - self.base


@dataclass(frozen=True)
class Merge:
    """Two alias sets that may be one: `second` starts `shift` bytes after the start of `first`, and `front` is that of both."""

    first: AliasSet
    second: AliasSet
    shift: int
    front: tuple[int, ...]


@dataclass(frozen=True)
class Merged:
    """An alias set that has taken in the tensors of `other`, its fields before, to undo that, and the changes of the live bytes."""

    kept: AliasSet
    other: AliasSet
    before: AliasSet
    changes: tuple[LiveChange, ...]


class AliasSets:
    """The alias set of each tensor, `of`. Each tensor has a set of its own at first; `merge` makes one of two.

    `sizes` are those of the tensors of `graph` in the arena. `live_ranges` are those of the schedule whose steps are counted, `order` says
    which tensors are dead before others are made. `parts` has the live ranges of the bytes of tensors that die part by part; with None, all
    bytes of a set count as live in its whole live range. Live bytes are rounded up to multiples of `alignment`. `fixed` has the constraints
    on the bytes of tensors.
    """

    def __init__(
        self,
        graph: KernelGraph,
        sizes: Mapping[int, int],
        live_ranges: Mapping[int, LiveRange],
        order: Precedence,
        contents: Contents,
        alignment: int,
        parts: Mapping[int, Sequence[LivePart]] | None = None,
        fixed: Mapping[int, FixedBytes] | None = None,
    ) -> None:
        self._is_free = not fixed
        # Bytes that a pinned buffer may reach without making the arena larger; None: any.
        self.ceiling: int | None = None
        self._alignment = alignment
        self._sizes = sizes
        self._order = order
        self._kept = graph.kept
        self._contents = contents
        self._overwrites: set[tuple[int, int]] = set()
        self.of: dict[int, AliasSet] = {}
        for value, size in sizes.items():
            live_range, columns = live_ranges[value], None
            if parts is not None:
                died = parts.get(value)
                whole = ByteColumns((0, size), ((live_range,),)) if size else ByteColumns((0,), ())
                columns = whole if died is None else ByteColumns.from_parts(died)
            constraint = (fixed or {}).get(value, FREE)
            self.of[value] = AliasSet(value, size, live_range, {value: 0}, (value,), columns=columns, fixed=constraint)

    def allow(self, alias: Share) -> None:
        """Let `alias.result` be written over `alias.operand`, once that is dead."""
        self._overwrites.add((alias.result, alias.operand))

    def size(self, value: int) -> int:
        """Return the bytes of `value`."""
        return self._sizes[value]

    def start(self, value: int) -> int:
        """Return the start of `value` in its buffer, in bytes."""
        return self.of[value].start(value)

    def possible(self, alias: Share) -> Merge | None:
        """Return the merge that puts both tensors of `alias` into one buffer, `alias.at` apart.

        None where they are in one already, where neither buffer holds the other, or where a tensor would lose bytes that are still read.
        """
        first, second = self.of[alias.operand], self.of[alias.result]
        if first is second:
            return None
        shift = first.start(alias.operand) + alias.at - second.start(alias.result)
        low, high = min(0, shift), max(first.size, shift + second.size)
        if high - low != max(first.size, second.size):
            return None
        if not self._is_free and not self._may_join(first, second, shift):
            return None
        front = self._front_behind(first, second, shift)
        if front is None and self._harmful(first, second, shift):
            return None
        return Merge(first, second, shift, front or (*first.front, *second.front))

    def _may_join(self, first: AliasSet, second: AliasSet, shift: int) -> bool:
        """Return whether both sets can have their addresses and memories in one aligned buffer."""
        joined = first.fixed.moved(first.base).joined(second.fixed.moved(second.base - shift))
        if joined is None or joined.at is None:
            return joined is not None
        start = joined.at + min(0, shift)
        end = start + max(first.size, second.size)
        is_inside = all(most is None or end <= most for most in (joined.limit, self.ceiling))
        return start >= 0 and start % self._alignment == 0 and is_inside

    @property
    def pinned_end(self) -> int:
        """The end of the highest pinned buffer in bytes; 0 without one."""
        sets = () if self._is_free else self.of.values()
        return max((alias_set.pin + alias_set.size for alias_set in sets if alias_set.pin is not None), default=0)

    def merge(self, merge: Merge) -> Merged:
        """Make one alias set of two: the one with fewer tensors moves, so that n merges take n log n moves at most."""
        first, second, shift = merge.first, merge.second, merge.shift
        kept, other = (first, second) if len(first.starts) >= len(second.starts) else (second, first)
        distance = shift if other is second else -shift
        before = kept.copy()
        larger = first if first.size >= second.size else second
        kept.front = merge.front
        moved = kept.base + distance - other.base
        joined = kept.fixed.joined(other.fixed.moved(-moved))
        assert joined is not None
        kept.fixed = joined
        changes = self._slack(first, -1) + self._slack(second, -1)
        if kept.columns is not None and other.columns is not None:
            kept.columns, inner = kept.columns.joined(other.columns, moved)
            changes += inner
        else:
            changes += (LiveChange(-alias_set.size, *alias_set.live_range) for alias_set in (first, second))
        kept.live_range = merged(first.live_range, second.live_range)
        for value, start in other.starts.items():
            kept.starts[value] = start + moved
            self.of[value] = kept
        kept.base = before.base + min(0, distance)
        kept.owner, kept.size = larger.owner, larger.size
        changes += self._slack(kept, 1)
        if kept.columns is None:
            changes.append(LiveChange(kept.size, *kept.live_range))
        return Merged(kept, other, before, tuple(changes))

    def hold(self, alias_set: AliasSet) -> None:
        """Let all bytes of `alias_set` be live in its whole live range."""
        if alias_set.columns is not None and alias_set.size:
            low = alias_set.base
            alias_set.columns = ByteColumns((low, low + alias_set.size), ((alias_set.live_range,),))

    def live_bytes(self, alias_set: AliasSet) -> list[LiveChange]:
        """Return the live bytes of `alias_set`, rounded up to the alignment."""
        columns = alias_set.columns
        changes = [LiveChange(alias_set.size, *alias_set.live_range)] if columns is None else list(columns.changes(1))
        return changes + self._slack(alias_set, 1)

    def _slack(self, alias_set: AliasSet, sign: int) -> list[LiveChange]:
        slack = align(alias_set.size, self._alignment) - alias_set.size
        return [LiveChange(sign * slack, *alias_set.live_range)] if slack else []

    def undo(self, done: Merged) -> None:
        """Undo a merge, the last one that was not undone yet."""
        kept, before = done.kept, done.before
        for value in done.other.starts:
            del kept.starts[value]
            self.of[value] = done.other
        kept.owner, kept.size, kept.live_range = before.owner, before.size, before.live_range
        kept.front, kept.base, kept.columns, kept.fixed = before.front, before.base, before.columns, before.fixed

    def _front_behind(self, first: AliasSet, second: AliasSet, shift: int) -> tuple[int, ...] | None:
        """Return the front of both sets where all of `second` come after those of `first` whose bytes they take; else None.

        A stream of thousands of tensors, each written over the one before it, is so not compared pair by pair.
        """
        left = []
        for a in first.front:
            is_covered = False
            start, size = first.start(a) - shift + second.base, self._sizes[a]
            # The tensor that forbids the merge is the last one that was added, as a rule.
            for b in reversed(second.starts):
                at = second.starts[b] - start
                if not -self._sizes[b] < at < size:
                    continue
                if not (self._order.before(a, b) or (at == 0 and self._is_written_over(a, b))):
                    return None
                is_covered = is_covered or (at <= 0 and size <= at + self._sizes[b])
            if not is_covered:
                left.append(a)
        return (*left, *second.front)

    def _harmful(self, first: AliasSet, second: AliasSet, shift: int) -> bool:
        sizes, moved = self._sizes, shift + first.base - second.base
        pairs = ((a, b) for b in reversed(second.starts) for a in reversed(first.starts))
        shifts = ((a, b, second.starts[b] + moved - first.starts[a]) for a, b in pairs)
        return any(-sizes[b] < at < sizes[a] and self._is_conflict(a, b, at) for a, b, at in shifts)

    def _is_conflict(self, a: int, b: int, shift: int) -> bool:
        """Return whether `a` and `b`, some of whose bytes are the same, must not share them."""
        low, high = max(0, shift), min(self._sizes[a], shift + self._sizes[b])
        if self._order.before_in(ByteSpan(low, high), a, b):
            return False
        if self._order.before_in(ByteSpan(low - shift, high - shift), b, a):
            return False
        if shift == 0 and (self._is_written_over(a, b) or self._is_written_over(b, a)):
            return False
        return not self._contents.agree(a, b, shift)

    def _is_written_over(self, old: int, new: int) -> bool:
        return (new, old) in self._overwrites and old not in self._kept and self._order.until(old, new)


# Finds nodes that would write into live bytes, even if they write the same content.
#
# Two Concats of one tensor may overlap, since they have the same content, as long as the tensor lies in place in both. Where an operand
# does not lie in place, its Concat copies it there, into bytes that may be live by then.


def rewriting(known: Mapping[int, Iterable[Share]], alias_sets: AliasSets, order: Precedence) -> frozenset[int]:
    """Return the values with `known` views or parts that are written, at least partly, into live bytes of their alias set."""
    return frozenset(
        value
        for value, aliases in known.items()
        if len(alias_sets.of[value].tensors) > 1
        and any(_is_in_use(span, value, alias_sets, order) for span in _written(value, aliases, alias_sets))
    )


def _written(value: int, aliases: Iterable[Share], alias_sets: AliasSets) -> Iterator[ByteSpan]:
    """Yield the bytes of the alias set that the node of `value` writes: all except those already in place."""
    alias_set = alias_sets.of[value]
    start = alias_set.start(value)
    end = start + alias_sets.size(value)
    for low, high in sorted(_in_place(value, aliases, alias_set, alias_sets)):
        if start < low:
            yield ByteSpan(start, low)
        start = max(start, high)
    if start < end:
        yield ByteSpan(start, end)


def _in_place(value: int, aliases: Iterable[Share], alias_set: AliasSet, alias_sets: AliasSets) -> Iterator[ByteSpan]:
    at = alias_set.start(value)
    for alias in aliases:
        start = alias_set.start(alias.operand) if alias.operand in alias_set.tensors else None
        if start is not None and start + alias.at == at:
            yield ByteSpan(max(at, start), min(at + alias_sets.size(value), start + alias_sets.size(alias.operand)))


def _is_in_use(span: ByteSpan, value: int, alias_sets: AliasSets, order: Precedence) -> bool:
    alias_set = alias_sets.of[value]
    starts = ((other, alias_set.start(other)) for other in alias_set.tensors if other != value)
    return any(
        start < span.end
        and span.start < start + alias_sets.size(other)
        and _is_read(
            other, ByteSpan(max(span.start - start, 0), min(span.end - start, alias_sets.size(other))), value, order
        )
        for other, start in starts
    )


def _is_read(other: int, span: ByteSpan, value: int, order: Precedence) -> bool:
    """Return whether the bytes `span` of `other` may be live when `value` is made."""
    return not (order.before_in(span, other, value) or order.made_before(value, other))


@dataclass(frozen=True)
class Sharing:
    """The alias sets, and for each tensor the aliases through which it shares bytes with operands of its node."""

    alias_sets: AliasSets
    shares: Mapping[int, tuple[Share, ...]]

    def is_one(self, first: int, second: int) -> bool:
        """Return whether both are in the arena, at one address."""
        of = self.alias_sets.of
        return first in of and of.get(second) is of[first] and of[first].start(first) == of[first].start(second)


@dataclass(frozen=True)
class Timeline:
    """The kernels of `graph` in the steps of `schedule`, the live ranges, and the workspaces of kernels and bodies.

    `order` says which tensors are dead before others are made. `parts` has the live ranges of the bytes of tensors that die part by part;
    with None, all bytes of a buffer count as live in its whole live range. Without `saves_copies`, parts other than tiles are only taken to
    lower the peak. `fixed` has the addresses that tensors must have. The output of a state has the address of its input where that is
    possible.
    """

    graph: KernelGraph
    schedule: Schedule
    live_ranges: Mapping[int, LiveRange]
    order: Precedence
    workspaces: Sequence[Buffer] = ()
    parts: Mapping[int, Sequence[LivePart]] | None = None
    saves_copies: bool = True
    fixed: Mapping[int, FixedBytes] = field(default_factory=dict)


def choose(timeline: Timeline, alignment: int) -> Sharing:
    """Return the aliases of the tensors in the arena.

    Apart from tiles, no alias raises the peak of the schedule, workspaces included.

    A view always has the bytes of its source. A result is written over an operand wherever that is lawful: one buffer in place of two of
    the same size adds live bytes to no step. Tiles are always parts of their whole, since they are addressed so. Other parts are
    taken, first, while they lower the peak; then wherever they do not raise it. A value that would then be written into live bytes is
    excluded. So is a result of the run in bytes that a state is copied into. Then the choice starts again.
    """
    graph = timeline.graph
    apart: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()
    while True:
        chooser = _Chooser(timeline, alignment)
        chooser.leave_apart(apart)
        chooser.leave_alone(alone)
        chooser.share_views()
        chooser.share_states()
        chooser.share_in_place()
        chooser.share_tiles()
        chooser.limit_pinned()
        chooser.lower_the_peak()
        if timeline.saves_copies:
            chooser.save_copies()
        written = chooser.rewriting()
        # A value that is excluded already came there through a result that is written over one of its views.
        rewritten = (written | chooser.views_of(written & apart)) - apart
        lost = chooser.lost(frozenset() if graph.repeats else graph.kept) - alone
        if not rewritten and not lost:
            return Sharing(chooser.alias_sets, chooser.shares())
        apart |= rewritten
        alone |= lost


class _Chooser:
    def __init__(self, timeline: Timeline, alignment: int) -> None:
        graph, schedule, order = timeline.graph, timeline.schedule, timeline.order
        sizes = graph.sizes(schedule)
        usable = [share for share in graph.shares(schedule) if share.result in sizes and share.operand in sizes]
        known = [share for share in usable if share.kind != IN_PLACE]
        self._graph = graph
        self._views = [share for share in known if share.kind == "view"]
        self._in_place = [share for share in usable if share.kind == IN_PLACE]
        self._parts = [[*same] for _, same in groupby((s for s in known if s.kind != "view"), key=self._maker)]
        contents = Contents(sizes)
        self._known: dict[int, list[Share]] = {}
        for alias in known:
            self._known.setdefault(alias.result, []).append(alias)
        for value in sizes:
            contents.add(value, self._known.get(value, ()))
        self.alias_sets = AliasSets(
            graph, sizes, timeline.live_ranges, order, contents, alignment, timeline.parts, timeline.fixed
        )
        for alias in self._in_place:
            self.alias_sets.allow(alias)
        self._order = order
        self._states = [state for state in graph.states if state.input in sizes and state.output in sizes]
        self._live = LiveSums(schedule.end)
        for alias_set in self.alias_sets.of.values():
            self._live.add(self.alias_sets.live_bytes(alias_set))
        self._live.add(LiveChange(align(b.size, alignment), b.lower, b.upper) for b in timeline.workspaces)

    def _maker(self, share: Share) -> int:
        return self._graph.makers[share.result]

    def leave_apart(self, values: frozenset[int]) -> None:
        """Exclude `values` from parts, wholes, and operands that are written over."""
        groups = ([a for a in group if values.isdisjoint((a.result, a.operand))] for group in self._parts)
        self._parts = [group for group in groups if group]
        self._in_place = [alias for alias in self._in_place if alias.operand not in values]

    def views_of(self, values: frozenset[int]) -> frozenset[int]:
        """Return the views of `values`, through any number of views."""
        held = set(values)
        for alias in self._views:  # in the order in which they are made
            if alias.operand in held:
                held.add(alias.result)
        return frozenset(held - values)

    def leave_alone(self, values: frozenset[int]) -> None:
        """Exclude `values` from all aliases: they have bytes of their own."""
        self.leave_apart(values)
        self._views = [alias for alias in self._views if alias.result not in values]
        self._in_place = [alias for alias in self._in_place if alias.result not in values]

    def share_views(self) -> None:
        for alias in self._views:
            self._join([alias])

    def share_states(self) -> None:
        """Put the output of each state at the address of its input, where that is possible; their bytes are then held in all steps."""
        for state in self._states:
            if self._graph.is_free(state):
                self._join([Share("state", state.output, state.input)])
            held = self.alias_sets.of[state.input]
            if held is self.alias_sets.of[state.output]:
                self._live.add(self.alias_sets.live_bytes(held), -1)
                self.alias_sets.hold(held)
                self._live.add(self.alias_sets.live_bytes(held))

    def share_in_place(self) -> None:
        """Write results over operands: over the operand made first, so that a residual stream stays in one buffer."""
        for _, group in groupby(self._in_place, key=self._maker):
            for alias in sorted(group, key=self._since_and_until):
                self._join([alias])

    def _since_and_until(self, alias: Share) -> tuple[int, int]:
        alias_sets = self.alias_sets.of
        return alias_sets[alias.operand].live_range[0], -alias_sets[alias.result].live_range[1]

    def share_tiles(self) -> None:
        for group in self._parts:
            if self._graph.kernels[self._maker(group[0])].is_tile:
                self._join(group)

    def limit_pinned(self) -> None:
        """Allow no further alias by which a pinned buffer ends above the peak and the pinned buffers of now."""
        self.alias_sets.ceiling = max(self.alias_sets.pinned_end, int(self._live.in_steps.max()))

    def lower_the_peak(self) -> None:
        """Take the group that lowers the first step of the peak most, until none does."""
        while True:
            step = int(self._live.in_steps.argmax())
            trials = [(self._height(group, step), i) for i, group in enumerate(self._choices())]
            height, best = min(((h, i) for h, i in trials if h is not None), default=(None, 0))
            if height is None:
                return
            self._join(list(self._choices())[best])

    def save_copies(self) -> None:
        """Take all groups that do not raise the peak."""
        peak = int(self._live.in_steps.max())
        for group in self._choices():
            before = self._live.in_steps
            done = self._join(group)
            if done and self._live.in_steps.max() > peak:
                self._undo(done, before)

    def shares(self) -> dict[int, tuple[Share, ...]]:
        shares: dict[int, list[Share]] = {}
        parts = (alias for group in self._parts for alias in group)
        for alias in (*self._views, *parts, *self._in_place):
            if self._is_used(alias):
                shares.setdefault(alias.result, []).append(alias)
        return {value: tuple(used) for value, used in shares.items()}

    def rewriting(self) -> frozenset[int]:
        """Return the values that would be written into live bytes of the same content."""
        return rewriting(self._known, self.alias_sets, self._order)

    def lost(self, kept: frozenset[int]) -> frozenset[int]:
        """Return the `kept` values in bytes of a state whose output is at another address: it is copied there after the run."""
        lost: set[int] = set()
        for before, after in self._states:
            held, other = self.alias_sets.of[before], self.alias_sets.of[after]
            if held is other and held.start(before) == other.start(after):
                continue
            start, end = held.start(before), held.start(before) + self.alias_sets.size(before)
            inside = (value for value in held.tensors if value in kept and value != before)
            lost.update(v for v in inside if held.start(v) < end and start < held.start(v) + self.alias_sets.size(v))
        return frozenset(lost)

    def _is_used(self, alias: Share) -> bool:
        alias_sets = self.alias_sets
        if alias_sets.of[alias.operand] is not alias_sets.of[alias.result]:
            return False
        if alias.kind == IN_PLACE and not self._order.until(alias.operand, alias.result):
            return False
        return alias_sets.start(alias.result) == alias_sets.start(alias.operand) + alias.at

    def _choices(self) -> Iterator[list[Share]]:
        """Yield the groups that may be taken: all parts of a node, then each part by itself."""
        for group in self._parts:
            if len(group) > 1:
                yield group
            yield from ([alias] for alias in group)

    def _height(self, group: list[Share], step: int) -> int | None:
        """Return the peak with `group`; None where it does not lower the live bytes of `step`, or raises others above them."""
        if not any(self._touches(alias, step) for alias in group):
            return None
        changed = self._tried(group)
        if changed is None or changed[step] >= self._live.in_steps[step]:
            return None
        height = int(changed.max())
        return height if height <= self._live.in_steps[step] else None

    def _touches(self, alias: Share, step: int) -> bool:
        alias_sets = (self.alias_sets.of[alias.operand], self.alias_sets.of[alias.result])
        return any(alias_set.live_range[0] <= step < alias_set.live_range[1] for alias_set in alias_sets)

    def _tried(self, group: Iterable[Share]) -> Ints | None:
        """Return the live bytes of all steps if `group` were taken; None where it holds nothing to take."""
        before = self._live.in_steps
        done = self._join(group)
        live = self._live.in_steps if done else None
        self._undo(done, before)
        return live

    def _join(self, group: Iterable[Share]) -> list[Merged]:
        """Take the aliases of `group` that are possible; return the merges, to be undone from the last to the first."""
        done = []
        for alias in group:
            merge = self.alias_sets.possible(alias)
            if merge is None:
                continue
            done.append(self.alias_sets.merge(merge))
            self._live.add(done[-1].changes)
        return done

    def _undo(self, done: Sequence[Merged], before: Ints) -> None:
        """Undo the merges `done` by one `_join`, before which the live bytes were `before`."""
        for joined in reversed(done):
            self.alias_sets.undo(joined)
            self._live.add(joined.changes, -1)
        self._live.with_known(before)


# Counts the copies that a plan avoids, and those that remain.


def copies(graph: KernelGraph, schedule: Schedule, sharing: Sharing) -> CopyCount:
    """Return the copies, and their bytes, of all kernels that only move bytes into a tensor of the arena.

    One copy counts for each result that could be a view, each result of a Split or Slice, and each operand of a Concat.
    """
    counts = {True: [0, 0], False: [0, 0]}
    for number in schedule.order:
        for tensor, avoided in _moved(graph.kernels[number], graph, sharing):
            counts[avoided][0] += 1
            counts[avoided][1] += graph.tensors[tensor].bytes or 0
    return CopyCount(*counts[True], *counts[False])


def _moved(kernel: GraphKernel, graph: KernelGraph, sharing: Sharing) -> Iterator[tuple[int, bool]]:
    """Yield each tensor that `kernel` moves, and whether an alias avoids that."""
    alias_sets, tensors = sharing.alias_sets.of, graph.tensors
    results = [tensor for tensor in kernel.makes if tensor in alias_sets]
    if kernel.move == "join" and results:
        there = [share.operand for share in sharing.shares.get(results[0], ()) if share.kind != "view"]
        for tensor in kernel.operands:
            if tensor != NONE:
                yield tensor, tensor in there
                # An operand that is given twice is avoided once.
                there = [other for other in there if other != tensor]
    elif kernel.move == "cut":
        yield from ((tensor, bool(sharing.shares.get(tensor))) for tensor in results)
        for share in kernel.shares:
            # An output outside the arena is written there.
            is_written = share.result in alias_sets or share.result in graph.outputs
            if share.kind == "cut" and not is_written and not tensors[share.operand].is_constant:
                yield share.result, True
    elif kernel.move == "view" and results and graph.is_one_size(results[0], kernel.operands[0]):
        yield results[0], bool(sharing.shares.get(results[0]))
