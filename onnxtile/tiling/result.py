"""The result of tile: tiled nodes, and nodes left as they are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import onnx
import onnx_ir as ir

from onnxtile.model.stream import Written
from onnxtile.tiling.accumulate import Accumulation
from onnxtile.tiling.choice import Chosen
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.grid import TileGrid
from onnxtile.tiling.tensors import AxisSize


@dataclass(frozen=True)
class TiledNode:
    """A node that became a grid of tiles, with the original nodes and the new nodes, so that both can be run."""

    node: str
    op: str
    contraction: Contraction = field(repr=False)
    grid: TileGrid
    originals: tuple[onnx.NodeProto, ...] = field(repr=False, compare=False)
    emitted: tuple[ir.Node, ...] = field(repr=False, compare=False)
    accumulate: Accumulation = Accumulation.SUM
    chosen: Chosen | None = None
    """How the tile was chosen; None where the limits leave no choice."""
    nodes: int = 0
    """The number of nodes that replace it. Where they are made only when they are written, `emitted` is empty."""

    def to_dict(self) -> dict[str, Any]:
        """Return sizes in elements, the grid as stretches along M, K and N, how it is written, and how it was chosen."""
        windows = self.contraction.windows
        return {
            "node": self.node,
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
            "choice": self.chosen and self.chosen.to_dict(slice(0 if windows else 1, None)),
            **({"cuts": self.grid.to_dict()} if windows else {}),
        }


@dataclass(frozen=True)
class TiledExperts:
    """A mixture of experts that became a sum of `tiles` nodes, each over `step` elements of the `inner` axis of its experts.

    `width` is the size of its rows, which stay whole; `nodes` is the number of nodes that replace it.
    """

    node: str
    op: str
    experts: int
    width: int
    inner: int
    step: int
    tiles: int
    nodes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class SkippedNode:
    """A node of a tileable operator that was left as it is, and why.

    `sizes` are M, K and N where the node could be stated as a contraction. `over_limits` says that no tile of it meets the limits.
    """

    node: str
    reason: str
    sizes: tuple[AxisSize, AxisSize, AxisSize] | None = None
    over_limits: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the node, the reason, its sizes and whether it exceeds the limits, ready for JSON."""
        m, k, n = self.sizes or (None, None, None)
        return {"node": self.node, "reason": self.reason, "m": m, "k": k, "n": n, "over_limits": self.over_limits}


class LateTiles(Protocol):
    """The tiles of a node that are made when they are asked for."""

    def __call__(self) -> AbstractContextManager[Written]:
        """Make them; they are freed afterwards."""

    def rewrite(self) -> TiledNode | SkippedNode:
        """Put them into the graph."""


@dataclass(frozen=True)
class TileResult:
    """Every node of a tileable operator, in the order of the model: tiled, or skipped with a reason."""

    tiled: tuple[TiledNode, ...]
    skipped: tuple[SkippedNode, ...]
    late: Mapping[ir.Node, LateTiles] = field(default_factory=dict, repr=False, compare=False)
    """The nodes that are still in the graph, and their tiles, in the order of the model."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return the lists `tiled` and `skipped`, ready for JSON."""
        return {
            "tiled": [site.to_dict() for site in self.tiled],
            "skipped": [node.to_dict() for node in self.skipped],
            **({"experts": [site.to_dict() for site in self.experts]} if self.experts else {}),
        }
