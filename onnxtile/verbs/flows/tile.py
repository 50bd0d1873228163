"""Splits matrix products within limits, and compares the bytes that live at once for each way to add up."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.declare.verb import Outcome, declared
from onnxtile.model import keys
from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.load import Source, load
from onnxtile.model.opset import opset_of, raised
from onnxtile.model.save import Draft, check_written, written
from onnxtile.model.topology import all_nodes, clear_plan, cloned, node_id
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import Shapes, known_shapes, resolve, shapes_of_raised
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, ModelWarning, OnnxtileError
from onnxtile.system.long_work import Progress
from onnxtile.tiling.contraction import FreeAt
from onnxtile.tiling.limits import Accumulation, Limits, TilingPolicy
from onnxtile.tiling.result import TileResult
from onnxtile.tiling.site_check import TileVerdict, check_tiles
from onnxtile.tiling.tile import opset_to_join
from onnxtile.tiling.tile import tile as tile_graph
from onnxtile.verbs.flows.kernels import live_bytes
from onnxtile.verbs.flows.results import (
    ArenaChange,
    BoundDims,
    InputShapes,
    OpsetChange,
    TiledModel,
    agreeing,
    file_of,
    require_sites,
)
from onnxtile.verbs.tile import TileOptions
from onnxtile.verification.rounding import HALVES, judge
from onnxtile.verification.trials import Verdict

if TYPE_CHECKING:
    from onnxtile.planning.result import PlanResult


# The bytes that live at once in a tiled model, for each way to accumulate, and its arena before and after.

_MOST_NODES = 5_000
"""Nodes of the largest model whose arena is planned beside the tiling; that takes a few seconds."""


def plan_peaks(
    original: ir.Model, limits: Limits, options: TilingPolicy, free: FreeAt, *, run: bool, progress: Progress
) -> dict[str, dict[str, int]]:
    """Return for each way to accumulate the peak in bytes: of the whole `model`, and inside tiled `layers`.

    `original` is the model before it is tiled, with all its dimensions bound. Raises Infeasible where a way needs more nodes than allowed.
    """
    peaks: dict[str, dict[str, int]] = {}
    for way in Accumulation:
        progress(f"planning with {way}")
        peaks[str(way)] = _peak(original.clone(), limits, replace(options, accumulate=way, wrap=False), free, run)
    return peaks


@dataclass(frozen=True)
class ArenaPlan:
    """The plan of a model, before or after it is tiled, made when it is first asked for. `known` are its shapes before it is tiled."""

    model: ir.Model
    known: Shapes

    @cached_property
    def arena(self) -> int | str:
        """The bytes of all arenas, or why the model was not planned."""
        if isinstance(self._plan, str):
            return self._plan
        if self._plan.unplanned:
            first = self._plan.unplanned[0]
            return f"the size of {first.name!r} is not known: {first.reason}"
        return self._plan.arena_size

    def free(self, node: ir.Node) -> int:
        """Return the bytes of the arena that no tensor takes while `node` runs, of this model or of a copy; 0 where they are not known."""
        return self._free.get(node.outputs[0].name, 0)

    @cached_property
    def _plan(self) -> PlanResult | str:
        """The plan, or why the model was not planned."""
        from onnxtile.planning.model_plan import PlanSettings, plan_model

        nodes = self.model.graph.num_nodes()
        if nodes > _MOST_NODES:
            return f"planned only up to {_MOST_NODES:,} nodes, and the model has {nodes:,}"
        shapes = known_shapes(self.model, self.known)
        try:
            return plan_model(self.model, shapes, Constants(self.model), PlanSettings(order="auto"))
        except OnnxtileError as error:
            return error.message

    @cached_property
    def _free(self) -> Mapping[str | None, int]:
        """The free bytes while the node runs that makes a value, by the name of the value."""
        if isinstance(self._plan, str) or self._plan.unplanned:
            return {}
        live, steps = live_bytes(self._plan), dict(zip(self._plan.schedule, self._plan.steps, strict=True))
        nodes_with_step = [node for node in self.model.graph if node_id(node) in steps]
        arena = self._plan.arena_size
        return {value.name: arena - live[steps[node_id(node)]] for node in nodes_with_step for value in node.outputs}


def _arena_change(before: ArenaPlan, after: ArenaPlan) -> ArenaChange:
    """Return the two sizes, or the reason why either is missing; `after` is planned only where `before` could be."""
    if isinstance(before.arena, str):
        return ArenaChange(reason=before.arena)
    return ArenaChange(before.arena, after.arena) if isinstance(after.arena, int) else ArenaChange(reason=after.arena)


def _peak(model: ir.Model, limits: Limits, options: TilingPolicy, free: FreeAt, run: bool) -> dict[str, int]:
    from onnxtile.check.audit import require
    from onnxtile.planning.model_plan import PlanSettings, plan_model

    known = resolve(model, run=run)
    tile_graph(model, limits, known, Constants(model), options, free=free)
    inside = {node.name for node in model.graph if keys.TILE in node.metadata_props}
    shapes, constants = known_shapes(model, known), Constants(model)
    planned = plan_model(model, shapes, constants, PlanSettings(planner="greedy-by-size"))
    require(model, planned, shapes, constants)
    total = live_bytes(planned)
    at_tiles = (total[step] for name, step in zip(planned.schedule, planned.steps, strict=True) if name in inside)
    return {"model": max(total, default=0), "layers": max(at_tiles, default=0)}


# Raises an old model to the opset in which its tiles can be joined in place.


@dataclass(frozen=True)
class ModelToTile:
    """A model with its shapes and constants, in the opset in which it is tiled."""

    model: ir.Model
    known: Shapes
    constants: Constants
    opset: OpsetChange


def raised_to_join(
    model: ir.Model, known: Shapes, limits: Limits, options: TilingPolicy, free: FreeAt, *, run: bool
) -> ModelToTile:
    """Return `model` in the opset in which its tiles can be joined in place: a copy where that is newer than its own.

    `known` are its shapes. With `run`, new values get theirs from a run, too. Where onnx's converter refuses, the model keeps its opset.
    """
    constants, before = Constants(model), opset_of(model)
    version = opset_to_join(model, limits, known, constants, options, free=free)
    if version <= before:
        return ModelToTile(model, known, constants, OpsetChange(before, before))
    try:
        copy = raised(model, version)
    except ModelError as error:
        return ModelToTile(model, known, constants, OpsetChange(before, before, error.message))
    shapes = shapes_of_raised(model, known, copy) or resolve(copy, run=run)
    return ModelToTile(copy, shapes, Constants(copy), OpsetChange(before, version))


_ValuePlace = tuple[ir.Graph | None, str | None]
"""The graph and the name of a value."""
_UNVERIFIED = "planned only with verification"
"""The plan takes longer than the tiling."""
_UNPLANNED = "not planned, since nothing was tiled"
_PLANNED = 1_000
"""Nodes of the largest tiled model whose lives are planned for every way to accumulate without being asked for."""


@declared(TileOptions)
def tile(settings: TileOptions) -> TiledModel:
    """Split every matrix product of `model` into MatMul, Sum and Concat nodes within the limits; convolutions where these ask for it.

    `limits` are those of a limits file, and the other bounds count more than they do. With a memory, the tile is chosen that moves the
    fewest bytes. With "compare" in `accumulate`, the model is tiled once for each way to add partial sums, to show the bytes that live
    at once. With `verify`, each different product is judged against a float64 run, and the whole model is run beside the original.
    Raises ModelError, UsageError; Infeasible where no tile meets the limits; Mismatch where a result is further off than rounding
    explains.
    """
    return _tile(settings, is_saved=False)[0]


def _tile(settings: TileOptions, *, is_saved: bool) -> tuple[TiledModel, Draft]:
    """Do what `tile` does; return the model as it is to be written, too. One that is saved is written once, before it is verified."""
    limits, options, progress = settings.bounds, settings.manner, settings.progress
    dims, shapes, peaks, verify = settings.single_dims, settings.whole_shapes, settings.compares, settings.verify
    progress("reading the model")
    original = _read(settings.model, dims, shapes)
    tiled, nodes_before = cloned(original) if verify else original, original.graph.num_nodes()
    progress("inferring shapes")
    known = resolve(tiled, run=verify)
    # The tiled model is a clone where it is verified.
    originals = dict(zip(values(tiled), values(original), strict=True)) if verify else {}
    plan = ArenaPlan(original, known.of_copies(originals) if verify else known)
    progress("tiling")
    ready = raised_to_join(tiled, known, limits, options, plan.free, run=verify)
    tiled, known, constants, opset = ready.model, ready.known, ready.constants, ready.opset
    declared, on_devices = _declared(tiled), {node_id(node) for node in all_nodes(tiled) if node.device_configurations}
    result = tile_graph(tiled, limits, known, constants, options, progress, free=plan.free)
    for name in [site.node for site in result.tiled if site.node in on_devices]:
        warnings.warn(f"the tiles of {name!r} have no device configuration; it had one", ModelWarning, stacklevel=2)
    if any(node.op_type == "If" for node in tiled.graph.all_nodes()):
        _keep_to(declared, result)
    draft = written(tiled) if verify and is_saved else Draft(tiled)
    verdict, sites = _verdicts(original, draft, result, constants, options, progress) if verify else (None, ())
    wanted = verify and tiled.graph.num_nodes() <= _PLANNED if peaks is None else peaks
    planned = None
    if wanted and result.is_changed:
        source = original if verify else _read(settings.model, dims, shapes)
        # A plan that was not requested is left out where it fails.
        with suppress(OnnxtileError) if peaks is None else nullcontext():
            source = raised(source, opset.after)
            planned = plan_peaks(source, limits, options, plan.free, run=verify, progress=progress)
    arena = ArenaChange(reason=_UNPLANNED if verify else _UNVERIFIED)
    if verify and result.is_changed:
        progress("planning the arena")
        arena = _arena_change(plan, ArenaPlan(tiled, known))
    outcome = TiledModel(
        tiled,
        result,
        nodes_before,
        tiled.graph.num_nodes(),
        verdict,
        sites,
        planned,
        arena,
        opset,
        _warnings(result, limits, arena, opset),
        source=file_of(settings.model),
    )
    return outcome, draft


def run(options: TileOptions) -> Outcome:
    """Do what the command and the step `tile` ask for."""
    result, draft = _tile(options, is_saved=True)
    return Outcome(result, "tile", draft)


def _verdicts(
    original: ir.Model,
    draft: Draft,
    result: TileResult,
    constants: Constants,
    options: TilingPolicy,
    progress: Progress,
) -> tuple[Verdict, tuple[TileVerdict, ...]]:
    """Run each different product and the whole model; return the verdicts. Raises Mismatch where a result is too far off."""
    progress("verifying")
    opset = opset_of(draft.model)
    sites = check_tiles(result.tiled, constants, opset, runs=options.runs, progress=progress)
    require_sites((site.node for site in sites if not site.passed), _hints(result))
    check_written(draft)
    return agreeing(judge(original, draft.model, progress, content=draft.content), "the tiled model"), sites


def _warnings(result: TileResult, limits: Limits, arena: ArenaChange, opset: OpsetChange) -> tuple[str, ...]:
    """Return the warnings that a user should see, one line each."""
    texts = []
    if not result.is_changed:
        reasons = Counter(node.reason for node in result.skipped).most_common(1)
        most = f"; the most common reason: {reasons[0][0]}" if reasons else "; the model has no node that tile cuts"
        texts.append(f"nothing was tiled{most}")
    over = len(result.over_limits)
    if over:
        texts.append(
            f"{over} node{'s' * (over > 1)} over the limits, left as in the model (strict makes this an error)"
        )
    if any(site.contraction.windows and limits.of_operator(site.op).outer_memory for site in result.tiled):
        texts.append("convolutions have one level: each of their tiles is within all limits, the outer memory too")
    if opset.reason is not None:
        texts.append(f"the model keeps opset {opset.before}, in which tiles are joined by Concat: {opset.reason}")
    if arena.grown:
        # Two partial sums live together in any case.
        sums = any(site.accumulate is Accumulation.SUM and site.grid.shape[1] > 2 for site in result.tiled)
        hint = "; accumulate = chain or gemm keeps fewer partial sums" if sums else ""
        texts.append(f"the arena grew from {arena.before:,} to {arena.after:,} bytes{hint}")
    return tuple(texts)


def _hints(result: TileResult) -> dict[str, str]:
    """Return hints for partial sums of 16 bits that overflow or lose digits."""
    halves = [site for site in result.tiled if site.contraction.dtype in HALVES and site.grid.shape[1] > 1]
    return {
        site.node: "its partial sums leave the range or the digits of "
        f"{site.contraction.dtype.name.lower()}: "
        + ("--accumulate float32 adds them in float32" if site.contraction.sums is None else "raise K of --max")
        for site in halves
    }


def _declared(model: ir.Model) -> dict[_ValuePlace, ir.Shape | None]:
    """Return the shapes that the model declares for the outputs of its nodes; functions may repeat names of others."""
    return {(value.graph, value.name): value.shape for node in all_nodes(model) for value in node.outputs}


def _keep_to(declared: Mapping[_ValuePlace, ir.Shape | None], result: TileResult) -> None:
    """Keep of the shapes of new values only the shapes that the model declared.

    onnxruntime infers shapes in every branch, also in one that is never taken at these sizes, and refuses the model where they do not
    fit there; so shapes that it cannot infer itself must be left out.
    """
    for value in (value for site in result.tiled for node in site.emitted for value in node.outputs):
        value.shape = declared.get((value.graph, value.name))


def _read(model: Source, dims: BoundDims | None, shapes: InputShapes | None) -> ir.Model:
    """Return `model`, its dimensions bound, and without the marks of a plan."""
    read = load(model)
    clear_plan(read)
    bind(read, dims or {}, shapes or {})
    return read
