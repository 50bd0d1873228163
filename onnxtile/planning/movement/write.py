"""Writes the copies of a movement into a graph, as calls of a local function that copies its operand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.walk import all_values, bodies_of, dependencies
from onnxtile.shapes.resolve import Shapes

COPY = "Copy"
"""The name of the function."""
_FEW_BITS = frozenset({ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4})
"""Element types of which onnxruntime casts tensors, but has no kernel for Identity."""


class CopyToWrite(NamedTuple):
    """A copy of `value` to the fast memory (a load) or out of it; the Slice `part` copies a part of an input.

    A store holds its bytes up to the kernel at the place `held`.
    """

    value: ir.Value
    is_load: bool
    part: ir.Node | None = None
    held: int | None = None


@dataclass(frozen=True)
class MovementOrder:
    """A schedule with the copies to make, in values and nodes of one graph.

    Before the node at a place of `nodes`, the `copies` of this place are made; those of the place behind the last node come at the end.
    `outputs` are copied to the slow memory. The Slices in `parts` are copies. Nodes in `once` make constants, and read no copies.
    """

    nodes: tuple[ir.Node, ...]
    copies: Mapping[int, Sequence[CopyToWrite]]
    outputs: Collection[ir.Value]
    parts: Collection[ir.Node] = ()
    once: Collection[ir.Node] = ()


@dataclass
class WrittenCopies:
    """The copies in a graph.

    `places` has the place in the old schedule that each node of the new one belongs to. By result, `origin` has the value of the old graph
    with the same bytes, and, by name, `tensor` its old name. `slow` are the names of values in the slow memory, `stored` those of them by
    the old name of the tensor. `held` has the last step in which a tensor of the fast memory takes bytes because its copy has not ended.
    """

    places: list[int] = field(default_factory=list)
    tensor: dict[str, str] = field(default_factory=dict)
    origin: dict[ir.Value, ir.Value] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    stored: dict[str, str] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)


def write_copies(model: ir.Model, shapes: Shapes, order: MovementOrder, fast: str, slow: str) -> WrittenCopies:
    """Put the nodes of the graph of `model` (in place), of which `shapes` are known, into `order`, with its copies; return these."""
    return _CopyWriter(model, shapes, order, fast, slow).write()


class _CopyWriter:
    def __init__(self, model: ir.Model, shapes: Shapes, order: MovementOrder, fast: str, slow: str) -> None:
        self._model, self._shapes, self._order, self._fast, self._slow = model, shapes, order, fast, slow
        self._names = {value.name for value in all_values(model)}
        self._inside: dict[ir.Value, ir.Value] = {}
        self._stored: dict[ir.Value, ir.Value] = {}
        self._old_names: dict[ir.Value, str] = {}
        self._nodes: list[ir.Node] = []
        self._found = WrittenCopies()
        self._function = _function(model, COPY, "Identity", 1).name

    def write(self) -> WrittenCopies:
        graph, order, held, steps = self._model.graph, self._order, dict[str, int](), list[int]()
        for place in range(len(order.nodes) + 1):
            for copy in order.copies.get(place, ()):
                source = self._make(copy, place)
                if copy.held is not None:
                    held[source] = copy.held
            if place < len(order.nodes):
                steps.append(len(self._nodes))
                self._run(order.nodes[place], place)
        self._found.held.update((name, steps[last]) for name, last in held.items())
        graph.remove(list(graph))
        graph.extend(self._nodes)
        return self._found

    def _run(self, node: ir.Node, place: int) -> None:
        """Put the kernel `node` at its place, if it is no copy."""
        if node not in self._order.parts:
            if node not in self._order.once:
                _read_copies(node, self._inside)
            self._add(node, place)
        for value in node.outputs:
            if value in self._order.outputs:
                self._old_names[value] = value.name or ""
                value.name = self._unique(value, self._fast)

    def _make(self, copy: CopyToWrite, place: int) -> str:
        """Make a copy at its place; return the name of the tensor that it reads."""
        value = copy.value
        source = self._stored.get(value, value) if copy.is_load else self._inside.get(value, value)
        if copy.part is not None:
            _read_copies(copy.part, self._inside)
            self._copy_part(copy.part, place)
        elif copy.is_load:
            self._inside[value] = self._copy(source, value, self._unique(value, self._fast), place)
        elif value in self._old_names:
            self._hand_out(value, place)
        else:
            self._stored[value] = made = self._copy(source, value, self._unique(value, self._slow), place)
            self._found.stored[value.name or ""] = made.name or ""
            self._found.slow.add(made.name or "")
        return source.name or ""

    def _copy_part(self, node: ir.Node, place: int) -> None:
        """Put a call of a function that copies a part in the place of a Slice."""
        operands, result = list(node.inputs), node.outputs[0]
        source = operands[0]
        assert source is not None
        made = ir.Value(name=result.name, shape=result.shape, type=result.type)
        made.metadata_props.update(result.metadata_props)
        function = add_part_function(self._model, len(operands))
        call = ir.Node(keys.DOMAIN, function.name, operands, outputs=[made], name=node.name)
        call.metadata_props.update(node.metadata_props)
        for number in range(len(operands)):
            node.replace_input_with(number, None)
        self._inside[result] = made
        self._found.origin[made] = result
        self._found.tensor[made.name or ""] = source.name or ""
        self._add(call, place)

    def _add(self, node: ir.Node, place: int) -> None:
        self._nodes.append(node)
        self._found.places.append(place)

    def _hand_out(self, value: ir.Value, place: int) -> None:
        """Give the old name of the output `value` to a copy of it, which is the output."""
        name, outputs = self._old_names[value], self._model.graph.outputs
        places = [number for number, output in enumerate(outputs) if output is value]
        copy = self._copy(value, value, name, place)
        copy.metadata_props.update(value.metadata_props)
        for number in places:
            outputs[number] = copy
        # A constant is copied to the fast memory from where it is.
        if value.producer() not in self._order.once:
            self._stored[value] = copy
        self._found.slow.add(name)

    def _copy(self, source: ir.Value, origin: ir.Value, name: str, place: int) -> ir.Value:
        copy = ir.Value(name=name, shape=origin.shape, type=origin.type)
        function = self._function
        if self._shapes.dtype(origin) in _FEW_BITS:
            function = _function(self._model, f"{COPY}Bits", "CastLike", 1).name
        self._add(ir.Node(keys.DOMAIN, function, [source], outputs=[copy], name=f"{COPY}/{name}"), place)
        self._found.origin[copy] = origin
        self._found.tensor[name] = self._old_names.get(origin, origin.name or "")
        return copy

    def _unique(self, value: ir.Value, memory: str) -> str:
        stem = name = f"{self._old_names.get(value, value.name)}@{memory}"
        number = 1
        while name in self._names:
            number += 1
            name = f"{stem}.{number}"
        self._names.add(name)
        return name


def _read_copies(node: ir.Node, copies: Mapping[ir.Value, ir.Value]) -> None:
    """Let `node` and its bodies read the `copies` of values."""
    if not any(value in copies for value in dependencies(node)):
        return
    for one in (node, *_inner_nodes(node)):
        for number, value in enumerate(one.inputs):
            if value is not None and value in copies:
                one.replace_input_with(number, copies[value])
        for body in bodies_of(one):
            for number, value in enumerate(body.graph.outputs):
                if value in copies:
                    body.graph.outputs[number] = copies[value]


def _inner_nodes(node: ir.Node) -> Iterator[ir.Node]:
    return (inner for body in bodies_of(node) for inner in body.graph.all_nodes())


def add_part_function(model: ir.Model, count: int) -> ir.Function:
    """Return the function of `model` that copies a part of its first operand, as a Slice with `count` operands says."""
    return _function(model, f"{COPY}Slice.{count}", "Slice", count)


def _function(model: ir.Model, name: str, operator: str, count: int) -> ir.Function:
    """Return the function `name` of `model`, which is made where there is none, with one node `operator` of `count` operands.

    CastLike reads its operand twice, and so makes tensors of the same type.
    """
    is_cast = operator == "CastLike"
    imports = model.graph.opset_imports
    imports.setdefault(keys.DOMAIN, 1)
    known = model.functions.get((keys.DOMAIN, name, ""))
    if known is not None:
        return known
    operands, result = [ir.Value(name=f"x{number}") for number in range(count)], ir.Value(name="y")
    node = ir.Node("", operator, operands * 2 if is_cast else operands, outputs=[result], name=operator)
    standard = {"": imports.get("", imports.get("ai.onnx", 1))}
    graph = ir.Graph(operands, [result], nodes=[node], name=name, opset_imports=standard)
    function = ir.Function(keys.DOMAIN, name, graph=graph, attributes=())
    function.doc_string = "Copies its operand, or a part of it, into another memory."
    function.metadata_props[keys.COPY] = "Identity" if is_cast else operator
    model.functions[function.identifier()] = function
    return function
