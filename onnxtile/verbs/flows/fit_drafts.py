"""A model to fit, and a schedule written into a copy of it: placed with little effort first, and planned in full where it is chosen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from math import pow
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.check.audit import require
from onnxtile.declare.plan_document import KernelCount
from onnxtile.fitting.channels import HiddenGroups
from onnxtile.fitting.editing import copy_of
from onnxtile.fitting.floor import Floor, NeededPart, waiting_floor
from onnxtile.fitting.live_bytes import uncut_loads
from onnxtile.fitting.network import FitKernel, Network
from onnxtile.fitting.read_network import island_tensors, read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.result import ModelCost, Obstacle
from onnxtile.fitting.rewrites.rewrite import ModelRewrite, TokenCuts, UnblockedModel, token_cuts
from onnxtile.fitting.rewrites.split_tokens import PieceReads
from onnxtile.fitting.search import SLIGHT, Descent, FitTarget, attempts
from onnxtile.fitting.strips import FitSchedule, Prices
from onnxtile.fitting.write import placing_problem, wrap, write
from onnxtile.model.binding import LeadingSizes
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import is_quantised
from onnxtile.model.opset import opset_of
from onnxtile.model.save import raise_ir_version
from onnxtile.planning.model_plan import PlanSettings, plan_model, quick_allocation
from onnxtile.planning.offsets.effort import LEVELS, NORMAL, Effort, SearchBudget
from onnxtile.planning.offsets.memories import Allocation, allocate, memories
from onnxtile.planning.offsets.problem import Problem
from onnxtile.planning.planners import find_planner
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.opened_calls import Unfolded, is_kernel, unfold
from onnxtile.shapes.resolve import Shapes, known_shapes, resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.long_work import within
from onnxtile.verbs.fit import CurveOptions, FitOptions
from onnxtile.verbs.flows.kernels import choose_kernels
from onnxtile.verbs.flows.results import ModelPlan
from onnxtile.verbs.plan import PlanOptions

if TYPE_CHECKING:
    from onnxtile.tiling.result import TileResult


@dataclass(frozen=True)
class FitSubject:
    """A `model` to cut, in which calls are written out: it computes what the `original` does.

    `planned` and `before` are its plan and its costs without `rewrites`; `settings` are those of every plan. Where it `fuses`, the pieces
    of the model are fused after it was cut. `leading` are the sizes taken for what the file leaves open. `budget` ends all searches. With
    `keeps_means`, no mean or norm becomes a sum of strips.
    """

    options: CurveOptions
    settings: PlanSettings
    original: ir.Model
    model: ir.Model
    shapes: Shapes
    regions: Regions
    planned: ModelPlan
    before: ModelCost
    rewrites: tuple[ModelRewrite, ...] = ()
    fuses: bool = False
    leading: LeadingSizes | None = None
    budget: SearchBudget | None = None
    keeps_means: bool = False

    @cached_property
    def whole(self) -> FitSchedule:
        """The schedule that cuts nothing."""
        return FitSchedule(tuple(self.regions.whole))

    @property
    def capacity(self) -> int | None:
        """The bytes of the memory to fit, the fast one of two; None where the smallest arena or the trade is asked for."""
        memory = self.options.memory if isinstance(self.options, FitOptions) else None
        return None if memory is None else memory[1]

    @cached_property
    def prices(self) -> Prices:
        """The prices of further work, by the speeds of the target."""
        return self.options.speeds.prices(self.regions.network)

    @cached_property
    def seconds(self) -> float:
        """The time of the model as it is in seconds, by the speeds of the target."""
        return self.options.speeds.seconds(self.regions.network)

    def estimate(self, schedule: FitSchedule) -> float:
        """Return the time of the model with a schedule in seconds, by the speeds of the target."""
        network = self.regions.network
        return self.seconds * (1 + sum(self.prices.price_of(region, network) for region in schedule.regions))

    @property
    def kernels(self) -> int:
        """The number of kernels of the search."""
        return len(self.regions.network.kernels)

    @property
    def extra_left(self) -> float:
        """The extra MACs that the budget leaves after the rewrites, as a share of those of the model; negative beyond it."""
        most = (1 + self.options.extra_macs) * self.before.macs
        return most / self.regions.network.macs - 1 if self.regions.network.macs else 0.0

    @cached_property
    def token_trials(self) -> TokenTrials:
        """The model with more and more pieces of its tokens."""
        return TokenTrials(self)

    def rewritten(self, edit: UnblockedModel) -> FitSubject:
        """Return the model after further rewrites."""
        exact = self.options.exact
        regions = regions_of(edit.model, edit.shapes, Constants(edit.model), exact=exact, io=self.settings.io)
        rewrites = self.rewrites + edit.rewrites
        return replace(self, model=edit.model, shapes=edit.shapes, regions=regions, rewrites=rewrites)

    def as_it_is(self) -> WrittenSchedule:
        """Return the model without a region that is cut; with limits its products are tiled."""
        if self.options.limits is not None or self.fuses or self.options.streamed:
            return WrittenSchedule(self, self.whole)
        opened = OpenedModel(self.planned.opened, self.planned.plan.kernels)
        known = WrittenModel(self.model, self.before.nodes, opened)
        return WrittenSchedule(self, self.whole, known, self.planned)

    @property
    def edits_pieces(self) -> bool:
        """Whether the nodes of a schedule are edited after they are written, so that other tensors may live."""
        options = self.options
        return self.fuses or options.wraps or options.limits is not None or bool(options.streamed)


_FULLY_PLANNED = 500
"""Nodes above which a plan with little effort gets no more where it fits, and any other is made in the order of the schedule.

