"""Rewrite a model so that its activations fit a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxtile.errors import Infeasible, Mismatch, ModelError
from onnxtile.fitting.channels import HiddenGroups
from onnxtile.fitting.inline import inline
from onnxtile.fitting.quantised import inside_islands, separate
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import FitSchedule, Regions
from onnxtile.fitting.result import ModelCost, obstacle_of, steps_before, steps_of
from onnxtile.fitting.search import FitTarget, search
from onnxtile.fitting.unblocking.editing import known_shapes
from onnxtile.fitting.unblocking.unblock import ModelRewrite, UnblockedModel, passed_twice, token_cuts, unblock
from onnxtile.fitting.wrap import wrap
from onnxtile.fitting.write import write
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind
from onnxtile.model.infer import values
from onnxtile.model.load import file_name, load
from onnxtile.model.plan_marks import clear_plan
from onnxtile.model.quantising import is_quantised
from onnxtile.model.save import raise_ir_version
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.unfold import Unfolded, is_kernel, unfold
from onnxtile.model.validity import check
from onnxtile.planning.annotate import annotate
from onnxtile.planning.model_plan import plan_model
from onnxtile.planning.offsets.memories import Allocation
from onnxtile.planning.proof.published.audit import require
from onnxtile.planning.quick_arena import quick_allocation
from onnxtile.tiling.options import TilingPolicy
from onnxtile.tiling.rewrite import tile
from onnxtile.tiling.tileable import none_known
from onnxtile.verbs.flows.chain import file_of
from onnxtile.verbs.flows.fitted_model import FittedModel, ModelPlan
from onnxtile.verbs.flows.kernels import choose_kernels
from onnxtile.verbs.flows.planning import require_equal, settings_of
from onnxtile.verbs.flows.raising import raised_to_join
from onnxtile.verbs.flows.stage import Progress, agreeing
from onnxtile.verbs.plan import PlanOptions
from onnxtile.verification import Verdict, judge, within_one_step

if TYPE_CHECKING:
    from onnxtile.planning.proof.arena_run import ArenaVerdict
    from onnxtile.tiling.limits import Limits
    from onnxtile.tiling.result import TileResult
    from onnxtile.verbs.fit import CurveOptions, FitOptions

_NEGLIGIBLE = 1e-4
"""The share of its MACs by which rewrites of a model may exceed the budget: the product with one pixel more."""
_ATTEMPTS = 6
"""Schedules that are written and planned, at most, until the plan of one fits."""


def fit(options: FitOptions) -> FittedModel:
    """Fit a model as `onnxtile.fit` says."""
    from onnxtile.verbs.fit import require_memory

    require_memory(options)
    found = attempt(options, read_subject(options))
    if found.reason is not None:
        raise Infeasible(found.reason, hint="raise the capacity, or the budget of extra MACs")
    return found


@dataclass(frozen=True)
class PlanSubject:
    """The name of a model's file (None for a model in memory), and the sizes that its symbolic dimensions are bound to."""

    name: str | None
    dims: Mapping[str, int]


@dataclass(frozen=True)
class FitSubject:
    """The `original` of a model to fit, and the `model` with its calls written out: its shapes, regions, plan and costs.

    `about` says how its plans call it, `wrap` whether regions become functions, `fuses` whether their pieces are fused. Products of the
    result are tiled within the `limits`, where there are any.
    """

    original: ir.Model
    model: ir.Model
    shapes: Shapes
    regions: Regions
    about: PlanSubject
    planned: ModelPlan
    before: ModelCost
    wrap: bool
    limits: Limits | None
    fuses: bool = False


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
    planned = _plan(model, _opened(model, shapes), about)
    regions = _regions(model, shapes, constants, exact=options.exact)
    before = cost(FitSchedule(tuple(regions.whole)), planned, _running(model, constants))
    return FitSubject(original, model, shapes, regions, about, planned, before, options.wrap, options.limits)


def attempt(options: FitOptions, subject: FitSubject) -> FittedModel:
    """Return the model that fits, or the smallest that was reached. Raises Infeasible where nothing fits two memories."""
    if options.memories is not None:
        from onnxtile.verbs.flows.fitting_memories import attempt_moved

        return attempt_moved(options, subject)
    found = candidate(options, subject)
    if options.fuse:
        from onnxtile.verbs.flows.fitting_fused import with_fused

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
        None if fits else obstacle_of(found.regions, chosen.regions),
        verdict,
        inside,
        tiled=result.tiled,
        source=file_of(options.model),
    )


@dataclass(frozen=True)
class FitCandidate:
    """A model that was cut, its regions, and the rewrites of it before and after. `macs` are those before it was cut."""

    regions: Regions
    rewrites: tuple[ModelRewrite, ...]
    written: WrittenSchedule
    macs: int
    rewrites_after: tuple[ModelRewrite, ...] = ()

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
    wanted = FitTarget(None if memory is None else memory[1], float(options.max_extra_macs), options.max_nodes)
    edited, rewrites, found = cut(subject, wanted, options)
    if found is None or found.planned.plan.arena_size >= whole.written.planned.plan.arena_size:
        return whole
    return FitCandidate(edited.regions, rewrites, found, macs)


