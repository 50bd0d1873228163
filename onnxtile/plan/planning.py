"""From a model to a plan: schedule, lives and aliases, problem, planner, check."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.plan.alias import Facts
from onnxtile.plan.bytes import tensor_bytes
from onnxtile.plan.check import require
from onnxtile.plan.copies import copies
from onnxtile.plan.layout import Layout, lay_out
from onnxtile.plan.ordering import order as find_order
from onnxtile.plan.planner import planner as find_planner
from onnxtile.plan.problem import DEFAULT_ALIGNMENT, Plan, Problem, align, require_capacity
from onnxtile.plan.races import require_no_races
from onnxtile.plan.result import Arena, Constant, Excluded, PlannedBuffer, PlanResult
from onnxtile.plan.rules import RULES
from onnxtile.plan.tenants import tenants
from onnxtile.plan.uses import followers

ARENA = "arena"
"""What the arena is called where there is only one."""


def plan(  # noqa: PLR0913 - the options of the command
    model: ir.Model,
    shapes: Shapes,
    constants: Constants,
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    planner: str = "greedy-by-size",
    order: str = "model",
    streams: int = 1,
    capacity: int | None = None,
    digest: str | None = None,
    dims: Mapping[str, int] | None = None,
    share: Collection[str] = tuple(RULES),
) -> PlanResult:
    """Give every tensor of `model`, which stays as it is, an address in one arena; the plan has passed the check.

    `alignment` and `capacity` (None: no limit) are in bytes. `digest` (of the input file) and `dims` (the bound dimensions) are told on.
    `order` names the order in which nodes run, of which up to `streams` that do not depend on each other run in one step.
    `share` names the rules of plan.rules by which tensors may share bytes, all by default; views always do.
    Raises UsageError for an alignment that is no power of two or an unknown planner or order, OverCapacity (an Infeasible) where the
    arena would be larger than its capacity, CheckFailed where the planner is at fault.
    """
    chosen = find_planner(planner)
    facts = Facts(model, shapes, constants)
    layout = lay_out(facts, find_order(order), streams, alignment, share)
    schedule, sharing, roles = layout.schedule, layout.sharing, layout.roles
    problem = Problem(layout.buffers, alignment, capacity, layout.conflicts)
    offsets = chosen.plan(problem)
    require_capacity(problem, offsets)
    lodged = tenants(schedule, facts, sharing, offsets)
    require(problem, offsets, lodged)
    if layout.holds_always:
        require_no_races(lodged, followers(schedule))
    peak, peak_step = problem.peak
    return PlanResult(
        digest=digest,
        dims=dict(dims or {}),
        alignment=alignment,
        planner=chosen.name,
        arenas=(Arena(ARENA, capacity, offsets.size),),
        peak=peak,
        peak_step=peak_step,
        lower_bound=problem.lower_bound,
        optimal=offsets.size == problem.lower_bound,
        activation_bytes=sum(align(_bytes(value, shapes), alignment) for value in roles.tensors),
        in_place=sum(alias.rule == "in place" for used in sharing.shares.values() for alias in used[:1]),
        copies=copies(schedule, facts, sharing),
        order=order,
        schedule=schedule.ids,
        steps=tuple(schedule.steps.values()),
        buffers=_planned(layout, facts, offsets),
        constants=tuple(Constant(_name(v), tensor_bytes(v, shapes)) for v in roles.constants),
        outside=_excluded(roles.outside),
        unplanned=_excluded(roles.unplanned),
    )


def _planned(layout: Layout, facts: Facts, offsets: Plan) -> tuple[PlannedBuffer, ...]:
    outputs: Sequence[ir.Value] = facts.model.graph.outputs
    makers = dict(zip(layout.schedule.nodes, layout.schedule.ids, strict=True))
    kinds = dict.fromkeys(outputs, "output")
    regions = layout.sharing.regions
    planned = []
    for value, region in regions.of.items():
        owner = region.owner
        first, end = region.life if owner is value else layout.lives[value]
        node, dtype = value.producer(), facts.shapes.dtype(value)
        planned.append(
            PlannedBuffer(
                name=_name(value),
                arena=ARENA,
                offset=offsets.offsets[_name(owner)] + regions.place(value),
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


def _excluded(reasons: Mapping[ir.Value, str]) -> tuple[Excluded, ...]:
    return tuple(Excluded(_name(value), reason) for value, reason in reasons.items())


def _name(value: ir.Value) -> str:
    return value.name or ""


def _bytes(value: ir.Value, shapes: Shapes) -> int:
    size = tensor_bytes(value, shapes)
    assert size is not None
    return size
