"""The bytes that no schedule of a network goes below, known without a search: those of the outputs, and of single kernels.

A kernel that is cut neither into rows nor into channels has its operands and results whole. One that is cut into rows has at least one row
of its result, with the rows of its operands that this row reads, and the whole of each operand that is not cut.
"""

from __future__ import annotations

from onnxtile.fitting.live_bytes import aligned
from onnxtile.fitting.network import FitKernel
from onnxtile.fitting.regions import Regions
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class LivePiece:
    """Rows of a tensor that live while a kernel runs, with their bytes; `is_whole` says that these are all of its rows."""

    tensor: int
    bytes: int
    is_whole: bool


@dataclass(frozen=True)
class Floor:
    """The bytes that every schedule takes at least: those of the `kernel` at a place, or (None) of the outputs, with their pieces.

    A result that is written over an operand is not counted again.
    """

    bytes: int
    kernel: int | None
    pieces: tuple[LivePiece, ...]


def floor_of(regions: Regions) -> Floor:
    """Return the highest floor of a network; of equals, that of the outputs, then that of the first kernel."""
    grouped = {place for group in regions.groups.values() for place in group.places}
    best = _of_outputs(regions)
    for index, kernel in enumerate(regions.network.kernels):
        if index not in grouped:
            floor = _of_rows(regions, index) if kernel.links is not None else _of_whole(regions, index)
            best = floor if floor.bytes > best.bytes else best
    return best


def _of_outputs(regions: Regions) -> Floor:
    tensors = regions.network.tensors
    kept = [LivePiece(number, regions.size(number), True) for number, about in enumerate(tensors) if about.is_kept]
    pieces = tuple(piece for piece in kept if piece.bytes)
    return Floor(sum(piece.bytes for piece in pieces), None, pieces)


def _of_whole(regions: Regions, index: int) -> Floor:
    kernel = regions.network.kernels[index]
    names = dict.fromkeys((*kernel.reads, *kernel.makes))
    pieces = [LivePiece(number, regions.size(number), True) for number in names]
    return _over(regions, index, pieces, regions.alone_bytes(index))


def _of_rows(regions: Regions, index: int) -> Floor:
    """Return the floor of a kernel that is cut into rows: of its middle rows, which read no padding where others do not."""
    kernel, tensors = regions.network.kernels[index], regions.network.tensors
    made = tensors[kernel.makes[0]]
    if made.axis is None or made.folds or kernel.is_view or kernel.is_join or kernel.is_split:
        return Floor(0, index, ())
    start = made.rows // 2 // kernel.factor * kernel.factor
    stop = min(start + kernel.factor, made.rows)
    rows = _rows_read(kernel, regions, start, stop)
    pieces = [_piece(regions, tensor, count) for tensor, count in rows.items()]
    pieces += [_piece(regions, result, stop - start) for result in kernel.makes]
    operands, results = pieces[: len(rows)], pieces[len(rows) :]
    total = sum(piece.bytes for piece in operands) + (0 if kernel.overwrites else sum(piece.bytes for piece in results))
    return _over(regions, index, pieces, total)


def _rows_read(kernel: FitKernel, regions: Regions, start: int, stop: int) -> dict[int, int]:
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
    return LivePiece(tensor, size, rows == about.rows)


def _over(regions: Regions, index: int, pieces: list[LivePiece], total: int) -> Floor:
    """Return the floor of `total` bytes; results are left out of its pieces where they are written over operands."""
    shown = [piece for piece in pieces if piece.bytes]
    if sum(piece.bytes for piece in shown) > total:
        shown = [piece for piece in shown if piece.tensor not in regions.network.kernels[index].makes]
    if sum(piece.bytes for piece in shown) != total:
        shown = []
    return Floor(total, index, tuple(shown))
