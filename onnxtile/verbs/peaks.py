"""What lives at once in a tiled model, for each way to add partial sums: planned as far as the lives of its tensors go."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile import keys
from onnxtile.model.constants import Constants
from onnxtile.model.infer import values
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.tile.accumulate import Accumulation
from onnxtile.tile.limits import Limits
from onnxtile.tile.options import Options
from onnxtile.tile.rewrite import tile
from onnxtile.verbs.stage import Progress


def peaks(
    original: ir.Model, limits: Limits, options: Options, *, run: bool, progress: Progress
) -> dict[str, dict[str, int]]:
    """Return for each way to accumulate the bytes that live at once, at most: in the whole `model`, and inside `layers` that are tiled.

    `original` is the model before it is tiled, with all its dimensions bound. Raises Infeasible where a way needs more nodes than allowed.
    """
    found: dict[str, dict[str, int]] = {}
    for way in Accumulation:
        progress(f"planning with {way}")
        found[str(way)] = _peak(original.clone(), limits, replace(options, accumulate=way, wrap=False), run)
    return found


def _peak(model: ir.Model, limits: Limits, options: Options, run: bool) -> dict[str, int]:
    from onnxtile.plan.alias import Facts
    from onnxtile.plan.layout import lay_out
    from onnxtile.plan.ordering import order
    from onnxtile.plan.problem import DEFAULT_ALIGNMENT, Problem
    from onnxtile.plan.rules import RULES
    from onnxtile.plan.scope import Scope

    known = resolve(model, run=run)
    tile(model, limits, known, Constants(model), options)
    facts = Facts(model, _with_tiles(model, known), Constants(model))
    scope = Scope(model.graph)
    layout = lay_out(facts, scope, order("model"), 1, DEFAULT_ALIGNMENT, tuple(RULES))
    problem = Problem(layout.buffers, DEFAULT_ALIGNMENT)
    live = [0] * (len(layout.schedule.nodes) + 1)
    for buffer in problem.buffers:
        live[buffer.lower] += problem.footprint(buffer)
        live[min(buffer.upper, len(live) - 1)] -= problem.footprint(buffer)
    for step in range(1, len(live)):
        live[step] += live[step - 1]
    steps = layout.schedule.steps
    inside = [steps[node] for node in layout.schedule.nodes if keys.TILE in node.metadata_props]
    return {"model": problem.lower_bound, "layers": max((live[step] for step in inside), default=0)}


def _with_tiles(model: ir.Model, known: Shapes) -> Shapes:
    """Return what is known of `model`, now that it is tiled: what was known before, and what the tiles say of themselves."""
    rows = [(value, known.dtype(value) or value.dtype, known.dims(value)) for value in values(model)]
    dims = {value: size for value, _, size in rows if size is not None}
    for value, _, size in rows:
        if size is None and value.shape is not None:
            dims[value] = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return Shapes({value: dtype for value, dtype, _ in rows if dtype is not None}, dims)
