"""Each node as a model of its own, loaded into onnxruntime once for all equal nodes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.model.shapes import Shapes
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.walk import has_body
from onnxtile.planning.layout.non_tensors import containers
from onnxtile.runtime import Session


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
        self._sessions: dict[bytes, Session] = {}

    @property
    def sessions(self) -> int:
        """The number of sessions so far."""
        return len(self._sessions)

    def of(self, node: ir.Node) -> Kernel:
        """Return `node` prepared to run; its inputs include captured values. Raises ModelError where onnxruntime refuses it."""
        inputs = list(dict.fromkeys(dependencies(node)))
        outputs = [value for value in node.outputs if value.name]
        names = self._names(node, inputs, outputs)
        types = {value: self._type(value) for value in inputs}
        proto = self._submodels.of([node], types, outputs, names=names)
        key = proto.SerializeToString(deterministic=True)
        if key not in self._sessions:
            self._sessions[key] = self._loaded(proto, {names[value]: value for value in outputs})
        return Kernel(
            self._sessions[key],
            tuple((names[value], value) for value in inputs),
            tuple((names[value], value) for value in outputs),
        )

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
        dtype, dims = self._shapes.dtype(value), self._shapes.dims(value)
        if dims is not None and self._shapes.is_bound(value):
            dims = (None,) * len(dims)
        return tensor_type(dtype, dims)


def contradicts(session: Session, outputs: dict[str, ir.Value], shapes: Shapes) -> bool:
    """Return whether onnxruntime infers a size for one of `outputs` (by name) that is not the known one: it takes no other in place.

    Of GroupQueryAttention it infers the length of the past for the present keys, however long a run makes them.
    """
    for found in session.results:
        sizes = shapes.sizes(outputs[found.name]) if found.name in outputs else None
        if sizes is not None and any(isinstance(a, int) and a != b for a, b in zip(found.shape, sizes, strict=False)):
            return True
    return False
