"""The constant values of a model, in whatever form the exporter wrote them, and their elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.topology import all_nodes, has_body, has_containers, is_read, main_graphs
from onnxtile.operators.node_view import KnownConstants
from onnxtile.operators.table import may_draw
from onnxtile.system.errors import ModelError
from onnxtile.system.runtime import Array, aligned, as_text

_NUMBERS = frozenset({"value_float", "value_floats", "value_int", "value_ints"})
"""The attributes of a Constant node with numbers that are no tensor."""
_PURE_DOMAINS = {"", "ai.onnx.ml", "com.microsoft"}
"""Domains whose operators are computed; the results of other operators are known to their own runtime only."""


class Constants:
    """The constant values of a model, in its graphs and its functions: initializers, Constant nodes, and results of operators and
    functions of constants only.

    Which values those are is known from the graph alone; their bytes are read or computed only when `array` asks. An initializer that
    is also a graph input is a default that the user may override, so not a constant. Before IR version 4, all initializers were inputs, and
    are constants. An operator with random results, of an unknown domain, or with a body, is never constant. Nor is
    a copy of a constant into another memory.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._values: set[ir.Value] = set()
        self._arrays: dict[ir.Value, Array] = {}
        self._pure = _pure_functions(model)
        self._submodels = Submodels(model)
        for graph in main_graphs(model):
            self._values.update(
                v for v in graph.initializers.values() if model.ir_version < 4 or not v.is_graph_input()
            )
        for node in all_nodes(model):
            if self._keeps_constant(node):
                self._values.update(node.outputs)

    def _keeps_constant(self, node: ir.Node) -> bool:
        # Of most nodes the first operand says it, and every command asks it of every node.
        for value in node.inputs:
            if value is not None and value not in self._values:
                return False
        if any(attribute.is_ref() for attribute in node.attributes.data.values()):
            return False  # the caller of the function says it
        if node.op_type == "Constant" and node.domain in _PURE_DOMAINS:
            return True
        if not _is_pure(node, self._model, self._pure):
            return False
        return any(value is not None for value in node.inputs) or node.op_identifier() in self._pure

    def __contains__(self, value: ir.Value | None) -> bool:
        return value in self._values

    def array(self, value: ir.Value) -> Array:
        """Return the elements of the constant `value`, in its own shape and element type. Raises KeyError where it is none.

        Arrays of initializers are views of the model's memory or of a mapped file: copy before writing. What operators
        compute is computed once, by onnxruntime. Raises ModelError where a Constant holds no tensor, or onnxruntime lacks an operator.
        """
        if value not in self._values:
            raise KeyError(value.name)
        if value.const_value is not None:
            return _array(value.const_value)
        if value not in self._arrays:
            node = value.producer()
            assert node is not None
            if node.op_type == "Constant" and node.domain in _PURE_DOMAINS:
                self._arrays[value] = constant_array(node)
            else:
                self._compute([value])
        return self._arrays[value]

    def prepare(self, values: Iterable[ir.Value]) -> None:
        """Compute those of the constants `values` that operators compute, all in one run, for `array` to return. Raises ModelError."""
        together: dict[ir.Graph | ir.Function | None, list[ir.Value]] = {}
        for value in dict.fromkeys(values):
            node = value.producer()
            if node is not None and node.op_type != "Constant" and value not in self._arrays:
                together.setdefault(node.graph, []).append(value)
        for wanted in together.values():
            self._compute(wanted)

    def _compute(self, values: Sequence[ir.Value]) -> None:
        """Run the operators that `values`, all of one graph, come from, back to what is held somewhere, in one go."""
        leaves, nodes = self._origin(values)
        arrays = {leaf: self.array(leaf) for leaf in leaves}
        session = self._submodels.session(
            self._submodels.model_of(nodes, {leaf: _type(array) for leaf, array in arrays.items()}, values)
        )
        feeds = {leaf.name or "": aligned(array) for leaf, array in arrays.items()}
        results = session.run(feeds, [value.name or "" for value in values])
        self._arrays.update({value: np.asarray(results[value.name or ""]) for value in values})

    def _origin(self, values: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Node]]:
        """Return the held or already computed values that `values` are computed from, and the operators between, in order."""
        leaves: dict[ir.Value, None] = {}
        nodes: dict[ir.Node, None] = {}
        todo: list[tuple[ir.Value, bool]] = [(value, False) for value in reversed(values)]
        while todo:
            current, ready = todo.pop()
            node = current.producer()
            if ready and node is not None:
                nodes.setdefault(node)
            elif node is None or current in self._arrays or node.op_type == "Constant":
                leaves.setdefault(current)
            elif node not in nodes:
                todo.append((current, True))
                todo.extend((v, False) for v in node.inputs if v is not None)
        computed = {output for node in nodes for output in node.outputs}
        return [leaf for leaf in leaves if leaf not in computed], list(nodes)


