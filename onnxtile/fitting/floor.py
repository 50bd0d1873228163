"""The bytes that no schedule of a network goes below, known without a search: those of the outputs, and of single kernels.

A kernel that is cut neither into rows nor into channels has its operands and results whole. One that is cut into rows has at least one row
of its result, with the rows of its operands that this row reads, and the whole of each operand that is not cut. Beside these live the rows
of other tensors that `row_bound` counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import mul

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
