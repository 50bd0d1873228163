"""Give every activation an offset in an arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxtile.errors import Mismatch
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind
from onnxtile.model.feeds import Ranges
from onnxtile.model.given import given_shapes, read_inputs
from onnxtile.model.load import Source, digest, load
from onnxtile.model.shapes import resolve
from onnxtile.model.unfold import unfold
from onnxtile.model.wanted import Wanted
from onnxtile.verbs.stage import Dims, InputShapes, Progress, silent

if TYPE_CHECKING:
    from onnxtile.planning.offsets.effort import Effort
    from onnxtile.planning.offsets.memories import Capacity
    from onnxtile.planning.proof.arena_run import ArenaVerdict
    from onnxtile.planning.result import PlanResult


@dataclass(frozen=True)
class PlannedModel:
    """The annotated model, its plan, and the verdict of the run inside the arena (None without verification)."""

    model: ir.Model = field(repr=False)
    plan: PlanResult
    verdict: ArenaVerdict | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `plan`."""
        return {**self.plan.to_dict(), "verdict": self.verdict and self.verdict.to_dict()}


def plan(  # noqa: PLR0913 - the options of the command
    model: Source,
    *,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    bounds: Mapping[str, int] | None = None,
    alignment: int = 64,
    planner: str = "best",
    order: str = "model",
    streams: int = 1,
    effort: Effort | None = None,
    capacity: Capacity = None,
    io: str = "outputs",
    overwrite_inputs: bool = False,
    workspaces: Mapping[str, str] | None = None,
    share_workspaces: bool = False,
    inputs: Path | str | None = None,
    ranges: Ranges | None = None,
    verify: bool = True,
    progress: Progress = silent,
) -> PlannedModel:
    """Give every activation of `model` an offset in an arena, and annotate the model with it.

    `bounds` are upper bounds of data-dependent dimensions, by the name of a dimension, a value or a node. `alignment` and `capacity` are in
    bytes; a mapping gives the capacities of several arenas, the fastest first. `effort` is the budget of the planner. `order` names the
    order of nodes, `streams` is the number of independent nodes that may run in one step. `io` places graph inputs and outputs inside or
    outside the arena; `overwrite_inputs` allows inputs inside it to be overwritten. `workspaces` has the bytes that kernels need beside
    operands and results, by operator (see model.size_rule); with `share_workspaces` all kernels use one. `inputs` is an .npz file of inputs
    to run on; `ranges` limit the numbers of random inputs.
    An independent check compares the plan with the model (see `check_plan`). With `verify`, the model also runs with every tensor at its
    planned address. Raises ModelError, UsageError; Infeasible over `capacity`; CheckFailed where the check
    says no; Mismatch where the run inside the arena differs.
    """
    from onnxtile.planning.annotate import annotate
    from onnxtile.planning.layout.workspaces import WorkspaceRules
    from onnxtile.planning.model_plan import plan_model
    from onnxtile.planning.offsets.effort import NORMAL
    from onnxtile.planning.proof.arena_run import arena_run
    from onnxtile.planning.proof.published.audit import require

    rules = WorkspaceRules.of(workspaces or {}, share_workspaces)
    progress("reading the model")
    planned = load(model)
    given = None if inputs is None else read_inputs(inputs, planned)
    bound = bind(planned, dims or {}, {**given_shapes(given or {}), **(shapes or {})})
    progress("inferring shapes")
    wanted = Wanted(given, ranges)
    known = resolve(planned, run=True, wanted=wanted, bounds=bounds)
    opened = unfold(planned, known, Constants(planned))
    progress("planning")
    result = plan_model(
        *opened,
        alignment=alignment,
        planner=planner,
        order=order,
        streams=streams,
        io=io,
        overwrite_inputs=overwrite_inputs,
        workspaces=rules,
        effort=replace(effort or NORMAL, progress=progress),
        capacity=capacity,
        digest=digest(model),
        dims=bound,
        bounds=bounds,
    )
    require(opened.model, result, opened.shapes, opened.constants, result.digest)
    verdict = None
    if verify:
        progress("running inside the arena")
        verdict = arena_run(opened.model, result, opened.shapes, opened.constants, wanted=wanted, progress=progress)
        if not verdict.equal:
            where = f": {verdict.differing!r} at step {verdict.step}" if verdict.differing else ""
            raise Mismatch(
                f"the run inside the arena differs from the plain run{where}", hint="please report it with the model"
            )
    annotate(planned, result)
    return PlannedModel(planned, result, verdict)
