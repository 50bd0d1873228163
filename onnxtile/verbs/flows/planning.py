"""Give every activation an offset in an arena."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.load import digest, file_name, load
from onnxtile.model.npz_inputs import given_shapes, read_inputs
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import NoKernel
from onnxtile.verbs.flows.kernels import choose_kernels, settings_of, state_verdict
from onnxtile.verbs.flows.results import PlannedModel, file_of
from onnxtile.verbs.flows.stage import require_equal

if TYPE_CHECKING:
    from onnxtile.arena.run import ArenaVerdict
    from onnxtile.arena.state_run import StateVerdict
    from onnxtile.planning.result import PlanResult
    from onnxtile.verbs.options.plan import PlanOptions


def plan(options: PlanOptions) -> PlannedModel:
    """Plan a model as `onnxtile.plan` says."""
    from onnxtile.planning.offsets.problem import OverCapacity

    try:
        return _planned(options)
    except OverCapacity as error:
        if not options.dim_ranges:  # fit takes one size
            cut = "onnxtile fit with the same capacity cuts operators into smaller ones"
            error.say(str(error), f"{error.hint}; {cut}" if error.hint else cut)
        raise


def _planned(options: PlanOptions) -> PlannedModel:
    from onnxtile.check.audit import require
    from onnxtile.planning.annotate import annotate
    from onnxtile.planning.model_plan import plan_model
    from onnxtile.planning.order import find_order
    from onnxtile.planning.ordering.every_order import require_orderable
    from onnxtile.verbs.flows.moving import plan_moved, require_movement
    from onnxtile.verbs.flows.range_planning import plan_range

    require_movement(options)
    if options.has_ranges:
        return plan_range(options)
    settings = settings_of(options)
    progress, inputs, shapes = options.progress, options.inputs, options.whole_shapes
    bounds, ranges = options.bounds, options.ranges
    progress("reading the model")
    planned = load(options.model)
    given = None if inputs is None else read_inputs(inputs, planned)
    bound = bind(planned, options.fixed_dims, {**given_shapes(given or {}), **shapes})
    counted = choose_kernels(planned, options.kernels)
    if find_order(options.order).every:
        require_orderable(planned.graph)
    progress("inferring shapes")
    wanted = Wanted(given, ranges)
    known = resolve(planned, run=True, wanted=wanted, bounds=bounds, proved=options.verify)
    progress("planning")
    settings = replace(settings, digest=digest(options.model), name=file_name(options.model), dims=bound)
    if options.movement == "none":
        opened = unfold(planned, known, Constants(planned))
        result = plan_model(*opened, settings)
    else:
        planned, opened, result = plan_moved(planned, known, settings, options)
    result = replace(result, kernels=None if counted is None else counted.to_dict())
    require(opened.model, result, opened.shapes, opened.constants, result.digest)
    verdict: ArenaVerdict | StateVerdict | None = None
    not_run = None
    if options.verify:
        try:
            verdict = _ran(opened, result, wanted, options)
        except NoKernel as error:
            not_run = str(error).partition(":")[0]
        else:
            require_equal(verdict)
    annotate(planned, result)
    return PlannedModel(planned, result, verdict, not_run, source=file_of(options.model))


def _ran(opened: Unfolded, result: PlanResult, wanted: Wanted, options: PlanOptions) -> ArenaVerdict | StateVerdict:
    """Run `opened` inside its arena: many times where the plan keeps states, else once."""
    from onnxtile.arena.run import arena_run

    if result.kept_states:
        return state_verdict(opened, result, wanted, options)
    options.progress("running the model")
    return arena_run(opened.model, result, opened.shapes, opened.constants, wanted=wanted, progress=options.progress)
