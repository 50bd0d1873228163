"""Give every activation an offset in an arena, for all sizes of dimensions in ranges."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.model.binding import (
    bind,
    bind_shapes,
    formula_names,
    free_inputs,
    missing_sizes,
    rename_symbols,
    require_symbols,
    symbols,
)
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.formula import SizeRanges, read_size
from onnxtile.model.load import digest, file_name, load
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible, Mismatch, ModelError, ModelWarning, NoKernel, UsageError
from onnxtile.system.text import LARGEST_COUNT
from onnxtile.verbs.flows.kernels import choose_kernels, require_lengths, require_sizes_from_1, sizes_of_runs
from onnxtile.verbs.flows.results import RangeVerdict, file_of

if TYPE_CHECKING:
    from onnxtile.arena.run import ArenaVerdict
    from onnxtile.arena.state_run import StateVerdict
    from onnxtile.common_options import SizeOptions
    from onnxtile.planning.model_plan import PlanSettings
    from onnxtile.planning.result import PlanResult
    from onnxtile.verbs.flows.results import PlannedModel
    from onnxtile.verbs.options.plan import PlanOptions


def plan_range(options: PlanOptions) -> PlannedModel:
    """Plan a model over ranges of dimensions as `onnxtile.plan` says."""
    from onnxtile.planning.annotate import annotate
    from onnxtile.verbs.flows.kernels import settings_of
    from onnxtile.verbs.flows.results import PlannedModel

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
    result = replace(result, kernels=None if counted is None else counted.to_dict(), sums=options.dim_sums)
    require_lengths(result, opened)
    verdict, not_run = _proved_or_checked(planned, result, opened, options)
    rename_symbols(planned, {word: name for name, word in names.items()})
    annotate(planned, result)
    return PlannedModel(planned, result, verdict, not_run, source=file_of(options.model))


def bind_ranges(model: ir.Model, options: SizeOptions) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Give dimensions of `model` (in place) the sizes of `options`; return those that have one size, and the ranges of the others."""
    fixed, ranges = bind_shapes(model, options.shape_ranges)
    for given, told in ((fixed, options.fixed_dims), (ranges, options.dim_ranges)):
        for name in given.keys() & (options.fixed_dims.keys() | options.dim_ranges.keys()):
            if name not in told or given[name] != told[name]:
                raise UsageError(f"the dimension {name!r} has two sizes", hint="leave one of the two options out")
    ranges = {**options.dim_ranges, **ranges}
    bound = bind(model, {**options.fixed_dims, **fixed}, options.fixed_shapes)
    require_symbols(model, (*ranges, *options.dim_sums))
    rename_symbols(model, options.dim_sums)
    return bound, ranges


def _largest_sums(sums: Mapping[str, str], ranges: SizeRanges) -> dict[str, int]:
    """Return the largest sizes of dimensions that are sums of those with `ranges`."""
    largest = {name: high for name, (_, high) in ranges.items()}
    read = {name: read_size(size, ranges) for name, size in sums.items()}
    return {name: size.at(largest) for name, size in read.items() if size is not None}


def _with_equal_dims(model: ir.Model, sized: Collection[str]) -> dict[str, str]:
    """Replace names of dimensions without a size by those that operators join them with, and say so; return what each is replaced by."""
    from onnxtile.planning.ranges import with_equal_dims

    if all(name in sized for name in symbols(free_inputs(model))):
        return {}
    found = with_equal_dims(model, sized)
    if found:
        listed = ", ".join(f"{name} = {size}" for name, size in found.items())
        warnings.warn(
            f"dimensions without a size are those that operators join them with: {listed}", ModelWarning, stacklevel=2
        )
    return found


