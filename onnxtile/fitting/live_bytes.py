"""The bytes that live at once while a region runs, as the planner counts them: aligned, with views and results written in place."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.fitting.strips import (
    ChunkedKernels,
    Cut,
    PatchRange,
    PatchRanges,
    RowNumbers,
    StripRanges,
    UncutRegion,
    macs_of,
    overlapped,
    row_pieces,
)
from onnxtile.system.dataclass import dataclass

# The operations of a run of kernels that is cut, in their order, each with the patches that it reads and makes.
#
# The same operations are counted by the search and written into the model.


class Patch(NamedTuple):
    """Rows of a tensor."""

    tensor: int
    rows: PatchRange


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
        self.made = {result for kernel in kernels for result in kernel.makes}
        self.readers: dict[int, int] = {}
        for kernel in kernels:
            for tensor in kernel.reads:
                self.readers[tensor] = self.readers.get(tensor, 0) + 1
        self.makers = {result: number for number, kernel in enumerate(kernels) for result in kernel.makes}
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
            for result in self.kernels[number].makes:
                # A sum is kept for its own next part, also where only later regions read it.
                if result in self.readers or self.tensors[result].folds:
                    self.held[result] = self._patch(Patch(result, rows))
                    self.last_read[self.held[result]] = -1
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
        lasts = {tensor: [-1] * len(pieces) for tensor, pieces in self.given.items()}
        for kernel, span in zip(self.kernels, self.rows, strict=True):
            for index, tensor in enumerate(kernel.reads):
                for strip, rows in enumerate(span.needs[index].pairs if tensor in lasts else ()):
                    for piece in overlapped(self.given[tensor], rows):
                        lasts[tensor][piece] = max(lasts[tensor][piece], strip)
        return lasts

    def _kept_before(self, strip: int) -> list[tuple[int, PatchRange]]:
        """Return the kernels of whose results rows are kept for a strip from the strips before it, with these rows."""
        kept = [(number, pairs[strip]) for number, pairs in self._befores]
        return [(number, rows) for number, rows in kept if rows is not None]

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
            makes = tuple([self._patch(self._made(kernel, result, rows)) for result in kernel.makes])
            self._op(number, operands, makes)
            for result, patch in zip(kernel.makes, makes, strict=True):
                before = held.get(result)
                if self.tensors[result].folds:
                    held[result] = patch if before is None else self._join(result, [before, patch])
                    parts.get(result, [])[:] = [held[result]]
                    continue
                if result in self.results:
                    parts[result].append(patch)
                if result in readers:
                    held[result] = patch if before is None else self._join(result, [before, patch])

    def _rows_in(self, strip: int) -> Iterator[list[PatchRange | None]]:
        """Yield the rows that each kernel computes in a strip, and those that it reads of each operand."""
        starts, stops = (table[:, strip].tolist() for table in self._row_table)
        pairs = [(start, stop) if start < stop else None for start, stop in zip(starts, stops, strict=True)]
        return (pairs[low:high] for low, high in self._row_places)

    @cached_property
    def _row_places(self) -> list[tuple[int, int]]:
        """The places in a column of the row table of the rows that each kernel computes and reads."""
        return list(pairwise(accumulate((1 + len(span.needs) for span in self.rows), initial=0)))

    @cached_property
    def _row_table(self) -> tuple[RowNumbers, RowNumbers]:
        """The first rows, and the ends of the rows, that each kernel computes and reads: a column for each strip."""
        ranges = [need for span in self.rows for need in (span.news, *span.needs)]
        shape = len(ranges), len(self.rows[0].news)
        return (
            np.concatenate([need.starts for need in ranges]).reshape(shape),
            np.concatenate([need.stops for need in ranges]).reshape(shape),
        )

    def _made(self, kernel: FitKernel, tensor: int, rows: PatchRange) -> Patch:
        """Return the patch of one result; the results of a kernel that is not cut may have different sizes."""
        return Patch(tensor, (0, self.tensors[tensor].rows) if kernel.links is None else rows)

    def _operand(self, tensor: int, rows: PatchRange | None) -> int:
        assert rows is not None
        if tensor in self.given:
            return self._assembled(Patch(tensor, rows))
        if self.tensors[tensor].is_streamed:
            return self._whole(tensor)  # what reads it is a Slice itself
        source = self.held[tensor] if tensor in self.made else self._whole(tensor)
        return self._slice(source, Patch(tensor, rows))

    def _whole(self, tensor: int) -> int:
        if tensor not in self.found.whole:
            self.found.whole[tensor] = self._patch(Patch(tensor, (0, self.tensors[tensor].rows)))
        return self.found.whole[tensor]

    def _assembled(self, wanted: Patch) -> int:
        """Return rows of a tensor that was handed over in pieces: a piece or a part of it, or several joined."""
        if wanted in self.cuts:
            return self.cuts[wanted]
        tensor, rows = wanted
        pieces = self.given[tensor]
        parts = [
            self._slice(
                self._given(tensor, piece),
                Patch(tensor, (max(rows[0], pieces[piece][0]), min(rows[1], pieces[piece][1]))),
            )
            for piece in overlapped(pieces, rows)
        ]
        self.cuts[wanted] = self._join(tensor, parts)
        return self.cuts[wanted]

    def _given(self, tensor: int, piece: int) -> int:
        """Return the patch of a piece that was handed over."""
        patches = self.given_patches.setdefault(tensor, {})
        if piece not in patches:
            patches[piece] = self._patch(Patch(tensor, self.given[tensor][piece]))
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
        patch = self._patch(Patch(tensor, (first.rows[0], last.rows[1])))
        self._op(None, tuple(pieces), (patch,))
        return patch

    def _keep(self, strip: int) -> None:
        """Keep the rows that the next strip reads again, from the last operation on that reads the others."""
        after = strip + 1
        held: dict[int, int] = {}
        for number, rows in self._kept_before(after) if after < len(self.rows[0].news) else ():
            for result in self.kernels[number].makes:
                if result in self.held:
                    held[result] = self._tail(result, rows)
        self.held = held

    def _tail(self, tensor: int, rows: PatchRange) -> int:
        source = self.held[tensor]
        patch = self.found.patches[source]
        if patch.rows == rows:
            return source
        tail = self._patch(Patch(tensor, rows))
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


ALIGNMENT = 64
"""Bytes: the default of plan."""


def aligned(size: int) -> int:
    """Return the bytes that a buffer of `size` bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class LiveBytes:
    """The largest sum of live bytes.

    `first` are the bytes that live before the first operation, `loads` those of each operation, `sizes` those of each patch.
    """

    peak: int
    first: int = 0
    loads: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