`plan` may find a smaller arena for these.
"""
_STEPS = 500_000
"""The steps for a plan of more buffers than nodes are planned in full: further ones seldom lower its arena."""
_ORDER_STEPS = 20_000
"""The steps for other orders of what fits a capacity: further ones raise the bound of all orders, and seldom lower the arena."""
_ROUGHLY = replace(LEVELS["low"], steps=50_000)
"""The effort for the arena with inputs in the other place, which is shown as an upper bound."""


@dataclass(frozen=True)
class WrittenModel:
    """A model into which a schedule was written, with its running `nodes`, and `opened` for its plan."""

    model: ir.Model
    nodes: int
    opened: OpenedModel
    tiled: TileResult | None = None


@dataclass(frozen=True)
class WrittenSchedule:
    """A schedule of the `subject`, written into its model and planned when these are asked for.

    `is_cut_short` says that the bound of its work ended the search for it.
    """

    subject: FitSubject
    schedule: FitSchedule
    written_known: WrittenModel | None = None
    plan_known: ModelPlan | None = None
    is_cut_short: bool = False
    obstacle: Obstacle | None = None
    """What is in the way of the capacity, where that was known without a search."""
    floor: int = 0
    """The bytes that no way to cut the model goes below, as far as they are known."""

    @cached_property
    def written(self) -> WrittenModel:
        """The model with the schedule."""
        return self.written_known or written_model(self.subject, self.schedule)

    @property
    def nodes(self) -> int:
        """The nodes that run."""
        return self.written.nodes

    @property
    def arena(self) -> int:
        """The bytes of the arena in the order in which it is written, placed with little effort."""
        return self.allocation.size

    @property
    def peak(self) -> int:
        """The most bytes that live at once in the order in which it is written."""
        return self.allocation.arenas[0].problem.peak[0]

    @cached_property
    def allocation(self) -> Allocation:
        """The offsets in the order in which it is written: with little effort where that is planned after it, or has many buffers.

        It is written before only where it is edited then.
        """
        effort = replace(LEVELS["low"] if self.is_small else NORMAL, enough=self.subject.capacity or 0)
        return self.placed(self.subject.settings, self.subject.regions, effort)

    def placed_with(self, settings: PlanSettings) -> Allocation:
        """Return the offsets with inputs or outputs in another place, as `settings` say, in the order in which it is written."""
        regions = self.subject.regions
        return self.placed(settings, Regions(regions.network.placed(settings.io), regions.groups), _ROUGHLY)

    def placed(self, settings: PlanSettings, regions: Regions, effort: Effort) -> Allocation:
        """Return the offsets in the order in which it is written, placed with some effort."""
        if self.subject.edits_pieces:
            return quick_allocation(self.written.opened.unfolded, settings)
        problem = placing_problem(regions, self.schedule)
        effort = effort.stages[0] if _has_many(problem) else effort
        return allocate(problem, memories(None), find_planner(settings.planner), effort)

    @property
    def settled(self) -> WrittenSchedule:
        """The same, written and planned: few nodes that do not fit a capacity as `plan` plans them, since another order may take less."""
        planned, capacity = self.planned, self.subject.capacity or 0
        if self.plan_known is None and self.is_small and planned.plan.arena_size > capacity:
            effort = replace(self.subject.settings.effort, enough=capacity)
            planned = planned_model(self.written.opened, replace(self.subject.settings, effort=effort))
        return replace(self, written_known=self.written, plan_known=planned)

    @cached_property
    def planned(self) -> ModelPlan:
        """The plan of the model, which has passed the check."""
        if self.plan_known is None:
            self.subject.options.progress("planning")
            return planned_model(self.written.opened, self._settings)
        return self.plan_known

    @property
    def _settings(self) -> PlanSettings:
        """The settings of its plan: in other orders where few nodes fit a capacity as they were placed, else in its own, until it fits.

        Little effort is for few nodes, which may be planned in full after that.
        """
        settings, capacity = self.subject.settings, self.subject.capacity or 0
        if self.is_small and self.arena <= capacity:
            return replace(settings, order_steps=_ORDER_STEPS, effort=LEVELS["low"])
        effort = settings.effort
        if self.is_small or _has_many(self.allocation.arenas[0].problem):
            effort = replace(effort, steps=min(effort.steps, LEVELS["low"].steps if self.is_small else _STEPS))
        return replace(settings, order="model", order_steps=0, effort=replace(effort, enough=capacity))

    @property
    def _counted_nodes(self) -> int:
        """The nodes that run: those that the search counts, where it need not be written for this."""
        return self.nodes if self.subject.edits_pieces else self.schedule.nodes

    @property
    def is_small(self) -> bool:
        """Whether it has so few nodes that it is planned in full."""
        return self._counted_nodes <= _FULLY_PLANNED

    def fits_planned(self, capacity: int) -> bool:
        """Return whether its plan is within a capacity; it is only made where its buffers could be placed so."""
        return self.least_arena <= capacity and self.plan.arena_size <= capacity

    @cached_property
    def least_arena(self) -> int:
        """The bytes of the arena with all the effort that a capacity below it would get in its search."""
        is_least = self.arena <= max(self.peak, self.subject.capacity or 0)
        return self.arena if is_least or not self.is_small else min(self.arena, self.plan.arena_size)

    @property
    def plan(self) -> PlanResult:
        """The plan without the model."""
        return self.planned.plan

    @property
    def cost(self) -> ModelCost:
        """The costs of the model, with its time estimated by the speeds of the target."""
        return replace(cost(self.schedule, self.plan, self.nodes), seconds=self.subject.estimate(self.schedule))

    @property
    def extra_macs(self) -> int:
        """The multiply-accumulates that are done again."""
        return self.schedule.macs - self.subject.before.macs

    def price(self, prices: Prices) -> float:
        """Return the price of the multiply-accumulates that are done again, of the nodes, and of the bytes that cutting copies."""
        macs = max(self.subject.before.macs, 1)
        nodes, copied = self._counted_nodes, self.schedule.copied
        return prices.macs * self.extra_macs / macs + prices.node * nodes + prices.copied * copied

    def fits(self, capacity: int | None) -> bool:
        """Return whether the arena is within a capacity in bytes; False for None, the smallest."""
        return capacity is not None and self.least_known <= capacity

    @property
    def least_known(self) -> int:
        """The bytes of the arena: of the plan where it was made, else as it was placed."""
        is_planned = self.plan_known is not None or "planned" in vars(self)
        return self.plan.arena_size if is_planned else self.least_arena

    def worth(self, capacity: int | None, prices: Prices) -> tuple[int, float, int]:
        """Return a key that is least for the best result: one that fits for the lowest price, and else the smallest arena.

        Results of several forms of a model are compared by the same `prices`.
        """
        arena = self.least_known
        over = arena if capacity is None else max(arena - capacity, 0)
        return over, self.price(prices), arena

    @property
    def is_slight(self) -> bool:
        """Whether the model as it is would hardly be quicker."""
        prices = self.subject.prices
        return self.extra_macs <= 0 and self.price(prices) - prices.node * self.subject.before.nodes <= SLIGHT

    def moved(self, settings: PlanSettings) -> WrittenSchedule:
        """Return the model with the copies between two memories, and its plan, which has passed the check. Raises Infeasible."""
        from onnxtile.planning.movement.plan import plan_with_movement  # few plans have a movement

        model, counted = with_islands(self.written.model)
        self.subject.options.progress("planning")
        moved = plan_with_movement(model, resolve(model, run=True), Constants(model), settings)
        planned = _checked(moved.opened, replace(moved.result, kernels=counted))
        return replace(self, written_known=replace(self.written, model=moved.model), plan_known=planned)


def _has_many(problem: Problem) -> bool:
    """Return whether a problem has so many buffers that more effort seldom lowers its arena."""
    return len(problem.buffers) > _FULLY_PLANNED


def cost(schedule: FitSchedule, plan: PlanResult, nodes: int) -> ModelCost:
    """Return the costs of a planned model of so many `nodes`, into which a schedule was written; of two memories, those of the fast one."""
    fast = plan.arenas[0]
    return ModelCost(fast.size, fast.peak, schedule.macs, nodes, schedule.copied)


def written_model(subject: FitSubject, schedule: FitSchedule) -> WrittenModel:
    """Return a copy of the model with the schedule written into it."""
    options = subject.options
    options.progress("writing")
    model, shapes = copy_of(subject.model, subject.shapes)
    # Before IR version 4 constants are inputs, too: one that is no longer read must not become an input alone.
    raise_ir_version(model)
    constants = Constants(model)
    pieces: list[list[ir.Node]] = []
    if not schedule.is_whole:
        pieces = write(model, schedule, regions_of(model, shapes, constants, io=subject.settings.io), shapes, constants)
    if options.wraps:
        wrap(model, pieces)
    shapes = known_shapes(model, shapes)
    if subject.fuses:
        shapes = fuse_pieces(model, shapes)
    tiled = None
    if options.limits is not None:
        from onnxtile.tiling.contraction import none_known  # few fits tile
        from onnxtile.tiling.limits import TilingPolicy
        from onnxtile.tiling.tile import tile
        from onnxtile.verbs.flows.tile import raised_to_join

        options.progress("tiling")
        policy = TilingPolicy()
        ready = raised_to_join(model, shapes, options.limits, policy, none_known, run=False)
        tiled = tile(ready.model, options.limits, ready.known, ready.constants, policy, options.progress)
        model, shapes = ready.model, known_shapes(ready.model, ready.known)
    nodes = running_nodes(model, Constants(model))
    return WrittenModel(model, nodes, opened_model(model, shapes), tiled)


@dataclass(frozen=True)
class OpenedModel:
    """A model as it is planned: calls of functions are open, quantised islands are kernels, which are counted."""

    unfolded: Unfolded
    kernels: KernelCount | None


def opened_model(model: ir.Model, known: Shapes) -> OpenedModel:
    """Return a model with its functions open; the islands of a quantised one are kernels."""
    islands, counted = with_islands(model)
    known = known if islands is model else resolve(islands, run=True)
    return OpenedModel(unfold(islands, known, Constants(islands)), counted)


def with_islands(model: ir.Model) -> tuple[ir.Model, KernelCount | None]:
    """Return a copy of a quantised model whose islands are kernels, and their counts; any other model is returned itself."""
    if not is_quantised(model):
        return model, None
    model = model.clone()
    return model, choose_kernels(model, PlanOptions(model).kernels)


def planned_model(about: OpenedModel, settings: PlanSettings) -> ModelPlan:
    """Return the plan of a model, which has passed the check."""
    return _checked(about.unfolded, replace(plan_model(*about.unfolded, settings), kernels=about.kernels))


def _checked(opened: Unfolded, plan: PlanResult) -> ModelPlan:
    require(opened.model, plan, opened.shapes, opened.constants)
    return ModelPlan(opened, plan)


def regions_of(
    model: ir.Model, shapes: Shapes, constants: Constants, *, exact: bool = False, io: str = "outputs"
) -> Regions:
    """Return the regions of a model; `exact` says that no sum may be added up in another order, `io` what of its ends the arena has."""
    of_islands = island_tensors(model, constants)
    network = read_network(model, shapes, constants, of_islands, exact=exact, io=io)
    if exact:
        return Regions(network)
    # Sums of quantised products cannot be added up in parts without a wider type.
    groups = HiddenGroups(network, shapes, constants, opset_of(model), sums=not of_islands.inside)
    return Regions(network, groups.found())


def running_nodes(model: ir.Model, constants: Constants) -> int:
    """Return the number of nodes that run, in the functions of regions too; nodes that make constants do not."""
    constant_nodes = {node for node in model.graph if all(value in constants for value in node.outputs)}
    inside = (model.functions.get(node.op_identifier()) for node in model.graph if node not in constant_nodes)
    bodies = [
        0 if body is None or is_kernel(body) else sum(node.op_type != "Constant" for node in body) - 1
        for body in inside
    ]
    return len(bodies) + sum(bodies)


def fuse_pieces(model: ir.Model, shapes: Shapes) -> Shapes:
    """Fuse a model of known `shapes` (in place) as `onnxtile fuse` does by default; return its shapes."""
    from onnxtile.fusion.fuse import fuse  # a fit without it reads no patterns
    from onnxtile.fusion.pattern import chosen_patterns

    fuse(model, chosen_patterns(()), shapes=lambda: known_shapes(model, shapes), through=True)
    # Values inside the functions of meta-ops are new.
    return resolve(model, run=True)


# The attempts of a fit: schedules are looked for, written and placed, until the plan of one fits the capacity.


class FitAttempts:
    """Writes points of the way down of a model until the plan of one is as small as `wanted`."""

    def __init__(self, subject: FitSubject, wanted: FitTarget) -> None:
        self.subject, self.wanted, self.capacity = subject, wanted, wanted.capacity
        self.known: dict[FitSchedule, WrittenSchedule] = {}
        self._ways: dict[int | None, tuple[Descent, WrittenSchedule | None]] = {}
        """By the bound of nodes, the way down, and the schedule that fits without going the whole of it."""

    def result(self, *, goes_down: bool = True, below: int = sys.maxsize) -> WrittenSchedule | None:
        """Return the schedule whose arena fits; else the one with the smallest arena, if `below` a size; None over the bound of nodes.

        Without `goes_down`, only schedules within the capacity are looked for, and None is returned where none fits.
        """
        regions, wanted, most = self.subject.regions, self.wanted, attempts(self.subject.kernels)
        if wanted.has_many_nodes(self.subject.whole):
            return None  # no cut has fewer nodes than the model as it is
        for number in range(1, most + 1):
            progress = self.subject.options.progress
            progress = (
                progress if number == 1 else within(progress, f"attempt {number} of at most {most}, for fewer nodes")
            )
            if wanted.nodes not in self._ways:
                way = Descent(regions, wanted, progress)
                self._ways[wanted.nodes] = way, self._within(way, most)
            way, best = self._ways[wanted.nodes]
            if best is None and not goes_down:
                return None
            best = best or self._smallest(way, most, below)
            # One kernel of the search may stand for several nodes: a quantised island does.
            more = 0 if wanted.nodes is None or best is None else best.nodes - (self.wanted.nodes or 0)
            if more <= 0:
                return best
            wanted = replace(wanted, nodes=max((wanted.nodes or 0) - more, 1))
        regions.is_cut_short = True
        return None

    def _within(self, way: Descent, most: int) -> WrittenSchedule | None:
        """Return the quickest schedule whose arena fits the capacity; None where none of those that are tried does."""
        if self.capacity is None:
            return None
        quickest = self._quickest(way, self.capacity, most)
        drafts = (self._draft(point) for point in islice(way.within(self.capacity), 0 if quickest else most))
        return quickest or next((draft for draft in drafts if draft.fits_planned(self.capacity)), None)

    def _quickest(self, way: Descent, capacity: int, most: int) -> WrittenSchedule | None:
        """Return the quickest schedule whose arena fits a capacity: where gaps keep one from it, the next takes so many bytes less."""
        room = capacity
        for _ in range(most):
            schedule = way.quickest(room)
            if schedule is None:
                return None
            draft = self._draft(schedule)
            if draft.fits_planned(capacity):
                return draft
            room = min(schedule.peak - 1, room + capacity - draft.least_arena)
        return None

    def _smallest(self, way: Descent, most: int, below: int) -> WrittenSchedule | None:
        """Return the quickest of all points that fits the capacity; else the schedule with the smallest arena `below` a size, if any.

        Points whose peaks are above the arena of another are not tried for it. Then nothing is found that fits a capacity below it.
        """
        points, best = way.all_points(below - 1), None
        if self.capacity is not None:
            within = sorted((point for point in points if point.peak <= (self.capacity or 0)), key=way.price)
            drafts = map(self._draft, islice(within, most))
            best = next((draft for draft in drafts if draft.fits_planned(self.capacity)), None)
            if best is not None:
                return best
        for point in sorted(points, key=lambda point: point.peak):
            if point.peak >= below:
                break
            draft = self._draft(point)
            if draft.least_arena < below:
                best, below = draft, draft.least_arena
        while (smaller := self._quickest(way, below - 1, most)) is not None:
            best, below = smaller, smaller.least_known
        return best

    def settled(self, best: WrittenSchedule) -> WrittenSchedule:
        """Return the best schedule as it is settled; where that does not fit, one below it, as long as such are found."""
        way, most, best = self._ways[self.wanted.nodes][0], attempts(self.subject.kernels), best.settled
        while self.wanted.nodes is None and not best.fits(self.capacity):
            smaller = self._quickest(way, best.least_known - 1, most)
            if smaller is None:
                break
            best = smaller.settled
        return best

    def _draft(self, point: FitSchedule) -> WrittenSchedule:
        if point not in self.known:
            self.known[point] = WrittenSchedule(self.subject, point)
        return self.known[point]


# Tokens in pieces and heads one after the other, in as few pieces as fit.

_FEW_NODES = 2_000
"""Nodes up to which any smaller number of bytes counts."""
_PROPORTION = 0.1
"""The power of the ratio of nodes by which more pieces must divide the bytes, where no capacity asks for it."""
_PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of pieces of tokens that are tried."""
_KERNELS = 60_000
"""Kernels of all numbers of pieces that are tried, at most."""
_UNSURE = 4
"""Numbers of pieces up to this one are tried even where they take no fewer bytes: some tensors are joined by copies."""
_IN_PIECES = "its tokens are in pieces"
_MENDED = 4
"""Times that segments in fewer pieces get more of them, at most."""


