"""plan: every activation gets an offset in an arena, at one size or over ranges of sizes, also with copies between two memories."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxtile.arena.run import ArenaVerdict, SizedPlan, StateVerdict, arena_run, at_sizes, state_run
from onnxtile.check.audit import require
from onnxtile.check.ranges import listed, proved_sizes
from onnxtile.common_options import DimensionSizes, WholeShapes
from onnxtile.declare import values as option_values
from onnxtile.declare.plan_document import KernelCount
from onnxtile.declare.verb import Outcome, declared
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.model.binding import (
    LeadingSizes,
    bind,
    bind_leading,
    bind_shapes,
    formula_names,
    free_inputs,
    rename_symbols,
    require_sizes,
    symbols,
)
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted, given_shapes, read_inputs
from onnxtile.model.formula import SizeFormula, SizeRanges, read_size
from onnxtile.model.load import digest, file_name, load
from onnxtile.model.save import Draft, written
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.offsets.effort import LEVELS
from onnxtile.planning.offsets.problem import OverCapacity
from onnxtile.planning.order_search import require_orderable
from onnxtile.planning.orders import find_order
from onnxtile.planning.ranges import (
    MOST_SIZE,
    Growth,
    LargestSize,
    NeededBytes,
    RefusedSize,
    SizeTrial,
    growth_of,
    largest_fitting,
    none_fits,
    sizes_of_runs,
    with_equal_dims,
)
from onnxtile.planning.result import PlanResult
from onnxtile.planning.rows import annotate
from onnxtile.shapes.formulas import require_windows
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import Shapes, bytes_formula, resolve, tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import (
    NAME_ONLY,
    Infeasible,
    ModelError,
    ModelWarning,
    NoKernel,
    OverLimit,
    UsageError,
    about_options,
)
from onnxtile.system.long_work import silent, within
from onnxtile.verbs.flows.kernels import (
    bind_ranges,
    choose_kernels,
    lengths_of_states,
    program_in_c,
    require_lengths,
    require_sizes_from_1,
    settings_of,
    state_verdict,
)
from onnxtile.verbs.flows.results import OpenSizes, PlannedModel, RangeVerdict, file_of, require_equal
from onnxtile.verbs.plan import PlanOptions, PlanStep


@declared(PlanOptions)
def plan(options: PlanOptions) -> PlannedModel:
    """Give every activation of `model` an offset in an arena, and annotate the model with it.

    The result is checked against the model by code that shares nothing with what plans (see `check_plan`); with `verify`, the model is also
    run with every tensor at its planned address. Raises ModelError, UsageError; Infeasible over `capacity`; CheckFailed where the check
    fails; Mismatch where the run inside the arena differs.
    """
    return _plan(options)[0]


def _plan(options: PlanOptions) -> tuple[PlannedModel, Draft]:
    """Return what `plan` returns, and its model as it is to be written."""
    require_movement(options)
    try:
        if options.largest is not None or options.has_ranges:
            planned = plan_over_ranges(options) if options.largest is None else plan_largest(options)
            return planned, Draft(planned.model)
        return _planned(options)
    except OverCapacity as error:
        if not options.dim_ranges:  # fit takes one size
            cut = "onnxtile fit with the same capacity cuts operators into smaller ones"
            error.say(error.message, f"{error.hint}; {cut}" if error.hint else cut)
        raise


def _planned(options: PlanOptions) -> tuple[PlannedModel, Draft]:
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
    require_sizes(planned, known.sizes)
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
    annotate(planned, result)
    # A model without open calls is written once: these bytes are checked, run and saved.
    draft = written(planned) if opened.model is planned else Draft(planned)
    require(opened.model, result, opened.shapes, opened.constants, result.digest, draft.content)
    verdict: ArenaVerdict | StateVerdict | None = None
    not_run = None
    if options.verify:
        try:
            verdict = _run_in_arena(facts, opened, result, wanted, options, draft.content)
        except NoKernel as error:
            not_run = error.message.partition(":")[0]
        else:
            require_equal(verdict)
    taken = None if leading is None else open_sizes(leading, result, options)
    source = file_of(options.model)
    return PlannedModel(planned, result, verdict, not_run, open_sizes=taken, wanted=wanted, source=source), draft


def run(options: PlanStep) -> Outcome:
    """Do what the command and the step `plan` ask for."""
    planned, draft = _plan(options)
    if options.wants_c:
        planned = with_firmware(planned, options)
    return Outcome(planned, "plan", draft, emitted=planned.document if options.emit else None)


def with_firmware(planned: PlannedModel, options: PlanStep) -> PlannedModel:
    """Return `planned` with its program in C, as `options` ask for it. Raises UsageError, Mismatch."""
    how = {"wanted": planned.wanted, "state_runs": options.state_runs}
    return replace(planned, firmware=program_in_c(planned.opened(), planned.plan, options, **how))


def _run_in_arena(
    facts: LayoutFacts,
    opened: Unfolded,
    result: PlanResult,
    wanted: Wanted,
    options: PlanOptions,
    content: bytes | None,
) -> ArenaVerdict | StateVerdict:
    """Run `opened` inside its arena: many times where the plan keeps states, else once."""
    if result.states:
        return state_verdict(opened, result, wanted, options)
    options.progress("running the model")
    return arena_run(
        opened.model,
        result,
        opened.shapes,
        opened.constants,
        wanted=wanted,
        progress=options.progress,
        facts=facts,
        content=content,
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


# Over ranges: one plan of a model for all sizes of some dimensions, checked and run at several of them.


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
        try:
            require_sizes(self.model, known.formulas)
        except ModelError:
            if set(symbols(free_inputs(self.model))) <= self._renamed(ranges).keys():
                require_sizes_from_1(ranges)
            raise
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
        wanted, source = Wanted(None, self.options.input_ranges), file_of(self.options.model)
        return PlannedModel(self.model, result, verdict, not_run, wanted=wanted, source=source)

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
            require_equal(verdict, f" at {listed(bound_sizes)}")
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
        ranged_plan = plan_over_ranges(ranged).plan
    except (ModelError, UsageError, Infeasible):
        return taken
    return replace(taken, ranges=ranged_plan.ranges, formulas=ranged_plan.formulas or ())


# The largest size of one dimension for which weights, states and arena fit the capacity, with the plan up to that size.


_FIRST = 63
"""The first plan is up to a size larger by this than the least; its formulas say where to look."""
_FURTHER = 64
"""How much larger the second size is, where no formula depends on the dimension."""


def plan_largest(options: PlanOptions) -> PlannedModel:
    """Plan a model up to the largest size of the dimension `largest` that fits, as `onnxtile.plan` says."""
    name, capacity = _required(options)
    given = _given_range(options, name)
    least, most = given or (1, None)
    first = least + _FIRST if most is None else min(least + _FIRST, most)
    sized = options if given else replace(options, dims={**(options.dims or {}), name: (least, first)})
    sizes = _SizeTrials(RangedModel.read(replace(sized, largest=None)), name, least, capacity)
    start = sizes.start(first, most)
    if given is None and sizes.is_length:
        # The cache of a first run is empty.
        sizes.least = 0
    fitting_size, refused = largest_fitting(sizes.trial, start, sizes.least, most, capacity)
    if fitting_size is None:
        assert refused is not None
        hint = f"give {{capacity}} at least {refused.total}"
        if sizes.weights:
            hint += f", or {capacity + sizes.weights} where weights lie in another memory"
        raise Infeasible(
            f"DOES NOT FIT: at {name}={refused.size} the plan takes at least {refused.total:,} bytes of {capacity:,}, "
            f"{sizes.weights:,} of them for weights",
            hint=hint,
            given={"capacity": NAME_ONLY},
        )
    largest = sizes.result(fitting_size, refused)
    opened, plan = sizes.best
    try:
        return replace(sizes.ranged.proved(plan, opened), largest=largest)
    except MemoryError:
        raise OverLimit(
            f"{name}={fitting_size} fits the capacity, and a run there takes more memory than there is, or than --runs allows",
            hint="--no-verify plans without a run",
        ) from None
    except ModelError as error:
        # Few models run at every size: a table of positions has an end.
        where = f"{name}={fitting_size} fits the capacity, and the model fails there or at a smaller size"
        error.say(f"{where}: {error.message}", f"give the sizes that it can run: --dim {name}={max(sizes.least, 1)}:N")
        raise


def _required(options: PlanOptions) -> tuple[str, int]:
    """Return the dimension whose largest size is asked for, and the bytes for it. Raises UsageError for options that exclude it."""
    if options.movement != "none":
        raise about_options("{largest} is for one memory, and {movement} for two", hint="leave one of the two out")
    capacity = options.capacities
    if capacity is None or (isinstance(capacity, Mapping) and len(capacity) != 1):
        raise about_options("{largest} needs the bytes of one memory", hint="give one {capacity}, such as 2GiB")
    assert options.largest is not None
    return options.largest, next(iter(capacity.values())) if isinstance(capacity, Mapping) else capacity


def _given_range(options: PlanOptions, name: str) -> tuple[int, int] | None:
    """Return the range that `options` give the dimension `name`; None without one. Raises UsageError for a size or a sum."""
    shaped: Mapping[str, tuple[int, int]] = {}
    if options.shape_ranges:
        _, shaped = bind_shapes(load(options.model), options.shape_ranges)
    given = {**shaped, **options.dim_ranges}
    if name not in given and name in option_values.read_dims(options.dims or {}):
        raise UsageError(
            f"the dimension {name!r} has a size already", hint=f"leave --dim {name} out, or give it a range"
        )
    return given.get(name)


class _SizeTrials:
    """The plans of a model up to several sizes of its dimension `name`, from `least` on, within `capacity` bytes in all."""

    def __init__(self, ranged: RangedModel, name: str, least: int, capacity: int) -> None:
        self.ranged, self.name, self.least = ranged, name, least
        self.is_length = False
        """Whether the dimension is the length of a state that is kept and grows."""
        self.weights = 0
        self._capacity, self._word = capacity, ranged.names.get(name, name)
        self._left: list[str] = []
        self._best: tuple[Unfolded, PlanResult] | None = None

    @property
    def best(self) -> tuple[Unfolded, PlanResult]:
        """The model at the sizes of the last plan that fitted, and that plan."""
        assert self._best is not None
        return self._best

    def start(self, first: int, most: int | None) -> SizeTrial:
        """Return a trial without a limit, from which the search begins. Raises UsageError where no byte depends on the dimension."""
        opened, plan = self._planned(first)
        self.is_length = self._word in lengths_of_states(plan.states, opened)
        self.weights = plan.constant_bytes
        held, states = {row.name for row in plan.buffers}, {state.input for state in plan.listed}
        self._left = [value.name or "" for value in opened.model.graph.inputs if value.name in states - held]
        total = self._needed(opened, plan).total
        growth = self._growth(opened, plan)
        if growth is not None:
            return SizeTrial(first, total, False, growth)
        # Tensors whose sizes have no formula may grow nevertheless.
        second = first * _FURTHER if most is None else most
        larger = self._needed(*self._planned(second)).total if second > first else total
        if larger <= total:
            raise UsageError(
                f"the size {self.name!r} bounds nothing: no byte of the plan depends on it",
                hint="name another dimension",
            )
        return SizeTrial(first, total, False, lambda size: size * (larger - total) / (second - first))

    def trial(self, size: int) -> SizeTrial:
        """Return the trial of a plan up to `size` within the capacity."""
        opened, settings = self._at(size)
        outside = sum(bytes_ for _, bytes_ in self._outside(opened))
        free = max(0, self._capacity - self.weights - outside)
        given = self.ranged.common.capacity
        limit = dict.fromkeys(given, free) if isinstance(given, Mapping) else free
        try:
            plan = plan_model(*opened, replace(settings, capacity=limit))
        except OverCapacity as error:
            return SizeTrial(size, self.weights + outside + free + error.shortfall, fits=False)
        total = self._needed(opened, plan).total
        fits = total <= self._capacity
        if fits:
            self._best = opened, plan
        return SizeTrial(size, total, fits, self._growth(opened, plan))

    def result(self, size: int, refused: SizeTrial | None) -> LargestSize:
        """Return what is said of `size`, the largest that fits, and of the next one."""
        opened, plan = self.best
        following = None if refused is None else RefusedSize(refused.size, refused.total)
        held = {row.name for row in plan.buffers} | set(self._left)
        graph = opened.model.graph
        apart = [value for value in (*graph.inputs, *graph.outputs) if value.name not in held]
        uncounted = sum(tensor_bytes(value, opened.shapes) or 0 for value in apart)
        needed = self._needed(opened, plan)
        return LargestSize(self.name, self.least, size, needed, uncounted, self._capacity, following)

    def _growth(self, opened: Unfolded, plan: PlanResult) -> Growth | None:
        """Return the estimate by the formulas of `plan`; None where no formula depends on the dimension."""
        growth = growth_of(plan, self._word, self._outside(opened))
        return growth if growth(MOST_SIZE) > growth(plan.ranges[self._word][1]) else None

    def _needed(self, opened: Unfolded, plan: PlanResult) -> NeededBytes:
        rows = {row.name: row for row in plan.buffers}
        kept = sum(rows[owner].size for owner in {rows[state.input].alias or state.input for state in plan.states})
        state = kept + sum(size for _, size in self._outside(opened))
        weights, arena = plan.constant_bytes, plan.arena_size - kept
        return NeededBytes(weights, state, arena, weights + state + arena)

    def _outside(self, opened: Unfolded) -> list[tuple[SizeFormula, int]]:
        """Return the bytes of the inputs outside the arena that are states not kept, as formulas and at the largest sizes."""
        values = [value for value in opened.model.graph.inputs if value.name in self._left]
        sizes = [(bytes_formula(value, opened.shapes), tensor_bytes(value, opened.shapes) or 0) for value in values]
        return [(formula or SizeFormula.number(size), size) for formula, size in sizes]

    def _at(self, size: int) -> tuple[Unfolded, PlanSettings]:
        """Return the model with the sizes up to `size`, and the settings of its plan."""
        ranges = {**self.ranged.ranges, self.name: (self.least, size)}
        opened = self.ranged.opened(ranges)
        self.ranged.options.progress(f"planning up to {self.name}={size}")
        return opened, self.ranged.settings(ranges)

    def _planned(self, size: int) -> tuple[Unfolded, PlanResult]:
        """Return the plan up to `size` without a limit, made with little effort."""
        opened, settings = self._at(size)
        return opened, plan_model(*opened, replace(settings, capacity=None, effort=LEVELS["low"]))
