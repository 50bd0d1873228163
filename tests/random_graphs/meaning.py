"""The meaning of a file, part by part: two files with equal parts say the same. It is read from the file itself, not by way of onnx-ir."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import numpy_helper


def differences(expected: onnx.ModelProto, got: onnx.ModelProto) -> list[str]:
    """Return where two models differ, a line for each part."""
    one, other = _model(expected), _model(got)
    parts = (part for part in sorted({*one, *other}) if one.get(part) != other.get(part))
    differing = (part for part in parts if not _is_added(part, one, other))
    return [f"{part}: {one.get(part)!r} became {other.get(part)!r}" for part in differing]


def _is_added(part: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether `part` is the bare value_info of an initializer, which onnx-ir adds and which says nothing new."""
    graph, _, name = part.partition("/value_info/")
    initializer = other.get(f"{graph}/initializer/{name}")
    if not name or part in one or initializer is None:
        return False
    (kind, doc, metadata), (dtype, dims, *_) = other[part], initializer
    return not doc and not metadata and kind == _tensor_type(dtype, dims)


def _tensor_type(dtype: int, dims: tuple[int, ...]) -> bytes:
    made: bytes = onnx.helper.make_tensor_type_proto(dtype, list(dims)).SerializeToString(deterministic=True)
    return made


def _model(model: onnx.ModelProto) -> dict[str, Any]:
    head = {
        "ir_version": model.ir_version,
        "imports": {one.domain: one.version for one in model.opset_import},
        "header": (model.producer_name, model.producer_version, model.domain, model.model_version, model.doc_string),
        "metadata": _props(model),
        "functions": [(one.domain, one.name, one.overload) for one in model.functions],
    }
    for function in model.functions:
        head |= _function(f"function {function.domain}.{function.name}.{function.overload}", function)
    return head | dict(_graph("graph", model.graph))


def _function(path: str, function: onnx.FunctionProto) -> dict[str, Any]:
    said = {
        f"{path}/signature": (list(function.input), list(function.output), sorted(function.attribute)),
        f"{path}/defaults": sorted(_bytes(one) for one in function.attribute_proto),
        f"{path}/imports": {one.domain: one.version for one in function.opset_import},
        f"{path}/notes": (function.doc_string, _props(function)),
    }
    said |= {f"{path}/value_info/{one.name}": _info(one) for one in function.value_info}
    return said | dict(_nodes(path, function.node))


def _graph(path: str, graph: onnx.GraphProto) -> Iterator[tuple[str, Any]]:
    yield f"{path}/name", graph.name
    yield f"{path}/notes", (graph.doc_string, _props(graph))
    yield f"{path}/inputs", [one.name for one in graph.input]
    yield f"{path}/outputs", [one.name for one in graph.output]
    yield from ((f"{path}/input/{one.name}", _info(one)) for one in graph.input)
    yield from ((f"{path}/output/{one.name}", _info(one)) for one in graph.output)
    yield from ((f"{path}/value_info/{one.name}", _info(one)) for one in graph.value_info)
    yield f"{path}/initializers", [one.name for one in graph.initializer]
    yield from ((f"{path}/initializer/{one.name}", _tensor(one)) for one in graph.initializer)
    yield f"{path}/sparse", [_bytes(one) for one in graph.sparse_initializer]
    yield f"{path}/quantization", sorted(_bytes(one) for one in graph.quantization_annotation)
    yield from _nodes(path, graph.node)


def _nodes(path: str, nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, Any]]:
    for place, node in enumerate(nodes):
        here = f"{path}/node {place}"
        yield f"{here}/kind", (node.domain, node.op_type, node.overload, node.name)
        yield f"{here}/notes", (node.doc_string, _props(node))
        yield f"{here}/wires", (_trimmed(node.input), list(node.output))
        for attribute in node.attribute:
            yield from _attribute(f"{here}/{attribute.name}", attribute)


def _trimmed(names: Iterable[str]) -> list[str]:
    """Return the names without empty ones at the end, which say nothing."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found


def _attribute(path: str, attribute: onnx.AttributeProto) -> Iterator[tuple[str, Any]]:
    yield f"{path}/doc", attribute.doc_string
    if attribute.HasField("g"):
        yield from _graph(path, attribute.g)
    elif attribute.HasField("t"):
        yield path, _tensor(attribute.t)
    else:
        bare = onnx.AttributeProto()
        bare.CopyFrom(attribute)
        bare.ClearField("doc_string")
        yield path, _bytes(bare)


def _info(info: onnx.ValueInfoProto) -> tuple[bytes, str, dict[str, str]]:
    return _bytes(info.type), info.doc_string, _props(info)


def _tensor(tensor: onnx.TensorProto) -> tuple[Any, ...]:
    array = numpy_helper.to_array(tensor)
    elements = array.tolist() if array.dtype == object else array.tobytes()
    return tensor.data_type, tuple(tensor.dims), elements, tensor.name, tensor.doc_string, _props(tensor)


def _props(proto: Any) -> dict[str, str]:
    return {prop.key: prop.value for prop in proto.metadata_props}


def _bytes(proto: Any) -> bytes:
    data: bytes = proto.SerializeToString(deterministic=True)
    return data