@dataclass(frozen=True)
class _TokenTrial:
    """A model with its tokens in pieces, which are not cut any more: the largest sums of live bytes of its segments, and of them all.

    `whole` is the largest sum of the model, with the kernels beside the pieces as they are.
    """

    count: int
    subject: FitSubject
    peak: int
    whole: int
    segments: Mapping[int, int]

    @cached_property
    def pieces(self) -> FitSchedule:
        """The kernels of the segments, each counted as it is."""
        kernels, whole = self.subject.regions.network.kernels, self.subject.regions.whole
        counted = (cost for kernel, cost in zip(kernels, whole, strict=True) if kernel.reason == _IN_PIECES)
        return FitSchedule(tuple(counted))

    def bytes_within(self, capacity: int | None) -> int:
        """Return the bytes that count for a capacity: of each piece alone where kernels beside them are still to be cut."""
        return self.pieces.peak if capacity is None or self.peak <= capacity < self.whole else self.peak

    def draft(self, wanted: FitTarget, *, goes_down: bool = True) -> WrittenSchedule:
        """Return the schedule that cuts no kernel; where one beside the pieces takes more bytes than wanted, such are cut into regions.

        Without `goes_down`, it cuts none either where no regions are found that fit.
        """
        subject, capacity = self.subject, max(wanted.capacity or 0, self.pieces.peak)
        if min(self.whole, subject.whole.peak) <= capacity:
            return WrittenSchedule(subject, subject.whole)
        left = replace(wanted, capacity=capacity, extra_macs=max(subject.extra_left, 0.0), prices=subject.prices)
        return FitAttempts(subject, left).result(goes_down=goes_down) or WrittenSchedule(subject, subject.whole)


