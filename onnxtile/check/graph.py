"""The graph of a model for the check of plans and for certificates, read from its protobuf alone.

It needs Python, onnx, and `operators.py` beside it. Sizes and element types are those that the model declares, or those that are given as
plain data. Each call of a function that does not run as one kernel holds a graph of its own, which reads the operands where these are.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import onnx

if TYPE_CHECKING or __package__:
    import onnxtile.check.operators as table
else:
    import operators as table

_MARK = "pkg.onnxtile."
DOMAIN = "onnxtile"
META_OP, COPY, IN_PLACE, STEP, PLAN, STREAM = (
    _MARK + name for name in ("meta_op", "copy", "in_place", "step", "plan", "stream")
)
_INSIDE = "onnxtile.inside"
"""An attribute of calls while a plan is made, which no file has."""

BITS: Mapping[int, int] = {
    code: bits
    for bits, names in {
        2: ("INT2", "UINT2"),
        4: ("INT4", "UINT4", "FLOAT4E2M1"),
        8: ("INT8", "UINT8", "BOOL", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"),
        16: ("INT16", "UINT16", "FLOAT16", "BFLOAT16"),
        32: ("INT32", "UINT32", "FLOAT"),
        64: ("INT64", "UINT64", "DOUBLE", "COMPLEX64"),
        128: ("COMPLEX128",),
    }.items()
    for name in names
    if (code := getattr(onnx.TensorProto, name, None)) is not None
}
"""The bits of an element, by the number of its type in onnx. Strings have no fixed number."""
STRING = onnx.TensorProto.STRING
_WIDEST = 16
"""Bytes: no element needs a larger alignment."""
FEW = 16
"""Elements, at most, of constants whose numbers are read."""
_CONTAINERS = {"sequence_type": "sequence", "optional_type": "optional", "sparse_tensor_type": "sparse tensor"}

GraphPath: TypeAlias = tuple[tuple[int, str], ...]
"""The way to a graph from the main one: the place of each node that is entered, and the body there; "" for a function."""


class ValueFacts(NamedTuple):
    """What is known of a value: its sizes, the largest where it `is_open` and a run may show smaller ones; its element type.

    `never` is the reason why no run makes it, `unknown` why its bytes are not known. `kind` is "tensor", "sequence", "optional" or "sparse
    tensor", as far as it is declared. `numbers` are the elements of a small constant that nodes compute.
    """

    shape: tuple[int, ...] | None = None
    dtype: int | None = None
    is_open: bool = False
    never: str | None = None
    unknown: str = "no shape inference knows it"
    kind: str | None = None
    numbers: tuple[Any, ...] | None = None


_UNKNOWN = ValueFacts()
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class PlainModel(NamedTuple):
    """The protobuf of a model, which need not have weights, the `facts` of its values, and the IR version of its file."""

    proto: onnx.ModelProto
    facts: Mapping[GraphPath, Mapping[str, ValueFacts]]
    ir_version: int


class Value:
    """A value of a graph: `maker` is the node that makes it, None for an input or constant; `readers` are the nodes with it as operand."""

    __slots__ = (
        *("bytes", "dtype", "graph", "infos", "is_constant", "known", "maker", "name", "numbers", "readers"),
        "shape",
    )

    def __init__(self, name: str, graph: Graph | None, maker: GraphNode | None = None) -> None:
        self.name, self.graph, self.maker = name, graph, maker
        self.readers: list[GraphNode] = []
        self.infos: tuple[onnx.ValueInfoProto, ...] = ()
        """What the file says of it, where that has marks."""
        self.is_constant = False
        self.numbers: tuple[Any, ...] | None = None
        self.known = _UNKNOWN
        self.shape: tuple[int, ...] | None = None
        self.dtype: int | None = None
        self.bytes: int | None = None

    def tell(self, known: ValueFacts) -> None:
        """Note what is known of the value."""
        self.known, self.shape, self.dtype = known, known.shape, known.dtype
        bits = None if known.shape is None else BITS.get(known.dtype or 0)
        self.bytes = None if bits is None else (math.prod(known.shape or ()) * bits + 7) // 8
        if known.numbers is not None:
            self.numbers = known.numbers

    @property
    def marks(self) -> Mapping[str, str]:
        """Its marks, by name."""
        return {entry.key: entry.value for info in self.infos for entry in info.metadata_props}

    @property
    def bits(self) -> int | None:
        """The bits of an element; None where they are not known or not fixed."""
        return BITS.get(self.dtype or 0)

    @property
    def type_name(self) -> str | None:
        """The name of its element type: "FLOAT"."""
        return None if self.dtype is None else onnx.TensorProto.DataType.Name(self.dtype)

    @property
    def alignment(self) -> int:
        """The bytes that its address must be a multiple of, whatever the alignment of the plan."""
        return max(1, min((self.bits or 8) // 8, _WIDEST))

    @property
    def is_streamed(self) -> bool:
        """Whether it is an input that comes row by row, so that no memory has all of it."""
        return self.maker is None and STREAM in self.marks

    @property
    def is_open(self) -> bool:
        """Whether it may be smaller in a run than its shape says."""
        return self.known.is_open

    @property
    def kind(self) -> str | None:
        """What it is if it is no tensor: a "sequence", "optional" or "sparse tensor"."""
        return None if self.graph is None else self.graph.model.kind(self)

    @property
    def is_output(self) -> bool:
        """Whether it is an output of its graph."""
        return self.graph is not None and self in self.graph.results

    @property
    def whole_numbers(self) -> list[int] | None:
        """The elements of a small constant of whole numbers; None for any other value."""
        return [int(number) for number in self.numbers] if self.is_constant and self.numbers is not None else None


class GraphNode:
    """A node: `attributes` are its numbers, texts, and lists of these. `bodies` are the graphs in its other attributes, by name.

    A call has the `function` that it calls, and in `inside` the graph of one that does not run as one kernel. `is_bound` says whether no
    attribute is one of the caller.
    """

    __slots__ = (
        *("attributes", "bodies", "domain", "function", "graph", "inputs", "inside", "is_bound"),
        *("name", "op_type", "outputs", "proto"),
    )

    def __init__(self, proto: onnx.NodeProto, graph: Graph) -> None:
        self.domain, self.op_type, self.name, self.graph = proto.domain, proto.op_type, proto.name, graph
        self.proto = proto
        self.inputs: list[Value | None] = []
        self.outputs: list[Value] = []
        self.attributes: Mapping[str, Any] = _NOTHING
        self.bodies: Mapping[str, Graph] = _NOTHING
        self.function: Function | None = None
        self.inside: Graph | None = None
        self.is_bound = True

    @property
    def marks(self) -> Mapping[str, str]:
        """Its marks, by name."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @property
    def is_standard(self) -> bool:
        """Whether it is an operator of the ONNX specification."""
        return self.domain in table.STANDARD and self.function is None

    @property
    def operator(self) -> str:
        """Its operator, with the domain where that is not the standard one."""
        return self.op_type if self.domain in table.STANDARD else f"{self.domain}::{self.op_type}"

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.graph.model.opset

    @property
    def first_output(self) -> str:
        """The first output that has a name; empty where it has none."""
        return first_output(self.proto)

    @property
    def copied(self) -> str | None:
        """The operator by which it copies its operand into another memory; None for a kernel."""
        return None if self.function is None else self.function.marks.get(COPY)

    @property
    def over(self) -> frozenset[int]:
        """The places of the operands over which a meta-op may write, as its pattern declares."""
        text = "" if self.function is None else self.function.marks.get(IN_PLACE, "")
        return frozenset(json.loads(text)) if text else frozenset()

    def number(self, name: str, default: int) -> int:
        """Return a whole number among its attributes."""
        number = self.attributes.get(name, default)
        return number if isinstance(number, int) else default

    def entered(self) -> dict[str | None, Graph]:
        """Return the graphs inside that have plans of their own, by attribute; None is that of the function that it calls."""
        if self.inside is not None:
            return {None: self.inside}
        # A Scan of older versions runs over a batch, as one kernel.
        is_entered = (
            self.is_standard and self.op_type in table.WITH_BODIES and (self.op_type != "Scan" or self.opset >= 9)
        )
        return dict(self.bodies.items()) if is_entered else {}

    @property
    def made_inside(self) -> Iterator[Value]:
        """The named values of its bodies, and of the function that it calls, at any depth."""
        for body in (*self.bodies.values(), *([] if self.inside is None else [self.inside])):
            yield from body.made_inside

    def reads(self) -> tuple[Value, ...]:
        """Return the values that it and its bodies read of the graphs around them, each once."""
        values = {value: None for value in self.inputs if value is not None}
        if not self.bodies:
            return tuple(values)
        inside, todo = set[Graph | None](), list(self.bodies.values())
        while todo:
            body = todo.pop()
            inside.add(body)
            for node in body.nodes:
                values.update((value, None) for value in node.inputs if value is not None)
                todo += node.bodies.values()
            values.update((value, None) for value in body.outputs)
        return tuple(value for value in values if value.graph not in inside)


