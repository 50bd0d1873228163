"""The rows of a result: each tensor and workspace of a graph with its address, and those of its bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.inspection.work import operator_name
from onnxtile.planning.layout.aliases.find import Facts
from onnxtile.planning.layout.bodies import Bodies, Body
from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.layout.roles import Roles
from onnxtile.planning.layout.workspaces import SHARED, Room
from onnxtile.planning.result import PlannedBody, PlannedBuffer, PlannedInput


@dataclass(frozen=True)
class Place:
    """Where a buffer starts: `offset` bytes from the start of `arena`."""

    arena: str
    offset: int


Places = Mapping[str, Place]
"""By the name of the buffer."""


def planned(layout: Layout, facts: Facts, places: Places) -> tuple[PlannedBuffer, ...]:
    """Return the rows of the tensors of `layout` in the order in which they are made, then those of its workspaces."""
    makers = dict(zip(layout.schedule.nodes, layout.schedule.ids, strict=True))
    kinds = dict.fromkeys(layout.scope.given, "input") | dict.fromkeys(layout.scope.graph.outputs, "output")
    regions = layout.sharing.regions
    rows = []
    for value, region in regions.of.items():
        owner = region.owner
        first, end = region.life if owner is value else layout.lives[value]
        node = value.producer()
        place = places[_name(owner)]
        rows.append(
            PlannedBuffer(
                name=_name(value),
                arena=place.arena,
                offset=place.offset + regions.place(value),
                size=regions.size(value),
                first=first,
                last=end - 1,
                kind=kinds.get(value, "activation"),
                alias=_name(owner) if owner is not value else None,
                node=makers.get(node) if node is not None else None,
                dtype=_dtype(value, facts),
                shape=facts.shapes.sizes(value),
            )
        )
    return (*rows, *(_row(room, makers, places) for room in layout.rooms))


def _row(room: Room, ids: Mapping[ir.Node, str], places: Places) -> PlannedBuffer:
    buffer, place = room.buffer, places[room.buffer.name]
    user = ids[room.nodes[0]] if len(room.nodes) == 1 else None
    span = (buffer.lower, buffer.upper - 1)
    return PlannedBuffer(buffer.name, place.arena, place.offset, buffer.size, *span, "workspace", node=user)


def planned_bodies(layout: Layout, inside: Bodies, facts: Facts, places: Places) -> tuple[PlannedBody, ...]:
    """Return the plans of the bodies of the nodes of `layout`, at their addresses in the arena."""
    ids = dict(zip(layout.schedule.nodes, layout.schedule.ids, strict=True))
    found: list[PlannedBody] = []
    rooms = {room.nodes[0]: room.buffer.name for room in layout.rooms if room.buffer.name != SHARED}
    for node, bodies in inside.items():
        # A body without a byte may lie anywhere.
        start = places[rooms[node]] if node in rooms else Place("", 0)
        found.extend(_placed(ids[node], body, facts, start) for body in bodies)
    return tuple(found)


def _placed(node: str, body: Body, facts: Facts, start: Place) -> PlannedBody:
    places = {name: Place(start.arena, start.offset + offset) for name, offset in body.offsets.items()}
    return PlannedBody(
        node=node,
        attribute=body.attribute,
        size=body.size,
        schedule=body.layout.schedule.ids,
        steps=tuple(body.layout.schedule.steps.values()),
        buffers=planned(body.layout, facts, places),
        bodies=planned_bodies(body.layout, body.inside, facts, places),
        operators=operators(body.layout),
        constant_nodes=constant_nodes(body.layout, facts),
    )


def operators(layout: Layout) -> tuple[str, ...]:
    """Return the operator of each node of `layout`, in the order of its schedule."""
    return tuple(map(operator_name, layout.schedule.nodes))


def constant_nodes(layout: Layout, facts: Facts) -> tuple[str, ...]:
    """Return the identifiers of the nodes of which every result is constant, and none an output of the graph."""
    outputs, schedule = frozenset(layout.scope.graph.outputs), layout.schedule
    return tuple(
        name
        for node, name in zip(schedule.nodes, schedule.ids, strict=True)
        if all(value in facts.constants and value not in outputs for value in node.outputs)
    )


def inputs(model: ir.Model, facts: Facts) -> tuple[PlannedInput, ...]:
    """Return the inputs of the graph of `model`, but for those that are constants."""
    given = (value for value in model.graph.inputs if value not in facts.constants)
    return tuple(PlannedInput(_name(value), _dtype(value, facts), facts.shapes.sizes(value)) for value in given)


def _dtype(value: ir.Value, facts: Facts) -> str | None:
    dtype = facts.shapes.dtype(value)
    return None if dtype is None else dtype.name


def all_roles(layout: Layout, inside: Bodies) -> Roles:
    """Return the roles of all values of a graph and of its bodies, at any depth."""
    found = Roles()
    todo = [(layout, inside)]
    while todo:
        one, bodies = todo.pop(0)
        for kind in ("tensors", "constants", "outside", "unplanned"):
            getattr(found, kind).update(getattr(one.roles, kind))
        todo.extend((body.layout, body.inside) for planned in bodies.values() for body in planned)
    # A constant that is an output of the graph around is made there, also for the bodies that read it.
    for value in (*found.tensors, *found.outside):
        found.constants.pop(value, None)
    return found


def _name(value: ir.Value) -> str:
    return value.name or ""
