"""Nodes cut out of a model, as a model of their own that onnxruntime loads: the only place that makes such models.

The boundary is given: which values are inputs, and which are outputs. Any other value that the nodes read must be a constant, which comes
along as an initializer. So a caller that feeds the weights names them among the inputs, and no weight is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import helper

from onnxtile.model import keys
from onnxtile.model.exact_products import exact_session
from onnxtile.model.opset import Opsets
from onnxtile.model.save import MAX_IR_VERSION, MIN_IR_VERSION, external_folder, proto_bytes
from onnxtile.model.topology import called_functions, dependencies, nodes_inside
from onnxtile.operators.node_view import Dims
from onnxtile.system.runtime import Session

_STANDARD = frozenset({"", "ai.onnx"})


def tensor_type(dtype: ir.DataType | None, dims: Dims | None) -> onnx.TypeProto:
    """Return the type of a tensor: without `dims` its rank is open, a dimension of None is open, a name is a symbol."""
    return helper.make_tensor_type_proto(0 if dtype is None else dtype.value, dims)


def bare_node(node: ir.Node, names: Mapping[ir.Value, str] | None = None) -> onnx.NodeProto:
    """Return `node` without its name, doc string, metadata and opened calls; `names` are those of the values it reads and makes."""
    # What ir.to_proto does first, to find out that this is a node, costs as much as loading a session.
    proto: onnx.NodeProto = ir.serde.serialize_node(node)
    for field in ("name", "doc_string", "metadata_props"):
        proto.ClearField(field)
    _close_calls(proto)
    if names is not None:
        proto.ClearField("input")
        proto.ClearField("output")
        proto.input.extend("" if value is None else names[value] for value in node.inputs)
        proto.output.extend(names.get(value, "") for value in node.outputs)
    return proto


def _close_calls(proto: onnx.NodeProto) -> None:
    """Take the copies of functions off the calls in `proto` and in its bodies (in place)."""
    for at in [at for at, attribute in enumerate(proto.attribute) if attribute.name == keys.INSIDE]:
        del proto.attribute[at]
    for attribute in proto.attribute:
        for node in (node for body in (attribute.g, *attribute.graphs) for node in body.node):
            _close_calls(node)


def assembled(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, onnx.TypeProto | None],
    outputs: Iterable[str],
    opsets: Mapping[str, int],
    *,
    constants: Iterable[onnx.TensorProto] = (),
    functions: Iterable[onnx.FunctionProto] = (),
    ir_version: int = MIN_IR_VERSION,
) -> onnx.ModelProto:
    """Return a model of `nodes`. Types of `inputs` are by name, None where nothing is known; types of `outputs` are inferred on loading.

    `opsets` are the operator versions by domain; a domain that they do not name has version 1.
    """
    nodes = list(nodes)
    versions = {**{node.domain: 1 for node in nodes if node.domain not in _STANDARD}, **opsets}
    graph = helper.make_graph(
        nodes,
        "submodel",
        [onnx.ValueInfoProto(name=name, type=type_) for name, type_ in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        list(constants),
    )
    imports = [helper.make_opsetid(*pair) for pair in versions.items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=ir_version)


class Submodels:
    """Cuts nodes out of `model`, which stays as it is: with its operator versions, and the local functions that are called."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._opsets = Opsets(model)
        self._functions: dict[ir.OperatorIdentifier, onnx.FunctionProto] = {}

    def model_of(
        self,
        nodes: Sequence[ir.Node],
        inputs: Mapping[ir.Value, onnx.TypeProto | None],
        outputs: Iterable[ir.Value],
        *,
        names: Mapping[ir.Value, str] | None = None,
        defaults: Iterable[ir.Value] = (),
    ) -> onnx.ModelProto:
        """Return a model of `nodes`, of one graph and in an order in which they can run.

        `inputs` are fed, of the types given. Constants that the nodes read besides are initializers; `defaults` are inputs that are
        initializers, too. With `names`, all that the nodes read and make is called so; nodes with bodies keep the names of the model.
        """
        named = {} if names is None else names
        constants = dict.fromkeys([*defaults, *_constants(nodes, inputs)])
        functions = called_functions((called for node in nodes for called in (node, *nodes_inside(node))), self._model)
        return assembled(
            (bare_node(node, names) for node in nodes),
            {named.get(value, value.name or ""): type_ for value, type_ in inputs.items()},
            [named.get(value, value.name or "") for value in outputs],
            self._opsets.opsets_of(nodes[0].graph if nodes else None),
            constants=[_tensor(value, named.get(value, value.name or "")) for value in constants],
            functions=[self._function(function) for function in functions],
            ir_version=min(max(self._model.ir_version, MIN_IR_VERSION), MAX_IR_VERSION),
        )

    def session(self, submodel: onnx.ModelProto) -> Session:
        """Return a session of one of these models. Raises ModelError with onnxruntime's reason, ModelTooLarge above 2 GiB."""
        content = proto_bytes(submodel)
        # A constant in a file names its "location". Without one, no walk over the whole model is needed to find the folder.
        return exact_session(content, submodel, external=self._folder if b"location" in content else None)

    @cached_property
    def _folder(self) -> Path | None:
        return external_folder(self._model)

    def _function(self, function: ir.Function) -> onnx.FunctionProto:
        key = function.identifier()
        if key not in self._functions:
            self._functions[key] = ir.serde.serialize_function(function)
        return self._functions[key]


def exposing(model: ir.Model, names: Iterable[str]) -> Session:
    """Return a session of `model`, which stays as it is, whose outputs are the values `names` of its main graph alone.

    Nodes that none of them depends on are left out. Raises ModelError where onnxruntime refuses the model.
    """
    graph = model.graph
    results = (value for node in graph for value in node.outputs)
    by_name = {value.name: value for value in (*graph.inputs, *graph.initializers.values(), *results)}
    outputs = [by_name[name] for name in dict.fromkeys(names)]
    # Before IR version 4 every initializer had to be listed as an input.
    inputs = [value for value in graph.inputs if model.ir_version >= 4 or not value.is_initializer()]
    defaults = [value for value in inputs if value.is_initializer()]
    defaults += [value for value in outputs if value.is_initializer()]
    submodels = Submodels(model)
    types = {value: None if value.type is None else ir.serde.serialize_value(value).type for value in inputs}
    return submodels.session(submodels.model_of(_needed(graph, outputs), types, outputs, defaults=defaults))


def _needed(graph: ir.Graph, outputs: Iterable[ir.Value]) -> list[ir.Node]:
    """Return the nodes of `graph` that `outputs` depend on, in their order."""
    needed = set(outputs)
    nodes = []
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            nodes.append(node)
            needed.update(dependencies(node))
    return nodes[::-1]


def _constants(nodes: Iterable[ir.Node], inputs: Mapping[ir.Value, object]) -> Iterator[ir.Value]:
    """Yield the initializers that `nodes` and their bodies read, but for those that are fed or are of the bodies."""
    results: set[ir.Value] = set()
    for node in nodes:
        yield from (v for v in dependencies(node) if v.const_value is not None and v not in inputs and v not in results)
        results.update(node.outputs)


def _tensor(value: ir.Value, name: str) -> onnx.TensorProto:
    assert value.const_value is not None
    proto: onnx.TensorProto = ir.serde.serialize_tensor(value.const_value)
    proto.name = name
    return proto
