"""The bytes that a contraction moves when it is cut, and the bytes that one tile holds.

The model: a fast memory that holds one tile, and a slow memory that holds everything. A tile reads a window of the left operand
(`channels` × the inputs along its sliding axes) and the block of the right operand from those channels to `filters` columns, and adds to
a block of the result. All three lie in fast memory together:

    groups·(channels·window·a + channels·kernel·filters·b + outputs·filters·c) + outputs·row + groups·filters·column <= memory

a, b, c are the bytes of an element, times the matrices of a batch. `row` and `column` are the bytes that a row of the left operand and a
column of the right one need besides, as zero points do, and a bias that is the same for all rows or all columns.

Tiles run in a serpentine: each loop turns back where it ended, so that from one tile to the next the index of one loop changes. A block
that the tile before has used is still there; any other is read, and the block of the result that is left is written: to be read again
where partial sums are still to come. They are added in place. So V visits of a block of the result cost V writes and V - 1 reads. With
loops of A, B and C turns, the outermost first, the blocks of an operand are read

    A·B times           where it does not depend on the innermost loop, each once,
    A·(B·C - (B - 1))   where it does not depend on the loop in the middle: at each turn of that a block stays,
    A·B·C - (A - 1)     where it does not depend on the outermost loop.

A block that stays is the last or the first along each axis, by turns; the last one may be smaller, and that is counted.

Windows overlap by the halo: n neighbouring outputs read (n - 1)·stride + reach inputs, reach the elements from the kernel's first to its
last, so an axis of O outputs in t stretches reads stride·(O - t) + t·reach of them; with a kernel of 1, as in a matrix product, that is O.
Padding counts as if it lay in memory. Where no sliding axis is cut the whole input is read, also the elements that no kernel
touches. Groups come one set after another.

No schedule moves less than left operand, right operand and result once each. Where the kernel has one element and skips none, so that the
contraction is a set of matrix products, no schedule moves less than these either; d is sqrt(a·b·c / memory), without the batch:

- 2·M·N·K·d - 2·memory. While 2·memory bytes are read, at most 3·memory bytes of A, B and the result are at hand, which are
  (memory³ / (a·b·c))^½ products at most (Smith et al., "A tight I/O lower bound for matrix multiplication", arXiv 1702.02017);
- 2·M·N·K·d + c·M·N, where K is 2·√(c·memory / (a·b)) at least (Kwasniewski et al., "Red-blue pebbling revisited", arXiv 1908.09606).
  With a shorter K less is moved: a block of A or B with all of K stays in fast memory, and no partial sum is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any

import numpy as np

from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.sliding import SlidingAxis
from onnxtile.tiling.tensors import TensorDims


@dataclass(frozen=True)
class Workload:
    """The sizes of a contraction: channels and filters of each of `groups`, the sliding axes, all known.

    `bytes` are those of an element of left operand, right operand and result, `batch` the matrices of each; `column` and `row` the
    bytes that each column of the right and each row of the left operand needs besides.
    """

    channels: int
    filters: int
    sliding: tuple[SlidingAxis, ...]
    groups: int = 1
    bytes: tuple[float, float, float] = (4, 4, 4)
    batch: tuple[int, int, int] = (1, 1, 1)
    column: int = 0
    row: int = 0

    @classmethod
    def of(cls, contraction: Contraction) -> Workload:
        """Return the workload of a contraction of known sizes."""
        zero = contraction.right.zero
        zeros = int(zero.dtype.itemsize) if zero is not None and zero.axes[1] is not None else 0
        row, column = bias_bytes(contraction)
        a, b, c = contraction.left.element_bytes, contraction.right.element_bytes, contraction.dtype.itemsize
        left, right, result = (_count(batch) for batch in contraction.batches)
        assert isinstance(contraction.channels, int) and isinstance(contraction.filters, int)
        return cls(
            contraction.channels,
            contraction.filters,
            contraction.sliding,
            contraction.groups,
            (a, b, c),
            (left, right, result),
            zeros + column,
            row,
        )

    def filled(self, quanta: tuple[int, int, int]) -> Workload:
        """Return the workload with the elements that fill up plain sliding axes, channels and filters to multiples of `quanta`."""
        m, k, n = quanta
        if quanta == (1, 1, 1):
            return self
        outs = [-(-out // m) * m for out in self.outs]
        sliding = tuple(replace(axis, size=out, out=out) for axis, out in zip(self.sliding, outs, strict=True))
        return replace(self, channels=-(-self.channels // k) * k, filters=-(-self.filters // n) * n, sliding=sliding)

    @property
    def outs(self) -> tuple[int, ...]:
        """The outputs along each sliding axis."""
        return tuple(axis.out for axis in self.sliding if isinstance(axis.out, int))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that are cut: groups, the outputs along each sliding axis, channels and filters."""
        return self.groups, *self.outs, self.channels, self.filters

    @property
    def kernel(self) -> int:
        """The elements of the kernel."""
        return prod(axis.kernel for axis in self.sliding)

    def lower_bound(self, memory: int) -> float:
        """Return the bytes that any schedule moves at least, with `memory` bytes of fast memory."""
        a, b, c = self.bytes
        left, right, result = (size * count * self.groups for size, count in zip(self.bytes, self.batch, strict=True))
        touched = prod(_touched(axis, out) for axis, out in zip(self.sliding, self.outs, strict=True))
        outputs = self.filters * prod(self.outs)
        once = left * self.channels * touched + right * self.filters * self.channels * self.kernel + result * outputs
        if not all(axis.is_plain for axis in self.sliding):
            return float(once)
        read = 2 * self.groups * self.batch[2] * self.channels * outputs * sqrt(prod(self.bytes) / memory)
        if self.channels < 2 * sqrt(c * memory / (a * b)):
            return max(float(once), read - 2 * memory)
        return max(float(once), read - 2 * memory, read + result * outputs)

    def blocks(self, groups: Any, steps: Sequence[Any], channels: Any, filters: Any) -> tuple[Any, Any, Any]:
        """Return the elements of the blocks of left operand, right operand and result of a tile; numbers or arrays."""
        left, right, result = self.batch
        window: Any = left * groups * channels
        outputs: Any = result * groups * filters
        whole: Any = window
        is_cut: Any = False
        for axis, out, step in zip(self.sliding, self.outs, steps, strict=True):
            window, outputs = window * axis.longest(step), outputs * step
            whole, is_cut = whole * _size(axis), is_cut | np.less(step, out)
        window = np.where(is_cut, window, np.maximum(window, whole))
        weights = right * groups * filters * channels * self.kernel
        return window if np.ndim(window) else int(window), weights, outputs

    def held(self, groups: Any, steps: Sequence[Any], channels: Any, filters: Any) -> Any:
        """Return the bytes that a full tile holds at once."""
        blocks = zip(self.blocks(groups, steps, channels, filters), self.bytes, strict=True)
        besides = groups * filters * self.column + prod(steps) * self.row
        return sum(elements * size for elements, size in blocks) + besides

    def moved(self, tile: tuple[Sequence[Any], Any, Any], order: str) -> Any:
        """Return the bytes that all tiles move, each of so many outputs along each sliding axis, channels and filters."""
        steps, channels, filters = tile
        m, whole, first, last = self._windows(steps)
        each = {"m": m, "k": -(-self.channels // channels), "n": -(-self.filters // filters)}
        outs = [_ends(out, step) for out, step in zip(self.outs, steps, strict=True)]
        ends = {
            "m": (prod(self.outs), prod(one[0] for one in outs), prod(one[1] for one in outs)),
            "k": (self.channels, *_ends(self.channels, channels)),
            "n": (self.filters, *_ends(self.filters, filters)),
        }
        a, b, c = (size * count for size, count in zip(self.bytes, self.batch, strict=True))
        result = _read("mn", order, each, ends)
        return self.groups * (
            a * _read("mk", order, each, ends | {"m": (whole, first, last)})
            + b * self.kernel * _read("kn", order, each, ends)
            + c * (2 * result - self.filters * prod(self.outs))
        )

    def _windows(self, steps: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Return the stretches of M, and the inputs in all their windows, in the first window and in the last, for one channel."""
        count: Any = 1
        total: Any = 1
        first: Any = 1
        last: Any = 1
        for axis, out, step in zip(self.sliding, self.outs, steps, strict=True):
            along = -(-out // step)
            count, total = count * along, total * _windows(axis, out, along)
            ends = _ends(out, step)
            first, last = first * axis.longest(ends[0]), last * axis.longest(ends[1])
        size = prod(_size(axis) for axis in self.sliding)
        # Where nothing is cut, the whole input is read.
        return (count, *(np.where(np.equal(count, 1), np.maximum(each, size), each) for each in (total, first, last)))


def bias_bytes(contraction: Contraction) -> tuple[int, int]:
    """Return the bytes of the bias that belong to each row and to each column: of one that is the same along the other axis."""
    size = int(contraction.dtype.itemsize)
    if contraction.tile_bias is not None:
        return 0, size
    if contraction.bias is None or not contraction.adds_bias:
        return 0, 0
    rows, columns = (1, 1, *contraction.bias.dims)[-2:]
    if rows == 1:
        return 0, (size if columns != 1 else 0)
    return (size if columns == 1 else 0), 0


def loads(operand: str, order: str, counts: Mapping[str, Any]) -> Any:
    """Return how many blocks of the operand along two of M, K and N, as "mk", are read, where one that stays is not read again."""
    a, b, c = (counts[axis] for axis in order)
    still = _still(operand, order)
    return (a * b * c - (a - 1), a * (b * c - (b - 1)), a * b)[still]


def _still(operand: str, order: str) -> int:
    """Return the place of the loop, 0 the outermost, on which an operand does not depend."""
    return next(place for place, axis in enumerate(order) if axis not in operand)


def _read(operand: str, order: str, counts: Mapping[str, Any], ends: Mapping[str, tuple[Any, Any, Any]]) -> Any:
    """Return how many elements of an operand are read; `ends` has for each axis all elements, those of its first and its last block."""
    still = _still(operand, order)
    one, other = (axis for axis in order if axis in operand)
    (all_one, first_one, last_one), (all_other, first_other, last_other) = ends[one], ends[other]
    a, b, _ = (counts[axis] for axis in order)
    whole = all_one * all_other
    if still == 2:
        return whole
    if still == 1:
        # Of B - 1 turns the first, the third ... are behind the last block, the others before the first.
        return b * whole - all_one * ((b // 2) * last_other + ((b - 1) // 2) * first_other)
    # The loop in the middle ends at its last and its first block by turns; so does the inner one where B is odd, else at its first.
    behind = np.where(b % 2 == 1, last_other, first_other)
    return a * whole - ((a // 2) * last_one * behind + ((a - 1) // 2) * first_one * first_other)


def _ends(size: int, step: Any) -> tuple[Any, Any]:
    """Return the elements of the first and the last stretch of an axis."""
    return np.minimum(step, size), size - (-(-size // step) - 1) * step


def _windows(axis: SlidingAxis, out: int, count: Any) -> Any:
    """Return the input elements that the windows of one axis have in all, where `out` outputs are cut into `count` stretches."""
    if axis.transposed:
        return -(-(out + count * (max(axis.reach, axis.stride) - 2)) // axis.stride) + count
    return axis.stride * (out - count) + count * axis.reach


def _touched(axis: SlidingAxis, out: int) -> int:
    """Return how many input elements of one axis a kernel touches."""
    touched = min(_windows(axis, out, 1), _windows(axis, out, out))
    return int(min(touched, axis.size) if isinstance(axis.size, int) else touched)


def _size(axis: SlidingAxis) -> int:
    """Return the size of the input along one axis; 0 where it is not known, and so not cut."""
    return axis.size if isinstance(axis.size, int) else 0


def _count(dims: TensorDims) -> int:
    return prod(dim for dim in dims if isinstance(dim, int))