class Graph:
    """A graph of `model`: the main one, a body, or that of a call or function."""

    def __init__(self, model: GraphModel, *, is_call: bool = False) -> None:
        self.model, self.is_call = model, is_call
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.initializers: list[Value] = []
        self.nodes: list[GraphNode] = []

    @cached_property
    def results(self) -> frozenset[Value]:
        """Its outputs."""
        return frozenset(self.outputs)

    @property
    def values(self) -> Iterator[Value]:
        """Its inputs and the values that its nodes make, in their order, without those in bodies."""
        return chain(self.inputs, (value for node in self.nodes for value in node.outputs))

    @property
    def made_inside(self) -> Iterator[Value]:
        """Its inputs and the named values that are made in it, at any depth."""
        for value in self.inputs:
            yield from [value] if value.name else []
        for node in self.nodes:
            yield from (value for value in node.outputs if value.name)
            yield from node.made_inside

    @cached_property
    def names(self) -> dict[GraphNode, str]:
        """The name of each node in a plan: its name, or its first output where that is empty or repeated."""
        return dict(zip(self.nodes, plan_names([node.proto for node in self.nodes]), strict=True))


def plan_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Return the name of each of the nodes of a graph in a plan: its name, or its first output where that is empty or repeated."""
    counts = Counter(node.name for node in nodes)
    return [
        (node.name if counts[node.name] < 2 else "") or first_output(node) or node.name or node.op_type
        for node in nodes
    ]


def first_output(node: onnx.NodeProto) -> str:
    """Return the first output that has a name; empty where `node` has none."""
    return next(filter(None, node.output), "")


class Function:
    """A function of a model.

    A call runs as one kernel where fuse or plan made the function. So does a call of a function that imports other versions of operators
    than the model, or that hands out an operand as it is. Any other call `is_open`. Results of a function that `is_pure` are the same for
    the same operands.
    """

    def __init__(self, proto: onnx.FunctionProto, model: GraphModel) -> None:
        self.proto, self._model = proto, model
        self.marks = {entry.key: entry.value for entry in proto.metadata_props}
        self.is_pure = COPY not in self.marks

    @cached_property
    def is_open(self) -> bool:
        """Whether its calls have plans of their own inside."""
        if self.proto.domain == DOMAIN and not self.marks.keys().isdisjoint({META_OP, COPY}):
            return False
        used, opsets = {node.domain for node in _nodes_in(self.proto.node)}, self._model.opsets
        results = {name for node in self.proto.node for name in node.output}
        imports = [opset for opset in self.proto.opset_import if opset.domain in used]
        return results.issuperset(self.proto.output) and all(
            opsets.get(opset.domain, opset.version) == opset.version for opset in imports
        )

    @cached_property
    def graph(self) -> Graph:
        """The graph of the function itself, of whose values nothing is known."""
        return _Reading(self._model, None).call(self.proto, (self.proto.input, self.proto.output), None)

    def references(self, call: GraphNode) -> dict[str, onnx.AttributeProto]:
        """Return the attributes inside of a `call`, by name: its own, then the defaults."""
        return {attribute.name: attribute for attribute in (*self.proto.attribute_proto, *call.proto.attribute)}


def _nodes_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from _nodes_in(graph.node)


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that the attributes of `node` hold."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


class GraphModel:
    """A model: its main graph, its functions by domain, name and overload, and the versions of its operators.

    `ir_version` is that of the file. What the model declares of its values is known; `told` comes first, by the way to the graph and name.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        facts: Mapping[GraphPath, Mapping[str, ValueFacts]] | None = None,
        ir_version: int | None = None,
    ) -> None:
        self.proto = proto
        self.ir_version = proto.ir_version if ir_version is None else ir_version
        self.opsets = {opset.domain: opset.version for opset in proto.opset_import}
        self.functions = {
            (function.domain, function.name, function.overload): Function(function, self)
            for function in proto.functions
        }
        self._find_pure()
        self.marks = {entry.key: entry.value for entry in proto.graph.metadata_props}
        self.graph = _Reading(self, facts).body(proto.graph, {})

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.opsets.get("", self.opsets.get("ai.onnx", 1))

    def _find_pure(self) -> None:
        """Note which functions reach no operator that draws random numbers, and none that is not known."""
        left: list[Function] | None = None
        while left != (pure := [function for function in self.functions.values() if function.is_pure]):
            left = pure
            for function in pure:
                function.is_pure = all(self.is_pure(node) for node in _nodes_in(function.proto.node))

    def is_pure(self, node: onnx.NodeProto) -> bool:
        """Return whether the results of `node` are the same for the same operands."""
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            return function.is_pure
        name = node.op_type if node.domain in table.STANDARD else f"{node.domain}::{node.op_type}"
        if (
            node.domain not in table.PURE_DOMAINS
            or name in table.DRAWING
            or node.op_type.startswith(table.OF_CONTAINERS)
        ):
            return False
        graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        return not any(attribute.type in graphs for attribute in node.attribute)

    def kind(self, value: Value) -> str | None:
        """Return the kind of a `value` that is not a tensor: "sequence", "optional", "sparse tensor"; None for a tensor."""
        if value.known.kind is not None:
            return None if value.known.kind == "tensor" else value.known.kind
        return self._inferred.get(value) if value.dtype is None or self._makes_optionals else None

    @cached_property
    def _makes_optionals(self) -> bool:
        """Whether the model has optionals, which some engines take for the tensors in them."""
        nodes = chain(self.proto.graph.node, *(function.node for function in self.proto.functions))
        is_given = any(value.known.kind == "optional" for value in self.graph.inputs)
        return is_given or any(node.op_type == "Optional" for node in _nodes_in(nodes))

    @cached_property
    def _inferred(self) -> dict[Value, str]:
        """The kinds of the values that are not tensors, by onnx's type inference."""
        try:
            inferred = onnx.shape_inference.infer_shapes(self.proto).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            return {}
        kind_of, todo = dict[Value, str](), [(self.graph, inferred)]
        while todo:
            graph, typed = todo.pop()
            kinds = {info.name: _kind(info.type) for info in (*typed.value_info, *typed.output)}
            for value in (value for node in graph.nodes for value in node.outputs):
                kind = kinds.get(value.name)
                if kind is not None and kind != "tensor":
                    kind_of[value] = kind
            for node, other in zip(graph.nodes, typed.node, strict=True):
                bodies = {attribute.name: attribute.g for attribute in other.attribute if attribute.HasField("g")}
                todo += [(body, bodies[name]) for name, body in node.bodies.items() if name in bodies]
        return kind_of


