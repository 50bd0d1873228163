"""Each node as a model of its own, loaded into onnxruntime once for all equal nodes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.model.session import AnySession
from onnxtile.model.shapes import Dims, Shapes
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.walk import has_body
from onnxtile.planning.layout.non_tensors import containers
from onnxtile.runtime import Session

_PLAIN = (
    *(ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT),
    *(ir.AttributeType.FLOATS, ir.AttributeType.STRING, ir.AttributeType.STRINGS),
)
"""The types of attributes whose values are plain Python values."""


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
        self._submodels = Submodels(model)
        self._shapes = shapes
        self.containers = containers(model, shapes)
        self._functions = model.functions
        self._sessions: dict[bytes, Session] = {}
        self._known: dict[Hashable, Session] = {}

    @property
    def sessions(self) -> int:
        """The number of sessions so far."""
        return len(self._sessions)

    def of(self, node: ir.Node) -> Kernel:
        """Return `node` prepared to run; its inputs include captured values. Raises ModelError where onnxruntime refuses it."""
        inputs = list(dict.fromkeys(dependencies(node)))
        outputs = [value for value in node.outputs if value.name]
        names = self._names(node, inputs, outputs)
        signature = self._signature(node, inputs, names)
        session = None if signature is None else self._known.get(signature)
        if session is None:
            session = self._session(node, inputs, outputs, names)
        if signature is not None:
            self._known[signature] = session
        return Kernel(
            session,
            tuple((names[value], value) for value in inputs),
            tuple((names[value], value) for value in outputs),
        )

    def _session(
        self, node: ir.Node, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], names: Mapping[ir.Value, str]
    ) -> Session:
        types = {value: self._type(value) for value in inputs}
        proto = self._submodels.of([node], types, outputs, names=names)
        key = proto.SerializeToString(deterministic=True)
        if key not in self._sessions:
            self._sessions[key] = self._loaded(proto, {names[value]: value for value in outputs})
        return self._sessions[key]

    def _signature(self, node: ir.Node, inputs: Sequence[ir.Value], names: Mapping[ir.Value, str]) -> Hashable | None:
        """Return a key that only nodes with equal models have; None where making that model tells sooner.

        The model of a node takes several times as long to make.
        """
        is_called = node.op_identifier() in self._functions
        if is_called or any(value in self.containers for value in inputs):
            return None
        attributes = []
        for attribute in node.attributes.data.values():
            if attribute.type not in _PLAIN or attribute.is_ref():
                return None
            attributes.append((attribute.name, attribute.type.value, repr(attribute.value)))
        read = tuple("" if value is None else names[value] for value in node.inputs)
        made = tuple(names.get(value, "") for value in node.outputs)
        types = tuple((self._shapes.dtype(value), self._dims(value)) for value in inputs)
        return node.op_identifier(), node.graph, tuple(attributes), read, made, types

    def _loaded(self, proto: onnx.ModelProto, outputs: dict[str, ir.Value]) -> Session:
        session = self._submodels.session(proto)
        if not contradicts(session, outputs, self._shapes):
            return session
        for dim in (dim for one in proto.graph.input for dim in one.type.tensor_type.shape.dim):
            dim.Clear()
        return self._submodels.session(proto)

    def _names(self, node: ir.Node, inputs: list[ir.Value], outputs: list[ir.Value]) -> dict[ir.Value, str]:
        # Bodies refer to outer values by name; without them the names are free, and equal nodes become equal bytes.
        if has_body(node):
            return {value: value.name or "" for value in (*inputs, *outputs)}
        names = {value: f"i{place}" for place, value in enumerate(inputs)}
        return names | {value: f"o{place}" for place, value in enumerate(outputs)}

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        if value in self.containers:
            return ir.serde.serialize_type(self.containers[value])
        return tensor_type(self._shapes.dtype(value), self._dims(value))

    def _dims(self, value: ir.Value) -> Dims | None:
        dims = self._shapes.dims(value)
        return (None,) * len(dims) if dims is not None and self._shapes.is_bound(value) else dims


def contradicts(session: AnySession, outputs: dict[str, ir.Value], shapes: Shapes) -> bool:
    """Return whether onnxruntime infers a size for one of `outputs` (by name) that is not the known one: it takes no other in place.

    Of GroupQueryAttention it infers the length of the past for the present keys, however long a run makes them.
    """
    for found in session.results:
        sizes = shapes.sizes(outputs[found.name]) if found.name in outputs else None
        if sizes is not None and any(isinstance(a, int) and a != b for a, b in zip(found.shape, sizes, strict=False)):
            return True
    return False
