"""Descriptions of graph outputs that the graph lists elsewhere, too: outputs that are inputs or initializers, or listed twice.

A file describes such a value several times in different words: type, doc string, metadata. onnx_ir has one value with one description. Here
the description of the output is noted where a file is read, and written back where the model is written.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir

from onnxtile.model.topology import bodies_of
from onnxtile.system.errors import ModelWarning

_OUTPUTS = "onnxtile.described_as_output"
"""In the notes of a graph: by place among its outputs, the name, the description, and the metadata and the type of the value at first."""
_NOTED = "onnxtile.described_twice"
"""In the notes of an initializer that is such an output without value_info; and of a main graph, where any graph has such outputs."""

_Note = tuple[str, bytes, dict[str, str], str]


def note_outputs(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Note on `model`, which was made of `proto`, how that describes outputs that are inputs or initializers."""
    are_noted = [_note(graph, described) for graph, described in _pairs(model, proto)]
    if any(are_noted):
        model.graph.meta[_NOTED] = True


def add_outputs(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Describe, in the `proto` made of `model`, outputs that are inputs or initializers as the file did that was read."""
    if not model.graph.meta.get(_NOTED):
        return
    for graph, message in _pairs(model, proto):
        add_graph_outputs(graph, message)
        without_outputs(graph.initializers.values(), message)


def add_body_outputs(nodes: Iterable[ir.Node], protos: Iterable[onnx.NodeProto]) -> None:
    """Describe such outputs of the bodies of `nodes` in their `protos`."""
    for node, proto in zip(nodes, protos, strict=True):
        for graph, message in _bodies(node, proto):
            add_graph_outputs(graph, message)
            without_outputs(graph.initializers.values(), message)


def add_graph_outputs(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    """Describe such outputs of `graph` in its `proto`, and annotate them once: onnx_ir does so in each list that has them."""
    _annotate_once(proto)
    notes: dict[int, _Note] = graph.meta.get(_OUTPUTS, {})
    for index, (name, data, elsewhere, described) in notes.items():
        value = graph.outputs[index] if index < len(graph.outputs) else None
        if value is None or value.name != name:
            continue  # the model was changed
        info, known = proto.output[index], onnx.ValueInfoProto.FromString(data)
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


def _annotate_once(proto: onnx.GraphProto) -> None:
    by_tensor = {annotation.tensor_name: annotation for annotation in proto.quantization_annotation}
    if len(by_tensor) < len(proto.quantization_annotation):
        kept = list(by_tensor.values())
        del proto.quantization_annotation[:]
        proto.quantization_annotation.extend(kept)


def without_outputs(initializers: Iterable[ir.Value], proto: onnx.GraphProto) -> None:
    """Leave the value_info of such `initializers` out of `proto`: the tensor says its type, and the output the rest."""
    names = {
        value.name for value in initializers if _NOTED in value.meta and not (value.doc_string or value.metadata_props)
    }
    kept = [info for info in proto.value_info if info.name not in names] if names else []
    if names and len(kept) < len(proto.value_info):
        proto.ClearField("value_info")
        proto.value_info.extend(kept)


def _note(graph: ir.Graph, proto: onnx.GraphProto) -> bool:
    """Note how one graph describes such outputs, and describe the values as it does elsewhere; return whether there are any."""
    listed = [info.name for info in proto.output]
    counts = Counter(listed)
    twice = {name for name, count in counts.items() if count > 1}
    outputs = set(counts)
    elsewhere = {info.name: info for info in proto.input if info.name in outputs}
    held = {tensor.name for tensor in proto.initializer if tensor.name in outputs}
    if not elsewhere and not held and not twice:
        return False
    infos = {info.name: info for info in proto.value_info if info.name in held}
    first = {info.name: info for info in reversed(proto.output) if info.name in twice and info.name not in held}
    described = first | infos | elsewhere
    notes: dict[int, _Note] = {}
    done: set[str] = set()
    for index, (value, info) in enumerate(zip(graph.outputs, proto.output, strict=True)):
        if info.name not in described and info.name not in held:
            continue
        if info.name not in done:
            done.add(info.name)
            _describe(value, described.get(info.name))
        notes[index] = (info.name, info.SerializeToString(), dict(value.metadata_props), _type_of(value))
        if info.name in held and info.name not in infos:
            value.meta[_NOTED] = True
    graph.meta[_OUTPUTS] = notes
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
    for node, message in zip(model.graph, proto.graph.node, strict=True):
        yield from _bodies(node, message)
    for function in proto.functions:
        known = model.functions.get((function.domain, function.name, function.overload))
        for node, message in zip(known or (), function.node, strict=True):
            yield from _bodies(node, message)


def _bodies(node: ir.Node, proto: onnx.NodeProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    held = bodies_of(node)
    if not held:
        return
    graphs = {
        attribute.name: [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for attribute in proto.attribute
    }
    for body in held:
        inner = graphs[body.attribute][body.position or 0]
        yield body.graph, inner
        for inner_node, message in zip(body.graph, inner.node, strict=True):
            yield from _bodies(inner_node, message)


# What a written model may not say as the file that was read: training information, which onnx_ir does not read, and listed constants.

_KEY = "onnxtile.training_info"
"""In the notes of the main graph, which its clones keep and no file has."""
_LISTED = "onnxtile.listed_constants"
"""There, the names of constants that were also inputs."""


def note_training(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Note on `model`, which was made of `proto`, what that says of training."""
    if proto.training_info:
        model.graph.meta[_KEY] = tuple(info.SerializeToString(deterministic=True) for info in proto.training_info)


def add_training(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Add to `proto`, which is to be written, what is noted on `model`; warn of what binds a constant that is no longer there."""
    for data in model.graph.meta.get(_KEY, ()):
        info = onnx.TrainingInfoProto.FromString(data)
        inner = {tensor.name for tensor in (*info.algorithm.initializer, *info.initialization.initializer)}
        bound = [binding.key for binding in (*info.initialization_binding, *info.update_binding)]
        gone = [name for name in bound if name not in inner and name not in model.graph.initializers]
        if gone:
            warnings.warn(
                f"the training information is not written: it binds {gone[0]!r}, which the new model does not have",
                ModelWarning,
                stacklevel=2,
            )
        else:
            proto.training_info.append(info)


def unlist_constants(model: ir.Model) -> None:
    """Take the initializers of `model` out of its inputs, as IR version 3 alone asks for them, and note that on it."""
    inputs = model.graph.inputs
    listed = tuple(value.name or "" for value in inputs if value.is_initializer())
    if listed:
        inputs[:] = [value for value in inputs if not value.is_initializer()]
        model.graph.meta[_LISTED] = listed


def warn_of_unlisted(model: ir.Model) -> None:
    """Warn that inputs of the file that was read are constants alone in `model`, which is to be written."""
    inputs = {value.name for value in model.graph.inputs}
    listed = [name for name in model.graph.meta.get(_LISTED, ()) if name not in inputs]
    if listed:
        rest = f" and {len(listed) - 1} more inputs" if len(listed) > 1 else ""
        warnings.warn(
            f"{listed[0]!r}{rest} with a value in the file are constants alone in the new model: only IR version 3 lists all constants",
            ModelWarning,
            stacklevel=2,
        )


# Copies of tensors under another name, written in the same form as the original.

_STATED_INLINE = "onnxtile.stated_inline"


def copied_tensor(
    tensor: ir.TensorProtocol, name: str | None, doc: str | None = None, metadata: Mapping[str, str] | None = None
) -> ir.TensorProtocol:
    """Return a tensor like `tensor`, called `name`, that will be written in the same form; where that is raw bytes, of the same memory.

    Its doc string and metadata are those of `tensor` where `doc` and `metadata` are None.
    """
    doc = tensor.doc_string if doc is None else doc
    props = dict(tensor.metadata_props if metadata is None else metadata)
    if isinstance(tensor, ir.StringTensor):
        shape = ir.Shape(tensor.shape.numpy())
        return ir.StringTensor(tensor.raw, shape=shape, name=name, doc_string=doc or None, metadata_props=props)
    form = tensor.raw
    if isinstance(form, onnx.TensorProto) and not form.HasField("raw_data"):
        copy = onnx.TensorProto()
        copy.CopyFrom(form)
        copy.name = name or ""
        copy.doc_string = doc or ""
        if not doc:
            copy.ClearField("doc_string")
        stored = ir.serde.TensorProtoTensor(copy)
        stored.metadata_props.clear()
        stored.metadata_props.update(props)
        return without_second_props(stored)
    return ir.LazyTensor(
        lambda: tensor,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=doc or None,
        metadata_props=props,
    )


def without_second_props(tensor: ir.serde.TensorProtoTensor) -> ir.serde.TensorProtoTensor:
    """Return `tensor`, whose message has its metadata no more: onnx_ir would write them from there, and once more from the tensor."""
    tensor.raw.ClearField("metadata_props")
    return tensor


def is_stated_inline(tensor: ir.TensorProtocol) -> bool:
    """Return whether the file of `tensor` says that its bytes are in the model, as it says where they were elsewhere once."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return bool(tensor.raw.HasField("data_location"))
    return isinstance(tensor, ir.LazyTensor) and bool(tensor.meta.get(_STATED_INLINE))


def note_inline(copy: ir.LazyTensor, tensor: ir.TensorProtocol) -> None:
    """Let `is_stated_inline` say of `copy` what it says of `tensor`."""
    copy.meta[_STATED_INLINE] = is_stated_inline(tensor)