def _kind(type_: onnx.TypeProto) -> str | None:
    held = type_.WhichOneof("value")
    return "tensor" if held == "tensor_type" else _CONTAINERS.get(held or "")


Scope: TypeAlias = dict[str, Value]
References: TypeAlias = Mapping[str, onnx.AttributeProto]


class _Reading:
    """Makes the graphs of a model. `told` is what is known of values; without it, what the file declares is, and no call is opened."""

    def __init__(self, model: GraphModel, facts: Mapping[GraphPath, Mapping[str, ValueFacts]] | None) -> None:
        self._model, self._facts = model, facts

    def body(
        self, proto: onnx.GraphProto, around: Scope, path: GraphPath = (), references: References | None = None
    ) -> Graph:
        """Return the graph of a model or body, in which the values `around` it are known."""
        graph, values = Graph(self._model), dict(around)
        graph.inputs = [Value(info.name, graph) for info in proto.input]
        inside = {value.name: value for value in graph.inputs}
        for tensor in proto.initializer:
            is_constant = self._model.ir_version < 4 or tensor.name not in inside
            value = inside[tensor.name] = inside.get(tensor.name) or Value(tensor.name, graph)
            value.is_constant, value.numbers = is_constant, _few(tensor)
            value.tell(ValueFacts(tuple(tensor.dims), tensor.data_type, kind="tensor"))
            graph.initializers.append(value)
        for sparse in proto.sparse_initializer:
            value = inside[sparse.values.name] = Value(sparse.values.name, graph)
            value.is_constant = True
            graph.initializers.append(value)
        values |= inside
        inside |= self._fill(graph, proto.node, values, path, references)
        graph.outputs = [values.get(info.name) or Value(info.name, graph) for info in proto.output]
        self._tell(inside, path, (*proto.input, *proto.value_info, *proto.output))
        return graph

    def call(
        self,
        proto: onnx.FunctionProto | onnx.GraphProto,
        ends: tuple[Sequence[str], Sequence[str]],
        operands: Sequence[Value | None] | None,
        path: GraphPath = (),
        references: References | None = None,
    ) -> Graph:
        """Return the graph of a function with these names of inputs and outputs: of a call with `operands`, or of the function itself."""
        graph = Graph(self._model, is_call=operands is not None)
        if operands is None:
            graph.inputs = [Value(name, graph) for name in ends[0]]
        given = graph.inputs if operands is None else operands
        values = {name: value for name, value in zip(ends[0], given, strict=False) if value is not None}
        inside = self._fill(graph, proto.node, values, path, references)
        graph.outputs = [values[name] for name in ends[1] if name in values]
        self._tell(inside, path, proto.value_info)
        return graph

    def _fill(
        self,
        graph: Graph,
        protos: Sequence[onnx.NodeProto],
        values: Scope,
        path: GraphPath,
        references: References | None,
    ) -> Scope:
        """Make the nodes of a graph and the values that they make, and add these to `values`; return them by name."""
        results: Scope = {}
        for proto in protos:
            node = GraphNode(proto, graph)
            node.outputs = [Value(name, graph, node) for name in proto.output]
            results |= {value.name: value for value in node.outputs if value.name}
            graph.nodes.append(node)
        values |= results
        for index, (node, proto) in enumerate(zip(graph.nodes, protos, strict=True)):
            for name in proto.input:
                operand = values.get(name)
                if name and operand is None:
                    operand = values[name] = Value(name, None)
                node.inputs.append(operand)
                if operand is not None and not (operand.readers and operand.readers[-1] is node):
                    operand.readers.append(node)
            for attribute in proto.attribute:
                self._read(node, attribute, values, (*path, (index, attribute.name)), references)
            node.function = self._model.functions.get((proto.domain, proto.op_type, proto.overload))
            self._decide(node)
            if self._facts is not None and self._is_opened(node):
                node.inside = self._of_call(node, (*path, (index, "")))
        return results

    def _is_opened(self, node: GraphNode) -> bool:
        is_open = node.function is not None and node.function.is_open
        return is_open and not all(value.is_constant for value in node.outputs)

    def _of_call(self, node: GraphNode, path: GraphPath) -> Graph:
        """Return the graph inside of the call `node`."""
        assert node.function is not None
        function = node.function.proto
        return self.call(function, (function.input, function.output), node.inputs, path, node.function.references(node))

    def _read(
        self,
        node: GraphNode,
        proto: onnx.AttributeProto,
        values: Scope,
        path: GraphPath,
        references: References | None,
    ) -> None:
        """Note an attribute of `node`; one that the caller of a function gives has its value, if that is known."""
        name = proto.name
        if proto.ref_attr_name:
            node.is_bound = node.is_bound and references is not None
            if references is None or proto.ref_attr_name not in references:
                return
            proto = references[proto.ref_attr_name]
        if proto.type == onnx.AttributeProto.GRAPH:
            if name != _INSIDE:
                node.bodies = {**node.bodies, name: self.body(proto.g, values, path, references)}
        elif proto.type == onnx.AttributeProto.GRAPHS:
            for index, body in enumerate(proto.graphs):
                key = f"{name}.{index}"
                inner = self.body(body, values, (*path[:-1], (path[-1][0], key)), references)
                node.bodies = {**node.bodies, key: inner}
        elif proto.type in _READ:
            node.attributes = {**node.attributes, name: _READ[proto.type](proto)}

    def _decide(self, node: GraphNode) -> None:
        """Note whether the results of `node` are constant: it is a Constant, or computes the same from constants only."""
        if not node.is_bound:
            return
        is_constant = node.op_type == "Constant" and node.domain in table.PURE_DOMAINS
        if is_constant and node.outputs:
            node.outputs[0].numbers = next(filter(None, map(_numbers_of, node.proto.attribute)), None)
        elif not is_constant and self._model.is_pure(node.proto):
            operands = [value for value in node.inputs if value is not None]
            is_constant = bool(operands) or node.function is not None
            is_constant = is_constant and all(value.is_constant for value in operands)
        for value in node.outputs:
            value.is_constant = is_constant

    def _tell(self, inside: Scope, path: GraphPath, infos: Iterable[onnx.ValueInfoProto]) -> None:
        """Note what is known of the values of a graph."""
        for info in infos:
            if info.name in inside and info.metadata_props:
                inside[info.name].infos += (info,)
            if info.name in inside and self._facts is None:
                inside[info.name].tell(_declared(info))
        for name, known in (self._facts or {}).get(path, {}).items():
            if name in inside:
                inside[name].tell(known)


