"""The operations of a run of kernels that is cut, in their order, each with the patches that it reads and makes.

The same operations are counted by the search and written into the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel, FitTensor
from onnxtile.fitting.region import Cut, macs_of, overlapped, row_pieces
from onnxtile.fitting.strip_ranges import PatchRange, RowNumbers, StripRanges


class Patch(NamedTuple):
    """Rows and columns of a tensor."""

    tensor: int
    rows: PatchRange
    columns: PatchRange


class PieceOp(NamedTuple):
    """One operation on patches, by their numbers: a `kernel` of the region, or (None) a Slice of one patch or a Concat of several."""

    kernel: int | None
    reads: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass
class RegionTrace:
    """The operations of a region, the patches that they read and make, and the multiply-accumulates."""

    patches: list[Patch] = field(default_factory=list)
    ops: list[PieceOp] = field(default_factory=list)
    macs: int = 0
    whole: dict[int, int] = field(default_factory=dict)
    """The patches that are whole tensors: those read from outside of the region, and the results for it."""
    pieces: dict[int, list[int]] = field(default_factory=dict)
    """The patches of tensors that are handed over in pieces, to the region or by it; only those of a strip in the trace of one strip."""
    strips: int = 1
    kept: int = 0
    """The number of tensors of which rows are kept from strip to strip."""


@dataclass(frozen=True)
class StripTrace:
    """The operations of one strip: patches `given` from the strips before, and those `left` for later ones."""

    trace: RegionTrace
    given: tuple[int, ...]
    left: tuple[int, ...]
    pieces: dict[tuple[int, int], int]
    """The patches of the pieces that the strip reads of tensors that were handed over in pieces, by tensor and number."""


class RegionTracer:
    """Lists the operations of one region."""

    def __init__(
        self,
        kernels: Sequence[FitKernel],
        tensors: Sequence[FitTensor],
        results: Sequence[int],
        rows: list[StripRanges],
        cut: Cut,
    ) -> None:
        self.kernels, self.tensors, self.results, self.cut = kernels, tensors, frozenset(results), cut
        self.rows = rows
        self.given = {tensor: row_pieces(ends) for tensor, ends in cut.given}
        self.found = RegionTrace()
        self.made = {made for kernel in kernels for made in kernel.makes}
        self.readers: dict[int, int] = {}
        for kernel in kernels:
            for tensor in kernel.reads:
                self.readers[tensor] = self.readers.get(tensor, 0) + 1
        self.makers = {made: number for number, kernel in enumerate(kernels) for made in kernel.makes}
        self.held: dict[int, int] = {}
        self.cuts: dict[Patch, int] = {}
        self.last_read: dict[int, int] = {}
        self.tails: dict[int, list[PieceOp]] = {}
        self.given_patches: dict[int, dict[int, int]] = {}

    def trace(self) -> RegionTrace:
        """Return the operations of all strips."""
        parts: dict[int, list[int]] = {tensor: [] for tensor in self.results}
        for strip in range(len(self.rows[0].news)):
            self._strip(strip, parts)
            self._keep(strip)
        for tensor, pieces in parts.items():
            if tensor in self.cut.parted and len(pieces) > 1:
                self.found.pieces[tensor] = pieces
            else:
                self.found.whole[tensor] = self._join(tensor, pieces)
        self.found.pieces.update((tensor, list(self._given_all(tensor))) for tensor in self.given)
        self._put_tails()
        self.found.macs = macs_of(self.kernels, self.tensors, self.rows)
        self.found.strips = len(self.rows[0].news)
        self.found.kept = len({op.makes for tails in self.tails.values() for op in tails})
        return self.found

    def strip(self, strip: int) -> StripTrace:
        """Return the operations of one strip."""
        self.found, self.held, self.cuts, self.last_read, self.tails = RegionTrace(), {}, {}, {}, {}
        self.given_patches = {}
        for number, rows in self._kept_before(strip) if strip else ():
            for made in self.kernels[number].makes:
                if made in self.readers:
                    self.held[made] = self._patch(self._patch_of(made, rows))
                    self.last_read[self.held[made]] = -1
        held = tuple(self.held.values())
        parts: dict[int, list[int]] = {tensor: [] for tensor in self.results}
        self._strip(strip, parts)
        self._keep(strip)
        self._put_tails()
        read = {(t, piece): patch for t, patches in self.given_patches.items() for piece, patch in patches.items()}
        left = (*self.held.values(), *(piece for pieces in parts.values() for piece in pieces))
        return StripTrace(self.found, held, left, read)

    @cached_property
    def last_strips(self) -> dict[int, list[int]]:
        """The last strip that reads each piece of the tensors that were handed over in pieces; -1 for a piece that none reads."""
        found = {tensor: [-1] * len(pieces) for tensor, pieces in self.given.items()}
        for kernel, span in zip(self.kernels, self.rows, strict=True):
            for place, tensor in enumerate(kernel.reads):
                for strip, rows in enumerate(span.needs[place].pairs if tensor in found else ()):
                    for piece in overlapped(self.given[tensor], rows):
                        found[tensor][piece] = max(found[tensor][piece], strip)
        return found

    def _kept_before(self, strip: int) -> list[tuple[int, PatchRange]]:
        """Return the kernels of whose results rows are kept for a strip from the strips before it, with these rows."""
        found = [(number, pairs[strip]) for number, pairs in self._befores]
        return [(number, rows) for number, rows in found if rows is not None]

    @cached_property
    def _befores(self) -> list[tuple[int, list[PatchRange | None]]]:
        """The kernels of whose results rows are kept from strip to strip, with these rows."""
        kept = ((number, span.before) for number, span in enumerate(self.rows) if span.windows is not span.news)
        return [(number, before.pairs) for number, before in kept if before.some.any()]

    def _patch(self, patch: Patch) -> int:
        self.found.patches.append(patch)
        return len(self.found.patches) - 1

    def _op(self, kernel: int | None, read: tuple[int, ...], makes: tuple[int, ...]) -> None:
        at = len(self.found.ops)
        for patch in read:
            self.last_read[patch] = at
        for patch in makes:
            self.last_read[patch] = at
        self.found.ops.append(PieceOp(kernel, read, makes))

    def _strip(self, strip: int, parts: dict[int, list[int]]) -> None:
        self.cuts = {}
        held, readers = self.held, self.readers
        for number, (kernel, (rows, *needs)) in enumerate(zip(self.kernels, self._rows_in(strip), strict=True)):
            if rows is None:
                continue
            operands = tuple([self._operand(tensor, need) for tensor, need in zip(kernel.reads, needs, strict=True)])
            makes = tuple([self._patch(self._made(kernel, made, rows)) for made in kernel.makes])
            self._op(number, operands, makes)
            for made, patch in zip(kernel.makes, makes, strict=True):
                if made in self.results:
                    parts[made].append(patch)
                if made in readers:
                    before = held.get(made)
                    held[made] = patch if before is None else self._join(made, [before, patch])

    def _rows_in(self, strip: int) -> Iterator[list[PatchRange | None]]:
        """Yield the rows that each kernel computes in a strip, and those that it reads of each operand."""
        starts, stops = (table[:, strip].tolist() for table in self._row_table)
        pairs = ((start, stop) if start < stop else None for start, stop in zip(starts, stops, strict=True))
        return (list(islice(pairs, 1 + len(span.needs))) for span in self.rows)

    @cached_property
    def _row_table(self) -> tuple[RowNumbers, RowNumbers]:
        """The first rows, and the ends of the rows, that each kernel computes and reads: a column for each strip."""
        ranges = [one for span in self.rows for one in (span.news, *span.needs)]
        shape = len(ranges), len(self.rows[0].news)
        return (
            np.concatenate([one.starts for one in ranges]).reshape(shape),
            np.concatenate([one.stops for one in ranges]).reshape(shape),
        )

    def _patch_of(self, tensor: int, rows: PatchRange) -> Patch:
        """Return rows of a tensor, with all columns."""
        return Patch(tensor, rows, (0, self.tensors[tensor].extent(COLUMNS)))

    def _made(self, kernel: FitKernel, tensor: int, rows: PatchRange) -> Patch:
        """Return the patch of one result; the results of a kernel that is not cut may have different sizes."""
        return self._patch_of(tensor, (0, self.tensors[tensor].extent(ROWS)) if kernel.links[ROWS] is None else rows)

    def _operand(self, tensor: int, rows: PatchRange | None) -> int:
        assert rows is not None
        if tensor in self.given:
            return self._assembled(self._patch_of(tensor, rows))
        source = self.held[tensor] if tensor in self.made else self._whole(tensor)
        return self._slice(source, self._patch_of(tensor, rows))

    def _whole(self, tensor: int) -> int:
        if tensor not in self.found.whole:
            self.found.whole[tensor] = self._patch(self._patch_of(tensor, (0, self.tensors[tensor].extent(ROWS))))
        return self.found.whole[tensor]

    def _assembled(self, wanted: Patch) -> int:
        """Return rows of a tensor that was handed over in pieces: a piece or a part of it, or several joined."""
        if wanted in self.cuts:
            return self.cuts[wanted]
        tensor, rows, columns = wanted
        pieces = self.given[tensor]
        parts = [
            self._slice(
                self._given(tensor, piece),
                Patch(tensor, (max(rows[0], pieces[piece][0]), min(rows[1], pieces[piece][1])), columns),
            )
            for piece in overlapped(pieces, rows)
        ]
        self.cuts[wanted] = self._join(tensor, parts)
        return self.cuts[wanted]

    def _given(self, tensor: int, piece: int) -> int:
        """Return the patch of a piece that was handed over."""
        patches = self.given_patches.setdefault(tensor, {})
        if piece not in patches:
            patches[piece] = self._patch(self._patch_of(tensor, self.given[tensor][piece]))
        return patches[piece]

    def _given_all(self, tensor: int) -> Iterator[int]:
        return (self._given(tensor, piece) for piece in range(len(self.given[tensor])))

    def _slice(self, source: int, wanted: Patch) -> int:
        if self.found.patches[source] == wanted:
            return source
        if wanted not in self.cuts:
            self.cuts[wanted] = self._patch(wanted)
            self._op(None, (source,), (self.cuts[wanted],))
        return self.cuts[wanted]

    def _join(self, tensor: int, pieces: Sequence[int]) -> int:
        if len(pieces) == 1:
            return pieces[0]
        first, last = self.found.patches[pieces[0]], self.found.patches[pieces[-1]]
        patch = self._patch(self._patch_of(tensor, (first.rows[0], last.rows[1])))
        self._op(None, tuple(pieces), (patch,))
        return patch

    def _keep(self, strip: int) -> None:
        """Keep the rows that the next strip reads again, from the last operation on that reads the others."""
        after = strip + 1
        held: dict[int, int] = {}
        for number, rows in self._kept_before(after) if after < len(self.rows[0].news) else ():
            for made in self.kernels[number].makes:
                if made in self.held:
                    held[made] = self._tail(made, rows)
        self.held = held

    def _tail(self, tensor: int, rows: PatchRange) -> int:
        source = self.held[tensor]
        patch = self.found.patches[source]
        if patch.rows == rows:
            return source
        tail = self._patch(Patch(tensor, rows, patch.columns))
        self.tails.setdefault(self.last_read[source], []).append(PieceOp(None, (source,), (tail,)))
        self.last_read[tail] = self.last_read[source]
        return tail

    def _put_tails(self) -> None:
        if not self.tails:
            return
        ops: list[PieceOp] = list(self.tails.get(-1, ()))
        for at, op in enumerate(self.found.ops):
            ops.append(op)
            ops.extend(self.tails.get(at, ()))
        self.found.ops = ops