def cut(
    subject: FitSubject, wanted: FitTarget, options: FitOptions
) -> tuple[FitSubject, tuple[ModelRewrite, ...], WrittenSchedule | None]:
    """Return the model after rewrites, these, and the schedule written into it: tokens in pieces where that alone may do, else regions."""
    tokens = None if options.exact else _tokens_cut(subject, wanted)
    if tokens is None:
        edited, rewrites = unblocked_subject(subject, options)
        if wanted.capacity is not None and not options.exact:
            edited, rewrites = _passed_twice(subject, edited, rewrites, wanted.capacity, options)
        target = replace(wanted, extra_macs=max(extra_left(subject, edited, options), 0.0))
        return edited, rewrites, _fitted(edited, target, options.progress)
    edited = _edited(subject, tokens, exact=options.exact)
    return edited, tokens.rewrites, written(edited, FitSchedule(tuple(edited.regions.whole)), options.progress)


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
    regions = _regions(edit.model, edit.shapes, Constants(edit.model), exact=exact)
    return replace(subject, model=edit.model, shapes=edit.shapes, regions=regions)


def cost(schedule: FitSchedule, planned: ModelPlan, nodes: int) -> ModelCost:
    """Return the costs of a planned model of so many `nodes`, into which a schedule was written."""
    copied = sum(region.copied for region in schedule.regions)
    return ModelCost(planned.plan.arena_size, planned.plan.peak, schedule.macs, nodes, copied)


def _running(model: ir.Model, constants: Constants) -> int:
    """Return the number of nodes that run, in the functions of regions too; nodes that make constants do not."""
    made = {node for node in model.graph if all(value in constants for value in node.outputs)}
    inside = (model.functions.get(node.op_identifier()) for node in model.graph if node not in made)
    bodies = [
        0 if body is None or is_kernel(body) else sum(node.op_type != "Constant" for node in body) - 1
        for body in inside
    ]
    return len(bodies) + sum(bodies)


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
            hint="nothing was written; onnxruntime adds up strips in another order here: leave out --exact",
        )
    inside = planned.run(progress)
    require_equal(inside)
    return verdict, inside


def _regions(model: ir.Model, shapes: Shapes, constants: Constants, *, exact: bool = False) -> Regions:
    """Return the regions of a model; `exact` says that no sum may be added up in another order."""
    inside = inside_islands(model, constants)
    network = read_network(model, shapes, constants, inside, exact=exact)
    # Sums of quantised products cannot be added up in parts without a wider type.
    if exact or inside:
        return Regions(network)
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
    return Regions(network, HiddenGroups(network, shapes, constants, opset).found())


def _require_sizes(model: ir.Model, shapes: Shapes) -> None:
    """Raise ModelError where the size of an input or a tensor is not known."""
    open_ = next((value for value in values(model) if value.name and shapes.sizes(value) is None), None)
    if open_ is not None:
        raise ModelError(f"the size of {open_.name!r} is not known: {shapes.reason(open_)}")


@dataclass(frozen=True)
class WrittenSchedule:
    """A schedule, the model that it was written into, and the plan of that."""

    schedule: FitSchedule
    model: ir.Model
    nodes: int
    planned: ModelPlan
    tiled: TileResult | None = None


def as_it_is(subject: FitSubject, progress: Progress) -> WrittenSchedule:
    """Return the model without a region that is cut; with limits its products are tiled."""
    schedule = FitSchedule(tuple(subject.regions.whole))
    if subject.limits is None and not subject.fuses:
        return WrittenSchedule(schedule, subject.model, subject.before.nodes, subject.planned)
    return written(subject, schedule, progress)


def _tokens_cut(subject: FitSubject, wanted: FitTarget) -> UnblockedModel | None:
    """Return the model with its heads apart and as few pieces of its tokens as fit; else those of the least peak, if below the arena."""
    best: UnblockedModel | None = None
    least = subject.before.arena
    for one in token_cuts(subject.model, subject.shapes):
        whole = _regions(one.model, one.shapes, Constants(one.model), exact=True).whole
        peak = max(region.peak for region in whole)
        if wanted.nodes is not None and len(whole) > wanted.nodes:
            break
        if peak < least:
            best, least = one, peak
        elif best is not None:
            break
        if wanted.capacity is not None and peak <= wanted.capacity:
            break
    return best