def live_bytes(
    trace: RegionTrace,
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    dying: Collection[int],
    given: Sequence[int] = (),
    left: Sequence[int] = (),
    ending: Mapping[int, int] = MappingProxyType({}),
) -> LiveBytes:
    """Return the live bytes of the operations of `trace`.

    Whole tensors of `dying` live until their last read here; other tensors from outside of the region are not counted. Results live on.
    So do patches that are `left`; those that are `given` live from the start. Of tensors in `ending` only so many bytes are counted.
    """
    return LiveCount(trace, kernels, tensors, dying, given, left, ending).run()


class LiveCount:
    """Counts the live bytes of the operations of a trace, one after the other."""

    def __init__(
        self,
        trace: RegionTrace,
        kernels: Sequence[FitKernel],
        tensors: Sequence[FitTensor],
        dying: Collection[int],
        given: Sequence[int] = (),
        left: Sequence[int] = (),
        ending: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.trace, self.kernels, self.tensors = trace, kernels, tensors
        self.sizes = [self._size(patch) for patch in trace.patches]
        for tensor, size in ending.items():
            if tensor in trace.whole:
                self.sizes[trace.whole[tensor]] = size
        written = {number for op in trace.ops for number in op.makes}
        self.last = {number: at for at, op in enumerate(trace.ops) for number in (*op.makes, *op.reads)}
        end = len(trace.ops)
        for tensor, patch in trace.whole.items():
            if patch in written:
                self.last[patch] = end
            elif tensor not in dying:
                self.sizes[patch] = 0
                self.last[patch] = end
        self.last.update((patch, end) for patch in left)
        self.owner: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.bytes: dict[int, int] = {}
        self.live = 0
        for patch in trace.whole.values():
            if patch not in written and patch in self.last:
                self._allocate(patch, self.sizes[patch])
        for patch in given:
            self._allocate(patch, self.sizes[patch])
            self.last.setdefault(patch, 0)

    def _size(self, patch: Patch) -> int:
        about, (start, stop) = self.tensors[patch.tensor], patch.rows
        is_whole = stop - start == about.rows
        # Slices of floats that are quantised run in the island.
        is_free = about.is_outside if is_whole else about.is_quantised
        return 0 if is_free else aligned(about.bytes_of(stop - start))

    def run(self) -> LiveBytes:
        """Count the live bytes while each operation runs."""
        first = peak = self.live
        loads: list[int] = []
        last, owner = self.last, self.owner
        for at, op in enumerate(self.trace.ops):
            held = self._place(at, op)
            loads.append(held)
            peak = max(peak, held)
            for patch in op.reads + op.makes:
                if last[patch] == at and patch in owner:
                    self._free(patch)
        return LiveBytes(peak, first, tuple(loads), tuple(self.sizes))

    def _place(self, at: int, op: PieceOp) -> int:
        """Place the results of an operation; return the bytes that live while it runs."""
        shared = self._shared(at, op)
        if shared is not None:
            self._share(op.makes[0], shared)
            for patch in op.makes[1:]:
                if self._is_split(op):
                    self._share(patch, shared)
                else:
                    self._allocate(patch, self.sizes[patch])
            return self.live
        if self._is_join(op) or self._is_split(op):
            # The operands become the results, byte for byte.
            for patch in dict.fromkeys(op.reads):
                if self.last[patch] == at and patch in self.owner:
                    self._free(patch)
        for patch in op.makes:
            self._allocate(patch, self.sizes[patch])
        return self.live

    def _shared(self, at: int, op: PieceOp) -> int | None:
        """Return the operand whose bytes the result takes; None where it has its own."""
        if op.kernel is None:
            # Sums are written over the sum so far.
            is_over = len(op.reads) == 1 or (self._folds(op) and self.last[op.reads[0]] == at)
            return op.reads[0] if is_over and self._is_contiguous(op) else None
        kernel = self.kernels[op.kernel]
        if kernel.is_view:
            # An output in the arena has bytes of its own where it views what is not there.
            result, viewed = (
                self.tensors[self.trace.patches[number].tensor] for number in (op.makes[0], self.owner[op.reads[0]])
            )
            return None if result.is_kept and not result.is_outside and viewed.is_outside else op.reads[0]
        if kernel.is_split:
            # Parts of an operand that lives on lie in it.
            return op.reads[0] if self.last[op.reads[0]] > at or not self.sizes[op.reads[0]] else None
        size = self.sizes[op.makes[0]]
        for index in sorted(kernel.overwrites):
            patch = op.reads[index]
            if self.last[patch] == at and self.sizes[patch] == size and self.users.get(self.owner.get(patch, -1)) == 1:
                return patch
        return None

    def _is_contiguous(self, op: PieceOp) -> bool:
        return self.tensors[self.trace.patches[op.makes[0]].tensor].has_contiguous_rows

    def _is_join(self, op: PieceOp) -> bool:
        if op.kernel is not None:
            return self.kernels[op.kernel].is_join
        return len(op.reads) > 1 and self._is_contiguous(op) and not self._folds(op)

    def _folds(self, op: PieceOp) -> bool:
        return bool(self.tensors[self.trace.patches[op.makes[0]].tensor].folds)

    def _is_split(self, op: PieceOp) -> bool:
        return op.kernel is not None and self.kernels[op.kernel].is_split

    def _allocate(self, patch: int, size: int) -> None:
        self.owner[patch] = patch
        self.users[patch] = 1
        self.bytes[patch] = size
        self.live += size

    def _share(self, patch: int, operand: int) -> None:
        owner = self.owner[operand]
        self.owner[patch] = owner
        self.users[owner] += 1

    def _free(self, patch: int) -> None:
        owner = self.owner.pop(patch)
        self.users[owner] -= 1
        if not self.users[owner]:
            self.live -= self.bytes[owner]


# The bytes of tensors that were handed to a region in pieces: each piece lives until the last strip that reads it.


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
        """The bytes of the pieces that live in each strip; the last number is that after the last strip."""
        changes = np.zeros(self.count + 2, np.int64)
        for tensor, lasts in self.last.items():
            for piece, last in enumerate(lasts):
                size = self.size([(tensor, piece)])
                changes[0] += size
                changes[last + 1] -= size
        living: list[int] = np.cumsum(changes[: self.count + 1]).tolist()
        return living

    def size(self, pieces: Iterable[tuple[int, int]]) -> int:
        """Return the bytes of pieces, each given by its tensor and number."""
        return sum(self._size(tensor, piece) for tensor, piece in pieces)

    def _size(self, tensor: int, piece: int) -> int:
        start, stop = self.about.given[tensor][piece]
        about = self.about.tensors[tensor]
        return aligned(about.row_bytes * (stop - start))

    def lives_after(self, piece: tuple[int, int], strip: int) -> bool:
        """Return whether a piece, given by its tensor and number, is read after a strip."""
        return self.last[piece[0]][piece[1]] > strip

    @cached_property
    def places(self) -> list[bytes]:
        """The places of the rows that each strip reads in the pieces, and whether they die then; equal for strips that cost the same."""
        outlines = [list[object]() for _ in range(self.count)]
        for kernel, span in zip(self.about.kernels, self.about.rows, strict=True):
            for index, tensor in enumerate(kernel.reads):
                if tensor in self.last:
                    for strip, rows in enumerate(span.needs[index].pairs):
                        outlines[strip].append(self._outline(tensor, strip, rows))
        return [repr(outline).encode() if outline else b"" for outline in outlines]

    def _outline(self, tensor: int, strip: int, rows: tuple[int, int] | None) -> list[tuple[int, int, bool]]:
        """Return the ends of each piece that is read, from the first row that is read, and whether it dies then."""
        pieces, last = self.about.given[tensor], self.last[tensor]
        first = 0 if rows is None else rows[0]
        return [
            (pieces[piece][0] - first, pieces[piece][1] - first, last[piece] > strip)
            for piece in overlapped(pieces, rows)
        ]


# The bytes of graph inputs in the arena that a region reads in strips: each row lives until the last strip that reads it.


class InputRows:
    """The bytes of the inputs of `dying` that die row by row in the region of `about`."""

    def __init__(self, about: RegionTracer, dying: Collection[int]) -> None:
        self.about, self.count = about, len(about.rows[0].news)
        self.after = {tensor: self._after(tensor) for tensor in sorted(dying) if about.tensors[tensor].dies_by_rows}
        """The bytes of each that live on after each strip; the first number is that before the first strip."""
        self.living: RowNumbers = sum((sizes[1:] for sizes in self.after.values()), np.zeros(self.count, np.int64))
        """The bytes of all of them that live on after each strip."""

    def ending(self, strip: int) -> dict[int, int]:
        """Return the bytes of each that live before a strip and not after it."""
        return {tensor: int(sizes[strip] - sizes[strip + 1]) for tensor, sizes in self.after.items()}

    def _after(self, tensor: int) -> RowNumbers:
        about = self.about.tensors[tensor]
        first = np.full(self.count + 1, about.rows, np.int64)
        for kernel, span in zip(self.about.kernels, self.about.rows, strict=True):
            for index, read in enumerate(kernel.reads):
                if read == tensor:
                    first[:-1] = np.minimum(first[:-1], span.needs[index].starts)
        # A row that a later strip reads lives on; the first strip finds all of them.
        first = np.minimum.accumulate(first[::-1])[::-1]
        first[0] = 0
        return bytes_from(about, first)


def bytes_from(about: FitTensor, first: RowNumbers) -> RowNumbers:
    """Return the bytes of a tensor from each of the rows `first` on, in whole blocks: the end of each plane."""
    plane, row = about.row_bytes * about.rows // about.planes, about.row_bytes // about.planes
    total, before = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    for start in range(0, plane * about.planes, plane or 1):
        low = (start + first * row) // ALIGNMENT * ALIGNMENT
        end = -(-(start + plane) // ALIGNMENT) * ALIGNMENT
        # A block may have bytes of two planes.
        total += np.where(first < about.rows, end - np.maximum(low, before), 0)
        before = np.where(first < about.rows, end, before)
    return total


# The bytes that live while a kernel runs as it is.


def whole_kernel_bytes(
    kernel: FitKernel, tensors: Sequence[FitTensor], results: Iterable[int], dying: Collection[int]
) -> LiveBytes:
    """Return the live bytes of a kernel that is not cut: operands of `dying` are not read later, `results` are."""
    numbers = {tensor: number for number, tensor in enumerate(dict.fromkeys((*kernel.reads, *kernel.makes)))}
    patches = [Patch(t, (0, tensors[t].rows)) for t in numbers]
    reads, makes = (tuple(numbers[tensor] for tensor in ends) for ends in (kernel.reads, kernel.makes))
    lives_on = {tensor: numbers[tensor] for tensor in (*kernel.reads, *results)}
    trace = RegionTrace(patches, [PieceOp(0, reads, makes)], whole=lives_on)
    return live_bytes(trace, [kernel], tensors, dying)


# The bytes that live at once while a network runs as it is.


def uncut_loads(network: Network) -> list[int]:
    """Return the bytes that live while each kernel runs, in one pass over the kernels.

    Views, and results in the place of operands, are followed from kernel to kernel. So they are no more than the peaks of single kernels,
    which count every tensor that passes by.
    """
    count, whole = len(network.kernels), Cut()
    results = [result for kernel in network.kernels for result in kernel.makes if network.last_reads[result] >= count]
    ranges = UncutRegion(network.kernels, network.tensors, results).ranges(whole)
    trace = RegionTracer(network.kernels, network.tensors, results, ranges, whole).trace()
    live = live_bytes(trace, network.kernels, network.tensors, network.given)
    loads = [live.first] * count
    for op, load in zip(trace.ops, live.loads, strict=True):
        if op.kernel is not None:
            loads[op.kernel] = max(loads[op.kernel], load)
    return loads


# The costs of a region that is cut: counted on one strip of each kind, since most strips of a region are alike.

_EMPTY = 1 << 40
"""The place of an empty range."""


@dataclass(frozen=True)
class Overload:
    """What is known of a region that exceeds a capacity: its live bytes in the first of its strips, up to one that does.

    `loads` are the largest sums while each kernel runs, `rest` that between two strips, of the `strips` that were counted.
    """

    loads: tuple[int, ...]
    rest: int
    strips: int

    @property
    def peak(self) -> int:
        """The largest sum of live bytes that was counted."""
        return max(*self.loads, self.rest)

    def beside(self, passing: int) -> Overload:
        """Return the same with so many more bytes that live throughout the region."""
        return Overload(tuple(load + passing for load in self.loads), self.rest + passing, self.strips)


class ResultBytes(NamedTuple):
    """The bytes of a `tensor` that a region makes: as a whole, and in the pieces of its strips; a copy may have to join these."""

    tensor: int
    whole: int
    in_pieces: int
    is_copied: bool


@dataclass(frozen=True)
class CutCost:
    """The largest sum of live bytes, and the nodes, calls of kernels and copied bytes of all strips, without a copy that joins them.

    `loads` are the largest sums while each kernel runs, `rest` that between two strips. `given` are the bytes of the pieces that were
    handed to the region and live after it.
    """

    peak: int
    nodes: int
    copied: int
    calls: int
    loads: tuple[int, ...]
    rest: int
    strips: int
    results: tuple[ResultBytes, ...]
    given: int

    def joined(self, parted: Collection[int], capacity: int) -> CutCost | Overload:
        """Return the costs with the copies of the strips of results into one tensor each; those of `parted` are handed over in pieces."""
        copied = [about.whole for about in self.results if about.is_copied and about.tensor not in parted]
        if not copied:
            return self
        size = sum(about.in_pieces if about.tensor in parted else about.whole for about in self.results)
        last = size + self.given + max(copied)
        loads, count = (*self.loads[:-1], max(self.loads[-1], last)), len(copied)
        if last > capacity:
            return Overload(loads, self.rest, self.strips + 2)
        return replace(
            self,
            peak=max(self.peak, last),
            loads=loads,
            copied=self.copied + sum(copied),
            nodes=self.nodes + count,
            calls=self.calls + count,
        )


@dataclass(frozen=True)
class CutRows:
    """The `ranges` of rows that each of the whole `kernels` of a region computes in each strip, however its channels are cut."""

    kernels: Sequence[FitKernel]
    tensors: Sequence[FitTensor]
    ranges: list[StripRanges]

    @cached_property
    def macs(self) -> int:
        """The multiply-accumulates of all strips."""
        return macs_of(self.kernels, self.tensors, self.ranges)

    @cached_property
    def outlines(self) -> list[bytes]:
        """An outline of each strip; strips with equal ones cost the same."""
        if len(self.ranges[0].news) == 1:
            return [b""]
        return [outline.tobytes() for outline in _outlines(self.kernels, self.ranges)]


def cut_cost(
    region: ChunkedKernels,
    rows: CutRows,
    results: Sequence[int],
    cut: Cut,
    dying: Collection[int],
    capacity: int = sys.maxsize,
) -> CutCost | Overload:
    """Return the costs of a region, of whose operands those of `dying` are not read later, before the strips of results are joined.

    They are the same whatever results are handed over in pieces. Tensors that were handed over so are counted wherever they live, read by
    the region or not. Nothing is counted beyond the first strip that exceeds the capacity.
    """
    about = RegionTracer(region.kernels, region.tensors, results, region.ranges(rows.ranges), cut)
    return _StripCosts(region, about, results, dying).cost(rows, capacity)


class _StripCosts:
    def __init__(
        self,
        region: ChunkedKernels,
        about: RegionTracer,
        results: Sequence[int],
        dying: Collection[int],
    ) -> None:
        self.region, self.about = region, about
        self.results, self.dying = results, frozenset(dying) - set(about.given)
        self.count = len(about.rows[0].news)
        self.pieces = GivenPieces(about, frozenset(dying))
        self.inputs = InputRows(about, self.dying)
        self.done = sum((self._row_bytes(tensor) for tensor in results), np.zeros(self.count + 1, np.int64))
        self.loads = [0] * (1 + max(region.bases))
        self.counted: dict[int, tuple[StripTrace, LiveBytes]] = {}
        self.peak = self.rest = self.nodes = self.calls = self.copied = 0

    def _row_bytes(self, tensor: int) -> RowNumbers:
        """Return the bytes of the strips of a result that are complete before each strip."""
        about = self.region.tensors[tensor]
        news = self.about.rows[self.about.makers[tensor]].news
        # A sum is complete with its last part; before that it is among the patches that are kept.
        lengths = (news.stops == about.rows).astype(np.int64) if about.folds else news.lengths
        sizes = -(-lengths * about.row_bytes // ALIGNMENT) * ALIGNMENT
        return np.concatenate(([0], np.cumsum(sizes)))

    def cost(self, rows: CutRows, capacity: int) -> CutCost | Overload:
        """Count one strip of each kind, until one exceeds the capacity."""
        # Late strips, but the last one, have most bytes beside them, unless rows of inputs die before.
        beside = self.done[:-1] + np.array(self.pieces.living[:-1]) + self.inputs.living
        self._measure(max(self.count - 2, 0) if not self.inputs.after else int(beside.argmax()))
        if self.peak > capacity:
            return self._overload(1)
        kinds: dict[bytes, list[int]] = {}
        for strip, outline in enumerate(rows.outlines):
            ending = repr(self.inputs.ending(strip)).encode() if self.inputs.after else b""
            kinds.setdefault(outline + self.pieces.places[strip] + ending, []).append(strip)
        in_order = sorted(kinds.values(), key=lambda strips: -(strips[-1] % (self.count - 1 or 1)))
        for number, strips in enumerate(in_order, start=2):
            # Of equal strips the last has most results beside it, unless pieces that were handed over die before.
            fullest = max(strips, key=lambda strip: (int(beside[strip]), strip))
            self._measure(fullest)
            if self.peak > capacity:
                return self._overload(number)
            self._count(len(strips), fullest)
        return CutCost(
            self.peak,
            self.nodes,
            self.copied,
            self.calls,
            tuple(self.loads),
            self.rest,
            self.count,
            tuple(map(self._result, self.results)),
            self.pieces.living[-1],
        )

    def _overload(self, strips: int) -> Overload:
        return Overload(tuple(self.loads), self.rest, strips)

    def _measure(self, strip: int) -> None:
        """Count the live bytes of one strip."""
        if strip in self.counted:
            return
        at_end = strip == self.count - 1
        measured = self.about.strip(strip)
        by_rows = self.inputs.after.keys()
        operands = 0 if at_end else sum(self._size(tensor) for tensor in self.dying - by_rows)
        operands += int(self.inputs.living[strip])
        pieces = self.pieces.living[strip] - self.pieces.size(measured.pieces)
        beside = int(self.done[strip]) + operands + pieces + self._kept_of_others(measured)
        live = live_bytes(
            measured.trace,
            self.about.kernels,
            self.about.tensors,
            self.dying if at_end else by_rows,
            (*measured.given, *measured.pieces.values()),
            (
                *measured.left,
                *(patch for piece, patch in measured.pieces.items() if self.pieces.lives_after(piece, strip)),
            ),
            self.inputs.ending(strip),
        )
        self.peak = max(self.peak, live.peak + beside)
        self.rest = max(self.rest, live.first + beside)
        running, bases = 0, self.region.bases
        for op, load in zip(measured.trace.ops, live.loads, strict=True):
            if op.kernel is not None:
                running = bases[op.kernel]
            self.loads[running] = max(self.loads[running], load + beside)
        self.counted[strip] = measured, live

    def _count(self, number: int, measured: int) -> None:
        """Add up the nodes and copied bytes of a number of equal strips, of which one was measured."""
        strip, live = self.counted.pop(measured)
        weights, makers = self.region.weights, self.about.makers
        for op in strip.trace.ops:
            tensor = strip.trace.patches[op.makes[0]].tensor
            weight = weights[makers[tensor]] if tensor in makers else 1
            self.calls += number * weight
            self.nodes += number * weight * (1 if op.kernel is None else len(self.about.kernels[op.kernel].members))
            if op.kernel is None:
                self.copied += number * weight * live.sizes[op.makes[0]]

    def _kept_of_others(self, strip: StripTrace) -> int:
        """Return the bytes of the rows that are kept of chunks for which another chunk stands."""
        makers, weights, patches = self.about.makers, self.region.weights, strip.trace.patches
        kept: dict[int, int] = {}
        for patch in (*strip.given, *strip.left):
            tensor, rows = patches[patch]
            others = weights[makers[tensor]] - 1 if tensor in makers else 0
            if others:
                size = self.region.tensors[tensor].bytes_of(rows[1] - rows[0])
                kept[tensor] = max(kept.get(tensor, 0), others * aligned(size))
        return sum(kept.values())

    def _result(self, tensor: int) -> ResultBytes:
        is_copied = not self.region.tensors[tensor].has_contiguous_rows
        is_copied = is_copied and int(self.about.rows[self.about.makers[tensor]].news.some.sum()) > 1
        return ResultBytes(tensor, self._size(tensor), int(self._row_bytes(tensor)[-1]), is_copied)

    def _size(self, tensor: int) -> int:
        return aligned(self.region.tensors[tensor].size)


def _outlines(kernels: Sequence[FitKernel], ranges: list[StripRanges]) -> RowNumbers:
    """Return a row for each strip; strips with equal rows cost the same: the lengths of all ranges, and their places in each other."""
    anchors: dict[int, RowNumbers] = {}
    columns: list[RowNumbers] = []
    for kernel, span in zip(kernels, ranges, strict=True):
        before, none = span.before, np.full(1, _EMPTY)
        later = PatchRanges(np.append(before.starts[1:], none), np.append(before.stops[1:], none))
        anchor = np.where(before.some, before.starts, span.news.starts)
        anchors.update((result, anchor) for result in kernel.makes)
        for rows in (span.news, before, later):
            columns += [np.where(rows.some, rows.starts - anchor, _EMPTY), rows.lengths]
        for tensor, need in zip(kernel.reads, span.needs, strict=True):
            columns.append(need.lengths)
            if tensor in anchors:
                columns.append(np.where(need.some, need.starts - anchors[tensor], _EMPTY))
    return np.stack(columns, axis=1)
