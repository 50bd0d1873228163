"""plan: every activation gets an offset in an arena, at one size or over ranges of sizes, also with copies between two memories."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.arena.run import ArenaVerdict, arena_run
from onnxtile.arena.state_run import StateVerdict
from onnxtile.check.audit import require
from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.model.binding import bind, bind_leading, free_inputs, missing_sizes
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.load import digest, file_name, load
from onnxtile.model.npz_inputs import given_shapes, read_inputs
from onnxtile.planning.annotate import annotate
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.offsets.problem import OverCapacity
from onnxtile.planning.ordering.every_order import require_orderable
from onnxtile.planning.result import PlanResult
from onnxtile.planning.schedule import find_order
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import (
    NoKernel,
    UsageError,
    about_options,
)
from onnxtile.verbs.flows.kernels import (
    choose_kernels,
    program_in_c,
    settings_of,
    state_verdict,
)
from onnxtile.verbs.flows.plan_largest import plan_largest
from onnxtile.verbs.flows.plan_ranges import open_sizes, plan_over_ranges
from onnxtile.verbs.flows.results import PlannedModel, file_of, require_equal
from onnxtile.verbs.plan import PlanOptions, PlanStep


@declared(PlanOptions)
def plan(options: PlanOptions) -> PlannedModel:
    """Give every activation of `model` an offset in an arena, and annotate the model with it.

    The result is checked against the model by code that shares nothing with what plans (see `check_plan`); with `verify`, the model is also
    run with every tensor at its planned address. Raises ModelError, UsageError; Infeasible over `capacity`; CheckFailed where the check
    fails; Mismatch where the run inside the arena differs.
    """
    try:
        return _planned(options)
    except OverCapacity as error:
        if not options.dim_ranges:  # fit takes one size
            cut = "onnxtile fit with the same capacity cuts operators into smaller ones"
            error.say(error.message, f"{error.hint}; {cut}" if error.hint else cut)
        raise


def _planned(options: PlanOptions) -> PlannedModel:
    require_movement(options)
    if options.largest is not None:
        return plan_largest(options)
    if options.has_ranges:
        return plan_over_ranges(options)
    settings = settings_of(options)
    progress, inputs, shapes = options.progress, options.input_file, options.whole_shapes
    bounds, ranges = options.dim_bounds, options.input_ranges
    progress("reading the model")
    planned = load(options.model)
    given = None if inputs is None else read_inputs(inputs, planned)
    bound = bind(planned, options.fixed_dims, {**given_shapes(given or {}), **shapes})
    leading = bind_leading(planned)
    bound |= {} if leading is None else leading.dims
    counted = choose_kernels(planned, options.kernels)
    if find_order(options.order).every:
        require_orderable(planned.graph)
    progress("inferring shapes")
    wanted = Wanted(given, ranges)
    known = resolve(planned, run=True, wanted=wanted, bounds=bounds)
    tensors = (value for value in free_inputs(planned) if isinstance(value.type, ir.TensorType))
    left = [value for value in tensors if known.sizes(value) is None]
    if left:
        raise missing_sizes(left)
    progress("planning")
    settings = replace(settings, digest=digest(options.model), name=file_name(options.model), dims=bound)
    if options.movement == "none":
        opened = unfold(planned, known, Constants(planned))
        facts = LayoutFacts(*opened)
        result = plan_model(*opened, settings, facts)
    else:
        planned, opened, result = plan_moved(planned, known, settings, options)
        facts = LayoutFacts(*opened)
    result = replace(result, kernels=counted)
    require(opened.model, result, opened.shapes, opened.constants, result.digest)
    verdict: ArenaVerdict | StateVerdict | None = None
    not_run = None
    if options.verify:
        try:
            verdict = _run_in_arena(facts, opened, result, wanted, options)
        except NoKernel as error:
            not_run = error.message.partition(":")[0]
        else:
            require_equal(verdict)
    annotate(planned, result)
    taken = None if leading is None else open_sizes(leading, result, options)
    return PlannedModel(planned, result, verdict, not_run, open_sizes=taken, source=file_of(options.model))


def run(options: PlanStep) -> Outcome:
    """Do what the command and the step `plan` ask for."""
    planned = plan.from_options(options)
    if options.wants_c:
        planned = with_firmware(planned, options)
    return Outcome(planned, "plan", planned.model, emitted=planned.document if options.emit else None)


def with_firmware(planned: PlannedModel, options: PlanStep) -> PlannedModel:
    """Return `planned` with its program in C, as `options` ask for it. Raises UsageError, Mismatch."""
    inputs = None if options.input_file is None else read_inputs(options.input_file, planned.model)
    wanted = Wanted(inputs, options.input_ranges)
    firmware = program_in_c(planned.opened(wanted), planned.plan, options, wanted=wanted, state_runs=options.state_runs)
    return replace(planned, firmware=firmware)


def _run_in_arena(
    facts: LayoutFacts, opened: Unfolded, result: PlanResult, wanted: Wanted, options: PlanOptions
) -> ArenaVerdict | StateVerdict:
    """Run `opened` inside its arena: many times where the plan keeps states, else once."""
    if result.states:
        return state_verdict(opened, result, wanted, options)
    options.progress("running the model")
    return arena_run(
        opened.model, result, opened.shapes, opened.constants, wanted=wanted, progress=options.progress, facts=facts
    )


# Plan a model with copies between two memories.


def require_movement(options: PlanOptions) -> None:
    """Raise UsageError for options of a movement that make no sense together."""
    if options.movement == "none":
        return
    capacities = options.capacities
    if not isinstance(capacities, dict) or len(capacities) != 2:
        raise about_options(
            "{movement} needs the capacities of two memories, the fast one first",
            hint="give --capacity sram=256KiB --capacity dram=8MiB",
        )
    if options.has_ranges:
        raise about_options(
            "{movement} is planned for one size of each dimension, not for a range", hint="give one size, the largest"
        )
    slow = list(capacities)[1]
    for name in options.figures.bandwidth:
        if name != slow:
            reason = f"the slow memory is {slow!r}" if name in capacities else f"no memory is named {name!r}"
            raise UsageError(
                f"{options.target}: the bandwidth of {name!r}: {reason}", hint=f'write bandwidth.{slow} = "8GB/s"'
            )


def plan_moved(
    planned: ir.Model, known: Shapes, settings: PlanSettings, options: PlanOptions
) -> tuple[ir.Model, Unfolded, PlanResult]:
    """Return a copy of `planned` with copies between memories, the same with its calls open, and its plan."""
    from onnxtile.planning.movement.plan import Speeds, plan_with_movement  # few plans have a movement

    rates = list(options.figures.bandwidth.values())
    speeds = Speeds(rates[0], options.figures.macs_per_second) if rates else None
    wants_weights = options.movement == "weights"
    moved = plan_with_movement(planned, known, Constants(planned), settings, weights=wants_weights, speeds=speeds)
    return moved.model, moved.opened, moved.result
