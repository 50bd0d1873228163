"""Rewrite a model so that its activations fit a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

from onnxtile.errors import Infeasible, Mismatch, ModelError
from onnxtile.fitting.channels import HiddenGroups
from onnxtile.fitting.quantised import inside_islands, separate
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import FitSchedule, Regions
from onnxtile.fitting.result import FitStep, ModelCost, Obstacle, obstacle_of, steps_of
from onnxtile.fitting.search import FitTarget, search
from onnxtile.fitting.unread_results import leave_out_unread
from onnxtile.fitting.write import write
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind
from onnxtile.model.infer import values
from onnxtile.model.load import load
from onnxtile.model.plan_marks import clear_plan
from onnxtile.model.quantising import is_quantised
from onnxtile.model.save import raise_ir_version
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.unfold import unfold
from onnxtile.model.validity import check
from onnxtile.planning.model_plan import plan_model
from onnxtile.planning.proof.published.audit import require
from onnxtile.planning.result import PlanResult
from onnxtile.verbs.flows.chain import RewrittenModel, file_of, verified
from onnxtile.verbs.flows.kernels import choose_kernels
from onnxtile.verbs.flows.planning import settings_of
from onnxtile.verbs.flows.stage import Progress, agreeing
from onnxtile.verbs.plan import PlanOptions
from onnxtile.verification import Verdict, judge

if TYPE_CHECKING:
    from onnxtile.verbs.fit import FitOptions

_ATTEMPTS = 6
"""Schedules that are written and planned, at most, until the plan of one fits."""


@dataclass(frozen=True, repr=False)
class FittedModel(RewrittenModel):
    """The model that fits, its plan, its costs before and after, and the steps that were taken.

    Where nothing fits, `model` and `after` are those of the smallest arena that was reached, and `blocked_by` says what is in the way.
    `verdict` is that of the runs (None where verification was off).
    """

    verb: ClassVar[str] = "fit"

    model: ir.Model
    plan_of_model: PlanResult
    memory: tuple[str, int] | None
    before: ModelCost
    after: ModelCost
    steps: tuple[FitStep, ...]
    blocked_by: Obstacle | None
    verdict: Verdict | None

    @property
    def fits(self) -> bool:
        """Whether the arena is within the capacity, if one was given."""
        return self.memory is None or self.after.arena <= self.memory[1]

    @property
    def reason(self) -> str | None:
        """The reason why nothing fits, in a line; None where it fits."""
        if self.fits or self.memory is None:
            return None
        name, size = self.memory
        where = f", where {', '.join(self.blocked_by.tensors[:3])} live" if self.blocked_by else ""
        return f"nothing fits {name} of {size:,} bytes: the smallest arena reached is {self.after.arena:,} bytes{where}"

    @property
    def summary(self) -> str:
        """The arena before and after, and what that cost."""
        extra = (self.after.macs - self.before.macs) / max(self.before.macs, 1)
        sizes = f"arena {self.before.arena:,} to {self.after.arena:,} bytes"
        return f"{sizes}, {extra:+.1%} MACs, {self.after.nodes:,} nodes, {verified(self.verdict)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `fit`."""
        return {
            "capacity": self.memory and {"name": self.memory[0], "bytes": self.memory[1]},
            "fits": self.fits,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "blocked_by": self.blocked_by and self.blocked_by.to_dict(),
            "verdict": self.verdict and self.verdict.to_dict(),
        }


def fit(options: FitOptions) -> FittedModel:
    """Fit a model as `onnxtile.fit` says."""
    from onnxtile.verbs.fit import require_memory

    require_memory(options)
    found = attempt(options)
    if found.reason is not None:
        raise Infeasible(found.reason, hint="raise the capacity, or the budget of extra MACs")
    return found


