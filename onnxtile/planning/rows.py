"""The rows of a result: each tensor and workspace of a graph and its bodies, with its address."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxtile.inspection.work import operator_name
from onnxtile.model.bytes import bytes_formula
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.bodies import BodyPlan, BodyPlans
from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.layout.roles import Roles
from onnxtile.planning.layout.workspaces import WorkspaceBuffer
from onnxtile.planning.planned_parts import planned_parts
from onnxtile.planning.result import (
    Attributes,
    AttributeValue,
    PlannedBody,
    PlannedBuffer,
    PlannedInput,
    PlannedOutput,
)


@dataclass(frozen=True)
class Address:
    """The start of a buffer: `offset` bytes from the start of `arena`."""

    arena: str
    offset: int


Addresses = Mapping[str, Address]
"""By the name of the buffer."""


def planned(layout: Layout, facts: LayoutFacts, places: Addresses) -> tuple[PlannedBuffer, ...]:
    """Return the rows of the tensors of `layout` in the order in which they are made, then those of its workspaces."""
    makers = dict(zip(layout.schedule.nodes, layout.schedule.ids, strict=True))
    kinds = dict.fromkeys(layout.scope.given, "input") | dict.fromkeys(layout.scope.graph.outputs, "output")
    alias_sets = layout.sharing.alias_sets
    parts = {buffer.name: planned_parts(buffer) for buffer in layout.buffers if buffer.outline}
    rows = []
    for value, alias_set in alias_sets.of.items():
        owner = alias_set.owner
        first, end = alias_set.live_range if owner is value else layout.live_ranges[value]
        node = value.producer()
        place = places[_name(owner)]
        rows.append(
            PlannedBuffer(
                name=_name(value),
                arena=place.arena,
                offset=place.offset + alias_sets.start(value),
                size=alias_sets.size(value),
                first=first,
                last=end - 1,
                kind=kinds.get(value, "activation"),
                alias=_name(owner) if owner is not value else None,
                node=makers.get(node) if node is not None else None,
                dtype=dtype(value, facts),
                shape=facts.shapes.sizes(value),
                parts=parts.get(_name(value), ()) if owner is value else (),
                size_formula=bytes_formula(value, facts.shapes),
                shape_formula=facts.shapes.formulas(value),
            )
        )
    return (*rows, *(_row(workspace, makers, places) for workspace in layout.workspaces))


def _row(workspace: WorkspaceBuffer, ids: Mapping[ir.Node, str], places: Addresses) -> PlannedBuffer:
    buffer, place = workspace.buffer, places[workspace.buffer.name]
    user = ids[workspace.nodes[0]] if len(workspace.nodes) == 1 else None
    span = (buffer.lower, buffer.upper - 1)
    return PlannedBuffer(buffer.name, place.arena, place.offset, buffer.size, *span, "workspace", node=user)


def planned_bodies(layout: Layout, inside: BodyPlans, facts: LayoutFacts, places: Addresses) -> tuple[PlannedBody, ...]:
    """Return the plans of the bodies of the nodes of `layout`, at their addresses in the arena."""
    ids = dict(zip(layout.schedule.nodes, layout.schedule.ids, strict=True))
    found: list[PlannedBody] = []
    workspaces = {workspace.nodes[0]: workspace.buffer.name for workspace in layout.workspaces if workspace.is_own}
    for node, bodies in inside.items():
        # A body without bytes has no workspace.
        start = places[workspaces[node]] if node in workspaces else Address("", 0)
        found.extend(_placed(ids[node], body, facts, start) for body in bodies)
    return tuple(found)


def _placed(node: str, body: BodyPlan, facts: LayoutFacts, start: Address) -> PlannedBody:
    places = {name: Address(start.arena, start.offset + offset) for name, offset in body.offsets.items()}
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
        operands=operands(body.layout),
        results=results(body.layout),
        attributes=attributes(body.layout),
    )


def operators(layout: Layout) -> tuple[str, ...]:
    """Return the operator of each node of `layout`, in the order of its schedule."""
    return tuple(map(operator_name, layout.schedule.nodes))


def operands(layout: Layout) -> tuple[tuple[str, ...], ...]:
    """Return the names of the inputs of each node of `layout`, in the order of its schedule; "" for one that is left out."""
    return tuple(tuple("" if v is None else _name(v) for v in node.inputs) for node in layout.schedule.nodes)


def results(layout: Layout) -> tuple[tuple[str, ...], ...]:
    """Return the names of the outputs of each node of `layout`, in the order of its schedule; "" for one that is left out."""
    return tuple(tuple(map(_name, node.outputs)) for node in layout.schedule.nodes)


def attributes(layout: Layout) -> tuple[Attributes, ...]:
    """Return the numbers and texts among the attributes of each node of `layout`, in the order of its schedule."""
    return tuple(
        {a.name: _plain(a.value) for a in node.attributes.values() if a.type in _PLAIN and not a.is_ref()}
        for node in layout.schedule.nodes
    )


_PLAIN = frozenset(getattr(ir.AttributeType, name) for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS"))


def _plain(value: Any) -> AttributeValue:
    """Return `value`, floats that JSON cannot write as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, int | float | str) else tuple(_plain(one) for one in value)  # type: ignore[return-value]


