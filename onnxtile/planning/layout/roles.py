"""The role of each value of a model: in the arena, constant, outside, or unplanned, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.graph import dependencies, node_id
from onnxtile.model.unbound import binding
from onnxtile.model.walk import bodies_of, values_in
from onnxtile.planning.layout.aliases.find import Alias, LayoutFacts
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.inner import bodies
from onnxtile.planning.layout.non_tensors import kind_name
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.scope import PlanScope


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
            _place(value, None, value in outputs, facts, roles, _no_fixed_bytes(value, facts))
    for node in schedule.nodes:
        roles.constants.update((value, None) for value in _constants_read(node, outputs, facts))
        # A body of If, Loop or Scan shares no bytes with the graph around it: a view of a value there is a copy.
        found = (alias for alias in facts.lawful(node) if alias.rule in {"view", "cut"})
        possible = {alias.value: alias for alias in found if scope.borrows or _is_here(alias.source, scope.graph)}
        for value in node.outputs:
            # A constant that is a graph output is written into the arena by the node that makes it.
            if not value.name or (value in facts.constants and value not in outputs):
                continue
            reason = outside.get(value) or _no_fixed_bytes(value, facts)
            _place(value, possible.get(value), value in outputs, facts, roles, reason)
        # The bodies of If, Loop and Scan have plans of their own.
        for value in () if any(bodies(node, facts)) else _made_inside(node):
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


def _no_fixed_bytes(value: ir.Value, facts: LayoutFacts) -> str | None:
    if facts.shapes.never(value) is not None:
        return facts.shapes.never(value)
    if value in facts.containers:
        name = kind_name(facts.containers[value])
        return f"{'an' if name == 'optional' else 'a'} {name} has no fixed bytes"
    if facts.shapes.dtype(value) == ir.DataType.STRING:
        return "strings have no fixed bytes"
    return None


def _place(
    value: ir.Value, alias: Alias | None, is_output: bool, facts: LayoutFacts, roles: Roles, outside: str | None
) -> None:
    if outside is not None:
        roles.outside[value] = outside
    elif tensor_bytes(value, facts.shapes) is None:
        roles.unplanned[value] = _why_unknown(value, facts)
    elif alias is None or is_output or alias.source in roles.tensors or alias.source in facts.constants:
        # A view that is a graph output lies inside the arena even if its source does not: it is a copy.
        roles.tensors[value] = None
    else:
        kind = "view" if alias.rule == "view" else "part"
        roles.outside[value] = f"a {kind} of {alias.source.name!r}, which lies outside"


def _why_unknown(value: ir.Value, facts: LayoutFacts) -> str:
    if facts.shapes.sizes(value) is not None:
        return "its element type is not known"
    bindable = [symbol for dim in facts.shapes.dims(value) or () for symbol in facts.unbound.bindable(dim)]
    if bindable:
        symbols = " and ".join(map(repr, dict.fromkeys(bindable)))
        return f"its size depends on {symbols}: bind it with {binding(bindable)}"
    return facts.unbound.once_bound(facts.shapes.reason(value))


def _made_inside(node: ir.Node) -> Iterator[ir.Value]:
    return (value for body in bodies_of(node) for value in values_in(body.graph) if value.name)
