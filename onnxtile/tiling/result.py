"""The result of tile: tiled nodes, and nodes left as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.operators.node_view import Dim, NotApplicable, ReasonCode
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.grid import ORDERS, SLACK, TileGrid
from onnxtile.tiling.limits import Accumulation

# The choices for each contraction of a model, and which of them is taken: few nodes, or few bytes moved.

Counts = npt.NDArray[np.int64]
_ROWS = 8
"""Rows of a trade table."""


@dataclass(frozen=True)
class TileChoice:
    """One way to cut a contraction, and its cost: the size of a tile along each axis, and the loops from the outermost.

    The axes are groups, each sliding axis, channels and filters. `tile` has these sizes in elements, `order` the loops as in TileGrid,
    `nodes` the number of nodes. `bytes_moved` are those that all tiles read and write, `held` those that a full tile holds at once.
    """

    tile: tuple[int, ...]
    order: str
    nodes: int
    bytes_moved: int
    held: int

    def to_dict(self, axes: slice = slice(None)) -> dict[str, Any]:
        """Return the fields, ready for JSON; of the tile only the sizes of `axes`."""
        return {**vars(self), "tile": list(self.tile[axes])}


@dataclass(frozen=True)
class TileLevel:
    """What one of two levels does: the tiles that a memory, or an array, holds one after another.

    `tile` is a full tile along M, K and N, which holds `held` bytes; `order` names the loops. `bytes_moved` move between this level and the
    one around it, and at least `lower_bound` in any schedule that holds so many bytes at once. `limited_by` says for M, K and N what cuts
    the axis: "max", its bound; "memory", since the whole axis does not fit; "choice", since fewer nodes or bytes follow from the cut. It is
    None where the axis is whole. `level` names the memory, or the array.
    """

    level: str
    tile: tuple[int, int, int]
    order: str
    held: int
    bytes_moved: int
    lower_bound: float
    limited_by: tuple[str | None, str | None, str | None]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the ratio of bytes moved to the lower bound, ready for JSON."""
        return {
            **vars(self),
            "tile": list(self.tile),
            "ratio": self.bytes_moved / self.lower_bound,
            "limited_by": dict(zip("mkn", self.limited_by, strict=True)),
        }


