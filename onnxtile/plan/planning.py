"""From a model to a plan: schedule, lives and aliases, problem, planner, check."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.plan.alias import Facts, cut_starts
from onnxtile.plan.bytes import granule, tensor_bytes
from onnxtile.plan.check import require
from onnxtile.plan.copies import copies
from onnxtile.plan.live import Life, live_ranges
from onnxtile.plan.planner import planner as find_planner
from onnxtile.plan.problem import DEFAULT_ALIGNMENT, Buffer, Plan, Problem, align, require_capacity
from onnxtile.plan.result import Arena, Constant, Excluded, PlannedBuffer, PlanResult
from onnxtile.plan.roles import assign
from onnxtile.plan.rules import RULES
from onnxtile.plan.schedule import Schedule, own_order
from onnxtile.plan.sharing import Sharing, choose
from onnxtile.plan.tenant import Made, Operand, Take, Tenant
from onnxtile.plan.uses import steps_of_use

ARENA = "arena"
"""What the arena is called where there is only one."""


def plan(  # noqa: PLR0913 - the options of the command
    model: ir.Model,
    shapes: Shapes,
    constants: Constants,
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    planner: str = "greedy-by-size",
    capacity: int | None = None,
    digest: str | None = None,
    dims: Mapping[str, int] | None = None,
    share: Collection[str] = tuple(RULES),
) -> PlanResult:
    """Give every tensor of `model`, which stays as it is, an address in one arena; the plan has passed the check.

    `alignment` and `capacity` (None: no limit) are in bytes. `digest` (of the input file) and `dims` (the bound dimensions) are told on.
    `share` names the rules of plan.rules by which tensors may share bytes, all by default; views always do.
    Raises UsageError for an alignment that is no power of two or an unknown planner, OverCapacity (an Infeasible) where the
    arena would be larger than its capacity, CheckFailed where the planner is at fault.
    """
    chosen = find_planner(planner)
    schedule = own_order(model)
    facts = Facts(model, shapes, constants)
    roles = assign(schedule, facts)
    lives = live_ranges(model, schedule)
    sharing = choose(schedule, facts, lives, tuple(roles.tensors), alignment, frozenset(share))
    problem = Problem(_buffers(sharing, shapes, alignment), alignment, capacity)
    offsets = chosen.plan(problem)
    require_capacity(problem, offsets)
    require(problem, offsets, tenants(schedule, facts, sharing, offsets))
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
        schedule=schedule.ids,
        buffers=_planned(schedule, facts, sharing, lives, offsets),
        constants=tuple(Constant(_name(v), tensor_bytes(v, shapes)) for v in roles.constants),
        outside=_excluded(roles.outside),
        unplanned=_excluded(roles.unplanned),
    )


def tenants(schedule: Schedule, facts: Facts, sharing: Sharing, offsets: Plan) -> tuple[Tenant, ...]:
    """Return what the check must know about each tensor of the arena, found in the graph rather than in the problem."""
    outputs = set(facts.model.graph.outputs)
    regions = sharing.regions
    steps = steps_of_use(facts.model, schedule, regions.of)
    found = []
    for value, region in regions.of.items():
        dtype, shape = facts.shapes.dtype(value), facts.shapes.sizes(value)
        assert dtype is not None
        assert shape is not None
        found.append(
            Tenant(
                name=_name(value),
                owner=_name(region.owner),
                offset=offsets.offsets[_name(region.owner)] + regions.place(value),
                size=_bytes(value, facts.shapes),
                steps=steps[value],
                element=dtype.name,
                granule=granule(dtype),
                shape=shape,
                kept=value in outputs,
                takes=tuple(Take(_name(alias.source), alias.rule) for alias in sharing.shares.get(value, ())),
                made=_made(value, facts),
            )
        )
    return tuple(found)


def _made(value: ir.Value, facts: Facts) -> Made | None:
    node = value.producer()
    if node is None or not facts.is_standard(node):
        return None
    operands = [Operand(_name(v), facts.shapes.sizes(v)) if v is not None else None for v in node.inputs]
    starts = tuple(cut_starts(node, facts).get(value, ()))
    return Made(node.op_type, tuple(operands), starts, node.attributes.get_int("axis", 0))


def _buffers(sharing: Sharing, shapes: Shapes, alignment: int) -> tuple[Buffer, ...]:
    """Return a buffer for each region; no element is split by a small alignment."""
    found: dict[ir.Value, Buffer] = {}
    for value, region in sharing.regions.of.items():
        dtype = shapes.dtype(value)
        assert dtype is not None
        before = found[region.owner].alignment if region.owner in found else None
        wanted = max(granule(dtype), before or 1)
        own = wanted if wanted > alignment else None
        found[region.owner] = Buffer(_name(region.owner), region.size, *region.life, alignment=own)
    return tuple(found.values())


def _planned(
    schedule: Schedule, facts: Facts, sharing: Sharing, lives: Mapping[ir.Value, Life], offsets: Plan
) -> tuple[PlannedBuffer, ...]:
    outputs: Sequence[ir.Value] = facts.model.graph.outputs
    makers = dict(zip(schedule.nodes, schedule.ids, strict=True))
    kinds = dict.fromkeys(outputs, "output")
    regions = sharing.regions
    planned = []
    for value, region in regions.of.items():
        owner = region.owner
        first, end = region.life if owner is value else lives[value]
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
