"""Reads the main graph of a model, and the bodies in it, as graphs of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import onnx_ir as ir

from onnxtile.kernels.aliases import Alias, InputStream, LayoutFacts, kind_name, spans_read
from onnxtile.kernels.kernel_graph import (
    ARENA,
    AROUND,
    CONSTANT,
    NONE,
    OUTSIDE,
    UNKNOWN,
    GraphKernel,
    GraphTensor,
    KernelBody,
    KernelGraph,
    Share,
    StateShare,
    TensorRead,
)
from onnxtile.kernels.states import STRUCTURE, StatePair
from onnxtile.model import keys
from onnxtile.model.binding import binding
from onnxtile.model.topology import bodies_of, dependencies, has_body, node_id, node_ids, values_in
from onnxtile.operators.node_view import operator_name
from onnxtile.operators.row import CONTROL_FLOW
from onnxtile.operators.table import sharing_of
from onnxtile.shapes.opened_calls import inside_of
from onnxtile.shapes.resolve import granule, tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError

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
    def given(self) -> tuple[ir.Value, ...]:
        """The inputs in the arena; they are there before the first step."""
        return tuple(self.graph.inputs) if self.io == "inside" else tuple(pair.input for pair in self.states)

    @cached_property
    def lasting(self) -> tuple[ir.Value, ...]:
        """The outputs in the arena."""
        return tuple(pair.output for pair in self.states) if self.io == "outside" else tuple(self.graph.outputs)

    @cached_property
    def apart(self) -> frozenset[ir.Value]:
        """The values that share bytes with nothing."""
        results = (value for node in self.graph for value in node.outputs) if self.alone else ()
        return frozenset(value for value in (*self.given, *results) if value.name in self.alone)

    def outside(self) -> Iterator[tuple[ir.Value, str]]:
        """Yield the inputs and outputs outside the arena, each with the reason."""
        ends = {value for pair in self.states for value in (pair.input, pair.output)}
        if self.io != "inside":
            yield from ((value, "a graph input") for value in self.graph.inputs if value not in ends)
        if self.io == "outside":
            outputs = (value for value in self.graph.outputs if value.producer() is not None and value not in ends)
            yield from ((value, "a graph output") for value in outputs)


def read_kernels(facts: LayoutFacts, scope: PlanScope) -> KernelGraph:
    """Return the kernels of the graph of `scope`, and those of its bodies, read once for all who have these `facts`.

    Raises ModelError where a node reads what is made after it.
    """
    if scope not in facts.read:
        facts.read[scope] = _GraphReader(facts, scope).read()
    graph: KernelGraph = facts.read[scope]
    return graph


class _GraphReader:
    def __init__(self, facts: LayoutFacts, scope: PlanScope) -> None:
        self._facts, self._scope = facts, scope
        self._tensors: list[GraphTensor] = []
        self._numbers: dict[ir.Value, int] = {}
        self._outputs = frozenset(scope.graph.outputs)
        # A constant that is a graph output is treated as any output: outside the arena, if outputs are.
        self._outside = {
            value: reason
            for value, reason in scope.outside()
            if value not in facts.constants or value.producer() is not None
        }
        self._streams = {value: stream for value, stream in facts.streams.items() if value in scope.graph.inputs}
        self._outside |= dict.fromkeys(self._streams, "a graph input that comes row by row")

    def read(self) -> KernelGraph:
        scope, ids = self._scope, node_ids(self._scope.graph)
        for value in scope.graph.inputs:
            self._add_input(value)
        inputs = tuple(self._numbers.values())
        for value in scope.graph.initializers.values():
            self._number(value)
        kernels = tuple(self._kernel(node, ids[node]) for node in scope.graph)
        outputs = tuple(map(self._number, scope.graph.outputs))
        given = (value for value in scope.given if value not in self._streams)
        return KernelGraph(
            tuple(self._tensors),
            kernels,
            tuple(map(self._number, given)),
            tuple(map(self._number, scope.lasting)),
            inputs,
            outputs,
            frozenset(map(self._number, scope.apart)),
            tuple(StateShare(self._number(pair.input), self._number(pair.output)) for pair in scope.states),
            not scope.overwrite_inputs,
            scope.repeats,
            tuple(self._stream(stream) for stream in self._streams.values()),
        )

    def _stream(self, stream: InputStream) -> tuple[int, ...]:
        """Return the numbers of the kernels that read the rows of an input, in their order."""
        places = {node: place for place, node in enumerate(self._scope.graph)}
        return tuple(places[read.node] for read in stream.reads)

    def _kernel(self, node: ir.Node, name: str) -> GraphKernel:
        facts, holds = self._facts, has_body(node)
        values = tuple(dict.fromkeys(dependencies(node)))
        self._require_made(values, name)
        # Constants, and tensors around a body, are numbered where they are first read.
        read = tuple(map(self._number, values))
        shares = facts.lawful(node)
        possible = {alias.value: alias for alias in shares if alias.rule in {"view", "cut"} and self._is_near(alias)}
        makes = tuple(self._add_result(value, possible.get(value)) for value in node.outputs if value.name)
        bodies = tuple(self._bodies(node)) if holds else ()
        # The bodies of If, Loop and Scan have plans of their own.
        inside = tuple(self._inside(node)) if holds and not bodies else ()
        move = sharing_of(node) if facts.is_standard(node) else None
        return GraphKernel(
            name,
            operator_name(node),
            tuple(NONE if value is None else self._numbers[value] for value in node.inputs),
            tuple(
                map(TensorRead, read, (spans_read(node, value, facts) if move == "cut" else None for value in values))
            ),
            makes,
            inside,
            tuple(self._share(alias) for alias in shares if self._scope.apart.isdisjoint((alias.value, alias.source))),
            all(value in facts.constants for value in node.outputs),
            move,
            keys.TILE in node.metadata_props,
            bodies,
            node,
        )

    def _inside(self, node: ir.Node) -> Iterator[int]:
        """Yield the numbers of the values that `node` makes in its bodies while it runs as one kernel."""
        reason = f"made inside {node_id(node)!r}, which runs as one kernel"
        made = (value for body in bodies_of(node) for value in values_in(body.graph) if value.name)
        return (self._add(value, OUTSIDE, reason) for value in made)

    def _require_made(self, values: tuple[ir.Value, ...], name: str) -> None:
        for value in values:
            maker = value.producer()
            if value not in self._numbers and maker is not None and maker.graph is self._scope.graph and value.name:
                raise ModelError(f"the node {name!r} reads {value.name!r}, which is made after it")

    def _share(self, alias: Alias) -> Share:
        return Share(alias.rule, self._numbers[alias.value], self._number(alias.source), alias.at)

    def _bodies(self, node: ir.Node) -> Iterator[KernelBody]:
        for attribute, body in planned_bodies_of(node, self._facts):
            states = carried(node, body, self._facts)
            scope = PlanScope(body, "inside", borrows=attribute is None, states=states, repeats=True)
            yield KernelBody(attribute, read_kernels(self._facts, scope))

    # The role of each value: in the arena, constant, outside, or of unknown size, with the reason.

    def _number(self, value: ir.Value) -> int:
        """Return the number of `value`; one that is met first here is a constant, or belongs to the graph around this one."""
        if value not in self._numbers:
            self._add(value, CONSTANT if value in self._facts.constants else AROUND)
        return self._numbers[value]

    def _add(self, value: ir.Value, role: str, reason: str = "") -> int:
        shapes = self._facts.shapes
        dtype, size, dims = shapes.dtype(value), tensor_bytes(value, shapes), shapes.sizes(value)
        unit = 1 if dtype is None or size is None else granule(dtype)
        type_ = None if dtype is None else dtype.name
        self._numbers[value] = len(self._tensors)
        self._tensors.append(
            GraphTensor(value.name or "", role, size, type_, dims, unit, reason, value in self._facts.constants, value)
        )
        return self._numbers[value]

    def _add_input(self, value: ir.Value) -> None:
        if value in self._facts.constants:
            self._add(value, CONSTANT)
        elif value in self._outside:
            self._add(value, OUTSIDE, self._outside[value])
        else:
            self._place(value, None)

    def _add_result(self, value: ir.Value, alias: Alias | None) -> int:
        # A constant that is a graph output is written into the arena by the node that makes it.
        if value in self._facts.constants and value not in self._outputs:
            return self._add(value, CONSTANT)
        return self._place(value, alias)

    def _place(self, value: ir.Value, alias: Alias | None) -> int:
        reason = self._outside.get(value) or no_fixed_bytes(value, self._facts)
        if reason is not None:
            return self._add(value, OUTSIDE, reason)
        if tensor_bytes(value, self._facts.shapes) is None:
            return self._add(value, UNKNOWN, why_unknown(value, self._facts))
        # A view that is a graph output lies inside the arena even if its source does not: it is a copy.
        if alias is None or value in self._outputs or self._is_held(alias.source):
            return self._add(value, ARENA)
        kind = "view" if alias.rule == "view" else "part"
        return self._add(value, OUTSIDE, f"a {kind} of {alias.source.name!r}, which lies outside")

    def _is_held(self, value: ir.Value) -> bool:
        return value in self._facts.constants or self._tensors[self._numbers[value]].role == ARENA

    def _is_near(self, alias: Alias) -> bool:
        """Return whether a view may stay in place: a body of If, Loop or Scan shares no bytes with the graph around it."""
        maker = alias.source.producer()
        return self._scope.borrows or (alias.source.graph if maker is None else maker.graph) is self._scope.graph


def no_fixed_bytes(value: ir.Value, facts: LayoutFacts) -> str | None:
    """Return why `value` has no fixed bytes; None for one that has."""
    if facts.shapes.never(value) is not None:
        return facts.shapes.never(value)
    if value in facts.containers:
        name = kind_name(facts.containers[value])
        return f"{'an' if name == 'optional' else 'a'} {name} has no fixed bytes"
    if facts.shapes.dtype(value) == ir.DataType.STRING:
        return "strings have no fixed bytes"
    return None


def why_unknown(value: ir.Value, facts: LayoutFacts) -> str:
    """Return why the bytes of `value` are not known."""
    if facts.shapes.sizes(value) is not None:
        return "its element type is not known"
    bindable = [symbol for dim in facts.shapes.dims(value) or () for symbol in facts.unbound.bindable(dim)]
    if bindable:
        symbols = " and ".join(map(repr, dict.fromkeys(bindable)))
        return f"its size depends on {symbols}: bind it with {binding(bindable)}"
    return facts.unbound.once_bound(facts.shapes.reason(value))


# The bodies that are planned inside the arena of the graph around them.


def planned_bodies_of(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[str | None, ir.Graph]]:
    """Yield the planned bodies of `node` with the name of the attribute; None is the body of the function that it calls."""
    inside = inside_of(node)
    if inside is not None:
        yield None, inside
        return
    if node.op_type == "Scan" and facts.opset() < 9:
        return  # such a Scan runs over a batch, as one kernel
    if node.op_type in CONTROL_FLOW and facts.is_standard(node):
        yield from ((body.attribute, body.graph) for body in bodies_of(node) if body.position is None)


# The carried values of a Loop or Scan: inputs and outputs of its body that are one state of the iterations.


def carried(node: ir.Node, body: ir.Graph, facts: LayoutFacts) -> tuple[StatePair, ...]:
    """Return the carried values of `node` with this `body` that have one type and one shape of known size in all iterations."""
    if not facts.is_standard(node):
        return ()
    inputs, outputs = list(body.inputs), list(body.outputs)
    if node.op_type == "Loop":
        pairs = list(zip(inputs[2:], outputs[1:], strict=False))
    elif node.op_type == "Scan":
        count = len(inputs) - node.attributes.get_int("num_scan_inputs", 0)
        pairs = list(zip(inputs[:count], outputs[:count], strict=False))
    else:
        return ()
    uses = Counter(outputs)
    alone = ((before, after) for before, after in pairs if uses[after] == 1 and _is_made_in(body, after))
    return tuple(
        StatePair(before, after, source=STRUCTURE) for before, after in alone if _is_one_size(before, after, facts)
    )


def _is_made_in(body: ir.Graph, value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.graph is body


def _is_one_size(before: ir.Value, after: ir.Value, facts: LayoutFacts) -> bool:
    shapes = facts.shapes
    if before in facts.constants or after in facts.constants or shapes.dtype(before) != shapes.dtype(after):
        return False
    if tensor_bytes(before, shapes) is None or shapes.sizes(before) != shapes.sizes(after):
        return False
    is_bound = shapes.is_bound(before) or shapes.is_bound(after)
    formulas = shapes.formulas(before), shapes.formulas(after)
    return not is_bound or (formulas[0] is not None and formulas[0] == formulas[1])