def tokens_cut(subject: FitSubject, wanted: FitTarget) -> WrittenSchedule | None:
    """Return the model with its heads apart and as few pieces of its tokens as fit; kernels beside these are cut where they do not fit.

    Where none fits, those of the least peak, if below the arena. For the smallest arena, more pieces must save enough for their nodes.
    """
    best: _TokenTrial | None = None
    cuts = subject.token_trials.cuts
    trials, drafts = list[_TokenTrial](), list[WrittenSchedule]()
    least, before = subject.before.arena, (0, 0)
    if cuts is None:
        return None
    for trial in subject.token_trials.within(wanted):
        if not trials and wanted.capacity is not None and _peak_of_tokens(subject, trial) <= wanted.capacity:
            return None  # what is beside the tokens takes more
        trials.append(trial)
        count, peak = trial.count, trial.bytes_within(wanted.capacity)
        is_worth = wanted.capacity is not None or best is None or is_in_proportion(best.pieces, trial.pieces)
        if peak < least and is_worth:
            best, least = trial, peak
            if wanted.capacity is not None and peak <= wanted.capacity:
                drafts.append(_with_fewer_pieces(subject, cuts, best, trials, wanted))
                if drafts[-1].arena <= wanted.capacity or wanted.capacity < trial.whole or wanted.is_late:
                    break
                continue  # gaps between the buffers: more pieces may leave fewer bytes of them
        elif best is not None and count > _UNSURE:
            break
        if is_settled(before, (count, peak), wanted.capacity) or wanted.is_late:
            break
        before = (count, peak) if count > 1 else before
    if drafts or best is None:
        return min(drafts, key=lambda draft: draft.arena, default=None)
    return _with_fewer_pieces(subject, cuts, best, trials, wanted)


