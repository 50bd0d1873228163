"""What the check of a plan must know about each tensor, found in the graph rather than in the problem."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxtile.plan.alias.find import Facts, cut_starts, overwritable
from onnxtile.plan.bytes import granule
from onnxtile.plan.layout import Layout
from onnxtile.plan.proof.tenant import Made, Operand, Take, Tenant
from onnxtile.plan.proof.uses import crowded_steps, steps_of_use
from onnxtile.plan.scope import Scope


def tenants(scope: Scope, layout: Layout, facts: Facts, offsets: Mapping[str, int]) -> tuple[Tenant, ...]:
    """Return what the check must know about each tensor and workspace of the arena, found in the graph rather than in the problem.

    `offsets` are those of the buffers that own bytes, in their arenas.
    """
    schedule, sharing = layout.schedule, layout.sharing
    regions = sharing.regions
    steps = steps_of_use(scope, schedule, regions.of)
    crowds = crowded_steps(schedule, regions.of) if schedule.numbers else {}
    found = []
    for value, region in regions.of.items():
        dtype, shape = facts.shapes.dtype(value), facts.shapes.sizes(value)
        assert dtype is not None
        assert shape is not None
        found.append(
            Tenant(
                name=_name(value),
                owner=_name(region.owner),
                offset=offsets[_name(region.owner)] + regions.place(value),
                size=regions.size(value),
                steps=steps[value],
                crowded=crowds.get(value, ()),
                element=dtype.name,
                granule=granule(dtype),
                shape=shape,
                kept=value in scope.kept,
                takes=tuple(Take(_name(alias.source), alias.rule) for alias in sharing.shares.get(value, ())),
                made=_made(value, facts),
                bound=facts.shapes.is_bound(value),
            )
        )
    for room in layout.rooms:
        name, steps_of_room = room.buffer.name, tuple(schedule.steps[node] for node in room.nodes)
        found.append(Tenant(name, name, offsets[name], room.buffer.size, steps_of_room, "UINT8"))
    return tuple(found)


def _made(value: ir.Value, facts: Facts) -> Made | None:
    node = value.producer()
    if node is None:
        return None
    shapes = facts.shapes
    operands = [Operand(_name(v), shapes.sizes(v), shapes.is_bound(v)) if v is not None else None for v in node.inputs]
    if not facts.is_standard(node):
        return Made(f"{node.domain}::{node.op_type}", tuple(operands), over=tuple(overwritable(node, facts)))
    starts = tuple(cut_starts(node, facts).get(value, ()))
    return Made(node.op_type, tuple(operands), starts, node.attributes.get_int("axis", 0))


def _name(value: ir.Value) -> str:
    return value.name or ""
