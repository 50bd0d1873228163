"""plan: every activation gets an offset in an arena, at one size or over ranges of sizes, also with copies between two memories."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxtile.arena.run import ArenaVerdict, arena_run, at_sizes
from onnxtile.arena.state_run import SizedPlan, StateVerdict, state_run
from onnxtile.check.audit import require
from onnxtile.check.ranges import listed, proved_sizes
from onnxtile.declare import values as option_values
from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome
from onnxtile.model.binding import bind, formula_names, free_inputs, missing_sizes, rename_symbols, symbols
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.formula import SizeRanges, read_size
from onnxtile.model.load import digest, file_name, load
from onnxtile.model.npz_inputs import given_shapes, read_inputs
from onnxtile.planning.annotate import annotate
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.offsets.problem import OverCapacity
from onnxtile.planning.ordering.every_order import require_orderable
from onnxtile.planning.ranges import does_not_fit, none_fits, with_equal_dims
from onnxtile.planning.result import PlanResult
from onnxtile.planning.schedule import find_order
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import (
    Infeasible,
    Mismatch,
    ModelError,
    ModelWarning,
    NoKernel,
    UsageError,
    about_options,
    invalid,
)
from onnxtile.system.text import LARGEST_COUNT
from onnxtile.verbs.flows.kernels import (
    bind_ranges,
    choose_kernels,
    program_in_c,
    require_lengths,
    require_sizes_from_1,
    settings_of,
    sizes_of_runs,
    state_verdict,
)
from onnxtile.verbs.flows.results import PlannedModel, RangeVerdict, file_of, require_equal
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
            error.say(str(error), f"{error.hint}; {cut}" if error.hint else cut)
        raise


def _planned(options: PlanOptions) -> PlannedModel:
    require_movement(options)
    if options.has_ranges:
        return _planned_over_ranges(options)
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
    result = replace(result, kernels=counted)
    require(opened.model, result, opened.shapes, opened.constants, result.digest)
    verdict: ArenaVerdict | StateVerdict | None = None
    not_run = None
    if options.verify:
        try:
            verdict = _run_in_arena(opened, result, wanted, options)
        except NoKernel as error:
            not_run = str(error).partition(":")[0]
        else:
            require_equal(verdict)
    annotate(planned, result)
    return PlannedModel(planned, result, verdict, not_run, source=file_of(options.model))


def run(options: PlanStep) -> Outcome:
    """Do what the command and the step `plan` ask for."""
    planned = plan.from_options(options)
    if options.wants_c:
        planned = with_firmware(planned, options)
    return Outcome(planned, "plan", planned.model, emitted=planned.document)


def with_firmware(planned: PlannedModel, options: PlanStep) -> PlannedModel:
    """Return `planned` with its program in C, as `options` ask for it. Raises UsageError, Mismatch."""
    inputs = None if options.inputs is None else read_inputs(options.inputs, planned.model)
    wanted, model = Wanted(inputs, options.ranges), planned.model
    opened = unfold(model, resolve(model, run=True, wanted=wanted), Constants(model))
    firmware = program_in_c(opened, planned.plan, options, wanted=wanted, state_runs=options.state_steps)
    return replace(planned, firmware=firmware)


def _run_in_arena(
    opened: Unfolded, result: PlanResult, wanted: Wanted, options: PlanOptions
) -> ArenaVerdict | StateVerdict:
    """Run `opened` inside its arena: many times where the plan keeps states, else once."""
    if result.states:
        return state_verdict(opened, result, wanted, options)
    options.progress("running the model")
    return arena_run(opened.model, result, opened.shapes, opened.constants, wanted=wanted, progress=options.progress)


# Plan a model for all sizes of dimensions in ranges.


def _planned_over_ranges(options: PlanOptions) -> PlannedModel:
    """Plan a model over ranges of dimensions as `onnxtile.plan` says."""
    if options.inputs is not None:
        raise UsageError("inputs from a file have one size, not a range", hint="leave the ranges or the inputs out")
    settings = settings_of(options)
    progress = options.progress
    progress("reading the model")
    planned = load(options.model)
    counted = choose_kernels(planned, options.kernels)
    bound, ranges = bind_ranges(planned, options)
    equal = {**options.dim_sums, **_with_equal_dims(planned, {*ranges, *options.dim_sums.values()})}
    dims = {**bound, **{name: high for name, (_, high) in ranges.items()}}
    dims |= _largest_sums(equal, ranges)
    names = formula_names(planned)
    rename_symbols(planned, names)
    ranges = {names.get(name, name): ends for name, ends in ranges.items()}
    progress("inferring shapes")
    known = resolve(planned, run=True, bounds=options.bounds, ranges=ranges)
    tensors = (value for value in free_inputs(planned) if isinstance(value.type, ir.TensorType))
    left = [value for value in tensors if known.formulas(value) is None]
    if left:
        require_sizes_from_1(ranges)
        raise missing_sizes(left)
    opened = unfold(planned, known, Constants(planned))
    progress("planning")
    settings = replace(settings, digest=digest(options.model), name=file_name(options.model), dims=dims, ranges=ranges)
    result = _fitting(opened, settings, lambda ranges: _refusal(planned, ranges, settings, options))
    result = replace(result, kernels=counted, sums=options.dim_sums)
    require_lengths(result, opened)
    verdict, not_run = _proof_or_check(planned, result, opened, options)
    rename_symbols(planned, {word: name for name, word in names.items()})
    annotate(planned, result)
    return PlannedModel(planned, result, verdict, not_run, source=file_of(options.model))


def _largest_sums(sums: Mapping[str, str], ranges: SizeRanges) -> dict[str, int]:
    """Return the largest sizes of dimensions that are sums of those with `ranges`."""
    largest = {name: high for name, (_, high) in ranges.items()}
    read = {name: read_size(size, ranges) for name, size in sums.items()}
    return {name: size.at(largest) for name, size in read.items() if size is not None}


def _with_equal_dims(model: ir.Model, sized: Collection[str]) -> dict[str, str]:
    """Replace names of dimensions without a size by those that operators join them with, and say so; return what each is replaced by."""
    if all(name in sized for name in symbols(free_inputs(model))):
        return {}
    sums = with_equal_dims(model, sized)
    if sums:
        listed = ", ".join(f"{name} = {size}" for name, size in sums.items())
        warnings.warn(
            f"dimensions without a size are those that operators join them with: {listed}", ModelWarning, stacklevel=2
        )
    return sums


def _refusal(model: ir.Model, ranges: SizeRanges, settings: PlanSettings, options: PlanOptions) -> Infeasible | None:
    """Return the error of the plan of `model` over other `ranges`; None where there is one."""
    options.progress(f"planning up to {' '.join(f'{name}={high}' for name, (_, high) in ranges.items())}")
    known = resolve(model, run=True, bounds=options.bounds, ranges=ranges)
    try:
        plan_model(*unfold(model, known, Constants(model)), replace(settings, ranges=ranges))
    except OverCapacity as error:
        return error
    return None


def _fitting(
    opened: Unfolded, settings: PlanSettings, refusal: Callable[[SizeRanges], Infeasible | None]
) -> PlanResult:
    """Return the plan of the model. Raises Infeasible with the smallest sizes at which it exceeds the capacity."""
    try:
        return plan_model(*opened, settings)
    except OverCapacity as error:
        # The memory of a buffer depends on the capacities, so the formulas of a plan without capacities do not apply.
        if isinstance(settings.capacity, Mapping) and len(settings.capacity) > 1:
            raise none_fits(settings.ranges, refusal, error) from None
        # A place names the memory, which is then as large as any plan.
        memories = settings.capacity if settings.pins.places and isinstance(settings.capacity, Mapping) else None
        capacity = None if memories is None else dict.fromkeys(memories, LARGEST_COUNT)
        free = plan_model(*opened, replace(settings, capacity=capacity))
        # With fixed offsets, or tensors without a formula, the arena of the least sizes is nearly that of the largest.
        if any(arena.scaled is None or arena.peak is None for arena in free.formulas or ()):
            raise none_fits(settings.ranges, refusal, error) from None
        raise does_not_fit(free, settings.capacity, refusal, error) from None


def _proof_or_check(
    model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions
) -> tuple[RangeVerdict | None, str | None]:
    """Return the verdict of `_proof`; where onnxruntime has no kernel for an operator the plan is only checked, with the reason."""
    try:
        return _proof(model, plan, known, options), None
    except NoKernel as error:
        return _proof(model, plan, known, replace(options, verify=False)), str(error).partition(":")[0]


def _proof(model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions) -> RangeVerdict | None:
    """Check `plan` at the corners of its ranges and between, and run it there; None where it is not run.

    Runs of a plan that keeps states follow each other, from the least length to the largest, instead.

    Raises CheckFailed where the check fails, and Mismatch where a run differs.
    """
    sizes = proved_sizes(plan.ranges)
    wanted = Wanted(None, options.ranges)
    verdicts: list[ArenaVerdict] = []
    is_scaled = any(arena.scaled is not None for arena in plan.formulas or ())
    for bound_sizes, opened in _at(model, sizes, options):
        options.progress(f"checking the plan at {listed(bound_sizes)}")
        _require_planned(plan, opened)
        plans = [
            at_sizes(plan, bound_sizes, opened.model, opened.shapes, scaled=scaled)
            for scaled in (False, True)[: 1 + is_scaled]
        ]
        for sized in plans:
            require(opened.model, sized.claims, opened.shapes, opened.constants, plan.digest)
        for sized in (plans if not verdicts else plans[-1:]) if options.verify and not plan.states else ():
            verdict = arena_run(
                opened.model, sized.result, opened.shapes, opened.constants, wanted=wanted, progress=options.progress
            )
            verdicts.append(verdict)
            if not verdict.equal:
                where = f": {verdict.differing!r} at step {verdict.step}" if verdict.differing else ""
                raise Mismatch(
                    f"the run inside the arena at {listed(bound_sizes)} differs from the plain run{where}",
                    hint="please report it with the model",
                )
    if not options.verify:
        return None
    if plan.states:
        return RangeVerdict((), (), _with_states(model, plan, known, options))
    return RangeVerdict(tuple(sizes), tuple(verdicts))


def _with_states(model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions) -> StateVerdict:
    """Run `plan` at one size after the other in one arena. Raises Mismatch where a run differs."""

    def plans() -> Iterator[SizedPlan]:
        last: SizedPlan | None = None
        for run_sizes in sizes_of_runs(plan, known, options.state_steps):
            if last is None or last.sizes != run_sizes:
                _, opened = next(iter(_at(model, [run_sizes], options)))
                sized = at_sizes(plan, run_sizes, opened.model, opened.shapes, scaled=False)
                last = SizedPlan(opened, replace(sized.result, arenas=plan.arenas), run_sizes)
            yield last

    verdict = state_run(plans(), Wanted(None, options.ranges), progress=options.progress)
    require_equal(verdict)
    return verdict


def _require_planned(plan: PlanResult, opened: Unfolded) -> None:
    """Raise ModelError where a tensor has no size in `plan`, but has one in the model at one size of each dimension."""
    left = {row.name: row.reason for row in plan.unplanned}
    for value in values(opened.model) if left else ():
        if value.name in left and opened.shapes.sizes(value) is not None:
            raise ModelError(
                f"the size of {value.name!r} over the ranges is not known: {left[value.name]}",
                hint="give each dimension one size",
            )


def _at(
    model: ir.Model, sizes: Sequence[Mapping[str, int]], options: PlanOptions
) -> Iterator[tuple[Mapping[str, int], Unfolded]]:
    """Yield the model at each of the `sizes`, with its shapes: those that inference knows of it at this size alone."""
    for bound_sizes in sizes:
        bound = model.clone()
        bind(bound, bound_sizes, {}, least=0)
        wanted = Wanted(None, options.ranges)
        known = resolve(bound, run=True, wanted=wanted, bounds=options.bounds)
        yield bound_sizes, unfold(bound, known, Constants(bound))


# Plan a model with copies between two memories.


def require_movement(options: PlanOptions) -> None:
    """Raise UsageError for options of a movement that make no sense together."""
    if options.movement == "none":
        _require_none(options)
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
    for name in options.bandwidth or {}:
        if name != slow:
            reason = f"the slow memory is {slow!r}" if name in capacities else f"no memory is named {name!r}"
            raise invalid("bandwidth", name, reason=reason, hint=f"write {slow}=8GB/s")
    if options.macs_per_second is not None and not options.bandwidth:
        raise about_options(
            "{macs_per_second} is for the time beside the copies, which needs {bandwidth}",
            hint=f"add the bandwidth: {slow}=8GB/s",
        )


def _require_none(options: PlanOptions) -> None:
    for name in ("bandwidth", "macs_per_second"):
        if getattr(options, name) is not None:
            raise about_options(
                f"{{{name}}} is for plans with copies between memories",
                hint=f"add {{movement}}, or leave {{{name}}} out",
                movement="activations",
            )


def plan_moved(
    planned: ir.Model, known: Shapes, settings: PlanSettings, options: PlanOptions
) -> tuple[ir.Model, Unfolded, PlanResult]:
    """Return a copy of `planned` with copies between memories, the same with its calls open, and its plan."""
    from onnxtile.planning.movement.plan import Speeds, plan_with_movement  # few plans have a movement

    rates = list(option_values.read_rates(options.bandwidth or {}).values())
    macs = None if options.macs_per_second is None else option_values.read_speed(options.macs_per_second)
    speeds = Speeds(rates[0], macs) if rates else None
    wants_weights = options.movement == "weights"
    moved = plan_with_movement(planned, known, Constants(planned), settings, weights=wants_weights, speeds=speeds)
    return moved.model, moved.opened, moved.result