class TokenTrials:
    """A model with more and more pieces of its tokens: each number of pieces is tried once, whatever is asked for after that."""

    def __init__(self, subject: FitSubject) -> None:
        self._subject, self.cuts = subject, token_cuts(subject.model, subject.shapes)
        self._known: dict[int, _TokenTrial | None] = {}

    def floor(self) -> tuple[Floor, Regions]:
        """Return the bytes that no number of pieces goes below, and the network with heads apart; none of a model without tokens."""
        assert self.cuts is not None
        apart = self._subject.rewritten(UnblockedModel(self.cuts.model, self.cuts.shapes, self.cuts.rewrites))
        reads, network = self.cuts.reads(), apart.regions.network
        pieces = {
            index: _parts_of(network, kernel, nodes)
            for index, kernel in enumerate(network.kernels)
            if (nodes := [reads[part.source.node] for part in kernel.members if part.source.node in reads])
        }
        kernels = [
            replace(kernel, links=None, reason=_IN_PIECES) if index in pieces else kernel
            for index, kernel in enumerate(network.kernels)
        ]
        regions = Regions(replace(network, kernels=kernels), apart.regions.groups)
        return waiting_floor(regions, max(apart.extra_left, 0.0), pieces), regions

    def within(self, wanted: FitTarget) -> Iterator[_TokenTrial]:
        """Yield the model with more and more pieces, until there are too many kernels."""
        if self.cuts is None:
            return
        left = _KERNELS
        for count in _PIECES:
            if count not in self._known:
                self._known[count] = _token_trial(self._subject, self.cuts, count)
            trial = self._known[count]
            if trial is None or left < trial.subject.kernels or _has_too_many(trial, wanted):
                return
            left -= trial.subject.kernels
            yield trial


