"""The graph that is planned, and the place of its inputs and outputs: in the arena or outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from onnxtile.model.binding import binding
from onnxtile.model.topology import bodies_of, dependencies, node_id, values_in
from onnxtile.operators.row import CONTROL_FLOW
from onnxtile.planning.aliases import Alias, LayoutFacts, kind_name
from onnxtile.planning.schedule import Schedule
from onnxtile.planning.states import StatePair
from onnxtile.shapes.opened_calls import inside_of
from onnxtile.shapes.resolve import tensor_bytes
from onnxtile.system.errors import UsageError

PLACINGS = ("outputs", "inside", "outside")
"""The part of the interface that lies in the arena: outputs, both inputs and outputs (inside), or neither (outside)."""


@dataclass(frozen=True)
class PlanScope:
    """A graph, with `io` for the place of its inputs and outputs.

    Outputs are live to the end of the run. So are inputs, unless `overwrite_inputs` frees their bytes after the last step that reads them.
    `borrows` marks the body of a function: views and parts of its operands stay in place, because the caller keeps the operands until the
    function ends. Tensors of the graph named in `alone` share bytes with nothing: they are live in the whole run. Input and output of each
    of `states` lie in the arena, whatever `io` says, and the input may be overwritten. Of a body that `repeats`, a state
    whose input and output cannot have one address is no state, but an input and an output. Raises UsageError for an invalid `io`, and
    for `overwrite_inputs` with inputs outside the arena.
    """

    graph: ir.Graph
    io: str = "outputs"
    overwrite_inputs: bool = False
    borrows: bool = False
    alone: frozenset[str] = frozenset()
    states: tuple[StatePair, ...] = ()
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.io not in PLACINGS:
            raise UsageError(f"invalid io {self.io!r} (choose {', '.join(PLACINGS)})")
        if self.overwrite_inputs and self.io != "inside":
            raise UsageError("inputs outside the arena cannot be overwritten", hint="add --io inside")

    @cached_property
    def kept(self) -> frozenset[ir.Value]:
        """The values that must outlive the run in the arena."""
        after = tuple(pair.output for pair in self.states)
        outputs = after if self.io == "outside" else self.graph.outputs
        before = {pair.input for pair in self.states}
        given = () if self.overwrite_inputs else (value for value in self.given if value not in before)
        return frozenset((*outputs, *given, *self.apart))

    @cached_property
    def apart(self) -> frozenset[ir.Value]:
        """The values that share bytes with nothing."""
        made = (value for node in self.graph for value in node.outputs) if self.alone else ()
        return frozenset(value for value in (*self.given, *made) if value.name in self.alone)

    @cached_property
    def given(self) -> tuple[ir.Value, ...]:
        """The inputs in the arena; they are there before the first step."""
        return tuple(self.graph.inputs) if self.io == "inside" else tuple(pair.input for pair in self.states)

    def outside(self) -> Iterator[tuple[ir.Value, str]]:
        """Yield the inputs and outputs outside the arena, each with the reason."""
        ends = {value for pair in self.states for value in (pair.input, pair.output)}
        if self.io != "inside":
            yield from ((value, "a graph input") for value in self.graph.inputs if value not in ends)
        if self.io == "outside":
            made = (value for value in self.graph.outputs if value.producer() is not None and value not in ends)
            yield from ((value, "a graph output") for value in made)


# The bodies that are planned inside the arena of the graph around them.


def bodies(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[str | None, ir.Graph]]:
    """Yield the planned bodies of `node` with the name of the attribute; None is the body of the function that it calls."""
    inside = inside_of(node)
    if inside is not None:
        yield None, inside
        return
    if node.op_type == "Scan" and facts.opset() < 9:
        return  # such a Scan runs over a batch, as one kernel
    if node.op_type in CONTROL_FLOW and facts.is_standard(node):
        yield from ((body.attribute, body.graph) for body in bodies_of(node) if body.position is None)


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
