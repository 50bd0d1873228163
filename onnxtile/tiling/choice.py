"""The tile shape and loop order with the fewest nodes among those that move the fewest bytes, or up to 5 % more.

The model: a fast memory that holds one tile, and a slow memory that holds everything. A tile multiplies a block of A (m × k)
by a block of B (k × n) into a block of the result (m × n), which all lie in fast memory together:

    m·(k·a + row) + n·(k·b + column) + m·n·c <= memory        a, b, c: bytes of an element, times the matrices of a batch

`row` and `column` are what a row of A and a column of B need besides, as zero points do, and a bias that is the same for all rows or
all columns; one of M × N elements is what the block of the result begins as.

Tiles run in loop order. A block that the tile before has used is still there; any other is read, and the block of the result that
is left is written: to be read again where partial sums are still to come. They are added in place. So an operand is moved once for
each turn of the loop that it does not depend on, where that loop stands outside a loop (of more than one turn) that it does depend
on, else once in all; and V visits of the result cost V writes and V - 1 reads:

    bytes(order) = a·M·K·turns(n) + b·K·N·turns(m) + c·M·N·(2·turns(k) - 1)

No schedule moves less than the largest of three numbers; d is sqrt(a·b·c / memory), a, b, c here the bytes of an element:

- each operand read once and the result written once;
- 2·M·N·K·d - 2·memory. While 2·memory bytes are read, at most 3·memory bytes of A, B and the result are at hand, which are
  (memory³ / (a·b·c))^½ products at most (Smith et al., "A tight I/O lower bound for matrix multiplication", arXiv 1702.02017);
- 2·M·N·K·d + c·M·N, where K is 2·√(c·memory / (a·b)) at least (Kwasniewski et al., "Red-blue pebbling revisited", arXiv 1908.09606).
  With a shorter K less is moved: a block of A or B with all of K stays in fast memory, and no partial sum is left.

The search is exact: bytes depend on the number of stretches alone, so of all steps that give as many only the shortest counts; for
each pair of M and N the longest K that fits is the best in any order. That leaves about 4·√(M·N) pairs times six orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import isqrt, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxtile.errors import Infeasible
from onnxtile.tiling.grid import ORDERS, Axis, TileGrid
from onnxtile.tiling.limits import Limits

Counts = npt.NDArray[np.int64]
NodeCount = Callable[..., Any]
"""How many nodes stand for a product cut into so many stretches along M, K and N, arrays, in an order of loops, which comes last."""
SLACK = 5
"""Percent of bytes above the fewest that are given up for fewer nodes."""
_ROWS = 8
"""Rows of a trade table."""


@dataclass(frozen=True)
class Work:
    """A product to cut: M, K and N, and for A, B and the result the bytes of an element and the number of matrices in the batch.

    `column` is what each column of B needs besides, in bytes, `row` each row of A.
    """

    sizes: tuple[int, int, int]
    bytes: tuple[int, int, int]
    batch: tuple[int, int, int] = (1, 1, 1)
    column: int = 0
    row: int = 0

    @property
    def weights(self) -> tuple[int, int, int]:
        """The bytes that an element of A, B and the result takes, the matrices of a batch together."""
        a, b, c = (size * count for size, count in zip(self.bytes, self.batch, strict=True))
        return a, b, c

    def lower_bound(self, memory: int) -> float:
        """Return the bytes that any schedule moves at least, with `memory` bytes of fast memory."""
        (m, k, n), (a, b, c) = self.sizes, self.weights
        once = m * k * a + k * n * b + m * n * c
        read = 2 * self.batch[2] * m * k * n * sqrt(prod(self.bytes) / memory)
        if k < 2 * sqrt(self.bytes[2] * memory / (self.bytes[0] * self.bytes[1])):
            return max(float(once), read - 2 * memory)
        return max(float(once), read - 2 * memory, read + m * n * c)


@dataclass(frozen=True)
class Choice:
    """One way to cut a product: the tile (m, k, n), the loops from the outermost, and what that costs."""

    tile: tuple[int, ...]
    order: str
    nodes: int
    bytes_moved: int
    held: int
    """The bytes that a full tile holds at once."""

    def grid(self, work: Work, limits: Limits) -> TileGrid:
        """Return the cuts."""
        axes = enumerate(zip(work.sizes, self.tile, strict=True))
        m, k, n = (Axis(size, step, _quantum(limits, axis)) for axis, (size, step) in axes)
        return TileGrid(m, k, n, self.order)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), "tile": list(self.tile)}


@dataclass(frozen=True)
class Chosen:
    """The choice for one product, beside others that have fewer nodes or move fewer bytes."""

    choice: Choice
    lower_bound: float | None
    """In bytes; None where no memory is given."""
    trade: tuple[Choice, ...]

    @property
    def ratio(self) -> float | None:
        """The bytes moved over the lower bound."""
        return None if self.lower_bound is None else self.choice.bytes_moved / self.lower_bound

    def to_dict(self) -> dict[str, Any]:
        """Return the choice, its distance to the lower bound and the trade table, ready for JSON."""
        return {
            **self.choice.to_dict(),
            "lower_bound": self.lower_bound,
            "ratio": self.ratio,
            "trade": [choice.to_dict() for choice in self.trade],
        }


def front(work: Work, limits: Limits, nodes: NodeCount) -> tuple[Choice, ...]:
    """Return the choices within `limits` that no other beats in both nodes and bytes, from the fewest nodes to the fewest bytes.

    It is empty where nothing fits. Of equal choices the first order of `ORDERS` counts, then the tile that holds less.
    """
    found = _candidates(work, limits)
    if found is None:
        return ()
    m, k, n, held = found
    counts = [-(-size // step) for size, step in zip(work.sizes, (m, k, n), strict=True)]
    alone = (counts[0] * counts[1] * counts[2] == 1) & (not limits.pad)
    moved = [_bytes(work, limits, (m, k, n), order) for order in ORDERS]
    number = [np.where(alone, 1, nodes(counts[0], counts[1], counts[2], order)) for order in ORDERS]
    return best_of((m, k, n), held, number, moved)


def best_of(tile: Sequence[Counts], held: Counts, nodes: Sequence[Any], moved: Sequence[Any]) -> tuple[Choice, ...]:
    """Return the candidates that no other beats in both nodes and bytes, from the fewest nodes to the fewest bytes.

    A candidate is one element of each array of `tile`, which holds so many bytes; `nodes` and `moved` have an array for each order.
    """
    bytes_moved = np.concatenate([np.broadcast_to(each, held.shape) for each in moved])
    number = np.concatenate([np.broadcast_to(each, held.shape) for each in nodes])
    order, index = np.divmod(np.arange(len(bytes_moved)), len(held))
    sorted_ = np.lexsort((index, held[index], order, bytes_moved, number))
    best = np.minimum.accumulate(bytes_moved[sorted_])
    keeps = sorted_[np.concatenate([[True], best[1:] < best[:-1]])]
    return tuple(
        Choice(
            tuple(int(steps[index[at]]) for steps in tile),
            ORDERS[order[at]],
            int(number[at]),
            int(bytes_moved[at]),
            int(held[index[at]]),
        )
        for at in keeps
    )


def share(fronts: Sequence[Sequence[Choice]], nodes_at_most: int | None) -> list[int]:
    """Return the index of the choice to take from each front, with `nodes_at_most` nodes in all.

    Each front gets the fewest nodes that move at most 5 % more bytes than its best choice. Where `nodes_at_most` does not
    allow that, bytes are saved where one more node saves most. Raises Infeasible, with the fewest nodes possible, where even
    those are too many.
    """
    wanted = [within_slack(choices) for choices in fronts]
    if nodes_at_most is None or sum(f[at].nodes for f, at in zip(fronts, wanted, strict=True)) <= nodes_at_most:
        return wanted
    fronts = [choices[: at + 1] for choices, at in zip(fronts, wanted, strict=True)]
    taken = [0] * len(fronts)
    left = nodes_at_most - sum(choices[0].nodes for choices in fronts)
    if left < 0:
        raise Infeasible(
            f"no tiling has {nodes_at_most:,} nodes at most: the fewest are {nodes_at_most - left:,}",
            hint="raise --nodes-at-most, or the limits",
        )
    # What a step saves only falls as nodes are used up, so one found before is looked at anew when its turn comes.
    waiting = [(float("-inf"), site) for site in range(len(fronts))]
    while waiting:
        saved, site = heappop(waiting)
        step = _step(fronts[site], taken[site], left)
        if step is None:
            continue
        if -step[0] > saved:
            heappush(waiting, (-step[0], site))
            continue
        taken[site], left = step[2], left - step[1]
        heappush(waiting, (float("-inf"), site))
    return taken


def within_slack(choices: Sequence[Choice]) -> int:
    """Return the index of the choice with the fewest nodes whose bytes are at most 5 % above the fewest."""
    most = choices[-1].bytes_moved * (100 + SLACK)
    return next(at for at, choice in enumerate(choices) if choice.bytes_moved * 100 <= most)


def _step(choices: Sequence[Choice], now: int, left: int) -> tuple[float, int, int] | None:
    """Return the best next choice for `left` more nodes: bytes saved for each node, the nodes, and its index."""
    here = choices[now]
    steps = [
        ((here.bytes_moved - other.bytes_moved) / (other.nodes - here.nodes), other.nodes - here.nodes, at)
        for at, other in enumerate(choices[now + 1 :], now + 1)
        if other.nodes - here.nodes <= left
    ]
    return max(steps, default=None)


def trade(choices: Sequence[Choice], taken: int) -> tuple[Choice, ...]:
    """Return a few of the choices, evenly by the logarithm of their nodes: the first, the last and the one `taken` among them."""
    ends = np.geomspace(choices[0].nodes, choices[-1].nodes, _ROWS)
    numbers = [choice.nodes for choice in choices]
    picked = {0, taken, len(choices) - 1, *(int(np.abs(np.subtract(numbers, end)).argmin()) for end in ends)}
    return tuple(choices[at] for at in sorted(picked))


def smallest(work: Work, limits: Limits) -> tuple[int, int]:
    """Return the bytes of the smallest tile that the bounds and multiples of `limits` allow, and the elements of its largest block."""
    m, k, n = (_least(work, limits, axis) for axis in range(3))
    a, b, c = work.batch
    return int(_held(work, m, k, n)), max(m * k * a, k * n * b, m * n * c)


def _least(work: Work, limits: Limits, axis: int) -> int:
    bound, multiple = limits.bounds[axis], limits.multiples[axis]
    if limits.pad:
        return bound or multiple
    return min(multiple, work.sizes[axis])


def _held(work: Work, m: Any, k: Any, n: Any) -> Any:
    a, b, c = work.weights
    return m * (k * a + work.row) + n * (k * b + work.column) + m * n * c


def _candidates(work: Work, limits: Limits) -> tuple[Counts, Counts, Counts, Counts] | None:
    """Return steps along M, K and N and the bytes they hold, all that could be the best; None where nothing fits."""
    rows, columns = _steps(work, limits, 0), _steps(work, limits, 2)
    m, n = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
    full_m, full_n = _full(work, limits, 0, m), _full(work, limits, 2, n)
    k = _longest_k(work, limits, full_m, full_n)
    fits = k > 0
    if not fits.any():
        return None
    m, k, n = m[fits], k[fits], n[fits]
    return m, k, n, _held(work, full_m[fits], _full(work, limits, 1, k), full_n[fits])


def _steps(work: Work, limits: Limits, axis: int) -> Counts:
    """Return the shortest step for each possible number of stretches along an axis, within its bound."""
    size, bound, multiple = work.sizes[axis], limits.bounds[axis], limits.multiples[axis]
    if limits.pad and bound is not None:
        return np.array([bound], np.int64)
    steps = shortest_steps(size, None, multiple)
    return steps if bound is None else steps[_full(work, limits, axis, steps) <= bound]


def shortest_steps(size: int, bound: int | None = None, multiple: int = 1) -> Counts:
    """Return the shortest step, a multiple, for each possible number of stretches of an axis, up to `bound`."""
    units = -(-size // multiple)
    few = np.arange(1, min(isqrt(units) + 1, units) + 1, dtype=np.int64)
    steps = np.unique(np.concatenate([few, -(-units // few)])) * multiple
    return steps if bound is None else steps[np.minimum(steps, size) <= bound]


def _full(work: Work, limits: Limits, axis: int, steps: Counts) -> Counts:
    """Return the size of a full tile for each step."""
    return np.minimum(steps, _total(work, limits, axis))


def _quantum(limits: Limits, axis: int) -> int:
    """Return what zeros fill up the last stretch of an axis to a multiple of."""
    return (limits.bounds[axis] or limits.multiples[axis]) if limits.pad else 1


def _total(work: Work, limits: Limits, axis: int) -> int:
    """Return the size of an axis with what fills it up."""
    quantum = _quantum(limits, axis)
    return -(-work.sizes[axis] // quantum) * quantum


def _longest_k(work: Work, limits: Limits, m: Counts, n: Counts) -> Counts:
    """Return the step along K that makes the fewest stretches, and of these the shortest; 0 where none fits beside m and n."""
    a, b, _ = work.weights
    size, bound, multiple = work.sizes[1], limits.bounds[1], limits.multiples[1]
    most = np.full(m.shape, max(size + multiple, bound or 0), np.int64)
    fits = np.ones(m.shape, bool)
    for limit, (one, two, three) in ((limits.largest_elements, work.batch), (limits.largest_bytes, work.weights)):
        if limit is not None:
            most = np.minimum(most, np.minimum(limit // (m * one), limit // (n * two)))
            fits &= m * n * three <= limit
    if limits.memory is not None:
        most = np.minimum(most, (limits.memory - _held(work, m, 0, n)) // (m * a + n * b))
    if limits.pad and bound is not None:
        return np.where(fits & (most >= bound), bound, 0)
    if bound is not None:
        most = np.minimum(most, bound)
    units = -(-size // multiple)
    whole = units * multiple if limits.pad else size
    longest = np.where(most >= whole, units, np.minimum(most // multiple, units))
    stretches = -(-units // np.maximum(longest, 1))
    return np.where(fits & (longest > 0), -(-units // stretches) * multiple, 0)


def _bytes(work: Work, limits: Limits, steps: tuple[Counts, Counts, Counts], order: str) -> Counts:
    """Return the bytes that each choice of `steps` moves; what fills up a tile is moved with it."""
    counts = {axis: -(-size // step) for axis, size, step in zip("mkn", work.sizes, steps, strict=True)}
    sizes = {axis: _total(work, limits, at) for at, axis in enumerate("mkn")}
    a, b, c = work.weights
    moved: Counts = (
        a * sizes["m"] * sizes["k"] * turns("n", order, counts)
        + b * sizes["k"] * sizes["n"] * turns("m", order, counts)
        + c * sizes["m"] * sizes["n"] * (2 * turns("k", order, counts) - 1)
    )
    return moved


def turns(axis: str, order: str, counts: Mapping[str, Any]) -> Any:
    """Return how often a loop makes the operand that does not depend on it move: 1 unless a loop inside moves that on."""
    inside = [np.asarray(counts[inner]) > 1 for inner in order[order.index(axis) + 1 :]]
    if not inside:
        return 1
    return np.where(np.logical_or.reduce(inside), counts[axis], 1)
