"""Which values are constant, however the exporter wrote them, and what they are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.save import to_bytes
from onnxtile.runtime import Array, Session

_RANDOM = {
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
    "Dropout",
}


class Constants:
    """The constant values of a model: initializers, Constant nodes, and results of operators of constants only.

    Which values those are is known from the graph alone; their bytes are read or computed only when `array` asks. An initializer that
    is also a graph input is a default that the user may override, so not a constant, unless the model is older than IR version 4, where
    every initializer had to be listed so. An operator with random results, or with a body, is never constant.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._values: set[ir.Value] = set()
        self._arrays: dict[ir.Value, Array] = {}
        for graph in model.graphs():
            self._values.update(
                v for v in graph.initializers.values() if model.ir_version < 4 or not v.is_graph_input()
            )
        self._extend(model.graph.all_nodes())

    def _extend(self, nodes: Iterable[ir.Node]) -> None:
        random_functions = {
            f.identifier() for f in self._model.functions.values() if any(n.op_type in _RANDOM for n in f.all_nodes())
        }
        for node in nodes:
            if node.op_type in _RANDOM or node.op_identifier() in random_functions:
                continue
            if any(a.type in {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS} for a in node.attributes.values()):
                continue
            inputs = [value for value in node.inputs if value is not None]
            if node.op_type == "Constant" or (inputs and all(value in self._values for value in inputs)):
                self._values.update(node.outputs)

    def __contains__(self, value: ir.Value | None) -> bool:
        return value in self._values

    def array(self, value: ir.Value) -> Array:
        """Return the elements of the constant `value`, in its own shape and element type. Raises KeyError where it is none.

        Arrays of initializers are views of the model's memory or of a mapped file: copy before writing. What operators
        compute is computed once, by onnxruntime.
        """
        if value not in self._values:
            raise KeyError(value.name)
        if value.const_value is not None:
            return value.const_value.numpy()
        if value not in self._arrays:
            self._arrays[value] = self._compute(value)
        return self._arrays[value]

    def _compute(self, value: ir.Value) -> Array:
        node = value.producer()
        assert node is not None
        if node.op_type == "Constant":
            return constant_array(node)
        arrays = {v.name or "": self.array(v) for v in node.inputs if v is not None}
        inputs = {name: _typed(name, array) for name, array in arrays.items()}
        outputs = [ir.Value(name=v.name) for v in node.outputs]
        operands = [inputs[v.name or ""] if v is not None else None for v in node.inputs]
        copy = ir.Node(
            node.domain, node.op_type, operands, node.attributes.values(), overload=node.overload, outputs=outputs
        )
        opsets = dict(self._model.graph.opset_imports)
        named = [v for v in outputs if v.name]
        graph = ir.Graph(list(inputs.values()), named, nodes=[copy], opset_imports=opsets, name="constant")
        functions = [f.clone() for f in self._model.functions.values()]
        alone = ir.Model(graph, ir_version=max(8, self._model.ir_version), functions=functions)
        name = value.name or ""
        return np.asarray(Session(to_bytes(alone)).run(arrays, [name])[name])


def constant_array(node: ir.Node) -> Array:
    """Return the elements that a Constant node holds. Raises ModelError for strings and sparse tensors, which are no arrays."""
    for name, attribute in node.attributes.items():
        if name == "value" and not attribute.is_ref():
            return attribute.as_tensor().numpy()
        if name in {"value_float", "value_floats"}:
            return np.asarray(attribute.value, np.float32)
        if name in {"value_int", "value_ints"}:
            return np.asarray(attribute.value, np.int64)
    raise ModelError(f"the Constant node {node.name!r} holds no tensor")


def _typed(name: str | None, array: Array) -> ir.Value:
    tensor = ir.tensor(array)
    return ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