def _declared(info: onnx.ValueInfoProto) -> ValueFacts:
    kind, tensor = _kind(info.type), info.type.tensor_type
    is_whole = (
        kind == "tensor" and tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    )
    shape = tuple(dim.dim_value for dim in tensor.shape.dim) if is_whole else None
    return ValueFacts(shape, tensor.elem_type or None if kind == "tensor" else None, kind=kind)


_READ: Mapping[int, Callable[[onnx.AttributeProto], Any]] = {
    onnx.AttributeProto.INT: lambda proto: proto.i,
    onnx.AttributeProto.FLOAT: lambda proto: proto.f,
    onnx.AttributeProto.STRING: lambda proto: proto.s.decode("utf-8", "replace"),
    onnx.AttributeProto.INTS: lambda proto: tuple(proto.ints),
    onnx.AttributeProto.FLOATS: lambda proto: tuple(proto.floats),
    onnx.AttributeProto.STRINGS: lambda proto: tuple(text.decode("utf-8", "replace") for text in proto.strings),
}


def _numbers_of(proto: onnx.AttributeProto) -> tuple[Any, ...] | None:
    """Return the elements that an attribute of a Constant says, if they are few."""
    if proto.type == onnx.AttributeProto.TENSOR:
        return _few(proto.t)
    if proto.name not in {"value_int", "value_ints", "value_float", "value_floats"} or proto.type not in _READ:
        return None
    elements = _READ[proto.type](proto)
    return tuple(elements)[: FEW + 1] if isinstance(elements, tuple) else (elements,)