def attempt(options: FitOptions) -> FittedModel:
    """Return the model that fits, or the smallest that was reached."""
    progress, memory = options.progress, options.memory
    progress("reading the model")
    original = load(options.model)
    clear_plan(original)
    bind(original, options.dims or {}, options.whole_shapes)
    separate(original)
    progress("inferring shapes")
    shapes = resolve(original, run=options.verify)
    _require_sizes(original, shapes)
    constants = Constants(original)
    progress("planning")
    before_plan = plan = _plan(original, shapes)
    regions = _regions(original, shapes, constants, exact=options.exact)
    network = regions.network
    before = ModelCost(plan.arena_size, plan.peak, network.macs, len(network.kernels))
    if memory is not None and plan.arena_size <= memory[1]:
        return FittedModel(original, plan, memory, before, before, (), None, None, source=file_of(options.model))
    if leave_out_unread(original):
        before_plan = _plan(original, shapes)
        regions = _regions(original, shapes, constants, exact=options.exact)
    wanted = FitTarget(None if memory is None else memory[1], float(options.max_extra_macs), options.max_nodes)
    best = _written(original, shapes, regions, wanted, progress)
    chosen, fitted, plan = best
    if plan.arena_size >= before.arena:
        chosen, fitted, plan = FitSchedule(tuple(regions.whole)), original, before_plan
    after = ModelCost(
        plan.arena_size,
        plan.peak,
        sum(one.macs for one in chosen.regions),
        sum(one.nodes for one in chosen.regions),
        sum(one.copied for one in chosen.regions),
    )
    fits = memory is None or after.arena <= memory[1]
    blocked = None if fits else obstacle_of(regions, chosen.regions)
    verdict = None
    if options.verify and fits:
        progress("verifying")
        check(fitted)
        verdict = agreeing(judge(original, fitted, progress), "the fitted model")
        if options.exact and any(output.max_abs for output in verdict.outputs):
            worst = max(verdict.outputs, key=lambda output: output.max_abs)
            raise Mismatch(
                f"{worst.name!r} of the fitted model is not equal to the last bit: it is off by {worst.max_abs:.3g}",
                hint="nothing was written; onnxruntime adds up strips in another order here: leave out --exact",
            )
    return FittedModel(
        fitted,
        plan,
        memory,
        before,
        after,
        steps_of(regions, chosen.regions),
        blocked,
        verdict,
        source=file_of(options.model),
    )


def _regions(model: ir.Model, shapes: Shapes, constants: Constants, *, exact: bool = False) -> Regions:
    """Return the regions of a model; `exact` says that no sum may be added up in another order."""
    inside = inside_islands(model, constants)
    network = read_network(model, shapes, constants, inside)
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


def _written(
    original: ir.Model, shapes: Shapes, regions: Regions, wanted: FitTarget, progress: Progress
) -> tuple[FitSchedule, ir.Model, PlanResult]:
    """Return the schedule, the model and its plan whose arena fits; else the smallest."""
    best: tuple[FitSchedule, ir.Model, PlanResult] | None = None
    target = wanted
    for _ in range(_ATTEMPTS):
        schedule = search(regions, target, progress)
        model, plan = _planned(original, shapes, schedule, progress)
        if best is None or plan.arena_size < best[2].arena_size:
            best = schedule, model, plan
        if wanted.capacity is None or plan.arena_size <= wanted.capacity or schedule.peak > (target.capacity or 0):
            break
        # Gaps between buffers took more than the capacity: look for a schedule with as many bytes less.
        over = plan.arena_size - wanted.capacity
        target = replace(target, capacity=max((target.capacity or 0) - over, 1))
    assert best is not None
    return best


def _planned(
    original: ir.Model, shapes: Shapes, schedule: FitSchedule, progress: Progress
) -> tuple[ir.Model, PlanResult]:
    """Return a copy of the model with the schedule written into it, and its plan, which has passed the check."""
    progress("writing")
    model = original.clone()
    copied = shapes.of_copies(dict(zip(values(original), values(model), strict=True)))
    # Before IR version 4 constants are inputs, too: one that is no longer read must not become an input alone.
    raise_ir_version(model)
    constants = Constants(model)
    write(model, schedule, _regions(model, copied, constants), copied, constants)
    progress("planning")
    return model, _plan(model, _known(model, copied))


def _plan(model: ir.Model, known: Shapes) -> PlanResult:
    """Return the plan of a model as `plan` makes it with its defaults, which has passed the check."""
    defaults = PlanOptions(model)
    if is_quantised(model):
        model = model.clone()
        choose_kernels(model, defaults.kernels)
        known = resolve(model, run=True)
    opened = unfold(model, known, Constants(model))
    plan = plan_model(*opened, settings_of(defaults))
    require(opened.model, plan, opened.shapes, opened.constants)
    return plan


def _known(model: ir.Model, shapes: Shapes) -> Shapes:
    """Return the shapes of the written model: those known before, and those of the pieces."""
    dtypes, dims = {}, {}
    for value in values(model):
        dtype, sizes = shapes.dtype(value) or value.dtype, shapes.dims(value)
        if dtype is not None:
            dtypes[value] = dtype
        if sizes is None and value.shape is not None:
            sizes = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        if sizes is not None:
            dims[value] = sizes
    return Shapes(dtypes, dims)
