"""Alias sets: tensors that share the bytes of one buffer, each at its own offset in it, and none overwritten before its last read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.planning.layout.aliases.byte_columns import ByteColumns, LiveChange
from onnxtile.planning.layout.aliases.find import Alias
from onnxtile.planning.layout.byte_span import ByteSpan
from onnxtile.planning.layout.live_ranges import LiveRange, merged
from onnxtile.planning.layout.ordering.precedence import Precedence
from onnxtile.planning.offsets.outline import LivePart, union
from onnxtile.planning.offsets.problem import align


class OriginRange(NamedTuple):
    """The bytes [start, end) of a tensor are those of `origin` from `begin` on."""

    start: int
    end: int
    origin: ir.Value
    begin: int


@dataclass(frozen=True)
class Contents:
    """The content of each tensor, as ranges of the tensors that it is a view of, a part of, or joined from."""

    sizes: Mapping[ir.Value, int]
    _pieces: dict[ir.Value, tuple[OriginRange, ...]] = field(default_factory=dict, repr=False)
    _places: dict[tuple[ir.Value, ir.Value], set[int]] = field(default_factory=dict, repr=False)

    def add(self, value: ir.Value, known: Iterable[Alias]) -> None:
        """Note the content of `value`, after its operands', given the views and parts `known` of it."""
        size = self.sizes[value]
        pieces: list[OriginRange] = []
        for alias in known:
            self._places.setdefault((value, alias.source), set()).add(alias.at)
            inner = self._pieces.get(alias.source, ())
            # In bytes of `value`; the operands of a Concat come one after the other.
            moved = (OriginRange(p.start - alias.at, p.end - alias.at, p.origin, p.begin) for p in inner)
            pieces.extend(clipped(moved, pieces[-1].end if pieces else 0, size))
        self._pieces[value] = tuple(_filled(value, pieces, size))

    def pieces(self, value: ir.Value) -> tuple[OriginRange, ...]:
        """Return the content of `value`, from its first byte to its last."""
        return self._pieces[value]

    def agree(self, a: ir.Value, b: ir.Value, shift: int) -> bool:
        """Return whether `a` and `b` have the same content wherever they overlap, with `b` starting `shift` bytes after `a`.

        A part that lies elsewhere in its whole than it is cut from would be copied there by the kernel that reads the whole.
        """
        if self._is_copied(b, a, shift) or self._is_copied(a, b, -shift):
            return False
        low, high = max(0, shift), min(self.sizes[a], shift + self.sizes[b])
        first = _joint(clipped(self._pieces[a], low, high))
        second = _joint(
            clipped(
                (OriginRange(p.start + shift, p.end + shift, p.origin, p.begin) for p in self._pieces[b]), low, high
            )
        )
        return first == second

    def _is_copied(self, value: ir.Value, source: ir.Value, at: int) -> bool:
        """Return whether `value` is a view or a part of `source`, or joined from it, and starts elsewhere than `at`."""
        places = self._places.get((value, source))
        return places is not None and at not in places


def clipped(pieces: Iterable[OriginRange], low: int, high: int) -> Iterator[OriginRange]:
    """Yield the bytes of `pieces` from `low` to `high`."""
    for piece in pieces:
        start, end = max(piece.start, low), min(piece.end, high)
        if start < end:
            yield OriginRange(start, end, piece.origin, piece.begin + start - piece.start)


def _filled(value: ir.Value, pieces: Iterable[OriginRange], size: int) -> Iterator[OriginRange]:
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
    found: list[OriginRange] = []
    for piece in pieces:
        last = found[-1] if found else None
        if (
            last
            and last.end == piece.start
            and last.origin is piece.origin
            and last.begin + last.end - last.start == piece.begin
        ):
            found[-1] = OriginRange(last.start, piece.end, last.origin, last.begin)
        else:
            found.append(piece)
    return found


class FixedBytes(NamedTuple):
    """The constraints on the bytes of a tensor or of an alias set: an address in bytes, a memory, and whether nothing else shares them.

    No byte is at `limit` or behind it, the capacity of the memory of an address.
    """

    at: int | None = None
    memory: str | None = None
    is_alone: bool = False
    limit: int | None = None

    def moved(self, distance: int) -> FixedBytes:
        """Return the constraints on bytes that start `distance` bytes after these."""
        return self if self.at is None else self._replace(at=self.at + distance)

    def joined(self, other: FixedBytes) -> FixedBytes | None:
        """Return the constraints on bytes that start at both addresses; None where there are no such bytes."""
        if self.is_alone or other.is_alone:
            return None
        is_other = None not in {self.at, other.at} and self.at != other.at
        if is_other or (None not in {self.memory, other.memory} and self.memory != other.memory):
            return None
        limit = min((one.limit for one in (self, other) if one.limit is not None), default=None)
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

    owner: ir.Value
    size: int
    live_range: LiveRange
    starts: dict[ir.Value, int]
    front: tuple[ir.Value, ...]
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

    @property
    def tensors(self) -> KeysView[ir.Value]:
        """The tensors in the buffer."""
        return self.starts.keys()

    def start(self, value: ir.Value) -> int:
        """Return the start of `value` in the buffer, in bytes."""
        return self.starts[value] - self.base


