"""From a model to a plan: schedule, lives and aliases, problem, planner, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.plan.alias import Facts
from onnxtile.plan.bytes import granule, tensor_bytes
from onnxtile.plan.check import Tenant, require
from onnxtile.plan.live import Life, live_ranges, merged
from onnxtile.plan.planner import planner as find_planner
from onnxtile.plan.problem import DEFAULT_ALIGNMENT, Buffer, Plan, Problem, align, require_capacity
from onnxtile.plan.result import Arena, Constant, Excluded, PlannedBuffer, PlanResult
from onnxtile.plan.roles import Roles, assign
from onnxtile.plan.schedule import Schedule, own_order
from onnxtile.plan.uses import steps_of_use

ARENA = "arena"
"""What the arena is called where there is only one."""


def plan(
    model: ir.Model,
    shapes: Shapes,
    constants: Constants,
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    planner: str = "greedy-by-size",
    capacity: int | None = None,
    digest: str | None = None,
    dims: Mapping[str, int] | None = None,
) -> PlanResult:
    """Give every tensor of `model`, which stays as it is, an address in one arena; the plan has passed the check.

    `alignment` and `capacity` (None: no limit) are in bytes. `digest` (of the input file) and `dims` (the bound dimensions) are told on.
    Raises UsageError for an alignment that is no power of two or an unknown planner, OverCapacity (an Infeasible) where the
    arena would be larger than its capacity, CheckFailed where the planner is at fault.
    """
    chosen = find_planner(planner)
    schedule = own_order(model)
    facts = Facts(model, shapes, constants)
    roles = assign(schedule, facts)
    lives = live_ranges(model, schedule)
    problem = Problem(_buffers(roles, lives, shapes, alignment), alignment, capacity)
    offsets = chosen.plan(problem)
    require_capacity(problem, offsets)
    require(problem, offsets, tenants(model, schedule, roles, shapes, offsets))
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
        activation_bytes=sum(align(_bytes(value, shapes), alignment) for value in roles.owners),
        schedule=schedule.ids,
        buffers=_planned(model, roles, lives, problem, offsets),
        constants=tuple(Constant(_name(v), tensor_bytes(v, shapes)) for v in roles.constants),
        outside=_excluded(roles.outside),
        unplanned=_excluded(roles.unplanned),
    )


def tenants(model: ir.Model, schedule: Schedule, roles: Roles, shapes: Shapes, offsets: Plan) -> tuple[Tenant, ...]:
    """Return what the check must know about each tensor of the arena, found in the graph rather than in the problem."""
    steps = steps_of_use(model, schedule, roles.owners)
    found = []
    for value, owner in roles.owners.items():
        alias = roles.shares.get(value)
        dtype = shapes.dtype(value)
        assert dtype is not None
        found.append(
            Tenant(
                name=_name(value),
                owner=_name(owner),
                offset=offsets.offsets[_name(owner)],
                size=_bytes(value, shapes),
                steps=steps[value],
                element=dtype.name,
                granule=granule(dtype),
                source=_name(alias.source) if alias is not None else None,
                rule=alias.rule if alias is not None else None,
            )
        )
    return tuple(found)


def _buffers(roles: Roles, lives: Mapping[ir.Value, Life], shapes: Shapes, alignment: int) -> tuple[Buffer, ...]:
    """Return a buffer for each owner, which lives as long as anything in it does; no element is split by a small alignment."""
    united: dict[ir.Value, Life] = {}
    wanted: dict[ir.Value, int] = {}
    for value, owner in roles.owners.items():
        united[owner] = merged(united.get(owner, lives[value]), lives[value])
        dtype = shapes.dtype(value)
        assert dtype is not None
        wanted[owner] = max(wanted.get(owner, 1), granule(dtype))
    return tuple(
        Buffer(_name(v), _bytes(v, shapes), *life, alignment=wanted[v] if wanted[v] > alignment else None)
        for v, life in united.items()
    )


def _planned(
    model: ir.Model, roles: Roles, lives: Mapping[ir.Value, Life], problem: Problem, offsets: Plan
) -> tuple[PlannedBuffer, ...]:
    outputs: Sequence[ir.Value] = model.graph.outputs
    kinds = dict.fromkeys(outputs, "output")
    buffers = {buffer.name: buffer for buffer in problem.buffers}
    planned = []
    for value, owner in roles.owners.items():
        buffer = buffers[_name(owner)]
        first, end = (buffer.lower, buffer.upper) if owner is value else lives[value]
        planned.append(
            PlannedBuffer(
                name=_name(value),
                arena=ARENA,
                offset=offsets.offsets[buffer.name],
                size=buffer.size,
                first=first,
                last=end - 1,
                kind=kinds.get(value, "activation"),
                alias=buffer.name if owner is not value else None,
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
