"""The live ranges of the bytes of a buffer, kept while tensors are added to it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onnxtile.planning.layout.live_ranges import LiveRange
from onnxtile.planning.offsets.outline import LivePart, joined_ranges

Lives = tuple[LiveRange, ...]
"""The live ranges of some bytes, in order, with steps between them."""


class LiveChange(NamedTuple):
    """A change of the live bytes in the steps [lower, upper)."""

    bytes: int
    lower: int
    upper: int


class ByteColumns(NamedTuple):
    """Neighbouring ranges of bytes: those from `cuts[i]` to `cuts[i + 1]` are live in the steps of `lives[i]`."""

    cuts: tuple[int, ...]
    lives: tuple[Lives, ...]

    @classmethod
    def of(cls, parts: Sequence[LivePart]) -> ByteColumns:
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
            found = joined_ranges((*self._at(start), *other._at(start)))
            if not lives or lives[-1] != found:
                cuts.append(start)
                lives.append(found)
        return ByteColumns((*cuts, points[-1]), tuple(lives))

    def _at(self, byte: int) -> Lives:
        place = bisect_right(self.cuts, byte) - 1
        return self.lives[place] if 0 <= place < len(self.lives) else ()
