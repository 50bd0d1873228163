"""Descriptions of graph outputs that are inputs or initializers of the same graph.

A file describes such a value as an input and, in other words, as an output: type, doc string, metadata. onnx_ir has one value with one
description. Here the description of the output is noted where a file is read, and written back where the model is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir

from onnxtile.model.walk import bodies_of

_OUTPUT = "onnxtile.described_as_output"
"""In the notes of a value: its description among the outputs, the metadata it has elsewhere, and its type when it was read."""
_NOTED = "onnxtile.passed_through"
"""In the notes of a main graph: whether any value of the model has such notes."""

_Note = tuple[bytes, dict[str, str], str]


def note_outputs(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Note on `model`, which was made of `proto`, how that describes outputs that are inputs or initializers."""
    found = [_note(graph, said) for graph, said in _pairs(model, proto)]
    if any(found):
        model.graph.meta[_NOTED] = True


def add_outputs(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Describe, in the `proto` made of `model`, outputs that are inputs or initializers as the file did that was read."""
    if not model.graph.meta.get(_NOTED):
        return
    for graph, said in _pairs(model, proto):
        add_graph_outputs(graph.outputs, said)
        without_outputs(graph.initializers.values(), said)


def add_body_outputs(nodes: Iterable[ir.Node], protos: Iterable[onnx.NodeProto]) -> None:
    """Describe such outputs of the bodies of `nodes` in their `protos`."""
    for node, proto in zip(nodes, protos, strict=True):
        for graph, said in _bodies(node, proto):
            add_graph_outputs(graph.outputs, said)
            without_outputs(graph.initializers.values(), said)


def add_graph_outputs(outputs: Sequence[ir.Value], proto: onnx.GraphProto) -> None:
    """Describe such values among the `outputs` of the graph of `proto`."""
    for value, info in zip(outputs, proto.output, strict=True):
        note: _Note | None = value.meta.get(_OUTPUT)
        if note is None:
            continue
        data, elsewhere, described = note
        known = onnx.ValueInfoProto.FromString(data)
        if _type_of(value) == described:
            info.type.CopyFrom(known.type)
        info.ClearField("doc_string")
        if known.HasField("doc_string"):
            info.doc_string = known.doc_string
        added = {key: text for key, text in value.metadata_props.items() if key not in elsewhere}
        info.ClearField("metadata_props")
        info.metadata_props.extend(known.metadata_props)
        for key, text in added.items():
            info.metadata_props.add(key=key, value=text)


def without_outputs(initializers: Iterable[ir.Value], proto: onnx.GraphProto) -> None:
    """Leave the value_info of such `initializers` out of `proto`: the tensor says its type, and the output the rest."""
    names = {value.name for value in initializers if _OUTPUT in value.meta and not _says_more(value)}
    kept = [info for info in proto.value_info if info.name not in names] if names else []
    if names and len(kept) < len(proto.value_info):
        proto.ClearField("value_info")
        proto.value_info.extend(kept)


def _says_more(value: ir.Value) -> bool:
    return bool(value.doc_string or value.metadata_props)


def _note(graph: ir.Graph, proto: onnx.GraphProto) -> bool:
    """Note how one graph describes such outputs, and describe the values as it does elsewhere; return whether there are any."""
    outputs = {info.name: info for info in proto.output}
    inputs = {info.name: info for info in proto.input if info.name in outputs}
    initializers = {tensor.name for tensor in proto.initializer if tensor.name in outputs}
    if not inputs and not initializers:
        return False
    infos = {info.name: info for info in proto.value_info if info.name in initializers}
    for value in graph.outputs:
        name = value.name or ""
        if name in inputs or name in initializers:
            _describe(value, inputs.get(name) or infos.get(name))
            note: _Note = (outputs[name].SerializeToString(), dict(value.metadata_props), _type_of(value))
            value.meta[_OUTPUT] = note
    return True


def _describe(value: ir.Value, info: onnx.ValueInfoProto | None) -> None:
    """Describe `value` by `info` alone; sizes that this leaves open are those that it has."""
    before, tensor = value.shape, value.const_value
    value.metadata_props.clear()
    value.doc_string = None
    if info is not None:
        ir.serde.deserialize_value_info_proto(info, value)
    if tensor is not None:
        value.shape = ir.Shape(tensor.shape.numpy())
    elif before is not None and value.shape is not None and len(before) == len(value.shape):
        value.shape = ir.Shape([b if _is_open(a) else a for a, b in zip(value.shape, before, strict=True)])


def _is_open(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and dim.value is None


def _type_of(value: ir.Value) -> str:
    return f"{value.type} {value.shape}"


def _pairs(model: ir.Model, proto: onnx.ModelProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """Yield each graph of `model` that has inputs and outputs described, with its message."""
    yield model.graph, proto.graph
    for node, said in zip(model.graph, proto.graph.node, strict=True):
        yield from _bodies(node, said)
    for function in proto.functions:
        known = model.functions.get((function.domain, function.name, function.overload))
        for node, said in zip(known or (), function.node, strict=True):
            yield from _bodies(node, said)


def _bodies(node: ir.Node, proto: onnx.NodeProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    held = bodies_of(node)
    if not held:
        return
    said = {
        attribute.name: [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for attribute in proto.attribute
    }
    for body in held:
        inner = said[body.attribute][body.position or 0]
        yield body.graph, inner
        for one, message in zip(body.graph, inner.node, strict=True):
            yield from _bodies(one, message)
