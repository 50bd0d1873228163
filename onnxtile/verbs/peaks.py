"""The peak of a tiled model, for each way to add partial sums."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import onnx_ir as ir

from onnxtile import keys
from onnxtile.model.constants import Constants
from onnxtile.model.infer import values
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.tiling.accumulate import Accumulation
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.options import Options
from onnxtile.tiling.rewrite import tile
from onnxtile.verbs.stage import Progress


def peaks(
    original: ir.Model, limits: Limits, options: Options, *, run: bool, progress: Progress
) -> dict[str, dict[str, int]]:
    """Return for each way to accumulate the peak in bytes: of the whole `model`, and inside tiled `layers`.

    `original` is the model before it is tiled, with all its dimensions bound. Raises Infeasible where a way needs more nodes than allowed.
    """
    found: dict[str, dict[str, int]] = {}
    for way in Accumulation:
        progress(f"planning with {way}")
        found[str(way)] = _peak(original.clone(), limits, replace(options, accumulate=way, wrap=False), run)
    return found


def _peak(model: ir.Model, limits: Limits, options: Options, run: bool) -> dict[str, int]:
    from onnxtile.planning.model_plan import plan_model
    from onnxtile.planning.proof.published.audit import require

    known = resolve(model, run=run)
    tile(model, limits, known, Constants(model), options)
    inside = {node.name for node in model.graph if keys.TILE in node.metadata_props}
    shapes, constants = _with_tiles(model, known), Constants(model)
    planned = plan_model(model, shapes, constants, planner="first-fit")
    require(model, planned, shapes, constants)
    live = [0] * (max(planned.steps, default=0) + 2)
    for buffer in planned.buffers:
        if buffer.alias is None:
            taken = -(-buffer.size // planned.alignment) * planned.alignment
            live[buffer.first] += taken
            live[buffer.last + 1] -= taken
    total = list(accumulate(live))
    at_tiles = (total[step] for name, step in zip(planned.schedule, planned.steps, strict=True) if name in inside)
    return {"model": max(total, default=0), "layers": max(at_tiles, default=0)}


def _with_tiles(model: ir.Model, known: Shapes) -> Shapes:
    """Return the shapes of the tiled `model`: those known before, and those declared by the tiles."""
    rows = [(value, known.dtype(value) or value.dtype, known.dims(value)) for value in values(model)]
    dims = {value: size for value, _, size in rows if size is not None}
    for value, _, size in rows:
        if size is None and value.shape is not None:
            dims[value] = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return Shapes({value: dtype for value, dtype, _ in rows if dtype is not None}, dims)