def _refusal(model: ir.Model, ranges: SizeRanges, settings: PlanSettings, options: PlanOptions) -> Infeasible | None:
    """Return the error of the plan of `model` over other `ranges`; None where there is one."""
    from onnxtile.planning.model_plan import plan_model
    from onnxtile.planning.offsets.problem import OverCapacity

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
    from onnxtile.planning.model_plan import plan_model
    from onnxtile.planning.offsets.problem import OverCapacity
    from onnxtile.planning.ranges import does_not_fit, none_fits

    try:
        return plan_model(*opened, settings)
    except OverCapacity as error:
        # Which memory a buffer is in depends on the capacities, so that the formulas of a plan without them say nothing.
        if isinstance(settings.capacity, Mapping) and len(settings.capacity) > 1:
            raise none_fits(settings.ranges, refusal, error) from None
        # A place names the memory, which is then as large as any plan.
        memories = settings.capacity if settings.pins.places and isinstance(settings.capacity, Mapping) else None
        capacity = None if memories is None else dict.fromkeys(memories, LARGEST_COUNT)
        free = plan_model(*opened, replace(settings, capacity=capacity))
        # With fixed offsets, or tensors without a formula, the arena of the least sizes is nearly that of the largest.
        if any(arena.scaled is None or arena.peak is None for arena in free.formulas):
            raise none_fits(settings.ranges, refusal, error) from None
        raise does_not_fit(free, settings.capacity, refusal, error) from None


def _proved_or_checked(
    model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions
) -> tuple[RangeVerdict | None, str | None]:
    """Return the verdict of `_proved`; where onnxruntime has no kernel for an operator the plan is only checked, with the reason."""
    try:
        return _proved(model, plan, known, options), None
    except NoKernel as error:
        return _proved(model, plan, known, replace(options, verify=False)), str(error).partition(":")[0]


def _proved(model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions) -> RangeVerdict | None:
    """Check `plan` at the corners of its ranges and between, and run it there; None where it is not run.

    Runs of a plan that keeps states follow each other, from the least length to the largest, instead.

    Raises CheckFailed where the check says no, and Mismatch where a run differs.
    """
    from onnxtile.arena.run import arena_run, at_sizes
    from onnxtile.check.audit import require
    from onnxtile.check.ranges import listed, proved_sizes

    sizes = proved_sizes(plan.ranges)
    wanted = Wanted(None, options.ranges)
    verdicts: list[ArenaVerdict] = []
    is_scaled = any(arena.scaled is not None for arena in plan.formulas)
    for one, opened in _at(model, sizes, options):
        options.progress(f"checking the plan at {listed(one)}")
        _require_planned(plan, opened)
        plans = [
            at_sizes(plan, one, opened.model, opened.shapes, scaled=scaled) for scaled in (False, True)[: 1 + is_scaled]
        ]
        for found in plans:
            require(opened.model, found.claims, opened.shapes, opened.constants, plan.digest)
        for found in (plans if not verdicts else plans[-1:]) if options.verify and not plan.kept_states else ():
            verdict = arena_run(
                opened.model, found.result, opened.shapes, opened.constants, wanted=wanted, progress=options.progress
            )
            verdicts.append(verdict)
            if not verdict.equal:
                where = f": {verdict.differing!r} at step {verdict.step}" if verdict.differing else ""
                raise Mismatch(
                    f"the run inside the arena at {listed(one)} differs from the plain run{where}",
                    hint="please report it with the model",
                )
    if not options.verify:
        return None
    if plan.kept_states:
        return RangeVerdict((), (), _with_states(model, plan, known, options))
    return RangeVerdict(tuple(sizes), tuple(verdicts))


def _with_states(model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions) -> StateVerdict:
    """Run `plan` at one size after the other in one arena. Raises Mismatch where a run differs."""
    from onnxtile.arena.run import at_sizes
    from onnxtile.arena.state_run import SizedPlan, state_run
    from onnxtile.verbs.flows.stage import require_equal

    def plans() -> Iterator[SizedPlan]:
        last: SizedPlan | None = None
        for one in sizes_of_runs(plan, known, options.state_steps):
            if last is None or last.sizes != one:
                _, opened = next(iter(_at(model, [one], options)))
                sized = at_sizes(plan, one, opened.model, opened.shapes, scaled=False)
                last = SizedPlan(opened, replace(sized.result, arenas=plan.arenas), one)
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
    for one in sizes:
        bound = model.clone()
        bind(bound, one, {}, least=0)
        wanted = Wanted(None, options.ranges)
        known = resolve(bound, run=True, wanted=wanted, bounds=options.bounds)
        yield one, unfold(bound, known, Constants(bound))