def _parts_of(network: Network, kernel: FitKernel, reads: Sequence[PieceReads]) -> list[NeededPart]:
    """Return how pieces of a kernel read its operands, from what those of its nodes read."""
    whole = frozenset[str]().union(*(each.whole for each in reads))
    alike = frozenset[str]().union(*(each.alike for each in reads))
    return [
        NeededPart(tensor, is_whole=name in whole, is_covered=True, is_paced=True)
        for tensor in dict.fromkeys(kernel.reads)
        if (name := network.tensors[tensor].name) in whole or name in alike
    ]


def _peak_of_tokens(subject: FitSubject, trial: _TokenTrial) -> int:
    """Return the most bytes that live while a kernel runs of which a trial has pieces."""
    network, cut = subject.regions.network, trial.subject.regions.network
    beside = {cut.tensors[kernel.makes[0]].name for kernel in cut.kernels if kernel.reason != _IN_PIECES}
    loads = zip(network.kernels, uncut_loads(network), strict=True)
    return max((load for kernel, load in loads if network.tensors[kernel.makes[0]].name not in beside), default=0)


def is_in_proportion(before: FitSchedule, after: FitSchedule) -> bool:
    """Return whether a schedule saves enough bytes for the nodes that it has more than the one before: twice the nodes, 7% at least.

    Any saving is enough for one of few nodes.
    """
    if after.nodes <= _FEW_NODES:
        return True
    return before.peak >= after.peak * pow(after.nodes / max(before.nodes, 1), _PROPORTION)


