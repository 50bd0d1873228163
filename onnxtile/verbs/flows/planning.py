"""Gives every activation an offset in an arena, also with copies between two memories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.declare import values
from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.load import digest, file_name, load
from onnxtile.model.npz_inputs import given_shapes, read_inputs
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import NAME_ONLY, NoKernel, UsageError, invalid
from onnxtile.verbs.flows.kernels import choose_kernels, settings_of, state_verdict
from onnxtile.verbs.flows.results import PlannedModel, file_of
from onnxtile.verbs.flows.stage import require_equal

if TYPE_CHECKING:
    from onnxtile.arena.run import ArenaVerdict
    from onnxtile.arena.state_run import StateVerdict
    from onnxtile.planning.model_plan import PlanSettings
    from onnxtile.planning.result import PlanResult
    from onnxtile.verbs.options.plan import PlanOptions, PlanStep


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
    from onnxtile.planning.ordering.every_order import require_orderable
    from onnxtile.planning.schedule import find_order
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
    known = resolve(planned, run=True, wanted=wanted, bounds=bounds)
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


def with_firmware(planned: PlannedModel, options: PlanStep) -> PlannedModel:
    """Return `planned` with its program in C, as `options` ask for it. Raises UsageError, Mismatch."""
    from onnxtile.firmware.build import ProgramTarget, build

    inputs = None if options.inputs is None else read_inputs(options.inputs, planned.model)
    wanted, model = Wanted(inputs, options.ranges), planned.model
    opened = unfold(model, resolve(model, run=True, wanted=wanted), Constants(model))
    target = ProgramTarget(options.target_cc, options.runner)
    made = build(opened, planned.plan, wanted=wanted, verify=options.verify, target=target, progress=options.progress)
    return replace(planned, firmware=made)


def _ran(opened: Unfolded, result: PlanResult, wanted: Wanted, options: PlanOptions) -> ArenaVerdict | StateVerdict:
    """Run `opened` inside its arena: many times where the plan keeps states, else once."""
    from onnxtile.arena.run import arena_run

    if result.kept_states:
        return state_verdict(opened, result, wanted, options)
    options.progress("running the model")
    return arena_run(opened.model, result, opened.shapes, opened.constants, wanted=wanted, progress=options.progress)


# Plan a model with copies between two memories.


def require_movement(options: PlanOptions) -> None:
    """Raise UsageError for options of a movement that make no sense together."""
    if options.movement == "none":
        _require_none(options)
        return
    capacities = options.capacities
    if not isinstance(capacities, dict) or len(capacities) != 2:
        raise UsageError(
            "{movement} needs the capacities of two memories, the fast one first",
            hint="give --capacity sram=256KiB --capacity dram=8MiB",
            given={"movement": NAME_ONLY},
        )
    if options.has_ranges:
        raise UsageError(
            "{movement} is planned for one size of each dimension, not for a range",
            hint="give one size, the largest",
            given={"movement": NAME_ONLY},
        )
    slow = list(capacities)[1]
    for name in options.bandwidth or {}:
        if name != slow:
            reason = f"the slow memory is {slow!r}" if name in capacities else f"no memory is named {name!r}"
            raise invalid("bandwidth", name, reason=reason, hint=f"write {slow}=8GB/s")
    if options.macs_per_second is not None and not options.bandwidth:
        raise UsageError(
            "{macs_per_second} is for the time beside the copies, which needs {bandwidth}",
            hint=f"add the bandwidth: {slow}=8GB/s",
            given={"macs_per_second": NAME_ONLY, "bandwidth": NAME_ONLY},
        )


def _require_none(options: PlanOptions) -> None:
    for name in ("bandwidth", "macs_per_second"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"{{{name}}} is for plans with copies between memories",
                hint="add {movement}, or leave {" + name + "} out",
                given={name: NAME_ONLY, "movement": "activations"},
            )


def plan_moved(
    planned: ir.Model, known: Shapes, settings: PlanSettings, options: PlanOptions
) -> tuple[ir.Model, Unfolded, PlanResult]:
    """Return a copy of `planned` with copies between memories, the same with its calls open, and its plan."""
    from onnxtile.planning.movement.plan import Speeds, plan_with_movement

    rates = list(values.read_rates(options.bandwidth or {}).values())
    macs = None if options.macs_per_second is None else values.read_speed(options.macs_per_second)
    speeds = Speeds(rates[0], macs) if rates else None
    wants_weights = options.movement == "weights"
    moved = plan_with_movement(planned, known, Constants(planned), settings, weights=wants_weights, speeds=speeds)
    return moved.model, moved.opened, moved.result
