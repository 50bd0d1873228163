"""Opened calls: each call of a local function holds a copy of the function's graph, whose shapes and constants are known.

The copy of the model that is made here has the graph in an attribute of the call. It reads the operands of the call where these are, as a
branch of an If does. Inside a function shapes depend on the call, so that each call has a graph of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.save import MAX_IR_VERSION
from onnxtile.model.topology import HeldGraph, bodies_of, called_functions, nodes_in
from onnxtile.operators.table import CONTROL_FLOW
from onnxtile.shapes.infer import inferred_types, values
from onnxtile.shapes.propagation import opened
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import ModelError

_MOST = 500_000
"""Nodes of all copies together: functions that call each other twice have any number."""

_SMALL = 4096
"""Elements of a computed constant whose numbers may decide a shape."""


class Unfolded(NamedTuple):
    """A model whose calls are open, and what is known of the values of all its graphs."""

    model: ir.Model
    shapes: Shapes
    constants: Constants


def is_kernel(function: ir.Function) -> bool:
    """Return whether a call of `function` runs as one kernel: it is a meta-op that fuse made, or a copy that plan made."""
    is_marked = keys.META_OP in function.metadata_props or keys.COPY in function.metadata_props
    return function.domain == keys.DOMAIN and is_marked


def inside_of(node: ir.Node) -> ir.Graph | None:
    """Return the copy of its function's graph that an open call holds, else None."""
    attribute = node.attributes.get(keys.INSIDE)
    return None if attribute is None else attribute.as_graph()


def unfold(model: ir.Model, shapes: Shapes, constants: Constants) -> Unfolded:
    """Return a copy of `model` in which all calls are open that do not run as one kernel; what was given where there are none.

    A function that imports other operator versions than the model, or hands out an operand as it is, stays closed. So do calls in the
    bodies of other operators than If, Loop and Scan, and what only makes constants. Raises ModelError where all copies together have
    too many nodes.
    """
    opening = _CallOpening(model, constants)
    if not model.functions or not any(opening.is_open(node) for node in _nodes(model.graph)):
        return Unfolded(model, shapes, constants)
    copy = model.clone()
    known = shapes.of_copies(dict(zip(values(model), values(copy), strict=True)))
    held = Constants(copy)
    calls = _CallOpening(copy, held).open(copy.graph)
    computed = Constants(copy)
    return Unfolded(copy, known.with_those_of(_inferred(copy, calls, known, computed)), computed)


def written_out(call: ir.Node, model: ir.Model, shapes: Shapes, constants: Constants) -> ir.Model:
    """Return the meta-op `call` of `model` as a model of its own. Its inputs are the operands; small operands and weights are constants.

    `model` stays as it is.
    """
    flat = _Flat(model, shapes, constants)
    flat.write(model.functions[call.op_identifier()], call)
    return flat.model()


