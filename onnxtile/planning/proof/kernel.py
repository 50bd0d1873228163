"""Each node as a model of its own, loaded into onnxruntime once for all equal nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import helper

from onnxtile.graph import dependencies
from onnxtile.model.save import MAX_IR_VERSION, external_folder
from onnxtile.model.shapes import Shapes
from onnxtile.model.unfold import fold_proto
from onnxtile.planning.layout.non_tensors import containers
from onnxtile.runtime import Session

_MIN_IR_VERSION = 8
"""The first with functions in a model."""

_BODIES = {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}


@dataclass(frozen=True)
class Kernel:
    """A node prepared to run: its session, and the names of its inputs and outputs there, each with its value."""

    session: Session
    inputs: tuple[tuple[str, ir.Value], ...]
    outputs: tuple[tuple[str, ir.Value], ...]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that the node reads."""
        return tuple(value for _, value in self.inputs)


class Kernels:
    """Makes a Kernel of each node of the main graph of `model`. Equal nodes (operator, attributes, types, shapes) share a session."""

    def __init__(self, model: ir.Model, shapes: Shapes) -> None:
        self._model = model
        self._shapes = shapes
        self.containers = containers(model, shapes)
        self._sessions: dict[bytes, Session] = {}
        self._folder: Path | None = external_folder(model)

    @property
    def sessions(self) -> int:
        """The number of sessions so far."""
        return len(self._sessions)

    def of(self, node: ir.Node) -> Kernel:
        """Return `node` prepared to run; its inputs include captured values. Raises ModelError where onnxruntime refuses it."""
        inputs = list(dict.fromkeys(dependencies(node)))
        outputs = [value for value in node.outputs if value.name]
        names = self._names(node, inputs, outputs)
        proto = self._proto(node, inputs, outputs, names)
        key = proto.SerializeToString(deterministic=True)
        if key not in self._sessions:
            self._sessions[key] = Session(key, external=self._folder)
        return Kernel(
            self._sessions[key],
            tuple((names[value], value) for value in inputs),
            tuple((names[value], value) for value in outputs),
        )

    def _names(self, node: ir.Node, inputs: list[ir.Value], outputs: list[ir.Value]) -> dict[ir.Value, str]:
        # Bodies refer to outer values by name; without them the names are free, and equal nodes become equal bytes.
        if any(attribute.type in _BODIES for attribute in node.attributes.values()):
            return {value: value.name or "" for value in (*inputs, *outputs)}
        names = {value: f"i{place}" for place, value in enumerate(inputs)}
        return names | {value: f"o{place}" for place, value in enumerate(outputs)}

    def _proto(
        self, node: ir.Node, inputs: list[ir.Value], outputs: list[ir.Value], names: dict[ir.Value, str]
    ) -> onnx.ModelProto:
        alone = ir.serde.serialize_node(node)
        fold_proto(alone)
        for field in ("name", "doc_string", "metadata_props", "input", "output"):
            alone.ClearField(field)
        alone.input.extend(names[value] if value is not None else "" for value in node.inputs)
        alone.output.extend(names.get(value, "") for value in node.outputs)
        graph = helper.make_graph(
            [alone],
            "kernel",
            [helper.make_value_info(names[value], self._type(value)) for value in inputs],
            [onnx.ValueInfoProto(name=names[value]) for value in outputs],
        )
        return helper.make_model(
            graph,
            ir_version=min(max(self._model.ir_version, _MIN_IR_VERSION), MAX_IR_VERSION),
            opset_imports=[helper.make_opsetid(*pair) for pair in self._model.graph.opset_imports.items()],
            functions=[ir.serde.serialize_function(function) for function in called(node, self._model)],
        )

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        if value in self.containers:
            return ir.serde.serialize_type(self.containers[value])
        dtype, dims = self._shapes.dtype(value), self._shapes.dims(value)
        if dims is not None and self._shapes.is_bound(value):
            dims = (None,) * len(dims)
        return helper.make_tensor_type_proto(dtype.value if dtype is not None else 0, dims)


def called(node: ir.Node, model: ir.Model) -> list[ir.Function]:
    """Return the functions that `node` calls, directly or not, in the order of `model`."""
    functions = model.functions
    if not functions:
        return []
    found: set[ir.OperatorIdentifier] = set()
    todo = [node, *nodes_inside(node)]
    while todo:
        identifier = todo.pop().op_identifier()
        if identifier in functions and identifier not in found:
            found.add(identifier)
            todo.extend(functions[identifier].all_nodes())
    return [function for identifier, function in functions.items() if identifier in found] if found else []


def nodes_inside(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of the bodies of `node`, at any depth."""
    found: list[ir.Node] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.extend(attribute.as_graph().all_nodes())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(inner for body in attribute.as_graphs() for inner in body.all_nodes())
    return found
