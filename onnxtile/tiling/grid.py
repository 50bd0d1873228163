"""The grid of a contraction: full tiles of the bound, then one smaller tile for the rest; and the bytes that tiles of two levels move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np

from onnxtile.operators.node_view import Dim, Dims
from onnxtile.operators.reads import SlidingAxis
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible
from onnxtile.tiling.contraction import Contraction, TensorOperand
from onnxtile.tiling.limits import AxisBounds

ORDERS = ("mnk", "nmk", "mkn", "knm", "nkm", "kmn")
"""The orders of loops, outermost first; those with K innermost, which leave no partial sum behind, come first."""


@dataclass(frozen=True)
class Axis:
    """One axis of `size` elements, cut into stretches of `step`; the last may be shorter.

    The size is None where it is known only when the model runs; such an axis is one stretch. Zeros fill up the last stretch to a multiple
    of `quantum`. Each of `groups`, one after another, has so many elements: a stretch has `together` whole ones, or a part of one.
    With `outer`, the axis of a single group is cut into outer stretches of so many elements first, and each of these into stretches.
    Hardware with a fixed tile size runs full tiles fastest; balanced cuts would make every tile a partial one.
    """

    size: int | None
    step: int | None
    quantum: int = 1
    groups: int = 1
    together: int = 1
    outer: int | None = None

    @classmethod
    def from_size(cls, size: Dim, bound: int | None = None, *, multiple: int = 1, quantum: int = 1) -> Axis:
        """Return an axis of `size` (at least 1) in the longest stretches up to `bound`, which an unknown size must not have.

        Stretches are multiples of `multiple` where there is more than one. Raises Infeasible where none fits.
        """
        if not isinstance(size, int):
            assert bound is None
            return cls(None, None)
        total = -(-size // quantum) * quantum
        if bound is None or bound >= total:
            return cls(size, total, quantum)
        if bound < multiple:
            raise Infeasible(f"no {bound} elements are a multiple of {multiple}", hint="raise the limits")
        return cls(size, bound // multiple * multiple, quantum)

    @cached_property
    def count(self) -> int:
        """How many stretches there are."""
        return -(-self.groups // self.together) * self.within

    @cached_property
    def within(self) -> int:
        """How many stretches a single group has."""
        if self.size is None or self.step is None:
            return 1
        if self.outer is None:
            return -(-self.size // self.step)
        whole, rest = divmod(self.size, self.outer)
        return whole * self._in_outer + -(-rest // self.step)

    @property
    def _in_outer(self) -> int:
        """How many stretches an outer stretch of full length has."""
        assert self.outer is not None and self.step is not None
        return -(-self.outer // self.step)

    @property
    def outer_count(self) -> int:
        """How many outer stretches there are."""
        return 1 if self.outer is None or self.size is None else -(-self.size // self.outer)

    def inside(self, outer: int) -> range:
        """Return the numbers of the stretches in outer stretch `outer`."""
        if self.outer is None:
            return range(self.count)
        return range(outer * self._in_outer, min((outer + 1) * self._in_outer, self.count))

    def place(self, index: int) -> tuple[int, int]:
        """Return the number of the outer stretch that stretch `index` is in, and its number among the stretches there."""
        return (0, index) if self.outer is None else divmod(index, self._in_outer)

    @cached_property
    def is_cut(self) -> bool:
        """Whether there is more than one stretch."""
        return self.count > 1

    @cached_property
    def total(self) -> int | None:
        """The number of elements of all groups, with the zeros that fill up the last stretch."""
        return None if self.size is None else -(-self.size // self.quantum) * self.quantum * self.groups

    @cached_property
    def fills(self) -> bool:
        """Whether anything fills up the last stretch."""
        return self.size is not None and self.total != self.size * self.groups

    def stretch(self, index: int) -> slice:
        """Return the half-open range of elements in stretch `index`, without the zeros that fill it up."""
        if self.size is None or self.step is None:
            return slice(None)
        if self.outer is not None:
            first, inside = self.place(index)
            start = first * self.outer + inside * self.step
            return slice(start, min(start + self.step, (first + 1) * self.outer, self.size))
        if self.within == 1:
            long = self.together * self.size
            return slice(index * long, min((index + 1) * long, self.groups * self.size))
        group, inside = divmod(index, self.within)
        start = group * self.size + inside * self.step
        return slice(start, min(start + self.step, (group + 1) * self.size))

    def width(self, index: int) -> int:
        """Return the number of elements in stretch `index` of an axis whose size is known, with the zeros that fill it up."""
        assert self.size is not None and self.total is not None
        stretch = self.stretch(index)
        filling = self.total - self.size * self.groups if index == self.count - 1 else 0
        return int(stretch.stop - stretch.start) + filling

    @property
    def widths(self) -> list[int]:
        """The number of elements in each stretch, in order."""
        return [self.width(index) for index in range(self.count)]


@dataclass(frozen=True)
class TileGrid:
    """The cuts of a contraction; each combination of stretches is one tile.

    `sliding` are the cuts of the axes that make up M: the rows of a product, the rows and columns of a convolution's output. `k` and `n`
    are the cuts of the channels and filters of one group; where either is cut, a tile has one group. `order` names the loops inside each
    set of groups, outermost first; m counts the stretches of `sliding`, row by row. With two levels, `order` names the loops inside each
    outer tile, and `outer_order` those over all outer tiles; there is a single group and one sliding axis then. `groups` are the cuts of
    the groups.
    """

    groups: Axis
    sliding: tuple[Axis, ...]
    k: Axis
    n: Axis
    order: str = "mnk"
    outer_order: str | None = None

    @classmethod
    def fullest(cls, contraction: Contraction, bounds: AxisBounds) -> TileGrid:
        """Return the cuts of the largest tiles within `bounds`: whole rows where they fit, else parts of one. Raises Infeasible."""
        m, k, n = zip(bounds.multiples, bounds.quanta, strict=True)
        left, sliding = bounds.pixels, list[Axis]()
        for axis, bound in reversed(list(zip(contraction.sliding, bounds.sliding, strict=True))):
            both = [most for most in (bound, left) if most is not None]
            cuts = Axis.from_size(axis.out, min(both, default=None), multiple=m[0], quantum=m[1])
            left = None if left is None or cuts.step is None else left // cuts.step
            sliding.append(cuts)
        together = 1
        if isinstance(contraction.channels, int) and isinstance(contraction.filters, int):
            together = bounds.groups(contraction.groups, contraction.channels, contraction.filters)
        return cls(
            Axis(contraction.groups, together),
            tuple(reversed(sliding)),
            Axis.from_size(contraction.channels, bounds.channels, multiple=k[0], quantum=k[1]),
            Axis.from_size(contraction.filters, bounds.filters, multiple=n[0], quantum=n[1]),
        )

    @classmethod
    def chosen(cls, contraction: Contraction, bounds: AxisBounds, tile: tuple[int, ...], order: str) -> TileGrid:
        """Return the cuts into tiles of so many groups, outputs along each sliding axis, channels and filters."""
        groups, *steps, channels, filters = tile
        sizes = (*(axis.out for axis in contraction.sliding), contraction.channels, contraction.filters)
        quanta = (*(bounds.quanta[0] for _ in steps), *bounds.quanta[1:])
        axes = [
            Axis(size, step, quantum)
            for size, step, quantum in zip(sizes, (*steps, channels, filters), quanta, strict=True)
            if isinstance(size, int)
        ]
        return cls(Axis(contraction.groups, groups), tuple(axes[:-2]), axes[-2], axes[-1], order)

    def inside(self, outer: TileGrid, order: str) -> TileGrid:
        """Return these cuts within each tile of `outer`, where loops run in `order`."""

        def cut(axis: Axis, around: Axis) -> Axis:
            assert axis.step is not None and around.step is not None
            return replace(axis, step=min(axis.step, around.step), outer=around.step)

        sliding = tuple(cut(axis, around) for axis, around in zip(self.sliding, outer.sliding, strict=True))
        return TileGrid(self.groups, sliding, cut(self.k, outer.k), cut(self.n, outer.n), order, outer.order)

    @cached_property
    def inputs(self) -> Axis:
        """The cuts along the channels of all groups."""
        return self._of_all_groups(self.k)

    @cached_property
    def outputs(self) -> Axis:
        """The cuts along the filters of all groups."""
        return self._of_all_groups(self.n)

    @property
    def rows(self) -> Axis:
        """The cuts of M where a single axis makes it up."""
        (rows,) = self.sliding
        return rows

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """The number of stretches along M, K and N of one group."""
        return prod(axis.count for axis in self.sliding), self.k.count, self.n.count

    @property
    def outer_shape(self) -> tuple[int, int, int]:
        """The number of outer stretches along M, K and N."""
        return self.rows.outer_count, self.k.outer_count, self.n.outer_count

    @property
    def steps(self) -> list[int | None]:
        """The size of a full tile along M, K and N, all its groups counted; K counts channels."""
        rows = [axis.step for axis in self.sliding if axis.step is not None]
        together = self.groups.step or 1
        m = prod(rows) if len(rows) == len(self.sliding) else None
        return [m, *(None if axis.step is None else axis.step * together for axis in (self.k, self.n))]

    @property
    def matmuls(self) -> int:
        """How many tiles there are."""
        return self.groups.count * prod(self.shape)

    @cached_property
    def is_cut(self) -> bool:
        """Whether there is more than one tile, or one that is larger than the contraction."""
        return self.matmuls > 1 or self.fills

    @cached_property
    def cuts_rows(self) -> bool:
        """Whether an axis of M is cut."""
        return any(axis.is_cut for axis in self.sliding)

    @cached_property
    def fills(self) -> bool:
        """Whether anything fills up the last tiles."""
        return any(axis.fills for axis in (*self.sliding, self.k, self.n))

    def positions(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the place (group, m, k, n) of each tile in loop order, set of groups after set of groups.

        Where K is the innermost loop, the partial sums of one output block follow one another, so that few are alive at a time.
        With two levels, the tiles of one outer tile follow one another.
        """
        if self.outer_order is not None:
            yield from ((0, *place) for place in self._nested())
            return
        for group in range(self.groups.count):
            for m, k, n in loop(self.order, self.shape):
                yield group, m, k, n

    def _nested(self) -> Iterator[tuple[int, int, int]]:
        """Yield the place (m, k, n) of each tile, outer tile after outer tile."""
        assert self.outer_order is not None
        for outer in loop(self.outer_order, self.outer_shape):
            m, k, n = (axis.inside(at) for axis, at in zip((self.rows, self.k, self.n), outer, strict=True))
            for row, middle, column in loop(self.order, (len(m), len(k), len(n))):
                yield m[row], k[middle], n[column]

    def along(self, m: int) -> tuple[int, ...]:
        """Return for stretch `m` of M the number of the stretch along each sliding axis."""
        stretches: list[int] = []
        for axis in reversed(self.sliding):
            m, index = divmod(m, axis.count)
            stretches.append(index)
        return tuple(reversed(stretches))

    def of_result(self, contraction: Contraction) -> tuple[tuple[int | None, ...], tuple[Axis, ...]]:
        """Return the axes of the result that are cut, and their cuts."""
        return contraction.axes, (*self.sliding, self.outputs)

    def to_dict(self) -> dict[str, object]:
        """Return the size of a full tile of a convolution along each axis, ready for JSON."""
        names = ("rows", "columns")[-len(self.sliding) :]
        sizes = {name: axis.step for name, axis in zip(names, self.sliding, strict=True)}
        return {"groups": self.groups.step, **sizes, "channels": self.k.step, "filters": self.n.step}

    def _of_all_groups(self, axis: Axis) -> Axis:
        if self.groups.size == 1:
            return axis
        return Axis(axis.size, axis.step, groups=self.groups.size or 1, together=self.groups.step or 1)


