"""The bytes of tensors that were handed to a region in pieces: each piece lives until the last strip that reads it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import numpy as np

from onnxtile.fitting.live_bytes import aligned
from onnxtile.fitting.network import COLUMNS
from onnxtile.fitting.region import overlapped
from onnxtile.fitting.region_tracer import RegionTracer


class GivenPieces:
    """Pieces that were handed to the region of `about`; those of tensors of `dying` live until their last read in it."""

    def __init__(self, about: RegionTracer, dying: Collection[int]) -> None:
        self.about = about
        self.count = len(about.rows[0].news)
        self.last = {
            tensor: about.last_strips[tensor] if tensor in dying else [self.count] * len(pieces)
            for tensor, pieces in about.given.items()
        }

    @cached_property
    def living(self) -> list[int]:
        """The bytes of the pieces that live in each strip; the last number is that behind the last strip."""
        changes = np.zeros(self.count + 2, np.int64)
        for tensor, lasts in self.last.items():
            for piece, last in enumerate(lasts):
                size = self.size([(tensor, piece)])
                changes[0] += size
                changes[last + 1] -= size
        found: list[int] = np.cumsum(changes[: self.count + 1]).tolist()
        return found

    def size(self, pieces: Iterable[tuple[int, int]]) -> int:
        """Return the bytes of pieces, each given by its tensor and number."""
        return sum(self._size(tensor, piece) for tensor, piece in pieces)

    def _size(self, tensor: int, piece: int) -> int:
        start, stop = self.about.given[tensor][piece]
        about = self.about.tensors[tensor]
        return aligned(about.bytes(stop - start, about.extent(COLUMNS)))

    def lives_after(self, piece: tuple[int, int], strip: int) -> bool:
        """Return whether a piece, given by its tensor and number, is read after a strip."""
        return self.last[piece[0]][piece[1]] > strip

    @cached_property
    def places(self) -> list[bytes]:
        """The places of the rows that each strip reads in the pieces, and whether they die then; equal for strips that cost the same."""
        found = [list[object]() for _ in range(self.count)]
        for kernel, span in zip(self.about.kernels, self.about.rows, strict=True):
            for place, tensor in enumerate(kernel.reads):
                if tensor in self.last:
                    for strip, rows in enumerate(span.needs[place].pairs):
                        found[strip].append(self._outline(tensor, strip, rows))
        return [repr(one).encode() if one else b"" for one in found]

    def _outline(self, tensor: int, strip: int, rows: tuple[int, int] | None) -> list[tuple[int, int, bool]]:
        """Return the ends of each piece that is read, from the first row that is read, and whether it dies then."""
        pieces, last = self.about.given[tensor], self.last[tensor]
        first = 0 if rows is None else rows[0]
        return [
            (pieces[piece][0] - first, pieces[piece][1] - first, last[piece] > strip)
            for piece in overlapped(pieces, rows)
        ]
