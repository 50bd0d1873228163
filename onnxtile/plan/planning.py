"""From a model to a plan: schedule, lives and aliases, problem, planner, check."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.plan.alias import Facts
from onnxtile.plan.bytes import tensor_bytes
from onnxtile.plan.check import require
from onnxtile.plan.copies import copies
from onnxtile.plan.effort import NORMAL, Effort
from onnxtile.plan.layout import Layout, lay_out
from onnxtile.plan.memories import Allocation, Capacity, allocate, memories
from onnxtile.plan.ordering import order as find_order
from onnxtile.plan.planner import planner as find_planner
from onnxtile.plan.problem import DEFAULT_ALIGNMENT, Problem, align
from onnxtile.plan.races import require_no_races
from onnxtile.plan.result import Constant, Excluded, PlannedBuffer, PlanResult
from onnxtile.plan.rules import RULES
from onnxtile.plan.scope import Scope
from onnxtile.plan.tenants import tenants as find_tenants
from onnxtile.plan.uses import followers


def plan(  # noqa: PLR0913 - the options of the command
    model: ir.Model,
    shapes: Shapes,
    constants: Constants,
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    planner: str = "best",
    effort: Effort = NORMAL,
    order: str = "model",
    streams: int = 1,
    capacity: Capacity = None,
    digest: str | None = None,
    dims: Mapping[str, int] | None = None,
    share: Collection[str] = tuple(RULES),
    io: str = "outputs",
    overwrite_inputs: bool = False,
) -> PlanResult:
    """Give every tensor of `model`, which stays as it is, an address in an arena; the plan has passed the check.

    `alignment` and `capacity` (None: no limit) are in bytes; a mapping gives several arenas their capacities, the first the fastest.
    `effort` is how long `planner` may search. `digest` (of the input file) and `dims` (the bound dimensions) are told on.
    `order` names the order in which nodes run, of which up to `streams` that do not depend on each other run in one step.
    `share` names the rules of plan.rules by which tensors may share bytes, all by default; views always do.
    `io` says whether graph inputs and outputs lie in the arena, `overwrite_inputs` that inputs there may be lost.
    Raises UsageError for an alignment that is no power of two or an unknown planner or order, OverCapacity (an Infeasible) where an
    arena would be larger than its capacity, CheckFailed where the planner is at fault.
    """
    chosen = find_planner(planner)
    facts = Facts(model, shapes, constants)
    scope = Scope(model.graph, io, overwrite_inputs)
    layout = lay_out(facts, scope, find_order(order), streams, alignment, share)
    schedule, sharing, roles = layout.schedule, layout.sharing, layout.roles
    problem = Problem(layout.buffers, alignment, conflicts=layout.conflicts)
    allocation = allocate(problem, memories(capacity), chosen, effort)
    tenants = find_tenants(schedule, scope, facts, sharing, allocation.offsets)
    for filled in allocation.arenas:
        lodged = [one for one in tenants if one.owner in filled.plan.offsets]
        require(filled.problem, filled.plan, lodged)
        if layout.holds_always:
            require_no_races(lodged, followers(schedule))
    peak, peak_step = problem.peak
    return PlanResult(
        digest=digest,
        dims=dict(dims or {}),
        alignment=alignment,
        planner=chosen.name,
        arenas=allocation.summary,
        peak=peak,
        peak_step=peak_step,
        lower_bound=allocation.proof.lower_bound,
        optimal=allocation.optimal,
        bound=allocation.proof.bound,
        ended=allocation.proof.ended,
        activation_bytes=sum(align(_bytes(value, shapes), alignment) for value in roles.tensors),
        in_place=sum(alias.rule == "in place" for used in sharing.shares.values() for alias in used[:1]),
        copies=copies(schedule, facts, sharing),
        io=io,
        overwrite_inputs=overwrite_inputs,
        order=order,
        schedule=schedule.ids,
        steps=tuple(schedule.steps.values()),
        buffers=_planned(layout, facts, allocation),
        constants=_placed_in_order(roles.constants, shapes, alignment),
        outside=_excluded(roles.outside),
        unplanned=_excluded(roles.unplanned),
    )


def _planned(layout: Layout, facts: Facts, allocation: Allocation) -> tuple[PlannedBuffer, ...]:
    makers = dict(zip(layout.schedule.nodes, layout.schedule.ids, strict=True))
    kinds = dict.fromkeys(layout.scope.given, "input") | dict.fromkeys(layout.scope.graph.outputs, "output")
    regions = layout.sharing.regions
    places, offsets = allocation.places, allocation.offsets
    planned = []
    for value, region in regions.of.items():
        owner = region.owner
        first, end = region.life if owner is value else layout.lives[value]
        node, dtype = value.producer(), facts.shapes.dtype(value)
        planned.append(
            PlannedBuffer(
                name=_name(value),
                arena=places[_name(owner)],
                offset=offsets[_name(owner)] + regions.place(value),
                size=regions.size(value),
                first=first,
                last=end - 1,
                kind=kinds.get(value, "activation"),
                alias=_name(owner) if owner is not value else None,
                node=makers.get(node) if node is not None else None,
                dtype=None if dtype is None else dtype.name,
                shape=facts.shapes.sizes(value),
            )
        )
    return tuple(planned)


def _placed_in_order(values: Iterable[ir.Value], shapes: Shapes, alignment: int) -> tuple[Constant, ...]:
    """Return the constants one behind the other, in a region of their own; those without fixed bytes have no place there."""
    placed, end = [], 0
    for value in values:
        size = tensor_bytes(value, shapes)
        offset = None if size is None else align(end, alignment)
        placed.append(Constant(_name(value), size, offset))
        end = end if size is None or offset is None else offset + size
    return tuple(placed)


def _excluded(reasons: Mapping[ir.Value, str]) -> tuple[Excluded, ...]:
    return tuple(Excluded(_name(value), reason) for value, reason in reasons.items())


def _name(value: ir.Value) -> str:
    return value.name or ""


def _bytes(value: ir.Value, shapes: Shapes) -> int:
    size = tensor_bytes(value, shapes)
    assert size is not None
    return size
