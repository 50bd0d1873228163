"""How a matrix product is cut: full tiles of the bound, then one ragged tile for what is left over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from onnxtile.tiling.limits import Limits

ORDERS = ("mnk", "nmk", "mkn", "knm", "nkm", "kmn")
"""The orders of loops, outermost first; those with K innermost, which leave no partial sum behind, come first."""


@dataclass(frozen=True)
class Axis:
    """One axis of `size` elements, cut into stretches of `step`; the last may be shorter.

    The size is None where it is known only when the model runs; such an axis is one stretch. Zeros fill up the
    last stretch to a multiple of `quantum`.
    Full tiles first is what hardware with a fixed tile size runs fastest; balanced cuts would make every tile a partial one.
    """

    size: int | None
    step: int | None
    quantum: int = 1

    @classmethod
    def of(cls, size: int | None, bound: int | None, *, multiple: int = 1, pad: bool = False) -> Axis:
        """Return an axis of `size` (at least 1) cut so that no stretch is above `bound`, which an unknown size must not have.

        With `pad` all stretches have the size of `bound`, or there is one, of a multiple of `multiple`.
        """
        if size is None:
            assert bound is None
            return cls(None, None)
        if pad:
            return cls(size, bound or -(-size // multiple) * multiple, bound or multiple)
        return cls(size, size if bound is None else min(size, bound))

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
        """The size, with what fills up the last stretch."""
        return None if self.size is None else -(-self.size // self.quantum) * self.quantum

    @property
    def fills(self) -> bool:
        """Whether anything fills up the last stretch."""
        return self.total != self.size

    def stretch(self, index: int) -> slice:
        """Return the half-open range of elements in stretch `index`, without what fills it up."""
        if self.size is None or self.step is None:
            return slice(None)
        start = index * self.step
        return slice(start, min(start + self.step, self.size))

    def width(self, index: int) -> int:
        """Return the number of elements in stretch `index` of an axis whose size is known, with what fills it up."""
        assert self.total is not None and self.step is not None
        return min(self.step, self.total - index * self.step)

    @property
    def widths(self) -> list[int]:
        """The number of elements in each stretch, in order."""
        return [self.width(index) for index in range(self.count)]


@dataclass(frozen=True)
class TileGrid:
    """The cuts of M, K and N; each combination of stretches is one matrix product. `order` names the loops, outermost first."""

    m: Axis
    k: Axis
    n: Axis
    order: str = "mnk"

    @classmethod
    def of(cls, m: int | None, k: int | None, n: int | None, limits: Limits) -> TileGrid:
        """Return the grid of an (m × k) times (k × n) product in which no tile is above `limits`; None is a size not known."""
        sizes = zip((m, k, n), limits.bounds, limits.multiples, strict=True)
        axes = [Axis.of(size, bound, multiple=multiple, pad=limits.pad) for size, bound, multiple in sizes]
        return cls(axes[0], axes[1], axes[2])

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of stretches along M, K and N."""
        return self.m.count, self.k.count, self.n.count

    @property
    def steps(self) -> list[int | None]:
        """The size of a full tile along M, K and N."""
        return [self.m.step, self.k.step, self.n.step]

    @property
    def matmuls(self) -> int:
        """How many matrix products there are."""
        return self.m.count * self.k.count * self.n.count

    @property
    def is_cut(self) -> bool:
        """Whether there is more than one tile, or one that is larger than the product."""
        return self.matmuls > 1 or self.fills

    @property
    def fills(self) -> bool:
        """Whether anything fills up the last tiles."""
        return self.m.fills or self.k.fills or self.n.fills

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield the place (m, k, n) of each tile in loop order.

        Where K is the innermost loop, the partial sums of one output block follow one another, so that few are alive at a time.
        """
        yield from loop(self.order, self.shape)


def loop(order: str, counts: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield each place (m, k, n) among so many stretches along M, K and N, in the order of loops, outermost first."""
    turns = dict(zip("mkn", counts, strict=True))
    m, k, n = (order.index(axis) for axis in "mkn")
    for at in product(*(range(turns[letter]) for letter in order)):
        yield at[m], at[k], at[n]


def outer_side(order: str, axes: str) -> int:
    """Return which side of an operand of `axes` ("mk" or "kn") the outer of its two loops walks: 0 its rows, 1 its columns."""
    return 0 if order.index(axes[0]) < order.index(axes[1]) else 1
