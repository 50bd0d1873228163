"""A schedule written into a copy of a model: placed with little effort first, and planned in full where it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxtile.check.audit import require
from onnxtile.fitting.channels import HiddenGroups
from onnxtile.fitting.live_bytes import ALIGNMENT, uncut_peak
from onnxtile.fitting.read_network import island_tensors, read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.result import ModelCost
from onnxtile.fitting.rewrites.editing import known_shapes
from onnxtile.fitting.rewrites.rewrite import ModelRewrite, token_cuts
from onnxtile.fitting.search import FitTarget, attempts, search_soon, search_within
from onnxtile.fitting.strips import FitSchedule
from onnxtile.fitting.write import wrap, write
from onnxtile.fusion.fuse import fuse
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import is_quantised
from onnxtile.model.save import raise_ir_version
from onnxtile.planning.model_plan import plan_model, quick_allocation
from onnxtile.planning.offsets.memories import Allocation
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded, is_kernel, unfold
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.progress import Progress
from onnxtile.tiling.contraction import none_known
from onnxtile.tiling.limits import TilingPolicy
from onnxtile.tiling.tile import tile
from onnxtile.verbs.flows.fitted_model import ModelPlan
from onnxtile.verbs.flows.fusing import chosen_patterns
from onnxtile.verbs.flows.kernels import choose_kernels, settings_of
from onnxtile.verbs.flows.tiling import raised_to_join
from onnxtile.verbs.options.plan import PlanOptions

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


# The attempts of a fit: schedules are looked for, written and placed, until the plan of one fits the capacity.

_SOON_PLANNED = 2000
"""Nodes of all schedules together, at most, that are planned in full before a smaller one is looked for."""


class FitAttempts:
    """Looks for a schedule whose arena is `wanted`, for smaller peaks where gaps between buffers take too many bytes."""

    def __init__(self, subject: FitSubject, wanted: FitTarget, progress: Progress) -> None:
        self.subject, self.wanted, self.progress = subject, wanted, progress
        self.best: DraftedSchedule | None = None
        self.arena = 0
        """The bytes of the best schedule: of its plan, or placed with little effort where it has none."""
        self.full: WrittenSchedule | None = None
        """The best schedule with its plan, where that was made."""
        self.left = _SOON_PLANNED
        self.known: list[tuple[int, int]] = []
        """Capacities, from the first number to the second, of which all that a search would find is known."""

    def result(self) -> WrittenSchedule | None:
        """Return the schedule whose arena fits, planned; else the one with the smallest arena; None over the bound of nodes."""
        target, last, is_cut_short = self.wanted, None, False
        for _ in range(attempts(len(self.subject.regions.network.kernels))):
            schedule = self._found(target)
            is_cut_short |= self.subject.regions.is_cut_short
            if schedule is not None and (last is None or schedule != last.schedule):
                last = drafted(self.subject, schedule, self.progress)
                arena, more = self._noted(last)
            over = 0 if self.wanted.capacity is None else max(arena - self.wanted.capacity, 0)
            if not (over or more):
                break
            fewer = None if target.nodes is None else max(target.nodes - more, 1)
            capacity = target.capacity
            if capacity is not None and not more:
                capacity = self._next(schedule, capacity, over)
                if capacity is None:
                    break
            target = replace(target, capacity=capacity, nodes=fewer)
        else:
            is_cut_short = True  # further capacities are left
        self.subject.regions.is_cut_short = is_cut_short
        if self.full is not None or self.best is None:
            return self.full
        return self.best.planned(self.subject, self.progress)

    def _found(self, target: FitTarget) -> FitSchedule | None:
        """Return a schedule; None where another is known, and none is found within the capacity of the target."""
        find = search_soon if self.best is None or target.capacity is None else search_within
        return find(self.subject.regions, target, self.progress)

    def _noted(self, found: DraftedSchedule) -> tuple[int, int]:
        """Return the bytes of the arena of a schedule, and the nodes that it has too many; note the schedule where it is the best."""
        # One kernel of the search may stand for several nodes: a quantised island does.
        more = 0 if self.wanted.nodes is None else max(found.nodes - self.wanted.nodes, 0)
        if more:
            return found.arena, more
        full = self._soon_planned(found)
        arena = found.arena if full is None else full.planned.plan.arena_size
        if self.best is None or arena < self.arena:
            self.best, self.arena, self.full = found, arena, full
        return arena, 0

    def _soon_planned(self, found: DraftedSchedule) -> WrittenSchedule | None:
        """Return a schedule with its plan, where little effort does not let it fit, but the plan may close the gaps between buffers."""
        capacity = self.wanted.capacity
        if capacity is None or found.arena <= capacity or found.peak > capacity or found.nodes > self.left:
            return None
        self.left -= found.nodes
        return found.planned(self.subject, self.progress)

    def _next(self, found: FitSchedule | None, capacity: int, over: int) -> int | None:
        """Return the capacity to look within after a schedule was `found` within one, or none; None where all are known.

        It has as many bytes less as the arena is `over` the one that is wanted, or lies between those known: the lowest first, since an
        arena mostly grows with its peak.
        """
        if found is None:
            self.known.append((0, capacity))
        elif found.peak > capacity:
            self.known.append((0, found.peak))
        else:
            self.known.append((found.peak, capacity))
        known = sorted({(0, 0), *self.known})
        for (_, low), (high, _) in pairwise(known):
            if high > low + ALIGNMENT:
                return high - over if high - over > low else (low + high) // 2
        return None


# Tokens in pieces and heads one after the other, in as few pieces as fit.

_KERNELS = 60_000
"""Kernels of all numbers of pieces that are tried, at most."""


@dataclass(frozen=True)
class TokensCut:
    """The model with its heads apart and its tokens in pieces, and the rewrites."""

    subject: FitSubject
    rewrites: tuple[ModelRewrite, ...]

    @property
    def peak(self) -> int:
        """The largest sum of live bytes."""
        return self._schedule.peak

    @property
    def _schedule(self) -> FitSchedule:
        return FitSchedule(tuple(self.subject.regions.whole))

    def may_fit(self, wanted: FitTarget) -> bool:
        """Return whether the live bytes are within the capacity that is wanted, or the fewest are."""
        return wanted.capacity is None or self.peak <= wanted.capacity

    def written(self, progress: Progress) -> WrittenSchedule:
        """Return the model, planned."""
        return written(self.subject, self._schedule, progress)


def tokens_cut(subject: FitSubject, wanted: FitTarget) -> TokensCut | None:
    """Return the model with its heads apart and as few pieces of its tokens as fit, and its kernels as regions, of which none is cut.

    Where none fits, those of the least peak, if below the arena.
    """
    best: TokensCut | None = None
    least, left = subject.before.arena, _KERNELS
    before: tuple[int, int] | None = None
    for count, one in token_cuts(subject.model, subject.shapes):
        regions = regions_of(one.model, one.shapes, Constants(one.model), exact=True)
        kernels = len(regions.network.kernels)
        left -= kernels
        if wanted.nodes is not None and kernels > wanted.nodes:
            break
        peak = uncut_peak(regions.network)
        if wanted.capacity is None or peak <= wanted.capacity:
            peak = max(region.peak for region in regions.whole)
        if peak < least:
            edited = replace(subject, model=one.model, shapes=one.shapes, regions=regions)
            best, least = TokensCut(edited, one.rewrites), peak
        elif best is not None:
            break
        if left < kernels or _is_settled(before, (count, peak), wanted.capacity):
            break
        before = count, peak
    return best


def _is_settled(before: tuple[int, int] | None, found: tuple[int, int], capacity: int | None) -> bool:
    """Return whether so many pieces fit, or no number of them does, by those `before`."""
    if capacity is None:
        return False
    return found[1] <= capacity or (before is not None and _limit(before, found) > capacity)


def _limit(fewer: tuple[int, int], more: tuple[int, int]) -> float:
    """Return the bytes that live with any number of pieces, by the bytes of two numbers of them.

    The bytes are the most of several sums of a constant and a part for each token of a piece: none is below the line through two of them.
    """
    return (more[1] * more[0] - fewer[1] * fewer[0]) / (more[0] - fewer[0])


def fuse_pieces(model: ir.Model, shapes: Shapes) -> Shapes:
    """Fuse a model of known `shapes` (in place) as `onnxtile fuse` does by default; return its shapes."""
    fuse(model, chosen_patterns(()), shapes=lambda: known_shapes(model, shapes), through=True)
    # Values inside the functions of meta-ops are new.
    return resolve(model, run=True)
