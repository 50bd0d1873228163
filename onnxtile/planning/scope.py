"""The graph that is planned, and the place of its inputs and outputs: in the arena or outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.kernels.aliases import Alias, LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope, no_fixed_bytes, planned_bodies_of, why_unknown
from onnxtile.model.topology import bodies_of, dependencies, node_id, values_in
from onnxtile.planning.schedule import Schedule
from onnxtile.shapes.resolve import tensor_bytes

# The role of each value of a model: in the arena, constant, outside, or unplanned, with the reason.


@dataclass(frozen=True)
class Roles:
    """The role of each value.

    `tensors` lie in the arena, in the order in which they are made. `constants` are read by a step, or are graph outputs. `outside` and
    `unplanned` give the reason.
    """

    tensors: dict[ir.Value, None] = field(default_factory=dict)
    constants: dict[ir.Value, None] = field(default_factory=dict)
    outside: dict[ir.Value, str] = field(default_factory=dict)
    unplanned: dict[ir.Value, str] = field(default_factory=dict)


def assign(schedule: Schedule, scope: PlanScope, facts: LayoutFacts) -> Roles:
    """Return the role of every value that a step of `schedule` reads or makes, and of values made inside kernels."""
    roles = Roles()
    outputs = set(scope.graph.outputs)
    # A constant that is a graph output is treated as any output: outside the arena, if outputs are.
    outside = {
        value: reason
        for value, reason in scope.outside()
        if value not in facts.constants or value.producer() is not None
    }
    roles.outside.update((value, reason) for value, reason in outside.items() if value.producer() is None)
    for value in scope.given:
        if value not in facts.constants:
            _place(value, None, value in outputs, facts, roles, no_fixed_bytes(value, facts))
    for node in schedule.nodes:
        roles.constants.update((value, None) for value in _constants_read(node, outputs, facts))
        # A body of If, Loop or Scan shares no bytes with the graph around it: a view of a value there is a copy.
        found = (alias for alias in facts.lawful(node) if alias.rule in {"view", "cut"})
        possible = {alias.value: alias for alias in found if scope.borrows or _is_here(alias.source, scope.graph)}
        for value in node.outputs:
            # A constant that is a graph output is written into the arena by the node that makes it.
            if not value.name or (value in facts.constants and value not in outputs):
                continue
            reason = outside.get(value) or no_fixed_bytes(value, facts)
            _place(value, possible.get(value), value in outputs, facts, roles, reason)
        # The bodies of If, Loop and Scan have plans of their own.
        for value in () if any(planned_bodies_of(node, facts)) else _made_inside(node):
            roles.outside[value] = f"made inside {node_id(node)!r}, which runs as one kernel"
    for value in outputs:
        if value.producer() is None and value in facts.constants:
            roles.constants[value] = None
    return roles


def _is_here(value: ir.Value, graph: ir.Graph) -> bool:
    maker = value.producer()
    return (value.graph if maker is None else maker.graph) is graph


def _constants_read(node: ir.Node, outputs: set[ir.Value], facts: LayoutFacts) -> Iterator[ir.Value]:
    """Yield the constants that `node` reads, unless `node` itself is computed before the run."""
    if all(value in facts.constants and value not in outputs for value in node.outputs):
        return
    yield from (v for v in dependencies(node) if v in facts.constants and (v not in outputs or v.producer() is None))


def _place(
    value: ir.Value, alias: Alias | None, is_output: bool, facts: LayoutFacts, roles: Roles, outside: str | None
) -> None:
    if outside is not None:
        roles.outside[value] = outside
    elif tensor_bytes(value, facts.shapes) is None:
        roles.unplanned[value] = why_unknown(value, facts)
    elif alias is None or is_output or alias.source in roles.tensors or alias.source in facts.constants:
        # A view that is a graph output lies inside the arena even if its source does not: it is a copy.
        roles.tensors[value] = None
    else:
        kind = "view" if alias.rule == "view" else "part"
        roles.outside[value] = f"a {kind} of {alias.source.name!r}, which lies outside"


def _made_inside(node: ir.Node) -> Iterator[ir.Value]:
    return (value for body in bodies_of(node) for value in values_in(body.graph) if value.name)
