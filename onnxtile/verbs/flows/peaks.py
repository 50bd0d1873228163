"""The bytes that live at once in a tiled model, for each way to accumulate, and its arena before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.topology import node_id
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import OnnxtileError
from onnxtile.system.progress import Progress
from onnxtile.tiling.accumulate import Accumulation, TilingPolicy
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.tile import tile
from onnxtile.tiling.tileable import FreeAt
from onnxtile.verbs.flows.results import ArenaChange

if TYPE_CHECKING:
    from onnxtile.planning.result import PlanResult


_MOST_NODES = 5_000
"""Nodes of the largest model whose arena is planned beside the tiling; that takes a few seconds."""


def peaks(
    original: ir.Model, limits: Limits, options: TilingPolicy, free: FreeAt, *, run: bool, progress: Progress
) -> dict[str, dict[str, int]]:
    """Return for each way to accumulate the peak in bytes: of the whole `model`, and inside tiled `layers`.

    `original` is the model before it is tiled, with all its dimensions bound. Raises Infeasible where a way needs more nodes than allowed.
    """
    found: dict[str, dict[str, int]] = {}
    for way in Accumulation:
        progress(f"planning with {way}")
        found[str(way)] = _peak(original.clone(), limits, replace(options, accumulate=way, wrap=False), free, run)
    return found


@dataclass(frozen=True)
class UntiledPlan:
    """The plan of a model before it is tiled, made when it is first asked for. `known` are its shapes."""

    model: ir.Model
    known: Shapes

    @cached_property
    def arena(self) -> int | str:
        """The bytes of all arenas, or why the model was not planned."""
        return _size(self._plan)

    def free(self, node: ir.Node) -> int:
        """Return the bytes of the arena that no tensor takes while `node` runs, of this model or of a copy; 0 where they are not known."""
        return self._free.get(node.outputs[0].name, 0)

    @cached_property
    def _plan(self) -> PlanResult | str:
        return _planned(self.model, self.known)

    @cached_property
    def _free(self) -> Mapping[str | None, int]:
        """The free bytes while the node runs that makes a value, by the name of the value."""
        if isinstance(self._plan, str) or self._plan.unplanned:
            return {}
        live, steps = _live(self._plan), dict(zip(self._plan.schedule, self._plan.steps, strict=True))
        placed = [node for node in self.model.graph if node_id(node) in steps]
        arena = self._plan.arena_size
        return {value.name: arena - live[steps[node_id(node)]] for node in placed for value in node.outputs}


def arena_size(model: ir.Model, known: Shapes) -> int | str:
    """Return the bytes of all arenas of `model`, or why it was not planned. `known` are its shapes before it was tiled."""
    return _size(_planned(model, known))


def _size(planned: PlanResult | str) -> int | str:
    if isinstance(planned, str):
        return planned
    if planned.unplanned:
        first = planned.unplanned[0]
        return f"the size of {first.name!r} is not known: {first.reason}"
    return planned.arena_size


def _planned(model: ir.Model, known: Shapes) -> PlanResult | str:
    """Return the plan of `model`, or why it was not planned."""
    from onnxtile.planning.model_plan import PlanSettings, plan_model

    nodes = model.graph.num_nodes()
    if nodes > _MOST_NODES:
        return f"planned only up to {_MOST_NODES:,} nodes, and the model has {nodes:,}"
    try:
        return plan_model(model, _with_tiles(model, known), Constants(model), PlanSettings(order="auto"))
    except OnnxtileError as error:
        return str(error)


def arena_change(before: int | str, after: int | str) -> ArenaChange:
    """Return the two sizes of `arena_size`, or the reason why either is missing."""
    if isinstance(before, int) and isinstance(after, int):
        return ArenaChange(before, after)
    return ArenaChange(reason=next(size for size in (before, after) if isinstance(size, str)))


def _peak(model: ir.Model, limits: Limits, options: TilingPolicy, free: FreeAt, run: bool) -> dict[str, int]:
    from onnxtile.check.audit import require
    from onnxtile.planning.model_plan import PlanSettings, plan_model

    known = resolve(model, run=run)
    tile(model, limits, known, Constants(model), options, free=free)
    inside = {node.name for node in model.graph if keys.TILE in node.metadata_props}
    shapes, constants = _with_tiles(model, known), Constants(model)
    planned = plan_model(model, shapes, constants, PlanSettings(planner="greedy-by-size"))
    require(model, planned, shapes, constants)
    total = _live(planned)
    at_tiles = (total[step] for name, step in zip(planned.schedule, planned.steps, strict=True) if name in inside)
    return {"model": max(total, default=0), "layers": max(at_tiles, default=0)}


def _live(planned: PlanResult) -> list[int]:
    """Return the bytes of the buffers that are live at each step."""
    live = [0] * (max(planned.steps, default=0) + 2)
    for buffer in planned.buffers:
        if buffer.alias is None:
            taken = -(-buffer.size // planned.alignment) * planned.alignment
            live[buffer.first] += taken
            live[buffer.last + 1] -= taken
    return list(accumulate(live))


def _with_tiles(model: ir.Model, known: Shapes) -> Shapes:
    """Return the shapes of `model` after tiling: the shapes known before, and the declared shapes of the tiles."""
    rows = [(value, known.dtype(value) or value.dtype, known.dims(value)) for value in values(model)]
    dims = {value: size for value, _, size in rows if size is not None}
    for value, _, size in rows:
        if size is None and value.shape is not None:
            dims[value] = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return Shapes({value: dtype for value, dtype, _ in rows if dtype is not None}, dims)
