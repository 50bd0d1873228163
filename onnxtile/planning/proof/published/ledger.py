"""The last writer of each byte."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

WrittenRange: TypeAlias = tuple[int, int, int]
"""The bytes from start to end, and the number of their last writer."""

NOBODY = -1


class Ledger:
    """Ranges of bytes, in order and without gaps, each with the number of its last writer; NOBODY at first."""

    def __init__(self) -> None:
        self._starts = [-(2**62)]
        self._writers = [NOBODY]

    def of(self, start: int, end: int) -> list[WrittenRange]:
        """Return the writers of the bytes from `start` to `end`."""
        first, found = bisect_right(self._starts, start) - 1, []
        if first + 1 == len(self._starts) or self._starts[first + 1] >= end:
            return [(start, end, self._writers[first])] if start < end else []
        for i in range(first, len(self._starts)):
            low, high = (
                max(self._starts[i], start),
                end if i + 1 == len(self._starts) else min(self._starts[i + 1], end),
            )
            if low >= end:
                break
            found.append((low, high, self._writers[i]))
        return joint(found)

    def write(self, start: int, end: int, writer: int) -> list[WrittenRange]:
        """Note that `writer` wrote the bytes from `start` to `end`; return the writers before."""
        before = self.of(start, end)
        first, last = bisect_right(self._starts, start) - 1, bisect_right(self._starts, end) - 1
        after = self._writers[last]
        starts, writers = [start, end], [writer, after]
        if self._starts[first] < start:
            starts, writers = [self._starts[first], *starts], [self._writers[first], *writers]
        self._starts[first : last + 1], self._writers[first : last + 1] = starts, writers
        return before


def joint(pieces: Iterable[WrittenRange]) -> list[WrittenRange]:
    """Return `pieces`, which are in order, with adjacent ranges of one writer merged."""
    found: list[WrittenRange] = []
    for start, end, writer in pieces:
        if found and found[-1][1:] == (start, writer):
            found[-1] = (found[-1][0], end, writer)
        elif start < end:
            found.append((start, end, writer))
    return found


def clipped(pieces: Sequence[WrittenRange], start: int, end: int) -> list[WrittenRange]:
    """Return the part of `pieces` from `start` to `end`."""
    return [(max(low, start), min(high, end), writer) for low, high, writer in pieces if low < end and start < high]
