"""The choices for each contraction of a model, and which of them is taken: few nodes, or few bytes moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxtile.errors import Infeasible
from onnxtile.tiling.grid import ORDERS

Counts = npt.NDArray[np.int64]
SLACK = 5
"""Percent of bytes above the fewest that are given up for fewer nodes."""
_ROWS = 8
"""Rows of a trade table."""


@dataclass(frozen=True)
class TileChoice:
    """One way to cut a contraction, and its cost: the size of a tile along each axis, and the loops from the outermost.

    The axes are groups, each sliding axis, channels and filters.
    """

    tile: tuple[int, ...]
    order: str
    nodes: int
    bytes_moved: int
    held: int
    """The bytes that a full tile holds at once."""

    def to_dict(self, axes: slice = slice(None)) -> dict[str, Any]:
        """Return the fields, ready for JSON; of the tile only the sizes of `axes`."""
        return {**vars(self), "tile": list(self.tile[axes])}


@dataclass(frozen=True)
class Chosen:
    """The choice for one contraction, beside others that have fewer nodes or move fewer bytes."""

    choice: TileChoice
    lower_bound: float | None
    """In bytes; None where no memory is given."""
    trade: tuple[TileChoice, ...]

    @property
    def ratio(self) -> float | None:
        """The bytes moved over the lower bound."""
        return None if self.lower_bound is None else self.choice.bytes_moved / self.lower_bound

    def to_dict(self, axes: slice = slice(None)) -> dict[str, Any]:
        """Return the choice, its distance to the lower bound and the trade table, ready for JSON; of tiles only `axes`."""
        return {
            **self.choice.to_dict(axes),
            "lower_bound": self.lower_bound,
            "ratio": self.ratio,
            "trade": [choice.to_dict(axes) for choice in self.trade],
        }


def best_of(tile: Sequence[Counts], held: Counts, nodes: Sequence[Any], moved: Sequence[Any]) -> tuple[TileChoice, ...]:
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
        TileChoice(
            tuple(int(steps[index[at]]) for steps in tile),
            ORDERS[order[at]],
            int(number[at]),
            int(bytes_moved[at]),
            int(held[index[at]]),
        )
        for at in keeps
    )


def share(fronts: Sequence[Sequence[TileChoice]], nodes_at_most: int | None) -> list[int]:
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
    # The saving of a step only falls as nodes are used up, so an earlier value is computed again when its turn comes.
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


def within_slack(choices: Sequence[TileChoice]) -> int:
    """Return the index of the choice with the fewest nodes whose bytes are at most 5 % above the fewest."""
    most = choices[-1].bytes_moved * (100 + SLACK)
    return next(at for at, choice in enumerate(choices) if choice.bytes_moved * 100 <= most)


def _step(choices: Sequence[TileChoice], now: int, left: int) -> tuple[float, int, int] | None:
    """Return the best next choice for `left` more nodes: bytes saved for each node, the nodes, and its index."""
    here = choices[now]
    steps = [
        ((here.bytes_moved - other.bytes_moved) / (other.nodes - here.nodes), other.nodes - here.nodes, at)
        for at, other in enumerate(choices[now + 1 :], now + 1)
        if other.nodes - here.nodes <= left
    ]
    return max(steps, default=None)


def trade(choices: Sequence[TileChoice], taken: int) -> tuple[TileChoice, ...]:
    """Return a few of the choices, evenly by the logarithm of their nodes: the first, the last and the one `taken` among them."""
    ends = np.geomspace(choices[0].nodes, choices[-1].nodes, _ROWS)
    numbers = [choice.nodes for choice in choices]
    picked = {0, taken, len(choices) - 1, *(int(np.abs(np.subtract(numbers, end)).argmin()) for end in ends)}
    return tuple(choices[at] for at in sorted(picked))
