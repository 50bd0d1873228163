"""The grid of a contraction: full tiles of the bound, then one smaller tile for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from onnxtile.errors import Infeasible
from onnxtile.tiling.axis_bounds import AxisBounds
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.tensors import AxisSize

ORDERS = ("mnk", "nmk", "mkn", "knm", "nkm", "kmn")
"""The orders of loops, outermost first; those with K innermost, which leave no partial sum behind, come first."""


@dataclass(frozen=True)
class Axis:
    """One axis of `size` elements, cut into stretches of `step`; the last may be shorter.

    The size is None where it is known only when the model runs; such an axis is one stretch. Zeros fill up the
    last stretch to a multiple of `quantum`.
    Hardware with a fixed tile size runs full tiles fastest; balanced cuts would make every tile a partial one.
    """

    size: int | None
    step: int | None
    quantum: int = 1

    @classmethod
    def of(cls, size: AxisSize, bound: int | None = None, *, multiple: int = 1, quantum: int = 1) -> Axis:
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

    @property
    def count(self) -> int:
        """How many stretches there are."""
        if self.size is None or self.step is None:
            return 1
        return -(-self.size // self.step)

    @property
    def is_cut(self) -> bool:
        """Whether there is more than one stretch."""
        return self.count > 1

    @property
    def total(self) -> int | None:
        """The size, with the zeros that fill up the last stretch."""
        return None if self.size is None else -(-self.size // self.quantum) * self.quantum

    @property
    def fills(self) -> bool:
        """Whether anything fills up the last stretch."""
        return self.total != self.size

    def stretch(self, index: int) -> slice:
        """Return the half-open range of elements in stretch `index`, without the zeros that fill it up."""
        if self.size is None or self.step is None:
            return slice(None)
        start = index * self.step
        return slice(start, min(start + self.step, self.size))

    def width(self, index: int) -> int:
        """Return the number of elements in stretch `index` of an axis whose size is known, with the zeros that fill it up."""
        assert self.total is not None and self.step is not None
        return min(self.step, self.total - index * self.step)

    @property
    def widths(self) -> list[int]:
        """The number of elements in each stretch, in order."""
        return [self.width(index) for index in range(self.count)]


@dataclass(frozen=True)
class GroupedAxis(Axis):
    """An axis of `groups` times `size` elements: `together` groups to a stretch, or each group in stretches of `step`.

    Groups lie one after another, and no stretch holds parts of two.
    """

    groups: int = 1
    together: int = 1

    @property
    def within(self) -> int:
        """How many stretches a single group has."""
        assert self.size is not None and self.step is not None
        return -(-self.size // self.step)

    @property
    def count(self) -> int:
        """How many stretches there are."""
        return -(-self.groups // self.together) * self.within

    @property
    def total(self) -> int | None:
        """The number of elements of all groups."""
        assert self.size is not None
        return self.groups * self.size

    @property
    def fills(self) -> bool:
        """Nothing fills up a stretch."""
        return False

    def stretch(self, index: int) -> slice:
        """Return the half-open range of elements in stretch `index`."""
        assert self.size is not None and self.step is not None and self.total is not None
        if self.within == 1:
            long = self.together * self.size
            return slice(index * long, min((index + 1) * long, self.total))
        group, inside = divmod(index, self.within)
        start = group * self.size + inside * self.step
        return slice(start, min(start + self.step, (group + 1) * self.size))

    def width(self, index: int) -> int:
        """Return the number of elements in stretch `index`."""
        stretch = self.stretch(index)
        return int(stretch.stop - stretch.start)


@dataclass(frozen=True)
class TileGrid:
    """The cuts of a contraction; each combination of stretches is one tile.

    `sliding` are the cuts of the axes that make up M: the rows of a product, the rows and columns of a convolution's output. `k`
    and `n` are the cuts of the channels and filters of one group; where either is cut, a tile has one group. `order` names the
    loops inside each set of groups, outermost first; m counts the stretches of `sliding`, row by row.
    """

    groups: Axis
    sliding: tuple[Axis, ...]
    k: Axis
    n: Axis
    order: str = "mnk"

    @classmethod
    def fullest(cls, contraction: Contraction, bounds: AxisBounds) -> TileGrid:
        """Return the cuts of the largest tiles within `bounds`: whole rows where they fit, else parts of one. Raises Infeasible."""
        m, k, n = zip(bounds.multiples, bounds.quanta, strict=True)
        left, sliding = bounds.pixels, list[Axis]()
        for axis, bound in reversed(list(zip(contraction.sliding, bounds.sliding, strict=True))):
            both = [most for most in (bound, left) if most is not None]
            cuts = Axis.of(axis.out, min(both, default=None), multiple=m[0], quantum=m[1])
            left = None if left is None or cuts.step is None else left // cuts.step
            sliding.append(cuts)
        together = 1
        if isinstance(contraction.channels, int) and isinstance(contraction.filters, int):
            together = bounds.groups(contraction.groups, contraction.channels, contraction.filters)
        return cls(
            Axis(contraction.groups, together),
            tuple(reversed(sliding)),
            Axis.of(contraction.channels, bounds.channels, multiple=k[0], quantum=k[1]),
            Axis.of(contraction.filters, bounds.filters, multiple=n[0], quantum=n[1]),
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

    @property
    def inputs(self) -> Axis:
        """The cuts along the channels of all groups."""
        return self._of_all_groups(self.k)

    @property
    def outputs(self) -> Axis:
        """The cuts along the filters of all groups."""
        return self._of_all_groups(self.n)

    @property
    def rows(self) -> Axis:
        """The cuts of M where a single axis makes it up."""
        (rows,) = self.sliding
        return rows

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of stretches along M, K and N of one group."""
        return prod(axis.count for axis in self.sliding), self.k.count, self.n.count

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

    @property
    def is_cut(self) -> bool:
        """Whether there is more than one tile, or one that is larger than the contraction."""
        return self.matmuls > 1 or self.fills

    @property
    def cuts_rows(self) -> bool:
        """Whether an axis of M is cut."""
        return any(axis.is_cut for axis in self.sliding)

    @property
    def fills(self) -> bool:
        """Whether anything fills up the last tiles."""
        return any(axis.fills for axis in (*self.sliding, self.k, self.n))

    def places(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the place (group, m, k, n) of each tile in loop order, set of groups after set of groups.

        Where K is the innermost loop, the partial sums of one output block follow one another, so that few are alive at a time.
        """
        for group in range(self.groups.count):
            for m, k, n in loop(self.order, self.shape):
                yield group, m, k, n

    def along(self, m: int) -> tuple[int, ...]:
        """Return for stretch `m` of M the number of the stretch along each sliding axis."""
        found: list[int] = []
        for axis in reversed(self.sliding):
            m, index = divmod(m, axis.count)
            found.append(index)
        return tuple(reversed(found))

    def to_dict(self) -> dict[str, object]:
        """Return the size of a full tile of a convolution along each axis, ready for JSON."""
        names = ("rows", "columns")[-len(self.sliding) :]
        sizes = {name: axis.step for name, axis in zip(names, self.sliding, strict=True)}
        return {"groups": self.groups.step, **sizes, "channels": self.k.step, "filters": self.n.step}

    def _of_all_groups(self, axis: Axis) -> Axis:
        if self.groups.size == 1:
            return axis
        return GroupedAxis(axis.size, axis.step, groups=self.groups.size or 1, together=self.groups.step or 1)


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
