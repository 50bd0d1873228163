"""Two levels of tiles: the bytes that the tiles inside outer tiles move.

The model: an outer tile lies in a memory, as a tile of one level does (onnxtile.tiling.grid). The tiles inside it run one after another,
in a serpentine, on an array that holds one of them. The array is empty at the start of each outer tile. From then on a block that the
tile before has used is still there; any other is read from the memory, and a block of the result that is left is written to it. The first
visit of a block reads no partial sum; each later one does, also of those that an outer tile before has left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from onnxtile.system.dataclass import dataclass
from onnxtile.tiling.grid import ORDERS, TileGrid, Workload, elements_read, ends_of, loads
from onnxtile.tiling.result import SLACK, TileChoice, TileLevel

Steps = Sequence[Any]
"""Elements, or stretches, along M, K and N; numbers or arrays."""
AXES = "mkn"


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


def levels_of(
    work: Workload, nest: Nest, bounds: Sequence[int | None], memory: int, choice: TileChoice
) -> tuple[TileLevel, TileLevel]:
    """Return what the level of the memory and that of the array do, where the outer tile is `choice`."""
    m, k, n = choice.tile[1:]
    outer = m, k, n
    best = nest.best(outer)
    rows, middle, columns = (min(step, tile) for step, tile in zip(outer, nest.tile, strict=True))
    held = int(work.held(1, [rows], middle, columns))
    whole = [_reason_of_cut(work, memory, nest.sizes, outer, axis) for axis in range(3)]
    inner = [
        "max" if bound is not None and tile < size and step >= tile else limit
        for bound, tile, size, step, limit in zip(bounds, nest.tile, nest.sizes, outer, whole, strict=True)
    ]
    return (
        TileLevel(
            "outer", outer, choice.order, choice.held, choice.bytes_moved, work.lower_bound(memory), _three(whole)
        ),
        TileLevel(
            "inner", (rows, middle, columns), best.loops, held, int(best.moved), work.lower_bound(held),
            _three(inner),
        ),
    )  # fmt: skip


def _reason_of_cut(work: Workload, memory: int, sizes: Sequence[int], outer: Sequence[int], axis: int) -> str | None:
    """Return why an axis of outer tiles is cut: whether a tile with the whole axis would fit into the memory."""
    if outer[axis] >= sizes[axis]:
        return None
    m, k, n = (size if at == axis else step for at, (size, step) in enumerate(zip(sizes, outer, strict=True)))
    return "memory" if work.held(1, [m], k, n) > memory else "choice"


def _three(limits: Sequence[str | None]) -> tuple[str | None, str | None, str | None]:
    m, k, n = limits
    return m, k, n