def fold(model: ir.Model) -> None:
    """Close all calls of `model` (in place)."""
    for node in list(_nodes(model.graph)):
        node.attributes.pop(keys.INSIDE, None)


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of `graph` and of the bodies of If, Loop and Scan in it, at any depth."""
    return nodes_in(graph, _control_flow)


def _control_flow(node: ir.Node) -> list[HeldGraph]:
    return bodies_of(node) if node.op_type in CONTROL_FLOW and not node.domain else []


class _CallOpening:
    """Opens the calls of one model."""

    def __init__(self, model: ir.Model, constants: Constants) -> None:
        self._model = model
        self._constants = constants
        self._opens: dict[ir.OperatorIdentifier, bool] = {}
        self._count = 0

    def is_open(self, node: ir.Node) -> bool:
        """Return whether `node` is a call that is to be opened."""
        function = self._model.functions.get(node.op_identifier())
        if function is None or keys.INSIDE in node.attributes:
            return False
        if node.op_identifier() not in self._opens:
            self._opens[node.op_identifier()] = self._opens_as(function)
        return self._opens[node.op_identifier()] and not all(value in self._constants for value in node.outputs)

    def _opens_as(self, function: ir.Function) -> bool:
        if is_kernel(function) or any(value.producer() is None for value in function.outputs):
            return False
        imports = self._model.graph.opset_imports
        used = {node.domain for node in function.all_nodes()}
        return all(
            imports.get(domain, version) == version
            for domain, version in function.opset_imports.items()
            if domain in used
        )

    def open(self, graph: ir.Graph) -> list[ir.Node]:
        """Open the calls in `graph`, those in their graphs too (in place); return those that stand in no other."""
        calls = [node for node in _nodes(graph) if self.is_open(node)]
        todo = list(calls)
        while todo:
            call = todo.pop()
            inside = self._copy(call)
            call.attributes.add(ir.AttrGraph(keys.INSIDE, inside))
            todo.extend(node for node in _nodes(inside) if self.is_open(node))
        return calls

    def _copy(self, call: ir.Node) -> ir.Graph:
        function = self._model.functions[call.op_identifier()]
        self._count += sum(1 for _ in function.all_nodes())
        if self._count > _MOST:
            raise ModelError(f"the calls of local functions expand to more than {_MOST:,} nodes", hint="inline them")
        nodes, results = opened(function, call.inputs, call.attributes)
        outputs = [value for value in results if value is not None]
        imports = dict(self._model.graph.opset_imports)
        return ir.Graph([], outputs, nodes=nodes, opset_imports=imports, name=function.name)


def _inferred(model: ir.Model, calls: Iterable[ir.Node], shapes: Shapes, constants: Constants) -> Shapes:
    """Return the shapes inside the open `calls`, given the `shapes` around them.

    All that is in them is inferred as one model, whose inputs are their operands. Read off a run where inference does not suffice, and
    random operands do not keep onnxruntime from running it.
    """
    flat = _Flat(model, shapes, constants)
    for call in calls:
        flat.add(call)
    shell = flat.model()
    try:
        inferred = resolve(shell, run=True)
    except ModelError:
        inferred = resolve(shell)
    originals = flat.originals()
    if any(inferred.dtype(copy) is None for copy in originals):
        _note_types(shell, originals)
    return inferred.of_copies(originals, flat.bounded)


def _note_types(shell: ir.Model, originals: Mapping[ir.Value, Iterable[ir.Value]]) -> None:
    """Give the `originals` of the values of `shell` that are no tensors their types, as far as onnx knows them (in place)."""
    types = next(iter(inferred_types(shell)), {})  # the others are tensors of which nothing is known
    for copy, values_inside in originals.items():
        for value in values_inside if copy.name in types else ():
            value.type = types[copy.name or ""]


class _Flat:
    """Inlines open calls one after another. `_copies` maps each value of the model, or of a call, to its copy."""

    def __init__(self, model: ir.Model, shapes: Shapes, constants: Constants) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        self._copies: dict[ir.Value, ir.Value | None] = {}
        self._inside: dict[ir.Value, None] = {}
        self._nodes: list[ir.Node] = []
        self._inputs: list[ir.Value] = []
        self._initializers: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self.bounded: set[ir.Value] = set()

    def add(self, call: ir.Node) -> None:
        """Write out the open `call`."""
        inside = inside_of(call)
        assert inside is not None
        before = len(self._inside)
        self._give(call)
        self._nodes += self._written(inside)
        self._outputs += [self._copy_of(value) for value in inside.outputs]
        if any(value is not None and self._shapes.is_bound(value) for value in call.inputs):
            self.bounded.update(islice(self._inside, before, None))

    def write(self, function: ir.Function, call: ir.Node) -> None:
        """Write out `function`, which has no attributes, with the operands of `call`."""
        self._give(call)
        operands = [*call.inputs, *[None] * (len(function.inputs) - len(call.inputs))]
        for value, operand in zip(function.inputs, operands, strict=True):
            self._copies[value] = None if operand is None else self._copies[operand]
        self._nodes += self._written(function.graph)
        self._outputs += [self._copy_of(value) for value in function.outputs]

    def originals(self) -> dict[ir.Value, list[ir.Value]]:
        """Return for each value of the model the values inside that it stands for."""
        insides: dict[ir.Value, list[ir.Value]] = {}
        for value in self._inside:
            insides.setdefault(self._copy_of(value), []).append(value)
        return insides

    def _give(self, call: ir.Node) -> None:
        """Let something stand for each operand of `call`."""
        for value in call.inputs:
            if value is not None and value not in self._copies:
                self._copies[value] = self._operand(value)

    def _copy_of(self, value: ir.Value) -> ir.Value:
        copy = self._copies[value]
        assert copy is not None
        return copy

    def model(self) -> ir.Model:
        """Return all that was written out as a model."""
        imports = dict(self._model.graph.opset_imports)
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._nodes,
            initializers=self._initializers,
            opset_imports=imports,
            name="inside",
        )
        functions = [function.clone() for function in called_functions(graph.all_nodes(), self._model)]
        version = min(max(self._model.ir_version, 8), MAX_IR_VERSION)
        return ir.Model(graph, ir_version=version, functions=functions)

    def _operand(self, value: ir.Value) -> ir.Value:
        """Return the copy of an operand of the call: a constant if its numbers may matter, else an input."""
        dtype, dims = self._shapes.dtype(value), self._shapes.dims(value)
        shape = None if dims is None else ir.Shape([dim if isinstance(dim, int) else None for dim in dims])
        copy = ir.Value(name=self._fresh(), type=None if dtype is None else ir.TensorType(dtype), shape=shape)
        sizes = self._shapes.sizes(value)
        if value.const_value is not None and value in self._constants:
            copy.const_value = value.const_value
        elif (
            value in self._constants
            and sizes is not None
            and math.prod(sizes) <= _SMALL
            and dtype != ir.DataType.STRING
        ):
            copy.const_value = ir.tensor(self._constants.array(value), name=copy.name)
        (self._inputs if copy.const_value is None else self._initializers).append(copy)
        return copy

    def _fresh(self) -> str:
        return f"v{len(self._copies)}"

    def _copied(self, value: ir.Value) -> ir.Value:
        """Return a new value for `value`, which is made inside."""
        copy = ir.Value(name=self._fresh() if value.name else "", type=value.type, shape=value.shape)
        self._copies[value] = copy
        self._inside[value] = None
        return copy

    def _written(self, graph: ir.Graph) -> list[ir.Node]:
        """Return copies of the nodes of `graph`, those of the calls in it in their places."""
        nodes = []
        for node in graph:
            inside = inside_of(node)
            if inside is not None:
                nodes += self._written(inside)
                for value, result in zip(node.outputs, inside.outputs, strict=False):
                    self._copies[value] = self._copies[result]
                    self._inside[value] = None
                continue
            operands = [None if value is None else self._copies[value] for value in node.inputs]
            attributes = [self._attribute(attribute) for attribute in node.attributes.values()]
            outputs = [self._copied(value) for value in node.outputs]
            nodes.append(
                ir.Node(node.domain, node.op_type, operands, attributes, overload=node.overload, outputs=outputs)
            )
        return nodes

    def _attribute(self, attribute: ir.Attr) -> ir.Attr:
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attribute.name, self._body(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(attribute.name, [self._body(body) for body in attribute.as_graphs()])
        return attribute

    def _body(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._copied(value) for value in graph.inputs]
        initializers = []
        for value in graph.initializers.values():
            copy = self._copy_of(value) if value in self._copies else self._copied(value)
            copy.const_value = value.const_value
            initializers.append(copy)
        nodes = self._written(graph)
        outputs = [self._copy_of(value) for value in graph.outputs]
        return ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, name=graph.name)
