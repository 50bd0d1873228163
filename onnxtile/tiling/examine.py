"""From limits to the choices for one contraction."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.errors import Infeasible
from onnxtile.tiling.accumulate import Accumulation
from onnxtile.tiling.axis_bounds import AxisBounds
from onnxtile.tiling.choice import TileChoice
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.copies import may_copy_result, may_scatter
from onnxtile.tiling.cost import Workload, bias_bytes
from onnxtile.tiling.grid import TileGrid
from onnxtile.tiling.join import nodes_of_any_scatter
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.requirements import require_cuttable, require_fillable
from onnxtile.tiling.search import front, pairs_at_most, smallest
from onnxtile.tiling.sites import MOST_NODES, Candidate
from onnxtile.tiling.tensors import NotTiled
from onnxtile.tiling.tileable import TilingFacts
from onnxtile.tiling.write_tiles import count_nodes, most_nodes

_MOST_PAIRS = 2**22
"""Steps along the sliding axes and N in all combinations that are compared at most: they take about 1 GB."""


def examine(
    name: str, node: ir.Node, contraction: Contraction, limits: Limits, facts: TilingFacts, how: Accumulation
) -> Candidate:
    """Return the choices for a contraction. Raises NotTiled with the reason where it cannot be cut, Infeasible where nothing fits."""
    require_cuttable(contraction, limits, facts, node.op_type)
    bounds = contraction.bounds(limits)
    if bounds.channels == 0:
        kernel = contraction.kernel
        raise Infeasible(
            f"no tile of {name!r} is within the limits: its kernel has {kernel} elements, and K is {limits.k} at most",
            hint=f"raise --max-k to {kernel}, or K of [operator.{node.op_type}] in the limits file",
        )
    if not limits.asks_for_choice:
        grid = TileGrid.fullest(contraction, bounds)
        _require_tiles(contraction, grid, facts)
        # The limits leave one choice.
        number = most_nodes(contraction, grid, how, facts.opset) if grid.is_cut else 1
        return Candidate(node, name, contraction, (TileChoice((), grid.order, number, 0, 0),), lambda _: grid)
    if bounds.fills:
        require_fillable(contraction, (True, True, True), facts)

    def nodes(groups: Any, *rest: Any) -> Any:
        *sliding, k, n, order = rest
        joins = (
            nodes_of_any_scatter(groups * np.prod(sliding, axis=0) * n)
            if may_scatter(contraction, facts.opset) and not may_copy_result(contraction)
            else None
        )
        counts = (groups, tuple(sliding), k, n)
        return count_nodes(contraction, counts, order, how, fills=bounds.fills, joins=joins)

    def grid_of(choice: TileChoice) -> TileGrid:
        return TileGrid.chosen(contraction, bounds, choice.tile, choice.order)

    work = Workload.of(contraction)
    if pairs_at_most(work, bounds) > _MOST_PAIRS:
        raise NotTiled(f"its sizes leave more than {_MOST_PAIRS:,} tiles to compare")
    choices = front(work, limits, bounds, nodes)
    if not choices:
        raise _infeasible(name, contraction, limits, bounds)
    bound = None if limits.memory is None else work.lower_bound(limits.memory)
    return Candidate(node, name, contraction, choices, grid_of, True, bound)


def _require_tiles(contraction: Contraction, grid: TileGrid, facts: TilingFacts) -> None:
    """Raise NotTiled where a tile of `grid` cannot be filled up, or would read padding only."""
    require_fillable(contraction, (any(axis.fills for axis in grid.sliding), grid.k.fills, grid.n.fills), facts)
    for axis, cuts in zip(contraction.sliding, grid.sliding, strict=True):
        # More of them are refused once the nodes of all sites are counted.
        count = cuts.count if cuts.is_cut and cuts.count <= MOST_NODES else 0
        axis.require_input(cuts.stretch(index) for index in range(count))


def _infeasible(name: str, contraction: Contraction, limits: Limits, bounds: AxisBounds) -> Infeasible:
    """Return the error that says how much the smallest tile needs."""
    none = f"no tile of {name!r} is within the limits: the smallest"
    least, largest = smallest(Workload.of(contraction), bounds)
    if limits.memory is not None and least > limits.memory:
        bias = " with its part of the bias" if any(bias_bytes(contraction)) else ""
        reason = f"{none}{bias} holds {least:,} bytes, and the memory is {limits.memory:,}"
        return Infeasible(reason, hint=f"raise the memory to {least} bytes or more")
    return Infeasible(
        f"{none} has a block of {largest:,} elements, more than the largest tensor", hint="raise the limits"
    )
