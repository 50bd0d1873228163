"""Give every activation an offset in an arena."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxtile.errors import Mismatch
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind
from onnxtile.model.load import Source, digest, load
from onnxtile.model.shapes import resolve
from onnxtile.verbs.stage import Dims, InputShapes, Progress, silent

if TYPE_CHECKING:
    from onnxtile.plan.arena_run import ArenaVerdict
    from onnxtile.plan.effort import Effort
    from onnxtile.plan.memories import Capacity
    from onnxtile.plan.result import PlanResult


@dataclass(frozen=True)
class PlannedModel:
    """The annotated model, its plan, and the verdict of the run inside the arena (None where verification was off)."""

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
    alignment: int = 64,
    planner: str = "best",
    order: str = "model",
    streams: int = 1,
    effort: Effort | None = None,
    capacity: Capacity = None,
    verify: bool = True,
    progress: Progress = silent,
) -> PlannedModel:
    """Give every activation of `model` an offset in an arena, and annotate the model with it.

    `alignment` and `capacity` are in bytes; a mapping gives several arenas their capacities, the first the fastest. `effort` is how long
    the planner may search. `order` says in which order nodes run, `streams` how many that do not depend on each other may run in one step.
    The plan is checked by code that shares nothing with the planners; with `verify`, the model is also run with every tensor at its
    planned address. Raises ModelError, UsageError; Infeasible over `capacity`; Mismatch where the run inside the arena differs.
    """
    from onnxtile.plan.annotate import annotate
    from onnxtile.plan.arena_run import arena_run
    from onnxtile.plan.effort import NORMAL
    from onnxtile.plan.planning import plan as plan_graph

    progress("reading the model")
    planned = load(model)
    bound = bind(planned, dims or {}, shapes or {})
    progress("inferring shapes")
    known, constants = resolve(planned, run=True), Constants(planned)
    progress("planning")
    result = plan_graph(
        planned,
        known,
        constants,
        alignment=alignment,
        planner=planner,
        order=order,
        streams=streams,
        effort=effort or NORMAL,
        capacity=capacity,
        digest=digest(model),
        dims=bound,
    )
    verdict = None
    if verify:
        progress("running inside the arena")
        verdict = arena_run(planned, result, known, constants)
        if not verdict.equal:
            where = f": {verdict.differing!r} at step {verdict.step}" if verdict.differing else ""
            raise Mismatch(
                f"the run inside the arena differs from the plain run{where}", hint="please report it with the model"
            )
    annotate(planned, result)
    return PlannedModel(planned, result, verdict)