def _pure_functions(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return which functions of the model compute the same from the same: those that reach no random operator.

    A copy into another memory is made anew in each run.
    """
    pure = {key for key, function in model.functions.items() if keys.COPY not in function.metadata_props}
    while True:
        left = {key for key in pure if all(_is_pure(n, model, pure) for n in model.functions[key].all_nodes())}
        if left == pure:
            return pure
        pure = left


def _is_pure(node: ir.Node, model: ir.Model, pure: set[ir.OperatorIdentifier]) -> bool:
    if node.op_identifier() in model.functions:
        return node.op_identifier() in pure
    if may_draw(node) or node.domain not in _PURE_DOMAINS or has_containers(node):
        return False
    return not has_body(node)


def constant_array(node: ir.Node) -> Array:
    """Return the elements that a Constant node holds, strings as objects. Raises ModelError for a sparse tensor."""
    for name, attribute in node.attributes.items():
        if name == "value" and not attribute.is_ref():
            return _array(attribute.value)
        if name in {"value_float", "value_floats"}:
            return np.asarray(attribute.value, np.float32)
        if name in {"value_int", "value_ints"}:
            return np.asarray(attribute.value, np.int64)
        if name in {"value_string", "value_strings"}:
            return np.asarray(attribute.value, object)
    raise ModelError(f"the Constant node {node.name!r} holds no tensor")


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the numbers or strings that a Constant node holds; None for strings without a tensor, and where the caller says them."""
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None or attribute.is_ref():
        return None
    if attribute.name == "value":
        tensor: ir.TensorProtocol = attribute.value  # as_tensor takes 0.3 ms, as `tensors_of` says
        return tensor
    return ir.Tensor(constant_array(node)) if attribute.name in _NUMBERS else None


def made_tensor(array: Array, name: str) -> ir.TensorProtocol:
    """Return a tensor called `name` with the elements of `array`; those of an array of objects are strings."""
    if array.dtype.kind in "OSU":
        texts = [text.encode() if isinstance(text, str) else bytes(text) for text in array.flat]
        return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)
    return ir.Tensor(np.asarray(array, order="C"), name=name)


def _array(tensor: ir.TensorProtocol) -> Array:
    """Return the elements of `tensor`, strings as objects."""
    array = np.asarray(tensor.numpy())
    return as_text(array) if tensor.dtype == ir.DataType.STRING else array


def _type(array: Array) -> onnx.TypeProto:
    dtype = ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)
    return tensor_type(dtype, array.shape)


def constant_attribute(value: ir.Value) -> ir.Attr:
    """Return the attribute of a Constant node that makes `value`, which is an initializer or a Constant node's output."""
    node = value.producer()
    if node is not None:
        return next(iter(node.attributes.values()))
    if value.const_value is None:
        raise KeyError(value.name)
    return ir.AttrTensor("value", value.const_value)


def prune(values: Iterable[ir.Value], constants: KnownConstants | None = None) -> None:
    """Remove from their graphs the `values` that are unused, and the operators that compute them; of `constants`, if given, alone."""
    pending = [value for value in values if constants is None or value in constants]
    while pending:
        value = pending.pop()
        node, graph = value.producer(), value.graph
        if graph is None or is_read(value):
            continue
        if constants is None and value.is_graph_input():
            continue
        if value.is_initializer():
            assert value.name is not None
            del graph.initializers[value.name]
        elif node is not None and not any(map(is_read, node.outputs)):
            pending.extend(v for v in node.inputs if v is not None)
            graph.remove(node, safe=True)