@dataclass(frozen=True)
class Chosen:
    """The choice for one contraction, beside others that have fewer nodes or move fewer bytes.

    `choice` is what was taken, `trade` are the others. No schedule moves fewer bytes than `lower_bound`; it is None where no memory is
    given. `levels` has with two levels the outer tile, which is the choice, and the tile inside it. With one level, `limited_by` says for
    each size of the tile what a longer one breaks: "max", the bound of its axis; "m", the bound of rows times columns; "largest", that of
    a block; "memory"; "choice", nothing: fewer nodes or bytes follow from the cut. It is None where the axis is whole.
    """

    choice: TileChoice
    lower_bound: float | None
    trade: tuple[TileChoice, ...]
    levels: tuple[TileLevel, ...] = ()
    limited_by: tuple[str | None, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The bytes moved over the lower bound."""
        return None if self.lower_bound is None else self.choice.bytes_moved / self.lower_bound

    def to_dict(self, names: Sequence[str] = "mkn") -> dict[str, Any]:
        """Return the choice, its distance to the lower bound and the trade table, ready for JSON; of tiles the last axes, with `names`."""
        axes = slice(-len(names), None)
        return {
            **self.choice.to_dict(axes),
            "lower_bound": self.lower_bound,
            "ratio": self.ratio,
            "trade": [choice.to_dict(axes) for choice in self.trade],
            **({"levels": [level.to_dict() for level in self.levels]} if self.levels else {}),
            **({"limited_by": dict(zip(names, self.limited_by[axes], strict=True))} if self.limited_by else {}),
        }


def best_of(
    tile: Sequence[Counts], held: Counts, nodes: Sequence[Any], moved: Sequence[Any], ties: Sequence[Counts] = ()
) -> tuple[TileChoice, ...]:
    """Return the candidates that no other beats in both nodes and bytes, from the fewest nodes to the fewest bytes.

    A candidate is one element of each array of `tile`, which holds so many bytes; `nodes` and `moved` have an array for each order. Of
    equal candidates the one counts that has less of the first of `ties` in which they differ.
    """
    bytes_moved = np.concatenate([np.broadcast_to(each, held.shape) for each in moved])
    number = np.concatenate([np.broadcast_to(each, held.shape) for each in nodes])
    order, index = np.divmod(np.arange(len(bytes_moved)), len(held))
    further = [tie[index] for tie in reversed(ties)]
    sorted_ = np.lexsort((index, held[index], order, *further, bytes_moved, number))
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
            hint="raise the nodes of --max, or the limits",
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


@dataclass(frozen=True)
class TiledNode:
    """A node that became a grid of tiles, with the original nodes and the new nodes, so that both can be run.

    `node` is its name, `op` the operator, `contraction` what it computes, and `grid` how that is cut. `originals` are the nodes before,
    `emitted` those after. `accumulate` says how partial sums are added. `chosen` says how the tile was chosen; None where the limits leave
    no choice. `module` is the module around it, as far as the exporter wrote it: "blocks.0.attn".
    """

    node: str
    op: str
    contraction: Contraction = field(repr=False)
    grid: TileGrid
    originals: tuple[onnx.NodeProto, ...] = field(repr=False, compare=False)
    emitted: tuple[ir.Node, ...] = field(repr=False, compare=False)
    accumulate: Accumulation = Accumulation.SUM
    chosen: Chosen | None = None
    module: str = ""

    @property
    def nodes(self) -> int:
        """The number of nodes that replace it."""
        return len(self.emitted)

    def to_dict(self) -> dict[str, Any]:
        """Return sizes in elements, the grid as stretches along M, K and N, how it is written, and how it was chosen."""
        cuts = self.grid.to_dict() if self.contraction.windows else {}
        return {
            "node": self.node,
            "module": self.module,
            "op": self.op,
            "m": self.contraction.m,
            "k": self.contraction.k,
            "n": self.contraction.n,
            "grid": list(self.grid.shape),
            "matmuls": self.grid.matmuls,
            "tile": self.grid.steps,
            "order": self.grid.order,
            "accumulate": str(self.accumulate),
            "accumulate_type": None if self.contraction.sums is None else self.contraction.sums.numpy().name,
            "nodes": self.nodes,
            "choice": self.chosen and self.chosen.to_dict(tuple(cuts or "mkn")),
            **({"cuts": cuts} if cuts else {}),
            **({"outer_grid": list(self.grid.outer_shape)} if self.grid.outer_order else {}),
        }


@dataclass(frozen=True)
class TiledExperts(JsonFields):
    """A mixture of experts that became a sum of `tiles` nodes, each over `step` elements of the `inner` axis of its experts.

    `width` is the size of its rows, which stay whole; `nodes` is the number of nodes that replace it. `node` is its name, `op` the
    operator, `experts` their number.
    """

    node: str
    op: str
    experts: int
    width: int
    inner: int
    step: int
    tiles: int
    nodes: int


@dataclass(frozen=True)
class SkippedNode:
    """A node of a tileable operator that was left as it was, and why: a sentence, and its code.

    `sizes` are M, K and N in elements where the node could be stated as a contraction. `bind` has the options that give a missing size.
    `node` is its name, `reason` the sentence, `code` the code.
    """

    node: str
    reason: str
    code: ReasonCode
    sizes: tuple[Dim, Dim, Dim] | None = None
    bind: str = ""

    @classmethod
    def because(cls, node: str, reason: NotApplicable, sizes: tuple[Dim, Dim, Dim] | None = None) -> SkippedNode:
        """Return the node that is left because no rule applies to it."""
        return cls(node, str(reason), reason.code, sizes, reason.bind)

    @property
    def over_limits(self) -> bool:
        """Whether no tile of the node meets the limits."""
        return self.code is ReasonCode.OVER_LIMITS

    def to_dict(self) -> dict[str, Any]:
        """Return the node, the reason, its code, what to bind, the sizes and whether it exceeds the limits, ready for JSON."""
        m, k, n = self.sizes or (None, None, None)
        reason = {"reason": self.reason, "code": str(self.code), "bind": self.bind or None}
        return {"node": self.node, **reason, "m": m, "k": k, "n": n, "over_limits": self.over_limits}


@dataclass(frozen=True)
class TileResult(JsonFields):
    """Every node of a tileable operator, in the order of the model: tiled, or skipped with a reason.

    `tiled` and `skipped` are these nodes, `experts` the mixtures of experts that were cut.
    """

    JSON = "tiled skipped experts?"

    tiled: tuple[TiledNode, ...]
    skipped: tuple[SkippedNode, ...]
    experts: tuple[TiledExperts, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether a node was tiled."""
        return bool(self.tiled or self.experts)

    @property
    def matmuls(self) -> int:
        """The number of products and convolutions that replace the tiled nodes."""
        return sum(site.grid.matmuls for site in self.tiled) + sum(site.tiles for site in self.experts)

    @property
    def over_limits(self) -> tuple[SkippedNode, ...]:
        """The nodes that were left as they are because no tile of them meets the limits."""
        return tuple(node for node in self.skipped if node.over_limits)