def loop(order: str, counts: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield each place (m, k, n) among so many stretches along M, K and N, in the order of loops, outermost first.

    Loops run in a serpentine: each turns back where it ended, so that from one place to the next only one index changes, by one.
    """
    sizes = dict(zip("mkn", counts, strict=True))
    m, k, n = (order.index(axis) for axis in "mkn")
    outer, middle, inner = (range(sizes[letter]) for letter in order)
    rows, columns = serpentine(middle), serpentine(inner)
    for first in outer:
        for second in next(rows):
            for third in next(columns):
                at = (first, second, third)
                yield at[m], at[k], at[n]


def serpentine(indices: range) -> Iterator[range]:
    """Yield `indices` upwards, then downwards, and so on."""
    while True:
        yield indices
        yield indices[::-1]


# The bytes that a contraction moves when it is cut, and the bytes that one tile holds.
#
# The model: a fast memory that holds one tile, and a slow memory that holds everything. A tile reads a window of the left operand
# (`channels` × the inputs along its sliding axes) and the block of the right operand from those channels to `filters` columns, and adds to
# a block of the result. All three lie in fast memory together:
#
# groups·(channels·window·a + channels·kernel·filters·b + outputs·filters·c) + outputs·row + groups·filters·column <= memory
#
# a, b, c are the bytes of an element, times the matrices of a batch. `row` and `column` are the bytes that a row of the left operand and a
# column of the right one need, as zero points do, and a bias that is the same for all rows or all columns.
#
# Tiles run in a serpentine: each loop turns back where it ended, so that from one tile to the next the index of one loop changes. A block
# that the tile before has used is still there; any other is read, and the block of the result that is left is written: to be read again
# where partial sums are still to come. They are added in place. So V visits of a block of the result cost V writes and V - 1 reads. With
# loops of A, B and C turns, the outermost first, the blocks of an operand are read
#
#     A·B times           where it does not depend on the innermost loop, each once,
#     A·(B·C - (B - 1))   where it does not depend on the loop in the middle: at each turn of that a block stays,
#     A·B·C - (A - 1)     where it does not depend on the outermost loop.
#
# A block that stays is the last or the first along each axis, by turns; the last one may be smaller, and that is counted.
#
# Windows overlap by the halo: n neighbouring outputs read (n - 1)·stride + reach inputs, reach the elements from the kernel's first to its
# last, so an axis of O outputs in t stretches reads stride·(O - t) + t·reach of them; with a kernel of 1, as in a matrix product, that is
# O. Padding counts as if it lay in memory. Where no sliding axis is cut the whole input is read, also the elements that no kernel touches.
# Groups come one set after another.
#
# No schedule moves less than left operand, right operand and result once each. Where the kernel has one element and skips none, so that the
# contraction is a set of matrix products, no schedule moves less than these either; d is sqrt(a·b·c / memory), without the batch:
#
# - 2·M·N·K·d - 2·memory. While 2·memory bytes are read, at most 3·memory bytes of A, B and the result are at hand, which are
#   (memory³ / (a·b·c))^½ products at most (Smith et al., "A tight I/O lower bound for matrix multiplication", arXiv 1702.02017);
# - 2·M·N·K·d + c·M·N, where K is 2·√(c·memory / (a·b)) at least (Kwasniewski et al., "Red-blue pebbling revisited", arXiv 1908.09606).
#   With a shorter K less is moved: a block of A or B with all of K stays in fast memory, and no partial sum is left.


@dataclass(frozen=True)
class Workload:
    """The sizes of a contraction: channels and filters of each of `groups`, the sliding axes, all known.

    `bytes` are those of an element of left operand, right operand and result, `batch` the matrices of each; `column` and `row` the
    bytes that each column of the right and each row of the left operand also needs.
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
    def from_contraction(cls, contraction: Contraction) -> Workload:
        """Return the workload of a contraction of known sizes."""
        zero = contraction.right.zero
        zeros = int(zero.dtype.itemsize) if zero is not None and zero.axes[1] is not None else 0
        row, column = bias_bytes(contraction)
        a, b, c = contraction.left.element_bytes, contraction.right.element_bytes, contraction.dtype.itemsize
        left, right, result = (prod(dim for dim in batch if isinstance(dim, int)) for batch in contraction.batches)
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
        more = groups * filters * self.column + prod(steps) * self.row
        return sum(elements * size for elements, size in blocks) + more

    def moved(self, tile: tuple[Sequence[Any], Any, Any], order: str) -> Any:
        """Return the bytes that all tiles move, each of so many outputs along each sliding axis, channels and filters."""
        steps, channels, filters = tile
        m, whole, first, last = self._windows(steps)
        each = {"m": m, "k": -(-self.channels // channels), "n": -(-self.filters // filters)}
        outs = [ends_of(out, step) for out, step in zip(self.outs, steps, strict=True)]
        ends = {
            "m": (prod(self.outs), prod(pair[0] for pair in outs), prod(pair[1] for pair in outs)),
            "k": (self.channels, *ends_of(self.channels, channels)),
            "n": (self.filters, *ends_of(self.filters, filters)),
        }
        a, b, c = (size * count for size, count in zip(self.bytes, self.batch, strict=True))
        result = elements_read("mn", order, each, ends)
        return self.groups * (
            a * elements_read("mk", order, each, ends | {"m": (whole, first, last)})
            + b * self.kernel * elements_read("kn", order, each, ends)
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
            ends = ends_of(out, step)
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
    return next(depth for depth, axis in enumerate(order) if axis not in operand)


def elements_read(operand: str, order: str, counts: Mapping[str, Any], ends: Mapping[str, tuple[Any, Any, Any]]) -> Any:
    """Return how many elements of an operand are read; `ends` has for each axis all elements, those of its first and its last block."""
    still = _still(operand, order)
    outer, inner = (axis for axis in order if axis in operand)
    (all_outer, first_outer, last_outer), (all_inner, first_inner, last_inner) = ends[outer], ends[inner]
    a, b, _ = (counts[axis] for axis in order)
    whole = all_outer * all_inner
    if still == 2:
        return whole
    if still == 1:
        # Of B - 1 turns the first, the third ... come after the last block, the others before the first.
        return b * whole - all_outer * ((b // 2) * last_inner + ((b - 1) // 2) * first_inner)
    # The loop in the middle ends at its last and its first block by turns; so does the inner one where B is odd, else at its first.
    turn = np.where(b % 2 == 1, last_inner, first_inner)
    return a * whole - ((a // 2) * last_outer * turn + ((a - 1) // 2) * first_outer * first_inner)


def ends_of(size: int, step: Any) -> tuple[Any, Any]:
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


# How a tensor is cut into blocks: along which axes, and at which places.

BlockPosition = Sequence[int | None]
"""The number of a block's stretch along each axis that is cut; None for the whole axis."""


@dataclass(frozen=True)
class TensorCuts:
    """The cuts of a tensor of `dims` along some of its `axes`; None stands for an axis that it lacks."""

    dims: Dims
    axes: tuple[int | None, ...]
    cuts: tuple[Axis, ...]

    @property
    def sides(self) -> list[int]:
        """The numbers of the axes along which there are several blocks."""
        pairs = enumerate(zip(self.axes, self.cuts, strict=True))
        return [side for side, (axis, cuts) in pairs if axis is not None and cuts.is_cut]

    def block(self, position: BlockPosition, *, filled: bool = True) -> Dims:
        """Return the dimensions of a block, with or without the zeros that fill it up."""
        dims = list(self.dims)
        for axis, cuts, index in zip(self.axes, self.cuts, position, strict=True):
            if axis is None or not (cuts.is_cut or cuts.fills):
                continue
            if filled:
                dims[axis] = cuts.total if index is None else cuts.width(index)
            elif index is not None:
                stretch = cuts.stretch(index)
                dims[axis] = stretch.stop - stretch.start
        return tuple(dims)

    def filling(self, position: BlockPosition) -> list[int]:
        """Return how many zeros fill up a block at the end of each axis."""
        pairs = zip(self.block(position), self.block(position, filled=False), strict=True)
        return [full - size if isinstance(full, int) and isinstance(size, int) else 0 for full, size in pairs]

    def slices(self, position: BlockPosition) -> tuple[slice, ...]:
        """Return the index of a block in the tensor."""
        index = [slice(None)] * len(self.dims)
        for axis, cuts, at in zip(self.axes, self.cuts, position, strict=True):
            if axis is not None and at is not None:
                index[axis] = cuts.stretch(at)
        return tuple(index)


@dataclass(frozen=True)
class Cutting:
    """An operand with the cuts of its rows and columns. `letters` name the operand and the two axes, as in ("b", "k", "n")."""

    operand: TensorOperand
    rows: Axis
    columns: Axis
    letters: tuple[str, str, str]
    scale: float = 1.0
    """The factor that multiplies the blocks of a constant when they are written."""

    @cached_property
    def read(self) -> TensorCuts:
        """The cuts of the operand as the contraction reads it."""
        return TensorCuts(self.operand.dims, self.operand.axes, (self.rows, self.columns))

    @cached_property
    def stored(self) -> TensorCuts:
        """The cuts of the value itself."""
        operand = self.operand
        axes = (None if axis is None else operand.stored_axis(side) for side, axis in enumerate(operand.axes))
        return TensorCuts(operand.stored, tuple(axes), (self.rows, self.columns))

    @property
    def is_cut(self) -> bool:
        """Whether there is more than one block, or one that is filled up."""
        return self.rows.is_cut or self.columns.is_cut or self.fills

    @property
    def fills(self) -> bool:
        """Whether zeros fill up the last blocks."""
        return self.rows.fills or self.columns.fills

    def position(self, row: int, column: int) -> tuple[int, int]:
        """Return the place of a block; 0 along a side that the operand lacks."""
        first, second = self.operand.axes
        return 0 if first is None else row, 0 if second is None else column


def is_contiguous(dims: Dims, axis: int) -> bool:
    """Return whether the parts of a tensor of `dims` along `axis` lie one after another in memory."""
    return all(size == 1 for size in dims[:axis])


# Two levels of tiles: the bytes that the tiles inside outer tiles move.
#
# The model: an outer tile lies in a memory, as a tile of one level does. The tiles inside it run one after another,
# in a serpentine, on an array that holds one of them. The array is empty at the start of each outer tile. From then on a block that the
# tile before has used is still there; any other is read from the memory, and a block of the result that is left is written to it. The first
# visit of a block reads no partial sum; each later one does, also of those that an outer tile before has left.

Steps = Sequence[Any]
"""Elements, or stretches, along M, K and N; numbers or arrays."""
AXES = "mkn"
SLACK = 5
"""Percent of bytes above the fewest that are given up for fewer nodes."""


@dataclass(frozen=True)
class InnerTiles:
    """What the tiles inside outer tiles do with the best loops; numbers or arrays.

    There are `count` outer tiles. `order` is the place of the loops in `ORDERS`, `moved` the bytes between memory and array, and `reads`
    how many blocks of left and right operand the array reads.
    """

    count: Any
    order: Any
    moved: Any
    reads: tuple[Any, Any]

    @property
    def loops(self) -> str:
        """The order of the loops, where there is one outer tile to choose from."""
        return ORDERS[int(self.order)]


@dataclass(frozen=True)
class Nest:
    """A product of `sizes` along M, K and N, in tiles of at most `tile`; `weights` are the bytes of an element of A, B and the result."""

    sizes: tuple[int, int, int]
    tile: tuple[int, int, int]
    weights: tuple[float, float, float] = (1, 1, 1)

    @classmethod
    def from_tile(cls, work: Workload, tile: tuple[int, int, int]) -> Nest:
        """Return the tiles of a workload without windows; all matrices of a batch count."""
        (rows,) = work.outs
        a, b, c = (size * count for size, count in zip(work.bytes, work.batch, strict=True))
        return cls((rows, work.channels, work.filters), tile, (a, b, c))

    @classmethod
    def of_grid(cls, grid: TileGrid) -> Nest:
        """Return the tiles of a grid of known sizes, of elements of one byte."""
        sizes = [(axis.total or 1, axis.step or 1) for axis in (grid.rows, grid.k, grid.n)]
        (m, rows), (k, middle), (n, columns) = sizes
        return cls((m, k, n), (rows, middle, columns))

    def counts(self, outer: Steps) -> Steps:
        """Return how many tiles there are along M, K and N, inside outer tiles of so many elements."""
        return [
            size // step * -(-step // tile) + -(-(size % step) // tile)
            for size, step, tile in zip(self.sizes, outer, self.tile, strict=True)
        ]

    def moved(self, outer: Steps, order: str) -> Any:
        """Return the bytes that move between memory and array, with loops in `order` inside each outer tile."""
        a, b, c = self.weights
        moved: Any = -c * self.sizes[0] * self.sizes[2]
        for times, lengths, each in self._kinds(outer):
            ends = {
                axis: (length, *ends_of(length, tile))
                for axis, length, tile in zip(AXES, lengths, self.tile, strict=True)
            }
            left, right, result = (elements_read(operand, order, each, ends) for operand in ("mk", "kn", "mn"))
            moved = moved + times * (a * left + b * right + 2 * c * result)
        return moved

    def loads(self, operand: str, outer: Steps, order: str) -> Any:
        """Return how many blocks of the operand along two of M, K and N, as "mk", are read by the array."""
        return sum(times * loads(operand, order, each) for times, _, each in self._kinds(outer))

    def best(self, outer: Steps) -> InnerTiles:
        """Return the first loops that move at most 5 % more bytes than the best, K innermost first, and what they do."""
        moved = np.stack([np.asarray(self.moved(outer, order)) for order in ORDERS])
        best = np.argmax(moved * 100 <= moved.min(axis=0) * (100 + SLACK), axis=0)

        def taken(by_order: Sequence[Any]) -> Any:
            return np.take_along_axis(np.stack([np.asarray(each) for each in by_order]), best[None], axis=0)[0]

        left, right = (taken([self.loads(operand, outer, order) for order in ORDERS]) for operand in ("mk", "kn"))
        count = prod(-(-size // step) for size, step in zip(self.sizes, outer, strict=True))
        return InnerTiles(count, best, taken(list(moved)), (left, right))

    def _kinds(self, outer: Steps) -> Iterator[tuple[Any, Steps, Mapping[str, Any]]]:
        """Yield the kinds of outer tiles: how many there are, their elements and their tiles along M, K and N.

        Along each axis all outer stretches but the last one have the full length.
        """
        along = []
        for size, step in zip(self.sizes, outer, strict=True):
            count = -(-size // step)
            along.append(((count - 1, step), (1, size - (count - 1) * step)))
        for kind in product(*along):
            m, k, n = (length for _, length in kind)
            each = {axis: -(-x // tile) for axis, x, tile in zip(AXES, (m, k, n), self.tile, strict=True)}
            yield prod(times for times, _ in kind), (m, k, n), each
