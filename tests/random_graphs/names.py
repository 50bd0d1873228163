"""Unusual names of values, nodes, functions and sizes; and constants in sparse form."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

from tests.random_graphs.notes import graphs_of
from tests.random_graphs.scope import sparse_tensor

_FORMS = (
    "{}:0", "a b/{}", "größe.{}", "{}@sram", "{} (workspace)", "/{}/x", "'{}\"", "{}\\", "{}\n", "{},;=", "<{}>&amp;", "%s{}", "{}#1",
    "onnxtile/{}", "日本{}", "{0}" * 30, "[{}]", "{}.2", "-{}",
)  # fmt: skip
_SIZES = ("batch size", "größe", "past.len", "n-1", "x*y")
_FUNCTIONS = ("Linear", "Copy", "Region0", "my function", "Größe", "LayerNorm")


class Names:
    """Gives other names to a model's values, nodes, functions and open sizes, each as `often`."""

    def __init__(self, random: Random, often: float) -> None:
        self._random = random
        self._often = often
        self._values: dict[str, str] = {"": ""}
        self._taken: set[str] = set()

    def change(self, model: onnx.ModelProto) -> dict[str, str]:
        """Change `model`; return the new names of open sizes by the old ones."""
        for graph in graphs_of(model.graph):
            self._graph(graph)
        functions = self._functions(model)
        for function in model.functions:
            function.input[:] = self._renamed(function.input)
            function.output[:] = self._renamed(function.output)
            self._nodes(function.node, functions)
            for node in function.node:
                for attribute in node.attribute:
                    if attribute.HasField("g"):
                        raise AssertionError("functions of random models have no bodies")
        for graph in graphs_of(model.graph):
            self._nodes(graph.node, functions)
        return self._sizes(model)

    def _graph(self, graph: onnx.GraphProto) -> None:
        for one in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            one.name = self._value(one.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = self._value(sparse.values.name)
        for annotation in graph.quantization_annotation:
            annotation.tensor_name = self._value(annotation.tensor_name)
            for pair in annotation.quant_parameter_tensor_names:
                pair.value = self._value(pair.value)

    def _nodes(self, nodes: Any, functions: dict[str, str]) -> None:
        for node in nodes:
            node.input[:] = self._renamed(node.input)
            node.output[:] = self._renamed(node.output)
            if node.name and self._random.random() < self._often:
                node.name = self._random.choice(_FORMS).format(node.name)
            if node.domain == "local":
                node.op_type = functions.get(node.op_type, node.op_type)

    def _functions(self, model: onnx.ModelProto) -> dict[str, str]:
        names = self._random.sample(_FUNCTIONS, len(_FUNCTIONS))
        found = {
            function.name: name
            for function, name in zip(model.functions, names, strict=False)
            if self._random.random() < self._often
        }
        for function in model.functions:
            function.name = found.get(function.name, function.name)
        return found

    def _renamed(self, names: Iterable[str]) -> list[str]:
        return [self._value(name) for name in names]

    def _value(self, name: str) -> str:
        if name not in self._values:
            wanted = self._random.choice(_FORMS).format(name) if self._random.random() < self._often else name
            self._values[name] = name if wanted in self._taken else wanted
            self._taken.add(self._values[name])
        return self._values[name]

    def _sizes(self, model: onnx.ModelProto) -> dict[str, str]:
        if self._random.random() > self._often:
            return {}
        found = dict(zip("NM", self._random.sample(_SIZES, 2), strict=True))
        for graph in graphs_of(model.graph):
            for info in (*graph.input, *graph.output, *graph.value_info):
                for tensor in _tensors(info.type):
                    for dim in tensor.shape.dim:
                        if dim.HasField("dim_param"):
                            dim.dim_param = found.get(dim.dim_param, dim.dim_param)
        return found


def _tensors(described: onnx.TypeProto) -> list[Any]:
    """Return the type of the tensors that a value holds."""
    for field in ("sequence_type", "optional_type"):
        if described.HasField(field):
            return _tensors(getattr(described, field).elem_type)
    return [described.tensor_type] if described.HasField("tensor_type") else []


def make_sparse(model: onnx.ModelProto, random: Random, often: float) -> None:
    """Write some of the main graph's constants of floats in sparse form."""
    graph = model.graph
    kept = {info.name for info in (*graph.input, *graph.output, *graph.value_info)}
    for tensor in list(graph.initializer):
        fits = tensor.data_type == TensorProto.FLOAT and len(tensor.dims) in (1, 2) and tensor.name not in kept
        if fits and random.random() < often:
            sparse = sparse_tensor(numpy_helper.to_array(tensor))
            sparse.values.name = tensor.name
            graph.sparse_initializer.append(sparse)
            graph.initializer.remove(tensor)