def _has_too_many(trial: _TokenTrial, wanted: FitTarget) -> bool:
    return wanted.nodes is not None and trial.subject.kernels > wanted.nodes


def _token_trial(
    subject: FitSubject, cuts: TokenCuts, count: int, counts: Mapping[int, int] = MappingProxyType({})
) -> _TokenTrial | None:
    rewritten = cuts.cut(count, counts)
    if rewritten is None:
        return None
    edited, names = subject.rewritten(rewritten[0]), rewritten[1]
    network = edited.regions.network
    loads = uncut_loads(network)
    segments: dict[int, int] = {}
    uncut = {tensor.name for tensor in subject.regions.network.tensors}
    segment, kernels = None, list[FitKernel]()
    for kernel, load in zip(reversed(network.kernels), reversed(loads), strict=True):
        # Parts of operands are taken for the node after them.
        name = network.tensors[kernel.makes[0]].name
        segment = names.get(name, None if name in uncut else segment)
        if segment is not None:
            segments[segment] = max(segments.get(segment, 0), load)
        kernels.append(kernel if segment is None else replace(kernel, links=None, reason=_IN_PIECES))
    beside = Regions(replace(network, kernels=kernels[::-1]), edited.regions.groups)
    return _TokenTrial(count, replace(edited, regions=beside), max(segments.values()), max(loads), segments)


