"""A schedule written into a copy of a model: placed with little effort first, and planned in full where it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxtile.fitting.channels import HiddenGroups
from onnxtile.fitting.quantised import island_tensors
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.result import ModelCost
from onnxtile.fitting.schedule import FitSchedule
from onnxtile.fitting.unblocking.editing import known_shapes
from onnxtile.fitting.wrap import wrap
from onnxtile.fitting.write import write
from onnxtile.model.constants import Constants
from onnxtile.model.infer import values
from onnxtile.model.quantising import is_quantised
from onnxtile.model.save import raise_ir_version
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.unfold import Unfolded, is_kernel, unfold
from onnxtile.planning.model_plan import plan_model
from onnxtile.planning.offsets.memories import Allocation
from onnxtile.planning.proof.published.audit import require
from onnxtile.planning.quick_arena import quick_allocation
from onnxtile.tiling.options import TilingPolicy
from onnxtile.tiling.rewrite import tile
from onnxtile.tiling.tileable import none_known
from onnxtile.verbs.flows.fitted_model import ModelPlan
from onnxtile.verbs.flows.kernels import choose_kernels
from onnxtile.verbs.flows.planning import settings_of
from onnxtile.verbs.flows.raising import raised_to_join
from onnxtile.verbs.flows.stage import Progress
from onnxtile.verbs.plan import PlanOptions

if TYPE_CHECKING:
    from onnxtile.tiling.limits import Limits
    from onnxtile.tiling.result import TileResult


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
        plan = planned_model(self.model, self.opened, subject.about)
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
    is_cut = not schedule.is_whole
    pieces = write(model, schedule, regions_of(model, copied, constants), copied, constants) if is_cut else []
    if subject.wrap:
        wrap(model, pieces)
    copied = known_shapes(model, copied)
    if subject.fuses:
        from onnxtile.verbs.flows.fitting_fused import fuse_pieces

        copied = fuse_pieces(model, copied)
    tiled = None
    if subject.limits is not None:
        model, copied, tiled = _tiled(model, copied, subject.limits, progress)
    nodes = running_nodes(model, Constants(model))
    return DraftedSchedule(schedule, model, nodes, opened_model(model, known_shapes(model, copied)), tiled)


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


def opened_model(model: ir.Model, known: Shapes) -> OpenedModel:
    """Return a model with its functions open; the islands of a quantised one are kernels."""
    counted = None
    if is_quantised(model):
        model = model.clone()
        counted = choose_kernels(model, PlanOptions(model).kernels)
        known = resolve(model, run=True)
    return OpenedModel(unfold(model, known, Constants(model)), None if counted is None else counted.to_dict())


def planned_model(model: ir.Model, about: OpenedModel, subject: PlanSubject) -> ModelPlan:
    """Return the plan of a model as `plan` makes it with its defaults, which has passed the check."""
    opened = about.unfolded
    settings = replace(settings_of(PlanOptions(model)), name=subject.name, dims=subject.dims)
    plan = replace(plan_model(*opened, settings), kernels=about.kernels)
    require(opened.model, plan, opened.shapes, opened.constants)
    return ModelPlan(opened, plan)


def regions_of(model: ir.Model, shapes: Shapes, constants: Constants, *, exact: bool = False) -> Regions:
    """Return the regions of a model; `exact` says that no sum may be added up in another order."""
    of_islands = island_tensors(model, constants)
    network = read_network(model, shapes, constants, of_islands, exact=exact)
    if exact:
        return Regions(network)
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
    # Sums of quantised products cannot be added up in parts without a wider type.
    groups = HiddenGroups(network, shapes, constants, opset, sums=not of_islands.inside)
    return Regions(network, groups.found())


def running_nodes(model: ir.Model, constants: Constants) -> int:
    """Return the number of nodes that run, in the functions of regions too; nodes that make constants do not."""
    made = {node for node in model.graph if all(value in constants for value in node.outputs)}
    inside = (model.functions.get(node.op_identifier()) for node in model.graph if node not in made)
    bodies = [
        0 if body is None or is_kernel(body) else sum(node.op_type != "Constant" for node in body) - 1
        for body in inside
    ]
    return len(bodies) + sum(bodies)
