"""Rewrites a model so that its activations fit a memory, and draws the curve of all memories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.check.audit import require
from onnxtile.fitting.read_network import separate
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.result import ModelCost, obstacle_of, steps_before, steps_of
from onnxtile.fitting.rewrites.rewrite import (
    ModelRewrite,
    UnblockedModel,
    batch_apart,
    in_order_of_plan,
    passed_twice,
    sizes_written,
    unblock,
)
from onnxtile.fitting.search import FitTarget, is_too_large, search
from onnxtile.fitting.strips import FitSchedule, Prices
from onnxtile.fitting.write import inline
from onnxtile.model.binding import bind, free_inputs, missing_sizes
from onnxtile.model.constants import Constants
from onnxtile.model.load import file_name, load
from onnxtile.model.node_kinds import is_quantised
from onnxtile.model.validity import check
from onnxtile.planning.aliases import containers, kind_name
from onnxtile.planning.annotate import annotate, clear_plan
from onnxtile.planning.movement.plan import plan_with_movement
from onnxtile.planning.result import PlannedMovement
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import is_kernel
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import Infeasible, Mismatch, ModelError
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.fit_drafts import (
    FitAttempts,
    FitSubject,
    PlanSubject,
    WrittenSchedule,
    as_it_is,
    fuse_pieces,
    opened_model,
    planned_model,
    regions_of,
    running_nodes,
    tokens_cut,
    written,
)
from onnxtile.verbs.flows.fitted_model import CurvePoint, FitCurve, FittedModel, ModelPlan
from onnxtile.verbs.flows.kernels import choose_kernels, settings_of
from onnxtile.verbs.flows.results import file_of
from onnxtile.verbs.flows.stage import agreeing, require_equal
from onnxtile.verbs.options.fit import FitOptions
from onnxtile.verbs.options.plan import PlanOptions
from onnxtile.verification.rounding import judge, within_one_step
from onnxtile.verification.trials import Verdict

if TYPE_CHECKING:
    from onnxtile.arena.run import ArenaVerdict
    from onnxtile.verbs.options.fit import CurveOptions


_NEGLIGIBLE = 1e-4
"""The share of its MACs by which rewrites of a model may exceed the budget: the product with one pixel more."""


def fit(options: FitOptions) -> FittedModel:
    """Fit a model as `onnxtile.fit` says."""
    from onnxtile.verbs.options.fit import require_memory

    require_memory(options)
    found = attempt(options, read_subject(options))
    if found.reason is not None:
        raise Infeasible(
            found.reason,
            hint="raise the capacity, or the budget of extra MACs; --smallest looks for the smallest arena",
        )
    return found


def read_subject(options: CurveOptions) -> FitSubject:
    """Return the model that the options name, planned as it is. Raises ModelError, UsageError."""
    progress = options.progress
    progress("reading the model")
    model = load(options.model)
    clear_plan(model)
    about = PlanSubject(file_name(options.model), bind(model, options.single_dims, options.whole_shapes))
    original = model.clone()
    inline(model)
    separate(model)
    progress("inferring shapes")
    shapes = resolve(model, run=True)
    _require_sizes(model, shapes)
    return planned_subject(original, model, shapes, about, options)


def planned_subject(
    original: ir.Model, model: ir.Model, shapes: Shapes, about: PlanSubject, options: CurveOptions
) -> FitSubject:
    """Return a model that computes what the `original` does, planned as it is."""
    constants = Constants(model)
    options.progress("planning")
    planned = planned_model(model, opened_model(model, shapes), about)
    regions = regions_of(model, shapes, constants, exact=options.exact)
    before = cost(FitSchedule(tuple(regions.whole)), planned, running_nodes(model, constants))
    return FitSubject(original, model, shapes, regions, about, planned, before, options.wrap, options.limits)


def attempt(options: FitOptions, subject: FitSubject) -> FittedModel:
    """Return the model that fits, or the smallest that was reached. Raises Infeasible where nothing fits two memories."""
    if options.memories is not None:
        return attempt_moved(options, subject)
    found = candidate(options, subject)
    if options.fuse:
        found = with_fused(options, subject, found)
    memory, before, result = options.memory, subject.before, found.written
    chosen, fitted, planned = result.schedule, result.model, result.planned
    after = replace(cost(chosen, planned, result.nodes), macs=before.macs + found.extra_macs)
    fits = memory is None or after.arena <= memory[1]
    if fits and planned.plan.kernels is None:
        annotate(fitted, planned.plan)
    wants_proof = options.verify and fits
    verdict, inside = judged(subject.original, fitted, planned, options) if wants_proof else (None, None)
    return FittedModel(
        fitted,
        subject.planned,
        planned,
        memory,
        before,
        after,
        steps_before(found.rewrites) + steps_of(found.regions, chosen.regions) + steps_before(found.rewrites_after),
        None if fits else obstacle_of(planned.plan, found.regions, chosen.regions, is_cut_short=found.is_cut_short),
        verdict,
        inside,
        tiled=result.tiled,
        source=file_of(options.model),
    )


@dataclass(frozen=True)
class FitCandidate:
    """A model that was cut, its regions, and the rewrites of it before and after. `macs` are those before it was cut.

    `is_cut_short` says that the bound of its work ended the search for it.
    """

    regions: Regions
    rewrites: tuple[ModelRewrite, ...]
    written: WrittenSchedule
    macs: int
    rewrites_after: tuple[ModelRewrite, ...] = ()
    is_cut_short: bool = False

    @property
    def extra_macs(self) -> int:
        """The multiply-accumulates that are done again."""
        return self.written.schedule.macs - self.macs


def candidate(options: FitOptions, subject: FitSubject) -> FitCandidate:
    """Return the cheapest way to cut a model that fits one memory, or the smallest that was reached."""
    memory, macs = options.memory, subject.regions.network.macs
    whole = FitCandidate(subject.regions, (), as_it_is(subject, options.progress), macs)
    if memory is not None and whole.written.planned.plan.arena_size <= memory[1]:
        return whole
    kernels = len(subject.regions.network.kernels)
    if memory is None and is_too_large(kernels):
        raise Infeasible(
            f"the smallest arena is not looked for: the model has {kernels:,} operators, too many for a search",
            hint="fuse the model first, or give a capacity that it fits as it is",
        )
    wanted = FitTarget(None if memory is None else memory[1], float(options.max_extra_macs), options.max_nodes)
    edited, rewrites, found = cut(subject, wanted, options)
    is_cut_short = edited.regions.is_cut_short
    if found is None or found.planned.plan.arena_size >= whole.written.planned.plan.arena_size:
        return replace(whole, is_cut_short=is_cut_short)
    return FitCandidate(edited.regions, rewrites, found, macs, is_cut_short=is_cut_short)


def cut(
    subject: FitSubject, wanted: FitTarget, options: FitOptions
) -> tuple[FitSubject, tuple[ModelRewrite, ...], WrittenSchedule | None]:
    """Return the model after rewrites, these, and the schedule written into it: where that alone may do, items of a batch one by one, or
    tokens in pieces; else regions, or tokens in pieces where these take fewer bytes.

    Nothing is written into a model of too many kernels."""
    if is_too_large(len(subject.regions.network.kernels)):
        subject.regions.is_cut_short = True
        return subject, (), None
    subject, before = _in_order(subject, options)
    items = None if options.exact else batch_apart(subject.model, subject.shapes)
    if items is not None:
        apart = _edited(subject, items, exact=False)
        whole = FitSchedule(tuple(apart.regions.whole))
        if whole.peak < FitSchedule(tuple(subject.regions.whole)).peak:
            subject, before = apart, before + items.rewrites
        too_many = wanted.nodes is not None and whole.nodes > wanted.nodes
        apart.regions.is_cut_short = is_too_large(len(apart.regions.network.kernels))
        settled = apart.regions.is_cut_short or (wanted.capacity is not None and whole.peak <= wanted.capacity)
        if subject is apart and settled and not too_many:
            return apart, before, written(apart, whole, options.progress)
    tokens = None if options.exact else tokens_cut(subject, wanted)
    if tokens is None:
        return _cut_into_regions(subject, wanted, before, options)
    of_tokens = tokens.written(options.progress) if tokens.may_fit(wanted) else None
    if of_tokens is None or not _fits(of_tokens, wanted):
        of_regions = _cut_into_regions(subject, wanted, before, options)
        found = of_regions[-1]
        if found is not None and (_fits(found, wanted) or found.planned.plan.peak <= tokens.peak):
            return of_regions
    return tokens.subject, before + tokens.rewrites, of_tokens or tokens.written(options.progress)


def _fits(found: WrittenSchedule, wanted: FitTarget) -> bool:
    return wanted.capacity is not None and found.planned.plan.arena_size <= wanted.capacity


def _in_order(subject: FitSubject, options: FitOptions) -> tuple[FitSubject, tuple[ModelRewrite, ...]]:
    """Return the model with sizes written, a quantised one in the order of its plan where that takes no more bytes, and these rewrites."""
    before: tuple[ModelRewrite, ...] = ()
    sizes = sizes_written(subject.model, subject.shapes)
    if sizes is not None:
        subject, before = _edited(subject, sizes, exact=options.exact), sizes.rewrites
    ordered = in_order_of_plan(subject.model, subject.shapes, subject.planned.plan.results)
    if ordered is not None:
        moved = _edited(subject, ordered, exact=options.exact)
        if FitSchedule(tuple(moved.regions.whole)).peak <= FitSchedule(tuple(subject.regions.whole)).peak:
            return moved, before + ordered.rewrites
    return subject, before


def _cut_into_regions(
    subject: FitSubject, wanted: FitTarget, before: tuple[ModelRewrite, ...], options: FitOptions
) -> tuple[FitSubject, tuple[ModelRewrite, ...], WrittenSchedule | None]:
    """Return the model after rewrites, these behind those `before`, and the schedule of regions written into it."""
    edited, rewrites = unblocked_subject(subject, options)
    if wanted.capacity is not None and not options.exact:
        edited, rewrites = _passed_twice(subject, edited, rewrites, wanted.capacity, options)
    target = replace(wanted, extra_macs=max(extra_left(subject, edited, options), 0.0))
    return edited, before + rewrites, FitAttempts(edited, target, options.progress).result()


def unblocked_subject(subject: FitSubject, options: CurveOptions) -> tuple[FitSubject, tuple[ModelRewrite, ...]]:
    """Return the model after the rewrites that let more of it be cut, and these rewrites; none that take more MACs than the budget."""
    for exact in dict.fromkeys((options.exact, True)):
        found = unblock(subject.model, subject.shapes, exact=exact)
        if found is None:
            continue
        edited = _edited(subject, found, exact=options.exact)
        if extra_left(subject, edited, options) >= -_NEGLIGIBLE:
            return edited, found.rewrites
    return subject, ()


def _passed_twice(
    subject: FitSubject, edited: FitSubject, rewrites: tuple[ModelRewrite, ...], capacity: int, options: CurveOptions
) -> tuple[FitSubject, tuple[ModelRewrite, ...]]:
    """Return the model with operands of reductions made twice that exceed the capacity, and all rewrites, where the budget allows it."""
    most = extra_left(subject, edited, options) * edited.regions.network.macs
    found = passed_twice(edited.model, edited.shapes, edited.regions, capacity, most)
    if found is None:
        return edited, rewrites
    return _edited(edited, found, exact=False), rewrites + found.rewrites


def extra_left(subject: FitSubject, edited: FitSubject, options: CurveOptions) -> float:
    """Return the extra MACs that the budget leaves after rewrites, as a share of those of the `edited` model; negative beyond it."""
    most = (1 + float(options.max_extra_macs)) * subject.regions.network.macs
    return most / edited.regions.network.macs - 1 if edited.regions.network.macs else 0.0


def _edited(subject: FitSubject, edit: UnblockedModel, *, exact: bool) -> FitSubject:
    regions = regions_of(edit.model, edit.shapes, Constants(edit.model), exact=exact)
    return replace(subject, model=edit.model, shapes=edit.shapes, regions=regions)


def cost(schedule: FitSchedule, planned: ModelPlan, nodes: int) -> ModelCost:
    """Return the costs of a planned model of so many `nodes`, into which a schedule was written."""
    copied = sum(region.copied for region in schedule.regions)
    return ModelCost(planned.plan.arena_size, planned.plan.peak, schedule.macs, nodes, copied)


def judged(
    original: ir.Model, fitted: ir.Model, planned: ModelPlan, options: FitOptions
) -> tuple[Verdict, ArenaVerdict]:
    """Return the verdict of the runs of both models, and of the run inside the arena. Raises Mismatch where a result differs."""
    progress = options.progress
    progress("verifying")
    check(fitted)
    compared = None if options.tolerance is None else within_one_step(original)
    verdict = agreeing(judge(original, fitted, progress, compared), "the fitted model")
    if options.exact and any(output.max_abs for output in verdict.outputs):
        worst = max(verdict.outputs, key=lambda output: output.max_abs)
        raise Mismatch(
            f"{worst.name!r} of the fitted model is not equal to the last bit: it is off by {worst.max_abs:.3g}",
            hint="nothing was written; onnxruntime adds up strips in another order, or rounds 16-bit floats elsewhere: leave out --exact",
        )
    inside = planned.run(progress)
    require_equal(inside)
    return verdict, inside


def _require_sizes(model: ir.Model, shapes: Shapes) -> None:
    """Raise ModelError where the size of an input or a tensor is not known."""
    tensors = (value for value in free_inputs(model) if isinstance(value.type, ir.TensorType))
    left = [value for value in tensors if shapes.sizes(value) is None]
    if left:
        raise missing_sizes(left)
    open_ = next((value for value in values(model) if value.name and shapes.sizes(value) is None), None)
    held = containers(model, shapes).get(open_) if open_ is not None else None
    if open_ is not None and held is not None:
        raise ModelError(
            f"{open_.name!r} is a {kind_name(held)}, and fit takes models of tensors only",
            hint="use onnxtile plan, which keeps such values outside the arena",
        )
    if open_ is not None:
        raise ModelError(f"the size of {open_.name!r} is not known: {shapes.reason(open_)}")


def with_fused(options: FitOptions, subject: FitSubject, plain: FitCandidate) -> FitCandidate:
    """Return the best of a `plain` result, the one whose pieces are fused, and the one of the fused model.

    The best fits, of those that fit has the lowest price, and else the smallest arena.
    """
    fused = fused_subject(subject, options)
    before = _named_before(candidate(options, fused), fused.model)
    after = _named_after(candidate(options, replace(subject, fuses=True)))
    return min((plain, before, after), key=lambda one: _worth(one, options, subject))


def _worth(one: FitCandidate, options: FitOptions, subject: FitSubject) -> tuple[int, float, int]:
    """Return a key that is least for the best result."""
    arena = one.written.planned.plan.arena_size
    over = arena if options.memory is None else max(arena - options.memory[1], 0)
    prices, macs = Prices(), max(subject.regions.network.macs, 1)
    copied = sum(region.copied for region in one.written.schedule.regions)
    price = prices.macs * one.extra_macs / macs + prices.node * one.written.nodes + prices.copied * copied
    return over, price, arena


def fused_subject(subject: FitSubject, options: FitOptions) -> FitSubject:
    """Return the fused model, planned as it is; meta-ops are not cut."""
    model = subject.model.clone()
    copied = subject.shapes.of_copies(dict(zip(values(subject.model), values(model), strict=True)))
    return planned_subject(subject.original, model, fuse_pieces(model, copied), subject.about, options)


def _meta_ops(model: ir.Model) -> tuple[str, ...]:
    """Return the names of the nodes that call meta-ops."""
    functions = model.functions
    calls = (node for node in model.graph if node.op_identifier() in functions)
    return tuple(node.name or "" for node in calls if is_kernel(functions[node.op_identifier()]))


def _named_after(one: FitCandidate) -> FitCandidate:
    return replace(one, rewrites_after=_step("fused after the model was cut", _meta_ops(one.written.model)))


def _named_before(one: FitCandidate, model: ir.Model) -> FitCandidate:
    return replace(one, rewrites=(*_step("fused before the model is cut", _meta_ops(model)), *one.rewrites))


def _step(text: str, nodes: tuple[str, ...]) -> tuple[ModelRewrite, ...]:
    return (ModelRewrite("fuse", text, nodes),) if nodes else ()


_LESS = (1.0, 0.8, 0.6)
"""Shares of the fast memory for which a model is cut, until one can be planned: copies of parts of inputs need bytes, too."""


_MORE = (1.5, 2.0, 3.0)
"""Shares for which it is cut then, with fewer MACs done again and more tensors that leave the fast memory."""


@dataclass(frozen=True)
class _MovedCandidate:
    """A model with a schedule written into it, and its plan with two memories; `fitted` has the copies."""

    subject: FitSubject
    rewrites: tuple[ModelRewrite, ...]
    written: WrittenSchedule
    fitted: ir.Model
    planned: ModelPlan

    @property
    def movement(self) -> PlannedMovement:
        """The copies of the plan."""
        assert self.planned.plan.movement is not None
        return self.planned.plan.movement

    @property
    def worth(self) -> tuple[int, int, int]:
        """A key that is least for the fewest copied bytes, then MACs and nodes."""
        return self.movement.bytes, self.written.schedule.macs, self.written.nodes


def attempt_moved(options: FitOptions, subject: FitSubject) -> FittedModel:
    """Return the model that fits two memories with the fewest copied bytes of several. Raises Infeasible where none fits."""
    best = _fewest(options, subject)
    chosen, arena = best.written.schedule, best.planned.plan.arenas[0]
    after = replace(cost(chosen, best.planned, best.written.nodes), arena=arena.size, peak=arena.peak)
    annotate(best.fitted, best.planned.plan)
    verdict, inside = None, None
    if options.verify:
        verdict, inside = judged(subject.original, best.fitted, best.planned, options)
    return FittedModel(
        best.fitted,
        subject.planned,
        best.planned,
        options.memory,
        subject.before,
        after,
        steps_before(best.rewrites) + steps_of(best.subject.regions, chosen.regions),
        None,
        verdict,
        inside,
        tiled=best.written.tiled,
        source=file_of(options.model),
    )


def _fewest(options: FitOptions, subject: FitSubject) -> _MovedCandidate:
    """Return the candidate with the fewest copied bytes. One that is cut as little as possible is enough where only parts of inputs, and
    outputs, are copied."""
    best: _MovedCandidate | None = None
    error: Infeasible | None = None
    for found in _candidates(options, subject):
        if isinstance(found, Infeasible):
            error = error or found
            continue
        if best is None or found.worth < best.worth:
            best = found
        if found.movement.bytes == found.movement.forced:
            break
    if best is None:
        assert error is not None
        raise error
    return best


def _candidates(options: FitOptions, subject: FitSubject) -> Iterator[_MovedCandidate | Infeasible]:
    """Yield the model as it is, then cut for less and more of the fast memory, or why it cannot be planned."""
    assert options.memory is not None
    yield _planned(options, subject, (), as_it_is(subject, options.progress))
    has_fit = False
    for share in (*_LESS, *_MORE):
        if (has_fit and share in _LESS) or (not has_fit and share in _MORE):
            continue
        target = FitTarget(int(share * options.memory[1]), float(options.max_extra_macs), options.max_nodes)
        edited, rewrites, written = cut(subject, target, options)
        if written is None:
            continue
        found = _planned(options, edited, rewrites, written)
        yield found
        has_fit = has_fit or isinstance(found, _MovedCandidate)
        if not has_fit and written.planned.plan.arena_size > int(share * options.memory[1]):
            return  # smaller pieces were not found


def _planned(
    options: FitOptions, subject: FitSubject, rewrites: tuple[ModelRewrite, ...], written: WrittenSchedule
) -> _MovedCandidate | Infeasible:
    """Return the model of `written` with its plan, which has passed the check."""
    defaults = PlanOptions(written.model)
    model, counted = written.model, None
    if is_quantised(model):
        model = model.clone()
        counted = choose_kernels(model, defaults.kernels)
    about = subject.about
    settings = replace(settings_of(defaults), name=about.name, dims=about.dims, capacity=options.memories)
    options.progress("planning")
    try:
        moved = plan_with_movement(model, resolve(model, run=True), Constants(model), settings)
    except Infeasible as error:
        return error
    plan = replace(moved.result, kernels=None if counted is None else counted.to_dict())
    opened = moved.opened
    require(opened.model, plan, opened.shapes, opened.constants)
    return _MovedCandidate(subject, rewrites, written, moved.model, ModelPlan(opened, plan))


# The trade of a model's arena against multiply-accumulates, nodes and copied bytes.

_RATIO = 0.75
"""The capacity of a point as a share of the peak of the point before."""
_PLANNED = 3_000
"""Kernels of the largest schedule that is written and planned; the arena of a larger one is an estimate."""


def fit_curve(options: CurveOptions) -> FitCurve:
    """Return the trade as `onnxtile.fit_curve` says."""
    return curve_of(read_subject(options), options)


def curve_of(subject: FitSubject, options: CurveOptions) -> FitCurve:
    """Return the trade of a model that was read."""
    points = [CurvePoint(subject.before, False)]
    unblocked, _ = unblocked_subject(subject, options)
    wanted = FitTarget(None, max(extra_left(subject, unblocked, options), 0.0), options.max_nodes)
    for point in _points(unblocked, wanted, options.progress):
        # Gaps between buffers may make an arena larger than its peak.
        if point.cost.arena < points[-1].cost.arena:
            points.append(point)
    return FitCurve(tuple(points))


def _points(subject: FitSubject, wanted: FitTarget, progress: Progress) -> Iterator[CurvePoint]:
    """Yield the cheapest schedule within each capacity; the last is the one with the least peak."""
    peak = subject.before.arena
    while peak:
        capacity = int(_RATIO * peak)
        schedule = search(subject.regions, FitTarget(capacity, wanted.extra_macs, wanted.nodes), progress)
        if schedule.peak >= peak:
            return
        peak = schedule.peak if schedule.peak <= capacity else 0
        if schedule.nodes > _PLANNED:
            copied = sum(region.copied for region in schedule.regions)
            yield CurvePoint(ModelCost(schedule.peak, schedule.peak, schedule.macs, schedule.nodes, copied), True)
        else:
            found = written(subject, schedule, progress)
            yield CurvePoint(cost(schedule, found.planned, found.nodes), False)