def _with_fewer_pieces(
    subject: FitSubject, cuts: TokenCuts, best: _TokenTrial, trials: Sequence[_TokenTrial], wanted: FitTarget
) -> WrittenSchedule:
    """Return the best model with fewer pieces in the segments that take no more bytes then than the largest one, or the capacity."""
    capacity = wanted.capacity
    if capacity is not None and best.peak > capacity:
        return best.draft(wanted, goes_down=False)
    limit = most = best.peak if capacity is None else capacity
    divisors = [trial for trial in trials if best.count % trial.count == 0]
    counts = {
        segment: next((trial.count for trial in divisors if trial.segments.get(segment, 0) <= limit), best.count)
        for segment in best.segments
    }
    for _ in range(_MENDED):
        mixed = _token_trial(subject, cuts, best.count, counts)
        if mixed is None or mixed.subject.kernels >= best.subject.kernels:
            break
        if mixed.peak <= most:
            fewer = mixed.draft(wanted)
            if fewer.arena <= limit:
                return fewer
            most = most * mixed.peak // fewer.arena  # there are gaps between the buffers
        over = {segment for segment, load in mixed.segments.items() if load > most}
        if not _raise_counts(counts, over, [trial.count for trial in divisors]):
            break
    return best.draft(wanted, goes_down=capacity is None)


def _raise_counts(counts: dict[int, int], over: Iterable[int], numbers: Sequence[int]) -> bool:
    """Give each segment that is over its bytes the next number of pieces, or its neighbours where it has the most; return whether any did.

    Tensors between segments of different numbers are joined, so neighbours matter.
    """
    raised: set[int] = set()
    for segment in over:
        can_rise = [
            neighbour
            for neighbour in (segment, segment - 1, segment + 1)
            if counts.get(neighbour, numbers[-1]) < numbers[-1]
        ]
        raised |= {segment} if segment in can_rise else set(can_rise)
    for segment in raised:
        counts[segment] = next(number for number in numbers if number > counts[segment])
    return bool(raised)


def is_settled(before: tuple[int, int], last: tuple[int, int], capacity: int | None) -> bool:
    """Return whether the last number of pieces fits, or no number does, by the bytes of two numbers; `before` is (0, 0) for the first.

    The bytes are the most of several sums of a constant and a part for each token of a piece: none is below the line through two of them.
    """
    if capacity is None:
        return False
    (fewer, more_bytes), (more, fewer_bytes) = before, last
    limit = (fewer_bytes * more - more_bytes * fewer) / (more - fewer) if fewer else 0
    return fewer_bytes <= capacity or limit > capacity