def _few(tensor: onnx.TensorProto) -> tuple[Any, ...] | None:
    """Return the elements of a tensor, if they are few and in the file."""
    if (
        tensor.data_location == onnx.TensorProto.EXTERNAL
        or math.prod(tensor.dims) > FEW
        or tensor.data_type not in BITS
    ):
        return None
    try:
        return tuple(onnx.numpy_helper.to_array(tensor).ravel().tolist())
    except (TypeError, ValueError):
        return None


def inferred(call: GraphNode) -> Graph:
    """Return the graph inside of a `call` of a function, with the sizes and types that onnx infers from those of the operands."""
    assert call.function is not None
    function, model = call.function.proto, call.graph.model.proto
    inputs, constants = [], []
    for name, value in zip(function.input, call.inputs, strict=False):
        if value is None or value.shape is None or not value.dtype:
            continue
        inputs.append(onnx.helper.make_tensor_value_info(name, value.dtype, value.shape))
        if value.is_constant and value.numbers is not None:
            constants.append(onnx.helper.make_tensor(name, value.dtype, value.shape, value.numbers))
    outputs = [onnx.ValueInfoProto(name=name) for name in function.output]
    graph = onnx.GraphProto(name="called", node=function.node, input=inputs, output=outputs, initializer=constants)
    whole = onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=model.opset_import)
    whole.functions.extend(model.functions)
    typed = onnx.shape_inference.infer_shapes(whole, data_prop=True).graph
    typed.value_info.extend(typed.output)
    ends, references = (function.input, function.output), call.function.references(call)
    return _Reading(call.graph.model, None).call(typed, ends, call.inputs, (), references)