def constant_nodes(layout: Layout, facts: LayoutFacts) -> tuple[str, ...]:
    """Return the identifiers of the nodes of which every result is constant, and none an output of the graph."""
    outputs, schedule = frozenset(layout.scope.graph.outputs), layout.schedule
    return tuple(
        name
        for node, name in zip(schedule.nodes, schedule.ids, strict=True)
        if all(value in facts.constants and value not in outputs for value in node.outputs)
    )


def inputs(model: ir.Model, facts: LayoutFacts) -> tuple[PlannedInput, ...]:
    """Return the inputs of the graph of `model`, but for those that are constants."""
    given = (value for value in model.graph.inputs if value not in facts.constants)
    return tuple(PlannedInput(*_end(value, facts)) for value in given)


def outputs(model: ir.Model, facts: LayoutFacts) -> tuple[PlannedOutput, ...]:
    """Return the outputs of the graph of `model`."""
    return tuple(PlannedOutput(*_end(value, facts)) for value in model.graph.outputs)


def _end(value: ir.Value, facts: LayoutFacts) -> tuple[Any, ...]:
    return _name(value), dtype(value, facts), facts.shapes.sizes(value), facts.shapes.formulas(value)


def dtype(value: ir.Value, facts: LayoutFacts) -> str | None:
    """Return the element type of `value` as onnx names it; None where it is not known."""
    found = facts.shapes.dtype(value)
    return None if found is None else found.name


def all_roles(layout: Layout, inside: BodyPlans) -> Roles:
    """Return the roles of all values of a graph and of its bodies, at any depth; constants that no step reads lie outside."""
    found = Roles()
    todo = [(layout, inside)]
    graphs = []
    while todo:
        one, bodies = todo.pop(0)
        graphs.append(one.scope.graph)
        for kind in ("tensors", "constants", "outside", "unplanned"):
            getattr(found, kind).update(getattr(one.roles, kind))
        todo.extend((body.layout, body.inside) for planned in bodies.values() for body in planned)
    # A constant that is a graph output is made in the graph, also for the bodies that read it.
    for value in (*found.tensors, *found.outside):
        found.constants.pop(value, None)
    for value in (value for graph in graphs for value in _held_or_made(graph)):
        if not any(value in role for role in (found.tensors, found.constants, found.outside, found.unplanned)):
            found.outside[value] = "a constant that no step reads"
    return found


def _held_or_made(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.initializers.values()
    yield from (value for node in graph for value in node.outputs if value.name)


def _name(value: ir.Value) -> str:
    return value.name or ""
