"""The bytes that no schedule of a network goes below, known without a search: of outputs, single kernels, and waiting ones.

A kernel that is cut neither into rows nor into channels has its operands and results whole. One that is cut into rows has at least one row
of its result, with the rows of its operands that this row reads, and the whole of each operand that is not cut. Beside these live the rows
of other tensors that `RowBound` counts. One that waits for all of an operand has at least what `waiting_floor` counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from operator import mul
from types import MappingProxyType

import numpy as np

from onnxtile.fitting.live_bytes import aligned
from onnxtile.fitting.network import FitKernel
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.strips import PaddingOnly, PatchRanges, RowEnds, RowNumbers, rows_read
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array


@dataclass(frozen=True)
class LivePiece:
    """So many `rows` of a tensor that live while a kernel runs, with their bytes; `is_whole` says that these are all of its rows."""

    tensor: int
    bytes: int
    is_whole: bool
    rows: int


@dataclass(frozen=True)
class Floor:
    """The bytes that every schedule takes at least: those of the `kernel` at a place, or (None) of the outputs, with their pieces.

    A result that is written over an operand is not counted again. `rule` says what a lower floor would need.
    """

    bytes: int
    kernel: int | None
    pieces: tuple[LivePiece, ...]
    rule: str = ""


_NO_PIECES: Mapping[int, Sequence[NeededPart]] = MappingProxyType({})


def floor_of(regions: Regions, budget: float = 0.0, *, remakes: bool = False) -> Floor:
    """Return the highest floor of a network; of equals, that of the outputs, then that of the first kernel.

    At most the share `budget` of multiply-accumulates is done again. With `remakes`, rewrites may make a tensor once more.
    """
    grouped = {position for group in regions.groups.values() for position in group.places}
    bound = RowBound(regions, budget, remakes=remakes) if RowBound.is_small(regions) else None
    apart = set[int]() if bound is None else bound.remade
    best = _of_outputs(regions)
    for index, kernel in enumerate(regions.network.kernels):
        if index not in grouped and apart.isdisjoint((*kernel.reads, *kernel.makes)):
            floor = _of_rows(regions, index) if kernel.links is not None else _of_whole(regions, index)
            best = floor if floor.bytes > best.bytes else best
    live = None if bound is None else bound.highest()
    if bound is None or live is None or live.bytes <= best.bytes:
        return replace(best, rule=_rule_of_kernel(regions, best))
    return _of_live(bound, live)


def waiting_floor(
    regions: Regions, budget: float = 0.0, pieces: Mapping[int, Sequence[NeededPart]] = _NO_PIECES
) -> Floor:
    """Return the floor of the kernel that waits for all rows of an operand while most bytes live.

    At most the share `budget` of multiply-accumulates is done again in strips. Kernels of `pieces` are cut into pieces of tokens instead,
    which read such parts of their operands. Nothing is rewritten.
    """
    if not RowBound.is_small(regions):
        return Floor(0, None, ())
    kernels = regions.network.kernels
    parts = [pieces[index] if index in pieces else needed_parts(regions, index) for index in range(len(kernels))]
    wholes = {index for index, kernel in enumerate(kernels) if kernel.links is None and index not in pieces}
    reads, unneeded = _of_needed_rows(regions, parts, wholes)
    again: list[int | None] = [None] * len(kernels)
    for tensor in regions.repeated if budget > 0 else ():
        again[regions.makers[tensor]] = kernels[regions.makers[tensor]].macs
    most = budget * regions.network.macs + unneeded if any(macs is not None for macs in again) else 0.0
    bound = WaitingBound(regions, reads, again, most, pieces.keys())
    live, tensors = bound.highest(), bound.tensors
    if not live.bytes:
        return Floor(0, None, ())
    makes = [tensor for tensor in kernels[live.kernel].makes if bound.own(live.kernel) and bound.sizes[tensor]]
    shown = tuple(LivePiece(t, bound.sizes[t], True, tensors[t].rows) for t in (*live.tensors, *makes))
    waits = " and ".join(tensors[t].name for t in bound.tensors_read_whole(live.kernel))
    rule = f"it waits for all of {waits}, which no rule cuts there; nothing else that lives then may be read before it"
    rule = rule if live.kernel in pieces else kernels[live.kernel].reason or rule
    return Floor(live.bytes, live.kernel, shown if sum(piece.bytes for piece in shown) == live.bytes else (), rule)


def _of_needed_rows(
    regions: Regions, reads: Sequence[Sequence[NeededPart]], wholes: Collection[int]
) -> tuple[list[list[NeededPart]], int]:
    """Return what kernels read where rows that nothing needs are not made, and the multiply-accumulates of kernels that have such rows.

    The kernels of `wholes` make all of their rows.
    """
    network, unneeded, parts_needed = regions.network, 0, list[list[NeededPart]]()
    needed = {tensor for tensor, about in enumerate(network.tensors) if about.is_kept}
    for index in reversed(range(len(reads))):
        kernel, parts = network.kernels[index], reads[index]
        is_needed = index in wholes or needed.issuperset(kernel.makes)
        unneeded += 0 if is_needed else kernel.macs
        parts_needed.append(
            [replace(part, is_covered=part.is_whole or (is_needed and part.is_covered)) for part in parts]
        )
        needed.update(part.tensor for part in parts_needed[-1] if part.is_covered)
    return parts_needed[::-1], unneeded


def _of_live(bound: RowBound, live: LiveRows) -> Floor:
    tensors = bound.tensors
    pieces = tuple(
        LivePiece(tensor, size, rows == tensors[tensor].rows, rows)
        for tensor, rows in live.rows.items()
        if (size := bound.sizes[tensor] * rows)
    )
    floor = Floor(live.bytes, live.kernel, pieces)
    rule = _rule_of_gate(bound, floor) or _rule_of_windows(bound, floor) or _rule_of_kernel(bound.regions, floor)
    return replace(floor, pieces=pieces if sum(piece.bytes for piece in pieces) == live.bytes else (), rule=rule)


def _rule_of_gate(bound: RowBound, floor: Floor) -> str:
    """Return what lets the largest tensor die before all of it is there, where a gate waits for its mean; empty for any other."""
    largest = max(floor.pieces, key=lambda piece: piece.bytes, default=None)
    if largest is None or largest.tensor not in bound.gates:
        return ""
    tensor, waits = bound.tensors[largest.tensor].name, bound.kernels[bound.gates[largest.tensor]].name
    cone, macs = bound.made_again(largest.tensor)
    if not cone or not bound.remakes:
        return f"{waits} waits for all rows of {tensor}, which no rule makes twice"
    return f"{waits} waits for all rows of {tensor}; to make it twice takes {macs / bound.macs:.1%} more multiply-accumulates"


def _rule_of_windows(bound: RowBound, floor: Floor) -> str:
    """Return what lets rows go that windows read again, where those of other tensors than operands and results are kept."""
    assert floor.kernel is not None
    kernel = bound.kernels[floor.kernel]
    kept = sum(piece.bytes for piece in floor.pieces if piece.tensor not in (*kernel.reads, *kernel.makes))
    if bound.budget > 0 or 2 * kept < floor.bytes:
        return ""
    return f"{kept:,} bytes are rows that are kept for other kernels; to compute them again takes more multiply-accumulates than the budget"


def _rule_of_kernel(regions: Regions, floor: Floor) -> str:
    """Return why the kernel is not cut, or not further; empty for outputs."""
    if floor.kernel is None:
        return ""
    kernels = regions.network.kernels
    if kernels[floor.kernel].reason:
        return kernels[floor.kernel].reason
    is_grouped = floor.kernel in {position for group in regions.groups.values() for position in group.places}
    channels = (
        ", and its channels into chunks"
        if is_grouped
        else "; no rule cuts its channels, which are not hidden between two products"
    )
    return f"{_uncut_beside(regions, floor)}its rows are cut to the last{channels}"


def _uncut_beside(regions: Regions, floor: Floor) -> str:
    """Return why the largest tensor that is there as a whole is made or read at once, for a sentence that goes on; empty if it is not."""
    for piece in sorted(floor.pieces, key=lambda piece: -piece.bytes):
        for kernel in regions.network.kernels if piece.is_whole else ():
            if kernel.reason and piece.tensor in (*kernel.makes, *kernel.reads):
                does = "makes" if piece.tensor in kernel.makes else "reads"
                return (
                    f"{kernel.name} {does} all of {regions.network.tensors[piece.tensor].name}, since {kernel.reason}; "
                )
    return ""


def _of_outputs(regions: Regions) -> Floor:
    tensors = regions.network.tensors
    kept = [_piece(regions, number, about.rows) for number, about in enumerate(tensors) if about.is_kept]
    pieces = [piece for piece in kept if piece.bytes]
    written = {piece.tensor for piece in pieces}
    makers = (index for index, kernel in enumerate(regions.network.kernels) if not written.isdisjoint(kernel.makes))
    # The maker that ends last has something to read then.
    ends = ((_least_read(regions, index), index) for index in makers)
    read, index = min(ends, key=lambda end: sum(piece.bytes for piece in end[0]), default=([], 0))
    return Floor(sum(piece.bytes for piece in (*pieces, *read)), index if read else None, (*pieces, *read))


def _least_read(regions: Regions, index: int) -> list[LivePiece]:
    """Return what a kernel reads at least while it makes the last row beside its operands: a row of each, or of a channel of it."""
    kernel = regions.network.kernels[index]
    if kernel.overwrites or kernel.is_view or kernel.is_join or kernel.is_split:
        return []
    hidden = {tensor for group in regions.groups.values() for tensor in group.tensors}
    abouts = ((tensor, regions.network.tensors[tensor]) for tensor in kernel.reads)
    pieces = (
        LivePiece(tensor, aligned(about.item), False, 0) if tensor in hidden else _piece(regions, tensor, 1)
        for tensor, about in abouts
        if not about.is_outside and not about.is_kept and not about.folds
    )
    return [piece for piece in pieces if piece.bytes]


def _of_whole(regions: Regions, index: int) -> Floor:
    kernel = regions.network.kernels[index]
    names = dict.fromkeys((*kernel.reads, *kernel.makes))
    pieces = [_piece(regions, number, regions.network.tensors[number].rows) for number in names]
    return _over(regions, index, pieces, regions.alone_bytes(index))


def _of_rows(regions: Regions, index: int) -> Floor:
    """Return the floor of a kernel that is cut into rows: of its middle rows, which read no padding where others do not."""
    kernel, tensors = regions.network.kernels[index], regions.network.tensors
    output = tensors[kernel.makes[0]]
    if output.axis is None or output.folds or kernel.is_view or kernel.is_join or kernel.is_split:
        return Floor(0, index, ())
    start = output.rows // 2 // kernel.factor * kernel.factor
    stop = min(start + kernel.factor, output.rows)
    rows = _rows_of(kernel, regions, start, stop)
    pieces = [_piece(regions, tensor, count) for tensor, count in rows.items()]
    pieces += [_piece(regions, result, stop - start) for result in kernel.makes]
    operands, results = pieces[: len(rows)], pieces[len(rows) :]
    total = sum(piece.bytes for piece in operands) + (0 if kernel.overwrites else sum(piece.bytes for piece in results))
    return _over(regions, index, pieces, total)


def _rows_of(kernel: FitKernel, regions: Regions, start: int, stop: int) -> dict[int, int]:
    """Return how many rows of each operand a range of rows of the result reads."""
    rows: dict[int, int] = {}
    for position, tensor in enumerate(kernel.reads):
        about, link = regions.network.tensors[tensor], kernel.axis_link(position)
        is_cut = link is not None and link.axis == about.axis
        count = link.reads(start, stop).width if is_cut and link is not None else about.rows
        rows[tensor] = max(rows.get(tensor, 0), count)
    return rows


def _piece(regions: Regions, tensor: int, rows: int) -> LivePiece:
    about = regions.network.tensors[tensor]
    size = 0 if about.is_outside else aligned(about.bytes_of(rows))
    return LivePiece(tensor, size, rows == about.rows, rows)


def _over(regions: Regions, index: int, pieces: list[LivePiece], total: int) -> Floor:
    """Return the floor of `total` bytes; results are left out of its pieces where they are written over operands."""
    shown = [piece for piece in pieces if piece.bytes]
    if sum(piece.bytes for piece in shown) > total:
        shown = [piece for piece in shown if piece.tensor not in regions.network.kernels[index].makes]
    if sum(piece.bytes for piece in shown) != total:
        shown = []
    return Floor(total, index, tuple(shown))


# The bytes that no schedule of strips goes below, whatever its strips are: by the rows that each kernel needs of all tensors before it.
#
# While a kernel makes one of its rows, each tensor that it is made from has either all of its rows, or those that its next reader reads
# again. The tensors made of it have at least the rows that wait for others. So the bytes that live then are counted by one pass over the
# kernels from the first to the last, and one back: a number for each kernel and each of its rows. Tensors with hidden channels count
# between strips alone. Rows may be computed again for multiply-accumulates, as many as a budget allows: these have a price in bytes, which
# is bought back by the budget (a Lagrangian bound: true at every price).


_ROWS = 2_000_000
"""Rows of all operands of a network, at most, above which it is not counted."""
_SKIPPED = 40_000
"""Kernels that are followed between the readers of tensors with several, at most."""
_BACK = 60
"""Kernels from which rows are computed again, at most."""
_PRICES = tuple(2.0**power for power in range(-6, 5))
"""The prices of the budget that are tried, as multiples of the capacity."""
_NEVER = 1e30
"""The price of multiply-accumulates without a budget."""
_STEPS = 10
"""Capacities that are tried for the highest bound, at most."""


@dataclass(frozen=True)
class Again:
    """A way to compute rows of a tensor again, from those that are kept of another `tensor` (None: none is kept).

    `macs` are the multiply-accumulates of a row, `widest` the bytes of a row of the widest tensor on the way that is not hidden.
    """

    tensor: int | None
    macs: float
    widest: int


@dataclass
class RowsNeeded:
    """The rows of a tensor that a kernel reads: up to `ends` for so many rows of its result, and from `starts` on for those after these.

    `ways` are those to compute rows again that it reads twice. `apart` are the rows where the tensor is made once more for it, for `macs`.
    """

    kernel: int
    tensor: int
    ends: RowNumbers
    starts: RowNumbers
    is_plain: bool
    """Whether each row of the result reads the same row of the tensor."""
    ways: tuple[Again, ...] = ()
    apart: tuple[RowNumbers, RowNumbers] | None = None
    macs: float = 0.0

    @property
    def twice(self) -> RowNumbers:
        """The rows that are read before and after so many rows of the result."""
        return self.ends - self.starts

    def rows_from(self, counts: RowNumbers) -> RowNumbers:
        """Return how many rows of the result so many rows of the tensor allow."""
        rows: RowNumbers = np.searchsorted(self.ends, counts, side="right") - 1
        return rows


@dataclass(frozen=True)
class LiveRows:
    """The bytes that live at least while a kernel makes the row `row` of its result; `rows` has the numbers of rows by tensor."""

    bytes: int
    kernel: int
    rows: dict[int, int]


class RowBound:
    """The bound of a network of `regions`, of which `budget` is the share of multiply-accumulates that may be done again.

    With `remakes`, a tensor that waits for others may be made once more, as rewrites do.
    """

    def __init__(self, regions: Regions, budget: float, *, remakes: bool) -> None:
        network = regions.network
        self.regions, self.budget, self.remakes = regions, max(budget, 0.0), remakes
        self.kernels, self.tensors = network.kernels, network.tensors
        self.macs = max(network.macs, 1)
        self.hidden = {tensor for group in regions.groups.values() for tensor in group.tensors}
        self.sizes = [0 if t.is_outside or t.folds else t.row_bytes for t in self.tensors]
        self.rows = [max(self.tensors[tensor].rows for tensor in kernel.makes) for kernel in self.kernels]
        self.reads = [self._reads_of(index) for index in range(len(self.kernels))]
        self.readers: dict[int, list[RowsNeeded]] = {}
        for read in chain.from_iterable(self.reads):
            self.readers.setdefault(read.tensor, []).append(read)
        self.remade = set[int]()
        """The tensors that rewrites may make once more, or make some channels at a time."""
        self.gates: dict[int, int] = {}
        """The kernel that waits for all rows of a tensor, of which it reads some at a time, by tensor."""
        self._wait_for_gates()
        self._wait_for_skips()
        for read in chain.from_iterable(self.reads):
            read.ways = tuple(self._ways(read)) if self._repeats(read) else ()

    @staticmethod
    def is_small(regions: Regions) -> bool:
        """Return whether the bound of a network is counted: not where it has many rows, or where a kernel has none."""
        tensors = regions.network.tensors
        rows = [tensors[kernel.makes[0]].rows for kernel in regions.network.kernels]
        reads = [len(kernel.reads) for kernel in regions.network.kernels]
        return all(rows) and sum(map(mul, reads, rows)) <= _ROWS

    # The rows that kernels read.

    def _reads_of(self, index: int) -> list[RowsNeeded]:
        needed: dict[int, RowsNeeded] = {}
        for read in self._operands(index):
            known = needed.get(read.tensor)
            if known is None:
                needed[read.tensor] = read
                continue
            known.ends, known.starts = np.maximum(known.ends, read.ends), np.minimum(known.starts, read.starts)
            known.is_plain &= read.is_plain
        return list(needed.values())

    def _operands(self, index: int) -> Iterator[RowsNeeded]:
        kernel = self.kernels[index]
        for position, tensor in enumerate(kernel.reads):
            about = self.tensors[tensor]
            rows = self._rows_read(kernel, position, index)
            if rows is None:
                continue
            ends, starts = rows
            is_plain = about.rows == self.rows[index] and bool(np.array_equal(ends, np.arange(len(ends))))
            yield RowsNeeded(index, tensor, ends, starts, is_plain)

    def _rows_read(self, kernel: FitKernel, position: int, index: int) -> tuple[RowNumbers, RowNumbers] | None:
        """Return the ends and starts of the rows that a kernel reads of one operand; None where rows read padding alone."""
        count, about = self.rows[index], self.tensors[kernel.reads[position]]
        try:
            each = rows_read(kernel, position, about, PatchRanges(np.arange(count), np.arange(1, count + 1)))
        except PaddingOnly:
            return None
        ends = np.concatenate(([0], np.maximum.accumulate(each.stops)))
        starts = np.append(np.minimum.accumulate(each.starts[::-1])[::-1], about.rows)
        return ends, np.append(np.minimum(starts, ends)[:-1], about.rows)

    def _wait_for_gates(self) -> None:
        """Let kernels that read a tensor whole wait for all rows of those that it is made from, such as the operand of a gate's mean."""
        before: dict[int, int] = {}
        for index in range(len(self.kernels)):
            whole = waits = 0
            for read in self.reads[index]:
                rows, sources = self.tensors[read.tensor].rows, before.get(read.tensor, 0)
                whole |= (1 << read.tensor) | sources if read.ends[-1] == rows else 0
                waits |= sources if read.ends[:2][-1] == rows else 0  # a kernel without rows makes no first one
            before.update(dict.fromkeys(self.kernels[index].makes, whole))
            for read in self.reads[index]:
                if waits >> read.tensor & 1:
                    ends = read.ends.copy()
                    ends[1:] = self.tensors[read.tensor].rows
                    self._wait(read, ends, read.starts)
                    read.is_plain = False
                    self.gates.setdefault(read.tensor, index)

    def _wait_for_skips(self) -> None:
        """Let tensors live on for readers that wait for the results of others of their readers."""
        left = _SKIPPED
        for reads in self.readers.values():
            last = reads[-1].kernel
            for number, read in enumerate(reads[:-1] if left > 0 else ()):
                others = {other.kernel: other for other in reads[number + 1 :]}
                done = dict.fromkeys(self.kernels[read.kernel].makes, np.arange(self.rows[read.kernel] + 1))
                for index in range(read.kernel + 1, last + 1):
                    known = [each for each in self.reads[index] if each.tensor in done]
                    left -= 1
                    if not known or left < 0:
                        continue
                    rows = np.minimum.reduce([each.rows_from(done[each.tensor]) for each in known])
                    makes = self.kernels[index].makes
                    done.update((result, rows) for result in makes if self.tensors[result].rows == self.rows[index])
                    if index in others:
                        starts = np.minimum(read.starts, others[index].starts[rows])
                        self._wait(read, read.ends, np.append(starts[:-1], read.starts[-1]))

    def _wait(self, read: RowsNeeded, ends: RowNumbers, starts: RowNumbers) -> None:
        """Let the reader of a tensor need other rows, unless the tensor is made once more for it."""
        if self.remakes:
            cone, macs = self.made_again(read.tensor)
            if cone and macs <= self.budget * self.macs:
                read.apart = read.apart or (read.ends, read.starts)
                read.macs = max(read.macs, macs)
                self.remade.update(tensor for index in cone for tensor in self.kernels[index].makes)
        read.ends, read.starts = ends, starts

    def made_again(self, tensor: int) -> tuple[set[int], int]:
        """Return the kernels that make a tensor again from those of at most half its bytes, none where there are none, and their macs."""
        size, cone, given = self.regions.size(tensor), set[int](), {tensor}
        while not cone or sum(map(self.regions.size, given)) * 2 > size:
            widest = max(given, key=self.regions.size, default=None)
            maker = None if widest is None else self.regions.makers.get(widest)
            if maker is None or len(cone) > _BACK:
                return set(), 0
            cone.add(maker)
            given = (given | set(self.kernels[maker].reads)) - set(self.kernels[maker].makes)
        return cone, sum(self.kernels[index].macs for index in cone)

    def _repeats(self, read: RowsNeeded) -> bool:
        count = self.rows[read.kernel]
        return count > 1 and int(read.twice[1:count].min()) > 0

    def _ways(self, read: RowsNeeded) -> Iterator[Again]:
        """Yield the ways to compute rows of a tensor again, from tensors that are further and further back."""
        tensor, macs = read.tensor, 0.0
        widest = 0 if tensor in self.hidden else self.sizes[tensor]
        for _ in range(_BACK):
            maker = self.regions.makers.get(tensor)
            if maker is None:
                return
            macs += self.kernels[maker].macs / self.rows[maker]
            plain = [before.tensor for before in self.reads[maker] if before.is_plain]
            if not plain:
                yield Again(None, macs, widest)
                return
            tensor = max(plain, key=lambda each: self.sizes[each])
            widest = widest if tensor in self.hidden else max(widest, self.sizes[tensor])
            yield Again(tensor, macs, widest)

    # The bound: of all kernels and rows, the one with the most bytes.

    def highest(self, capacity: int | None = None) -> LiveRows:
        """Return the highest bound: no schedule within the budget takes less. With a capacity, none as low as this takes less."""
        if self.budget <= 0:
            return self._at_price(_NEVER, 1)
        if capacity is not None:
            return self._within(capacity)
        low = self._within(1 << 40)
        high = self._within(1).bytes
        for _ in range(_STEPS):
            middle = (low.bytes + high) // 2
            if high - low.bytes <= max(high // 50, 1):
                break
            above = self._within(middle)
            # No schedule takes as little as `middle`, and one that takes more may need fewer rows again.
            low, high = (LiveRows(middle, above.kernel, above.rows), high) if above.bytes > middle else (low, middle)
        return low

    def _within(self, capacity: int) -> LiveRows:
        """Return the bound of schedules that take no more than a capacity."""
        bounds = [self._at_price(0.0, capacity)]
        for price in (share * capacity / self.budget for share in _PRICES):
            live = self._at_price(price, capacity)
            bounds.append(LiveRows(int(live.bytes - price * self.budget), live.kernel, live.rows))
        return max(bounds, key=lambda live: live.bytes)

    def _at_price(self, price: float, capacity: int) -> LiveRows:
        return _RowCounts(self, price, capacity).most()


class _RowCounts:
    """Counts the bytes that live, with a `price` in bytes for all multiply-accumulates once more, in schedules within a capacity.

    `before` and `after` have, for each kernel that has made so many rows, the bytes of all tensors that these are made from, and of those
    that are made from them.
    """

    def __init__(self, bound: RowBound, price: float, capacity: int) -> None:
        self.bound, self.price, self.capacity = bound, price, capacity
        self.kernels, self.tensors, self.sizes = bound.kernels, bound.tensors, bound.sizes
        self.again = {
            id(read): least_of(self._prices_again(read)) for read in chain.from_iterable(bound.reads) if read.ways
        }
        self.before: dict[int, RowEnds] = {}
        self.after: dict[int, RowEnds] = {}
        for index in range(len(bound.kernels)):
            rows = self._none(index)
            for read in bound.reads[index]:
                rows = np.maximum(rows, self._before(read))
            rows[0] = rows[-1] = 0
            self.before[index] = self._possible(index, rows)
        for index in reversed(range(len(bound.kernels))):
            rows = self._none(index)
            for tensor in self.kernels[index].makes:
                if self.tensors[tensor].rows == bound.rows[index]:
                    rows = np.maximum(rows, self._waiting(tensor))
            self.after[index] = self._possible(index, rows)

    def _none(self, index: int) -> RowEnds:
        return np.zeros(self.bound.rows[index] + 1)

    def _possible(self, index: int, rows: RowEnds) -> RowEnds:
        """Return the bytes, without bound where a kernel that is not cut would have made some rows."""
        if self.kernels[index].links is None:
            rows[1:-1] = np.inf
        return rows

    def _prices_again(self, read: RowsNeeded) -> list[Array]:
        """Return, for each way, the bytes that rows cost that are not kept between strips, by the rows of the result that are made."""
        return [read.twice * float(self._kept_size(way)) + self._price_again(read, way) for way in read.ways]

    def _price_again(self, read: RowsNeeded, way: Again) -> float:
        """Return the price of the multiply-accumulates of a way, in all strips."""
        least = int(read.twice[1 : self.bound.rows[read.kernel]].min())
        return self.price * (self._strips(read, way) - 1) * least * way.macs / self.bound.macs

    def _kept_size(self, way: Again) -> int:
        return 0 if way.tensor is None else self.sizes[way.tensor]

    def _strips(self, read: RowsNeeded, way: Again) -> int:
        """Return in how many strips a kernel runs at least, since rows of tensors that are not hidden live in each."""
        bound, count, strips = self.bound, self.bound.rows[read.kernel], 2
        if way.widest:
            longest = self.capacity * count // max(way.widest * self.tensors[read.tensor].rows, 1)
            strips = max(strips, -(-count // max(longest, 1)))
        group = next((group for group in bound.regions.groups.values() if read.kernel in group.places), None)
        if group is not None and read.tensor in group.tensors:
            result = self.kernels[group.places[-1]].makes[0]
            longest = self.capacity // max(self.sizes[result], 1)
            # The last rows of an operand may be there a strip before those of the result.
            strips = max(strips, -(-self.tensors[result].rows // max(longest, 1)) - 1)
        return strips

    def _made(self, read: RowsNeeded) -> RowEnds:
        """Return the bytes of so many rows of an operand, and of the tensors before it."""
        about, maker = self.tensors[read.tensor], self.bound.regions.makers.get(read.tensor)
        rows = np.arange(about.rows + 1, dtype=np.float64) * self.sizes[read.tensor]
        if maker is None:
            rows[:-1] = 0.0 if about.is_outside else np.inf
        elif self.bound.rows[maker] == about.rows:
            rows += self.before[maker]
        return rows

    def _forms(self, read: RowsNeeded) -> list[tuple[RowNumbers, RowNumbers, float]]:
        """Return the ends and starts of the rows that are read, and their price: as they are, and where they are made once more."""
        forms = [(read.ends, read.starts, 0.0)]
        if read.apart is not None:
            forms.append((*read.apart, self.price * read.macs / self.bound.macs))
        return forms

    def _before(self, read: RowsNeeded) -> RowEnds:
        """Return the bytes of an operand, and of the tensors before it, by the rows of the result that are made."""
        bytes_made, size = least_from(self._made(read)), float(self.sizes[read.tensor])
        ways = [bytes_made[ends] - starts * size + price for ends, starts, price in self._forms(read)]
        if id(read) in self.again:
            maker = self.bound.regions.makers[read.tensor]
            known = self.bound.rows[maker] == self.tensors[read.tensor].rows
            ways.append(self.again[id(read)] + (self.before[maker][read.ends] if known else 0.0))
        return least_of(ways)

    def _waiting(self, tensor: int) -> RowEnds:
        """Return the bytes of so many rows of a tensor that wait for their readers, and of the tensors after it."""
        counts = np.arange(self.tensors[tensor].rows + 1)
        rows = counts.astype(np.float64) * (self.sizes[tensor] if self.tensors[tensor].is_kept else 0)
        for read in self.bound.readers.get(tensor, ()):
            np.maximum(rows, self._by(read, counts), out=rows)
        return rows

    def _by(self, read: RowsNeeded, counts: RowNumbers) -> RowEnds:
        """Return the bytes of so many rows of a tensor that wait for one reader, and of the tensors after this."""
        size = float(self.sizes[read.tensor])
        ways = [self._until(read, ends, starts, size, counts) + price for ends, starts, price in self._forms(read)]
        ways += [self._again_until(read, way, counts) for way in read.ways]
        return least_of(ways)

    def _again_until(self, read: RowsNeeded, way: Again, counts: RowNumbers) -> RowEnds:
        """Return the bytes where rows that wait are not kept, but computed again from others: once at least, and in each strip."""
        size = float(self._kept_size(way))
        once = size + self.price * way.macs / self.bound.macs
        in_strips = self._until(read, read.ends, read.starts, size, counts) + self._price_again(read, way)
        return np.maximum(self._until(read, read.ends, read.starts, once, counts), in_strips)

    def _until(
        self, read: RowsNeeded, ends: RowNumbers, starts: RowNumbers, size: float, counts: RowNumbers
    ) -> RowEnds:
        """Return the bytes of so many rows of `size` that wait for a reader, and of the tensors after this, however far it is."""
        after = self.after[read.kernel]
        last, done = len(after) - 1, np.searchsorted(ends, counts, side="right") - 1
        least = np.minimum.accumulate((after - starts * size)[:-1])
        waiting = counts * size + least[np.minimum(done, last - 1)]
        bytes_: RowEnds = np.where(done >= last, np.minimum(waiting, after[-1]), waiting)
        return bytes_

    def most(self) -> LiveRows:
        """Return the kernel and the row with the most bytes, and the rows that live then."""
        best: tuple[float, RowsNeeded | None, int] = (0.0, None, 0)
        for read in chain.from_iterable(self.bound.reads):
            if not self.bound.rows[read.kernel]:
                continue
            if read.tensor not in self.bound.hidden and read.tensor not in self.bound.remade:
                rows = self._while_made(read)
                row = int(rows.argmax())
                if rows[row] > best[0]:
                    best = (float(rows[row]), read, row)
        if best[1] is None:
            return LiveRows(0, 0, {})
        return LiveRows(int(best[0]), best[1].kernel, self._rows_at(best[1], best[2]))

    def _while_made(self, read: RowsNeeded) -> RowEnds:
        """Return the bytes that live while a kernel makes each row of its result."""
        bytes_made = least_from(self._made(read))
        if self.kernels[read.kernel].links is None:
            return bytes_made[-1:] + self._own(read.kernel)
        own_bytes = np.arange(len(self.after[read.kernel])) * float(self._own(read.kernel))
        rows = [
            bytes_made[ends[1:]] + np.minimum.accumulate((self._left(read, starts) - own_bytes)[:-1]) + price
            for ends, starts, price in self._forms(read)
        ]
        return least_of(rows) + own_bytes[1:]

    def _left(self, read: RowsNeeded, starts: RowNumbers) -> RowEnds:
        """Return the bytes of the tensors after a kernel, without the rows of an operand that it has read."""
        return self.after[read.kernel] - starts * float(self.sizes[read.tensor])

    def _own(self, index: int) -> int:
        """Return the bytes of each row that a kernel makes of its results; none where they take bytes of its operands."""
        kernel = self.kernels[index]
        if kernel.overwrites or kernel.is_view or kernel.is_join or kernel.is_split:
            return 0
        return sum(self.sizes[tensor] * rows for tensor, rows in self._own_rows(index).items())

    def _own_rows(self, index: int) -> dict[int, int]:
        """Return the rows of its results that a kernel makes at once at least; none of those that are cut into channels."""
        apart = self.bound.hidden | self.bound.remade
        whole = self.kernels[index].links is None
        makes = [tensor for tensor in self.kernels[index].makes if tensor not in apart]
        return {tensor: self.tensors[tensor].rows if whole else 1 for tensor in makes}

    # What lives at the bound, for the message: the same choices once more, at one kernel after the other.

    def _rows_at(self, read: RowsNeeded, row: int) -> dict[int, int]:
        """Return the number of rows of each tensor that lives while a kernel makes a row of its result, reading one operand."""
        raw, index = self._made(read), read.kernel
        if self.kernels[index].links is None:
            until, done = self.tensors[read.tensor].rows, 0
            rows = {read.tensor: until}
        else:
            least, ours = least_from(raw), np.arange(row + 1) * float(self._own(index))
            ends, starts, _ = min(
                self._forms(read),
                key=lambda form: (
                    least[form[0][row + 1]] + (self._left(read, form[1])[: row + 1] - ours).min() + form[2]
                ),
            )
            done = int((self._left(read, starts)[: row + 1] - ours).argmin())
            until = first_least(raw, int(ends[row + 1]))
            rows = {read.tensor: until - int(starts[done])}
        self._add_before(read.tensor, until, rows)
        self._add_after(index, done, rows)
        for tensor, own_rows in self._own_rows(index).items() if self._own(index) else ():
            rows[tensor] = rows.get(tensor, 0) + (own_rows if self.kernels[index].links is None else row + 1 - done)
        return rows

    def _add_before(self, tensor: int, count: int, rows: dict[int, int]) -> None:
        """Add the rows of the tensors that so many rows of a tensor are made from."""
        while (maker := self.bound.regions.makers.get(tensor)) is not None:
            if self.bound.rows[maker] != self.tensors[tensor].rows or not 0 < count < self.bound.rows[maker]:
                return
            read = max(self.bound.reads[maker], key=lambda read: self._before(read)[count], default=None)
            if read is None:
                return
            raw, ends = self._made(read), int(read.ends[count])
            size, kept = self.sizes[read.tensor], first_least(raw, ends)
            if raw[kept] - int(read.starts[count]) * size <= self._before(read)[count]:
                rows[read.tensor] = kept - int(read.starts[count])
                ends = kept
            else:
                self._add_again(read, count, rows)
            tensor, count = read.tensor, ends

    def _add_again(self, read: RowsNeeded, count: int, rows: dict[int, int]) -> None:
        """Add the rows from which those are computed again that a kernel reads twice, if some are kept."""
        way = min(zip(self._prices_again(read), read.ways, strict=True), key=lambda pair: pair[0][count], default=None)
        if way is not None and way[1].tensor is not None:
            rows[way[1].tensor] = rows.get(way[1].tensor, 0) + int(read.twice[count])

    def _add_after(self, index: int, count: int, rows: dict[int, int]) -> None:
        """Add the rows of the tensors that are made from so many rows of the results of a kernel."""
        while 0 < count < self.bound.rows[index]:
            waiting = {t: self._waiting(t)[count] for t in self.kernels[index].makes}
            tensor = max(waiting, key=lambda each: waiting[each])
            size = self.sizes[tensor]
            if self.tensors[tensor].is_kept and waiting[tensor] <= count * size:
                rows[tensor] = count
                return
            counts = np.arange(count, count + 1)
            read = max(self.bound.readers.get(tensor, ()), key=lambda read: self._by(read, counts)[0], default=None)
            if read is None:
                return
            done, last = int(read.rows_from(counts)[0]), self.bound.rows[read.kernel]
            if done >= last and self.after[read.kernel][-1] <= self._by(read, counts)[0]:
                return
            done = min(done, last - 1)
            left = self._left(read, read.starts)[: done + 1]
            at = int(left.argmin())
            if not read.ways or left[at] + count * size <= self._by(read, counts)[0]:
                rows[tensor] = count - int(read.starts[at])
            else:
                at = self._add_waiting(read, count, done, rows)
            index, count = read.kernel, at

    def _add_waiting(self, read: RowsNeeded, count: int, done: int, rows: dict[int, int]) -> int:
        """Add the rows from which those are computed again that wait for a reader; return how far this is."""
        counts = np.arange(count, count + 1)
        way = min(read.ways, key=lambda way: self._again_until(read, way, counts)[0])
        at = int((self.after[read.kernel] - read.starts * float(self._kept_size(way)))[: done + 1].argmin())
        if way.tensor is not None:
            rows[way.tensor] = rows.get(way.tensor, 0) + count - int(read.starts[at])
        return at


# The bytes that live while a kernel waits for all rows of an operand, whatever the order of kernels, strips and pieces.
#
# Before a kernel makes its first row, the kernels that it waits for are complete, and none that needs it has made a row. Each other one
# has made a part of its rows. Of each tensor at least the part lives that is made and that some reader has not read. The least sum of
# these parts is a minimum cut. Of kernels that do not wait for each other, such as the heads of attention, one is the last to begin. Then
# all kernels are complete that any of them waits for, so the bound is that of the last one with the fewest bytes.
#
# Hidden channels obey it, too: the operand of a group lives until its last chunk is made, and the sum of the chunks from the first one on.
# Rows that strips compute again cost multiply-accumulates, which the budget buys back at a price, as above.


_SCANNED = 400_000
"""Kernels that are looked at for all waiting ones, at most."""
_BOUGHT = 3
"""Kernels whose bound is counted with rows computed again, at most; of equals the last."""
_RETURNED = (0.0, *(2.0**-power for power in range(6, 0, -1)))
"""The bytes that the budget buys back, as shares of those that live without it; with none, rows are computed again for nothing."""


@dataclass(frozen=True)
class NeededPart:
    """An operand of a kernel: each row of the result reads a row of it, or all where it `is_whole`.

    All rows together read all of it where it `is_covered`. It `is_paced` where so large a part of the results frees no larger part of it.
    """

    tensor: int
    is_whole: bool
    is_covered: bool
    is_paced: bool


def needed_parts(regions: Regions, index: int) -> list[NeededPart]:
    """Return how a kernel reads its operands, by rows; without those of which some rows of the results read nothing."""
    kernel, tensors = regions.network.kernels[index], regions.network.tensors
    count, parts = max(tensors[tensor].rows for tensor in kernel.makes), list[NeededPart]()
    each = PatchRanges(np.arange(count), np.arange(1, count + 1))
    for position, tensor in enumerate(kernel.reads):
        rows = tensors[tensor].rows
        try:
            read = rows_read(kernel, position, tensors[tensor], each)
        except PaddingOnly:
            continue
        ends = np.maximum.accumulate(read.stops)
        is_covered = read.starts[0] == 0 and ends[-1] == rows and bool(np.all(read.starts[1:] <= ends[:-1]))
        freed = np.minimum.accumulate(read.starts[::-1])[::-1]
        is_paced = bool(np.all(freed * count <= np.arange(count) * rows))
        parts.append(NeededPart(tensor, bool(np.all(read.lengths == rows)), bool(is_covered), is_paced))
    return parts


@dataclass(frozen=True)
class WaitingBytes:
    """The bytes that live at least before a kernel makes its first row, and the tensors that they are of."""

    bytes: int
    kernel: int
    tensors: tuple[int, ...] = ()


class WaitingBound:
    """The bound of a network of `regions`, whose kernels read the parts `reads` of their operands.

    `again` has the multiply-accumulates that a kernel costs again; None for one whose rows are never computed again. All together may cost
    `most`. Those of `pieces` are cut into pieces of tokens.
    """

    def __init__(
        self,
        regions: Regions,
        reads: Sequence[Sequence[NeededPart]],
        again: Sequence[int | None],
        most: float = 0.0,
        pieces: Collection[int] = (),
    ) -> None:
        self.regions, self.reads, self.again, self.most, self.pieces = regions, reads, again, most, pieces
        self.kernels, self.tensors = regions.network.kernels, regions.network.tensors
        self.grouped = {place for group in regions.groups.values() for place in group.places}
        self.started = [0] * len(self.kernels)
        """The kernels that are complete before each one makes a row, as bits."""
        self.after = [0] * len(self.kernels)
        """The kernels of which each row needs one of each kernel, as bits."""
        self.depths = [0] * len(self.kernels)
        """The kernels on a way to each one that wait for all rows of an operand, at most."""
        self._follow()
        self._share_bytes()

    def _follow(self) -> None:
        complete, makers = [0] * len(self.kernels), self.regions.makers
        for index, reads in enumerate(self.reads):
            for read in reads:
                maker = makers.get(read.tensor)
                if maker is None:
                    continue
                self.started[index] |= self.started[maker] | (complete[maker] if read.is_whole else 0)
                complete[index] |= complete[maker] if read.is_covered else 0
                self.depths[index] = max(self.depths[index], self.depths[maker])
            complete[index] |= self.started[index] | 1 << index
            self.depths[index] += self._waits(index)
        for index in reversed(range(len(self.kernels))):
            for read in self.reads[index]:
                if read.tensor in makers:
                    self.after[makers[read.tensor]] |= self.after[index] | 1 << index

    def _waits(self, index: int) -> bool:
        """Return whether a kernel waits for all rows of an operand of several."""
        return any(read.is_whole and self.tensors[read.tensor].rows > 1 for read in self.reads[index])

    def _share_bytes(self) -> None:
        """Count views as what they show; of tensors that are joined or split without a copy, only the readers that do so."""
        self.shown = list(range(len(self.tensors)))
        for kernel in self.kernels:
            if kernel.is_view:
                self.shown[kernel.makes[0]] = self.shown[kernel.reads[0]]
        self.sizes = [0 if about.is_outside else about.bytes_of(about.rows) for about in self.tensors]
        self.kept = set[int]()
        self.readers: dict[int, list[tuple[int, NeededPart]]] = {}
        for tensor, shown in enumerate(self.shown):
            if self.sizes[tensor] != self.sizes[shown]:
                self.shown[tensor], self.sizes[tensor] = tensor, 0
            if self.tensors[tensor].is_kept:
                self.kept.add(self.shown[tensor])
        for index, kernel in enumerate(self.kernels):
            for read in self.reads[index]:
                if read.is_covered and not (kernel.is_view and self.shown[kernel.makes[0]] == self.shown[read.tensor]):
                    self.readers.setdefault(self.shown[read.tensor], []).append((index, read))
        for tensor, readers in self.readers.items():
            shared = [each for each in readers if self.kernels[each[0]].is_join or self.kernels[each[0]].is_split]
            self.readers[tensor] = shared[:1] or readers

    def highest(self) -> WaitingBytes:
        """Return the highest bound of all kernels that wait, of equals that of the last."""
        sets: dict[int, list[int]] = {}
        for index in range(len(self.kernels)):
            if index not in self.grouped and self.started[index] and self._waits(index):
                sets.setdefault(self.depths[index], []).append(index)
        alone = [[index] for together in sets.values() if len(together) > 1 for index in together]
        live, left, found = self.regions.live_sizes, _SCANNED, list[tuple[int, int, list[int]]]()
        ranked = sorted((*sets.values(), *alone), key=lambda waiting: -max(live[index] for index in waiting))
        for waiting in ranked:
            left -= len(self.kernels) * len(waiting)
            if left < 0:
                break
            found.append((self._least(waiting, inf).bytes, waiting[-1], waiting))
        found.sort(reverse=True)
        if self.most <= 0:
            return self._least(found[0][2], inf) if found else WaitingBytes(0, 0)
        bought = (
            self._least(waiting, share * size / self.most)
            for size, _, waiting in found[:_BOUGHT]
            for share in (_RETURNED if size else ())
        )
        return max(bought, key=lambda live: live.bytes, default=WaitingBytes(0, 0))

    def _least(self, waiting: Sequence[int], price: float) -> WaitingBytes:
        """Return the bytes before the last of several kernels that wait makes its first row, whichever this is."""
        done = 0
        for index in waiting:
            done |= self.started[index]
        return min((self._before(index, done, price) for index in waiting), key=lambda live: live.bytes)

    def _before(self, last: int, done: int, price: float) -> WaitingBytes:
        """Return the bytes before a kernel makes its first row, where those of `done` are complete."""
        later = 1 << last | self.after[last]
        cut = _WaitingCut(self, last, done, later, price)
        for tensor, readers in self.readers.items():
            if any(later >> reader & 1 for reader, _ in readers):
                cut.add(tensor, _END)
        for tensor in self.kept:
            cut.add(tensor, _END)
        size = cut.bytes() - (price * self.most if price < inf else 0.0)
        return WaitingBytes(max(int(size), 0) + self.own(last), last, cut.tensors())

    def own(self, index: int) -> int:
        """Return the bytes of the results of a kernel that makes them as wholes, and not in the place of its operands."""
        kernel = self.kernels[index]
        is_over = kernel.overwrites or kernel.is_view or kernel.is_join or kernel.is_split
        if kernel.links is not None or is_over or index in self.pieces:
            return 0
        return sum(self.sizes[tensor] for tensor in kernel.makes)

    def tensors_read_whole(self, index: int) -> list[int]:
        """Return the operands of several rows for all of which a kernel waits."""
        return [read.tensor for read in self.reads[index] if read.is_whole and self.tensors[read.tensor].rows > 1]


_START, _END = -1, -2
"""The ends of a flow; other numbers are those of kernels, and of tensors after them."""


class _WaitingCut:
    """The least cut between the kernels of `done`, which are complete, and those of `later`, which have made no row."""

    def __init__(self, bound: WaitingBound, last: int, done: int, later: int, price: float) -> None:
        self.bound, self.done, self.later, self.price = bound, done, later, price
        self.held = {bound.regions.makers.get(bound.shown[each.tensor]) for each in bound.reads[last] if each.is_whole}
        """The kernels whose results are there as wholes."""
        self.room: dict[int, dict[int, float]] = {_START: {}, _END: {}}
        self.sources: dict[int, int] = {}
        """Where the bytes of each tensor come from: a kernel, or the start."""
        self.pending: list[int] = []
        self.known = set[int]()

    def _link(self, start: int, end: int, room: float) -> None:
        self.room.setdefault(start, {})[end] = room
        self.room.setdefault(end, {}).setdefault(start, 0.0)

    def add(self, tensor: int, reader: int) -> None:
        """Add a tensor that a kernel, or what is done later, may not have read yet."""
        bound, node = self.bound, len(self.bound.kernels) + tensor
        maker = bound.regions.makers.get(tensor)
        if not bound.sizes[tensor] or (maker is not None and self.later >> maker & 1):
            return
        self._link(node, reader, inf)
        if tensor in self.sources:
            return
        if maker is None or self._is_complete(maker):
            self.sources[tensor] = _START
        elif not self._is_paced(maker, tensor):
            return
        else:
            self.sources[tensor] = maker
            if maker not in self.known:
                self.known.add(maker)
                self.pending.append(maker)
        self._link(self.sources[tensor], node, float(bound.sizes[tensor]))

    def _is_complete(self, maker: int) -> bool:
        """Return whether all rows that a kernel made are there, or read already."""
        again = None if maker in self.held else self.bound.again[maker]
        return bool(self.done >> maker & 1) and (again is None or (again > 0 and self.price == inf))

    def _is_paced(self, maker: int, tensor: int) -> bool:
        tensors = self.bound.tensors
        rows = max(tensors[each].rows for each in self.bound.kernels[maker].makes)
        return bool(tensors[tensor].folds) or tensors[tensor].rows == rows

    def bytes(self) -> float:
        """Return the bytes of the least cut."""
        while self.pending:
            maker = self.pending.pop()
            again = self.bound.again[maker]
            if self.done >> maker & 1 and again:
                self._link(_START, maker, self.price * again)
            for read in self.bound.reads[maker]:
                tensor = self.bound.shown[read.tensor]
                if read.is_paced and (maker, read) in self.bound.readers.get(tensor, ()):
                    self.add(tensor, maker)
        total = 0.0
        while _END in (before := self._reached()):
            way = [_END]
            while way[-1] != _START:
                way.append(before[way[-1]])
            links = list(zip(way[1:], way, strict=False))
            flow = min(self.room[start][end] for start, end in links)
            for start, end in links:
                self.room[start][end] -= flow
                self.room[end][start] += flow
            total += flow
        return total

    def _reached(self) -> dict[int, int]:
        """Return what can be reached from the start through links with room, each with the place before it."""
        before, nodes = {_START: _START}, [_START]
        for node in nodes:
            for end, room in self.room[node].items():
                if room > 0 and end not in before:
                    before[end] = node
                    nodes.append(end)
                    if end == _END:
                        return before
        return before

    def tensors(self) -> tuple[int, ...]:
        """Return the tensors that are cut."""
        reached, first = self._reached(), len(self.bound.kernels)
        return tuple(
            tensor for tensor, source in self.sources.items() if source in reached and first + tensor not in reached
        )


def least_of(ways: Sequence[Array]) -> RowEnds:
    """Return the least of several numbers, each of many."""
    least: RowEnds = np.minimum.reduce(ways)
    return least


def least_from(rows: RowEnds) -> RowEnds:
    """Return the least of the numbers from each one on."""
    least: RowEnds = np.minimum.accumulate(rows[::-1])[::-1]
    return least


def first_least(rows: RowEnds, start: int) -> int:
    """Return the place of the least of the numbers from one on."""
    return start + int(rows[start:].argmin())
