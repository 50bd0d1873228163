"""plan over ranges: one plan of a model for all sizes of some dimensions, checked and run at several of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxtile.arena.run import ArenaVerdict, arena_run, at_sizes
from onnxtile.arena.state_run import SizedPlan, StateVerdict, state_run
from onnxtile.check.audit import require
from onnxtile.check.ranges import listed, proved_sizes
from onnxtile.common_options import DimensionSizes, WholeShapes
from onnxtile.declare.plan_document import KernelCount
from onnxtile.model.binding import (
    LeadingSizes,
    bind,
    formula_names,
    free_inputs,
    missing_sizes,
    rename_symbols,
    symbols,
)
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.formula import SizeRanges, read_size
from onnxtile.model.load import digest, file_name, load
from onnxtile.planning.annotate import annotate
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.offsets.problem import OverCapacity
from onnxtile.planning.ranges import none_fits, sizes_of_runs, with_equal_dims
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.formulas import require_windows
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible, Mismatch, ModelError, ModelWarning, NoKernel, UsageError
from onnxtile.system.progress import silent, within
from onnxtile.verbs.flows.kernels import (
    bind_ranges,
    choose_kernels,
    require_lengths,
    require_sizes_from_1,
    settings_of,
)
from onnxtile.verbs.flows.results import OpenSizes, PlannedModel, RangeVerdict, file_of, require_equal
from onnxtile.verbs.plan import PlanOptions


def plan_over_ranges(options: PlanOptions) -> PlannedModel:
    """Plan a model over the ranges of dimensions that `options` name, as `onnxtile.plan` says."""
    read = RangedModel.read(options)
    opened = read.opened(read.ranges)
    options.progress("planning")
    settings = read.settings(read.ranges)
    return read.proved(
        _fitting(opened, settings, lambda ranges: _refusal(read.model, ranges, settings, options)), opened
    )


@dataclass(frozen=True)
class RangedModel:
    """A model of which some dimensions have ranges, before it is planned.

    `ranges` are those that `options` name. The dimensions of `model` have names that formulas can have, which `names` has by those of the
    file. `bound` are the dimensions of one size, `sums` those that are sums of others. `kernels` counts quantised islands. `common` are the
    settings of a plan without those of its sizes.
    """

    options: PlanOptions
    common: PlanSettings
    model: ir.Model
    ranges: SizeRanges
    names: Mapping[str, str]
    bound: Mapping[str, int]
    sums: Mapping[str, str]
    kernels: KernelCount | None

    @classmethod
    def read(cls, options: PlanOptions) -> RangedModel:
        """Read the model of `options`, and bind its dimensions. Raises ModelError, UsageError."""
        if options.input_file is not None:
            raise UsageError("inputs from a file have one size, not a range", hint="leave the ranges or the inputs out")
        common = settings_of(options)
        options.progress("reading the model")
        model = load(options.model)
        counted = choose_kernels(model, options.kernels)
        bound, ranges = bind_ranges(model, options)
        equal = {**options.dim_sums, **_with_equal_dims(model, {*ranges, *options.dim_sums.values()})}
        names = formula_names(model)
        rename_symbols(model, names)
        common = replace(common, digest=digest(options.model), name=file_name(options.model))
        return cls(options, common, model, ranges, names, bound, equal, counted)

    def opened(self, ranges: SizeRanges) -> Unfolded:
        """Return the model with its shapes over `ranges`, and its calls open. Raises ModelError where an input has no size."""
        self.options.progress("inferring shapes")
        known = resolve(self.model, run=True, bounds=self.options.dim_bounds, ranges=self._renamed(ranges))
        tensors = (value for value in free_inputs(self.model) if isinstance(value.type, ir.TensorType))
        left = [value for value in tensors if known.formulas(value) is None]
        if left:
            require_sizes_from_1(ranges)
            raise missing_sizes(left)
        require_windows(self.model, known.formulas, self._renamed(ranges))
        return unfold(self.model, known, Constants(self.model))

    def settings(self, ranges: SizeRanges) -> PlanSettings:
        """Return the settings of a plan over `ranges`."""
        dims = {**self.bound, **{name: high for name, (_, high) in ranges.items()}}
        dims |= _largest_sums(self.sums, ranges)
        return replace(self.common, dims=dims, ranges=self._renamed(ranges))

    def proved(self, plan: PlanResult, opened: Unfolded) -> PlannedModel:
        """Return the model with `plan`, which was checked, and run where `options` say so. Raises CheckFailed, Mismatch."""
        result = replace(plan, kernels=self.kernels, sums=self.options.dim_sums)
        require_lengths(result, opened)
        verdict, not_run = _proof_or_check(self.model, result, opened, self.options)
        rename_symbols(self.model, {word: name for name, word in self.names.items()})
        annotate(self.model, result)
        return PlannedModel(self.model, result, verdict, not_run, source=file_of(self.options.model))

    def _renamed(self, ranges: SizeRanges) -> SizeRanges:
        return {self.names.get(name, name): ends for name, ends in ranges.items()}


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
    known = resolve(model, run=True, bounds=options.dim_bounds, ranges=ranges)
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
        raise none_fits(settings.ranges, refusal, error) from None


def _proof_or_check(
    model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions
) -> tuple[RangeVerdict | None, str | None]:
    """Return the verdict of `_proof`; where onnxruntime has no kernel for an operator the plan is only checked, with the reason."""
    try:
        return _proof(model, plan, known, options), None
    except NoKernel as error:
        return _proof(model, plan, known, replace(options, verify=False)), error.message.partition(":")[0]


def _proof(model: ir.Model, plan: PlanResult, known: Unfolded, options: PlanOptions) -> RangeVerdict | None:
    """Check `plan` at the corners of its ranges and between, and run it there; None where it is not run.

    Runs of a plan that keeps states follow each other, from the least length to the largest, instead.

    Raises CheckFailed where the check fails, and Mismatch where a run differs.
    """
    sizes = proved_sizes(plan.ranges)
    wanted = Wanted(None, options.input_ranges)
    verdicts: list[ArenaVerdict] = []
    is_scaled = any(arena.scaled is not None for arena in plan.formulas or ())
    for number, (bound_sizes, opened) in enumerate(_at(model, sizes, options), 1):
        progress = within(options.progress, f"size {number} of {len(sizes)}, {listed(bound_sizes)}")
        progress("checking the plan")
        _require_planned(plan, opened)
        plans = [
            at_sizes(plan, bound_sizes, opened.model, opened.shapes, scaled=scaled)
            for scaled in (False, True)[: 1 + is_scaled]
        ]
        for sized in plans:
            require(opened.model, sized.claims, opened.shapes, opened.constants, plan.digest)
        for sized in (plans if not verdicts else plans[-1:]) if options.verify and not plan.states else ():
            verdict = arena_run(
                opened.model, sized.result, opened.shapes, opened.constants, wanted=wanted, progress=progress
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
        for run_sizes in sizes_of_runs(plan, known, options.state_runs):
            if last is None or last.sizes != run_sizes:
                _, opened = next(iter(_at(model, [run_sizes], options)))
                sized = at_sizes(plan, run_sizes, opened.model, opened.shapes, scaled=False)
                last = SizedPlan(opened, replace(sized.result, arenas=plan.arenas), run_sizes)
            yield last

    verdict = state_run(plans(), Wanted(None, options.input_ranges), progress=options.progress)
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
        wanted = Wanted(None, options.input_ranges)
        known = resolve(bound, run=True, wanted=wanted, bounds=options.dim_bounds)
        yield bound_sizes, unfold(bound, known, Constants(bound))


# The formula of a plan at size 1 of a dimension that the file leaves open.

_FORMULA = (1, 8)
"""The sizes of an open dimension for which its formula holds."""


def open_sizes(leading: LeadingSizes, plan: PlanResult, options: PlanOptions) -> OpenSizes:
    """Return the `leading` sizes that `plan` takes, with the formulas of a plan for more of them, which is checked and not run.

    There are formulas for one open dimension and one arena, without tensors at fixed addresses.
    """
    taken = OpenSizes(leading.options, leading.sizes)
    is_plain = options.movement == "none" and len(plan.arenas) == 1 and not (plan.pins or plan.places)
    if not is_plain or len(leading.sizes) != 1:
        return taken
    dims: DimensionSizes = {**(options.dims or {}), **dict.fromkeys(leading.dims, _FORMULA)}
    shapes: WholeShapes = {
        **(options.shapes or {}),
        **{name: (_FORMULA, *shape[1:]) for name, shape in leading.shapes.items()},
    }
    ranged = replace(
        options, dims=dims, shapes=shapes, inputs=options.input_ranges, capacity=None, verify=False, progress=silent
    )
    try:
        found = plan_over_ranges(ranged).plan
    except (ModelError, UsageError, Infeasible):
        return taken
    return replace(taken, ranges=found.ranges, formulas=found.formulas or ())
