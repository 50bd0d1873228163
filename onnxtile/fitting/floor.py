"""The bytes that no schedule of a network goes below, known without a search: those of the outputs, and of single kernels.

A kernel that is cut neither into rows nor into channels has its operands and results whole. One that is cut into rows has at least one row
of its result, with the rows of its operands that this row reads, and the whole of each operand that is not cut. Beside these live the rows
of other tensors that `row_bound` counts.
"""

from __future__ import annotations

from dataclasses import replace

from onnxtile.fitting.live_bytes import aligned
from onnxtile.fitting.network import FitKernel
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.row_bound import LiveRows, RowBound
from onnxtile.system.dataclass import dataclass


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
    grouped = {place for group in regions.groups.values() for place in group.places}
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
    if floor.kernel in {place for group in regions.groups.values() for place in group.places}:
        return "its rows are cut to the last, and its channels into chunks"
    reason = regions.network.kernels[floor.kernel].reason
    return (
        reason or "its rows are cut to the last; no rule cuts its channels, which are not hidden between two products"
    )


def _of_outputs(regions: Regions) -> Floor:
    tensors = regions.network.tensors
    kept = [_piece(regions, number, about.rows) for number, about in enumerate(tensors) if about.is_kept]
    pieces = tuple(piece for piece in kept if piece.bytes)
    return Floor(sum(piece.bytes for piece in pieces), None, pieces)


def _of_whole(regions: Regions, index: int) -> Floor:
    kernel = regions.network.kernels[index]
    names = dict.fromkeys((*kernel.reads, *kernel.makes))
    pieces = [_piece(regions, number, regions.network.tensors[number].rows) for number in names]
    return _over(regions, index, pieces, regions.alone_bytes(index))


def _of_rows(regions: Regions, index: int) -> Floor:
    """Return the floor of a kernel that is cut into rows: of its middle rows, which read no padding where others do not."""
    kernel, tensors = regions.network.kernels[index], regions.network.tensors
    made = tensors[kernel.makes[0]]
    if made.axis is None or made.folds or kernel.is_view or kernel.is_join or kernel.is_split:
        return Floor(0, index, ())
    start = made.rows // 2 // kernel.factor * kernel.factor
    stop = min(start + kernel.factor, made.rows)
    rows = _rows_of(kernel, regions, start, stop)
    pieces = [_piece(regions, tensor, count) for tensor, count in rows.items()]
    pieces += [_piece(regions, result, stop - start) for result in kernel.makes]
    operands, results = pieces[: len(rows)], pieces[len(rows) :]
    total = sum(piece.bytes for piece in operands) + (0 if kernel.overwrites else sum(piece.bytes for piece in results))
    return _over(regions, index, pieces, total)


def _rows_of(kernel: FitKernel, regions: Regions, start: int, stop: int) -> dict[int, int]:
    """Return how many rows of each operand a range of rows of the result reads."""
    rows: dict[int, int] = {}
    for place, tensor in enumerate(kernel.reads):
        about, link = regions.network.tensors[tensor], kernel.axis_link(place)
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
