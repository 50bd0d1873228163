"""Regions: sets of tensors that lie in one buffer, each at a place of its own in it, and may lie there without harm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import Alias
from onnxtile.planning.layout.live_ranges import LiveRange, merged
from onnxtile.planning.layout.ordering.precedence import Precedence


class OriginRange(NamedTuple):
    """The bytes [start, end) of a tensor are those of `origin` from `begin` on."""

    start: int
    end: int
    origin: ir.Value
    begin: int


@dataclass(frozen=True)
class Contents:
    """What lies in each tensor, as pieces of the tensors that it is a view of, a part of, or made of."""

    sizes: Mapping[ir.Value, int]
    _pieces: dict[ir.Value, tuple[OriginRange, ...]] = field(default_factory=dict, repr=False)

    def add(self, value: ir.Value, known: Iterable[Alias]) -> None:
        """Note the content of `value`, whose operands' is noted already, given what it shares with them whatever its place."""
        size = self.sizes[value]
        pieces: list[OriginRange] = []
        for alias in known:
            inner = self._pieces.get(alias.source, ())
            # In bytes of `value`; the operands of a Concat come one behind the other.
            moved = (OriginRange(p.start - alias.at, p.end - alias.at, p.origin, p.begin) for p in inner)
            pieces.extend(_clipped(moved, pieces[-1].end if pieces else 0, size))
        self._pieces[value] = tuple(_filled(value, pieces, size))

    def pieces(self, value: ir.Value) -> tuple[OriginRange, ...]:
        """Return what lies in `value`, from its first byte to its last."""
        return self._pieces[value]

    def agree(self, a: ir.Value, b: ir.Value, shift: int) -> bool:
        """Return whether the same bytes lie in `a` and `b` wherever they overlap, if `b` begins `shift` bytes behind the start of `a`."""
        low, high = max(0, shift), min(self.sizes[a], shift + self.sizes[b])
        first = _joint(_clipped(self._pieces[a], low, high))
        second = _joint(
            _clipped(
                (OriginRange(p.start + shift, p.end + shift, p.origin, p.begin) for p in self._pieces[b]), low, high
            )
        )
        return first == second


def _clipped(pieces: Iterable[OriginRange], low: int, high: int) -> Iterator[OriginRange]:
    for piece in pieces:
        start, end = max(piece.start, low), min(piece.end, high)
        if start < end:
            yield OriginRange(start, end, piece.origin, piece.begin + start - piece.start)


def _filled(value: ir.Value, pieces: Iterable[OriginRange], size: int) -> Iterator[OriginRange]:
    """Yield `pieces`, and for what lies between them the value's own bytes."""
    at = 0
    for piece in pieces:
        if at < piece.start:
            yield OriginRange(at, piece.start, value, at)
        yield piece
        at = piece.end
    if at < size:
        yield OriginRange(at, size, value, at)


def _joint(pieces: Iterable[OriginRange]) -> list[OriginRange]:
    """Return `pieces` with neighbours that continue each other made one."""
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


@dataclass
class AliasSet:
    """Tensors in one buffer of `size` bytes, each with where it begins; `owner` is one that fills it.

    All others are dead by the time one of the `front` is made that has their bytes: what comes after these comes after all.
    """

    owner: ir.Value
    size: int
    live_range: LiveRange
    places: dict[ir.Value, int]
    front: tuple[ir.Value, ...]


class AliasSets:
    """Which region each tensor lies in. At first each has one of its own; `join` makes one of two where that does no harm.

    `lives` are those of the schedule by which steps are counted, `order` says who is before whom, `kept` outlive the run.
    """

    def __init__(
        self,
        sizes: Mapping[ir.Value, int],
        live_ranges: Mapping[ir.Value, LiveRange],
        order: Precedence,
        kept: frozenset[ir.Value],
        contents: Contents,
    ) -> None:
        self._sizes = sizes
        self._order = order
        self._kept = kept
        self._contents = contents
        self._overwrites: set[tuple[ir.Value, ir.Value]] = set()
        self.of: dict[ir.Value, AliasSet] = {
            v: AliasSet(v, size, live_ranges[v], {v: 0}, (v,)) for v, size in sizes.items()
        }

    def allow(self, alias: Alias) -> None:
        """Let `alias.value` be written over `alias.source`, once that is dead."""
        self._overwrites.add((alias.value, alias.source))

    def size(self, value: ir.Value) -> int:
        """Return the bytes of `value`."""
        return self._sizes[value]

    def place(self, value: ir.Value) -> int:
        """Return where `value` begins in its region."""
        return self.of[value].places[value]

    def joined(self, alias: Alias) -> AliasSet | None:
        """Return the region that both would lie in, `alias.at` apart; None where they already do or it would do harm."""
        first, second = self.of[alias.source], self.of[alias.value]
        if first is second:
            return None
        shift = first.places[alias.source] + alias.at - second.places[alias.value]
        low, high = min(0, shift), max(first.size, shift + second.size)
        if high - low != max(first.size, second.size):
            return None
        front = self._front_behind(first, second, shift)
        if front is None and self._harmful(first, second, shift):
            return None
        larger = first if first.size >= second.size else second
        places = {value: at - low for value, at in first.places.items()}
        places |= {value: at + shift - low for value, at in second.places.items()}
        found = front or (*first.front, *second.front)
        return AliasSet(larger.owner, larger.size, merged(first.live_range, second.live_range), places, found)

    def settle(self, alias_set: AliasSet) -> None:
        """Let all tensors of `region` lie there."""
        for value in alias_set.places:
            self.of[value] = alias_set

    def _front_behind(self, first: AliasSet, second: AliasSet, shift: int) -> tuple[ir.Value, ...] | None:
        """Return the front of both regions where all of `second` come after those of `first` whose bytes they take; else None.

        A stream of thousands of tensors, each written over the one before it, is so not compared pair by pair.
        """
        left = []
        for a in first.front:
            at_a, size = first.places[a], self._sizes[a]
            met = [
                (b, at + shift - at_a) for b, at in second.places.items() if -self._sizes[b] < at + shift - at_a < size
            ]
            if not all(self._order.before(a, b) or (not at and self._is_written_over(a, b)) for b, at in met):
                return None
            if not any(at <= 0 and size <= at + self._sizes[b] for b, at in met):
                left.append(a)
        return (*left, *second.front)

    def _harmful(self, first: AliasSet, second: AliasSet, shift: int) -> bool:
        # Whoever is in the way was added last, as a rule.
        pairs = ((a, b, second.places[b] + shift) for b in reversed(second.places) for a in reversed(first.places))
        return any(
            self._clash(a, b, at - first.places[a])
            for a, b, at in pairs
            if -self._sizes[b] < at - first.places[a] < self._sizes[a]
        )

    def _clash(self, a: ir.Value, b: ir.Value, shift: int) -> bool:
        """Return whether `a` and `b`, some of whose bytes are the same, are in each other's way."""
        if self._order.before(a, b) or self._order.before(b, a):
            return False
        if shift == 0 and (self._is_written_over(a, b) or self._is_written_over(b, a)):
            return False
        return not self._contents.agree(a, b, shift)

    def _is_written_over(self, old: ir.Value, new: ir.Value) -> bool:
        return (new, old) in self._overwrites and old not in self._kept and self._order.until(old, new)
