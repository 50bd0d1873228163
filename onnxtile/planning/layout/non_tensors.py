"""Values that are not tensors: sequences, optionals and sparse tensors have no fixed bytes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from onnxtile.model.shapes import Shapes
from onnxtile.model.validity import skeleton
from onnxtile.model.walk import all_nodes, main_graphs


def containers(model: ir.Model, shapes: Shapes) -> dict[ir.Value, ir.TypeProtocol]:
    """Return the type of each value that is a sequence, an optional or a sparse tensor.

    A type that is missing in the file comes from onnx's type inference; a value that this does not know either is left out. Other
    engines treat an optional as the tensor in it, so for a model with optionals onnx infers every type.
    """
    graphs = [list(_values(graph)) for graph in main_graphs(model)]
    found = {value: value.type for values in graphs for value in values if _is_container(value.type)}
    wraps = any(node.op_type == "Optional" for node in all_nodes(model)) or _gives_optional(model)
    untold = [
        {value.name or "": value for value in values if value.type is None and (wraps or shapes.dtype(value) is None)}
        for values in graphs
    ]
    if any(untold):
        # A body may have the names of another.
        for open_, types in zip(untold, _inferred(model), strict=False):
            found.update({open_[name]: type_ for name, type_ in types.items() if name in open_})
    return {value: type_ for value, type_ in found.items() if type_ is not None}


def _gives_optional(model: ir.Model) -> bool:
    return any(isinstance(value.type, ir.OptionalType) for value in model.graph.inputs)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def _is_container(type_: ir.TypeProtocol | None) -> bool:
    return type_ is not None and not isinstance(type_, ir.TensorType)


def _inferred(model: ir.Model) -> Iterator[dict[str, ir.TypeProtocol]]:
    """Yield the types of values that are no tensors, by name, of each graph in the order of `main_graphs`."""
    try:
        graph = onnx.shape_inference.infer_shapes(skeleton(model)).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return
    for inner in _graphs(graph):
        infos = (*inner.value_info, *inner.output)
        types = ((info.name, ir.serde.deserialize_type_proto_for_type(info.type)) for info in infos)
        yield {name: type_ for name, type_ in types if type_ is not None and _is_container(type_)}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if attribute.HasField("g"):
            yield from _graphs(attribute.g)
        for body in attribute.graphs:
            yield from _graphs(body)


def kind_name(type_: ir.TypeProtocol) -> str:
    """Return the name of a type for a message: "sequence", "optional", "sparse tensor"."""
    name = type(type_).__name__.removesuffix("Type")
    return "sparse tensor" if name == "SparseTensor" else name.lower()