@dataclass(frozen=True)
class Merge:
    """Two alias sets that may be one: `second` starts `shift` bytes after the start of `first`, and `front` is that of both."""

    first: AliasSet
    second: AliasSet
    shift: int
    front: tuple[ir.Value, ...]


@dataclass(frozen=True)
class Merged:
    """An alias set that has taken in the tensors of `other`, its fields before, to undo that, and the changes of the live bytes."""

    kept: AliasSet
    other: AliasSet
    before: AliasSet
    changes: tuple[LiveChange, ...]


class AliasSets:
    """The alias set of each tensor, `of`. Each tensor has a set of its own at first; `merge` makes one of two.

    `live_ranges` are those of the schedule whose steps are counted, `order` says which tensors are dead before others are made, and `kept`
    tensors outlive the run. `parts` has the live ranges of the bytes of tensors that die part by part; with None, all bytes of a set count
    as live in its whole live range. Live bytes are rounded up to multiples of `alignment`. `fixed` has the constraints on the bytes of
    tensors.
    """

    def __init__(
        self,
        sizes: Mapping[ir.Value, int],
        live_ranges: Mapping[ir.Value, LiveRange],
        order: Precedence,
        kept: frozenset[ir.Value],
        contents: Contents,
        alignment: int,
        parts: Mapping[ir.Value, Sequence[LivePart]] | None = None,
        fixed: Mapping[ir.Value, FixedBytes] | None = None,
    ) -> None:
        self._is_free = not fixed
        # Bytes that a pinned buffer may reach without making the arena larger; None: any.
        self.ceiling: int | None = None
        self._alignment = alignment
        self._sizes = sizes
        self._order = order
        self._kept = kept
        self._contents = contents
        self._overwrites: set[tuple[ir.Value, ir.Value]] = set()
        self.of: dict[ir.Value, AliasSet] = {}
        for value, size in sizes.items():
            live_range, columns = live_ranges[value], None
            if parts is not None:
                died = parts.get(value)
                whole = ByteColumns((0, size), ((live_range,),)) if size else ByteColumns((0,), ())
                columns = whole if died is None else ByteColumns.of(died)
            own = (fixed or {}).get(value, FREE)
            self.of[value] = AliasSet(value, size, live_range, {value: 0}, (value,), columns=columns, fixed=own)

    def allow(self, alias: Alias) -> None:
        """Let `alias.value` be written over `alias.source`, once that is dead."""
        self._overwrites.add((alias.value, alias.source))

    def size(self, value: ir.Value) -> int:
        """Return the bytes of `value`."""
        return self._sizes[value]

    def start(self, value: ir.Value) -> int:
        """Return the start of `value` in its buffer, in bytes."""
        return self.of[value].start(value)

    def possible(self, alias: Alias) -> Merge | None:
        """Return the merge that puts both tensors of `alias` into one buffer, `alias.at` apart.

        None where they are in one already, where neither buffer holds the other, or where a tensor would lose bytes that are still read.
        """
        first, second = self.of[alias.source], self.of[alias.value]
        if first is second:
            return None
        shift = first.start(alias.source) + alias.at - second.start(alias.value)
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
        return max((one.pin + one.size for one in sets if one.pin is not None), default=0)

    def merge(self, merge: Merge) -> Merged:
        """Make one alias set of two: the one with fewer tensors moves, so that n merges take n log n moves at most."""
        first, second, shift = merge.first, merge.second, merge.shift
        kept, other = (first, second) if len(first.starts) >= len(second.starts) else (second, first)
        distance = shift if other is second else -shift
        before = replace(kept)
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
            changes += (LiveChange(-one.size, *one.live_range) for one in (first, second))
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
        own = [LiveChange(alias_set.size, *alias_set.live_range)] if columns is None else list(columns.changes(1))
        return own + self._slack(alias_set, 1)

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

    def _front_behind(self, first: AliasSet, second: AliasSet, shift: int) -> tuple[ir.Value, ...] | None:
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
        pairs = ((a, b, second.start(b) + shift) for b in reversed(second.starts) for a in reversed(first.starts))
        return any(
            self._is_conflict(a, b, at - first.start(a))
            for a, b, at in pairs
            if -self._sizes[b] < at - first.start(a) < self._sizes[a]
        )

    def _is_conflict(self, a: ir.Value, b: ir.Value, shift: int) -> bool:
        """Return whether `a` and `b`, some of whose bytes are the same, must not share them."""
        low, high = max(0, shift), min(self._sizes[a], shift + self._sizes[b])
        if self._order.before_in(ByteSpan(low, high), a, b):
            return False
        if self._order.before_in(ByteSpan(low - shift, high - shift), b, a):
            return False
        if shift == 0 and (self._is_written_over(a, b) or self._is_written_over(b, a)):
            return False
        return not self._contents.agree(a, b, shift)

    def _is_written_over(self, old: ir.Value, new: ir.Value) -> bool:
        return (new, old) in self._overwrites and old not in self._kept and self._order.until(old, new)
