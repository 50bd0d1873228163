"""The contractions of a model, with the cuts that each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.tiling.choice import Chosen, TileChoice, share, trade
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.grid import TileGrid
from onnxtile.tiling.options import TilingPolicy
from onnxtile.tiling.result import SkippedNode
from onnxtile.tiling.tensors import WITHIN

MOST_NODES = 250_000
"""All tiles together have so many nodes unless more are allowed: more take minutes and gigabytes to write and to load."""


@dataclass(frozen=True)
class TileSite:
    """A node, the contraction that it computes, and its cuts."""

    node: ir.Node
    name: str
    contraction: Contraction
    grid: TileGrid
    chosen: Chosen | None = None


@dataclass(frozen=True)
class Candidate:
    """A node, the contraction that it computes, the choices for it, and how each of them cuts it."""

    node: ir.Node
    name: str
    contraction: Contraction
    choices: tuple[TileChoice, ...]
    grid_of: Callable[[TileChoice], TileGrid]
    searched: bool = False
    """Whether the choices come from a search; the limits leave only one otherwise."""
    lower_bound: float | None = None
    """The bytes that any schedule moves, where a memory is given."""

    def site(self, taken: int) -> TileSite | SkippedNode:
        """Return the contraction with the cuts of one of the choices, or without any."""
        contraction, choice = self.contraction, self.choices[taken]
        grid = self.grid_of(choice)
        if not grid.is_cut:
            return SkippedNode(self.name, WITHIN, (contraction.m, contraction.k, contraction.n))
        chosen = Chosen(choice, self.lower_bound, trade(self.choices, taken)) if self.searched else None
        return TileSite(self.node, self.name, contraction, grid, chosen)


def choose(found: Iterable[Candidate | SkippedNode], options: TilingPolicy) -> list[TileSite | SkippedNode]:
    """Return the cuts with the fewest nodes within 5 % of the fewest bytes, and no more nodes in all than the options allow.

    Where the options do not say, and the limits leave a choice, that is `MOST_NODES`. Raises Infeasible.
    """
    entries = list(found)
    fronts = [entry.choices for entry in entries if isinstance(entry, Candidate)]
    most = options.nodes_at_most
    if most is None and sum(choices[0].nodes for choices in fronts) <= MOST_NODES:
        most = MOST_NODES
    taken = iter(share(fronts, most))
    return [entry.site(next(taken)) if isinstance(entry, Candidate) else entry for entry in entries]