def _fitted(subject: FitSubject, wanted: FitTarget, progress: Progress) -> WrittenSchedule | None:
    """Return the schedule whose arena fits, planned; else the one with the smallest arena; None over the bound of nodes.

    A schedule is planned quickly first: another one is looked for where its arena is too large so.
    """
    best: DraftedSchedule | None = None
    target = wanted
    for _ in range(_ATTEMPTS):
        schedule = search(subject.regions, target, progress)
        found = drafted(subject, schedule, progress)
        # One kernel of the search may stand for several nodes: a quantised island does.
        more = 0 if wanted.nodes is None else max(found.nodes - wanted.nodes, 0)
        if not more and (best is None or found.arena < best.arena):
            best = found
        over = 0 if wanted.capacity is None else max(found.arena - wanted.capacity, 0)
        if not (over or more) or schedule.peak > (target.capacity or schedule.peak):
            break
        # Gaps between buffers took more than the capacity: look for a schedule with as many bytes less.
        less = None if target.capacity is None else max(target.capacity - over, 1)
        fewer = None if target.nodes is None else max(target.nodes - more, 1)
        target = replace(target, capacity=less, nodes=fewer)
    return None if best is None else best.planned(subject, progress)


@dataclass(frozen=True)
class DraftedSchedule:
    """A schedule and the model that it was written into, opened, with the kernels of a quantised one counted; not planned yet."""

    schedule: FitSchedule
    model: ir.Model
    nodes: int
    opened: OpenedModel
    tiled: TileResult | None

    @property
    def arena(self) -> int:
        """The bytes of the arena in the order in which it was written, planned with little effort; the plan's is no larger."""
        return self.allocation.size

    @property
    def peak(self) -> int:
        """The most bytes that live at once in the order in which it was written."""
        return self.allocation.arenas[0].problem.peak[0]

    @cached_property
    def allocation(self) -> Allocation:
        """The offsets in the order in which it was written, planned with little effort."""
        return quick_allocation(self.opened.unfolded, settings_of(PlanOptions(self.model)))

    def planned(self, subject: FitSubject, progress: Progress) -> WrittenSchedule:
        """Return the schedule with the plan of its model."""
        progress("planning")
        plan = _plan(self.model, self.opened, subject.about)
        return WrittenSchedule(self.schedule, self.model, self.nodes, plan, self.tiled)


def written(subject: FitSubject, schedule: FitSchedule, progress: Progress) -> WrittenSchedule:
    """Return a copy of the model with the schedule written into it, and its plan, which has passed the check."""
    return drafted(subject, schedule, progress).planned(subject, progress)


def drafted(subject: FitSubject, schedule: FitSchedule, progress: Progress) -> DraftedSchedule:
    """Return a copy of the model with the schedule written into it."""
    progress("writing")
    model = subject.model.clone()
    copied = subject.shapes.of_copies(dict(zip(values(subject.model), values(model), strict=True)))
    # Before IR version 4 constants are inputs, too: one that is no longer read must not become an input alone.
    raise_ir_version(model)
    constants = Constants(model)
    pieces = write(model, schedule, _regions(model, copied, constants), copied, constants)
    if subject.wrap:
        wrap(model, pieces)
    copied = known_shapes(model, copied)
    if subject.fuses:
        from onnxtile.verbs.flows.fitting_fused import fuse_pieces

        copied = fuse_pieces(model, copied)
    tiled = None
    if subject.limits is not None:
        model, copied, tiled = _tiled(model, copied, subject.limits, progress)
    nodes = _running(model, Constants(model))
    return DraftedSchedule(schedule, model, nodes, _opened(model, known_shapes(model, copied)), tiled)


def _tiled(model: ir.Model, shapes: Shapes, limits: Limits, progress: Progress) -> tuple[ir.Model, Shapes, TileResult]:
    """Return a model whose products are tiled within `limits`, its shapes, and the result of tiling."""
    progress("tiling")
    policy = TilingPolicy()
    ready = raised_to_join(model, shapes, limits, policy, none_known, run=False)
    result = tile(ready.model, limits, ready.known, ready.constants, policy, progress)
    return ready.model, ready.known, result


@dataclass(frozen=True)
class OpenedModel:
    """A model as it is planned: calls of functions are open, quantised islands are kernels, which are counted."""

    unfolded: Unfolded
    kernels: dict[str, Any] | None


def _opened(model: ir.Model, known: Shapes) -> OpenedModel:
    counted = None
    if is_quantised(model):
        model = model.clone()
        counted = choose_kernels(model, PlanOptions(model).kernels)
        known = resolve(model, run=True)
    return OpenedModel(unfold(model, known, Constants(model)), None if counted is None else counted.to_dict())


def _plan(model: ir.Model, about: OpenedModel, subject: PlanSubject) -> ModelPlan:
    """Return the plan of a model as `plan` makes it with its defaults, which has passed the check."""
    opened = about.unfolded
    settings = replace(settings_of(PlanOptions(model)), name=subject.name, dims=subject.dims)
    plan = replace(plan_model(*opened, settings), kernels=about.kernels)
    require(opened.model, plan, opened.shapes, opened.constants)
    return ModelPlan(opened, plan)
