"""A model written tensor by tensor, so that no second copy of its weights is ever in memory.

The lengths of large constants are known before their bytes are, so the file is written in its order.
"""

from __future__ import annotations

from typing import BinaryIO

import onnx
import onnx_ir as ir

from onnxtile.collector import collector_paused
from onnxtile.errors import ModelError
from onnxtile.model.check import INLINE_BYTES
from onnxtile.model.training import add_training
from onnxtile.model.wire import GRAPH, INITIALIZER, RAW_DATA, head

MOST_BYTES = 2**31 - 1
"""Of one file: what protobuf reads (https://protobuf.dev/programming-guides/proto-limits/)."""


class TooLarge(ModelError):
    """A model does not fit into one file."""

    def __init__(self) -> None:
        super().__init__("the model takes more than 2 GiB in one file", hint="give -o OUT, which may use external data")


@collector_paused()
def write_model(model: ir.Model, file: BinaryIO) -> None:
    """Write `model` to `file`; external weights stay references.

    Large constants are asked for one after another, in their order, and let go once they are written. Raises TooLarge, before
    anything is written, where the model takes more than 2 GiB.
    """
    values = [value for value in model.graph.initializers.values() if value.const_value is not None]
    tensors = [value.const_value for value in values if value.const_value is not None]
    sizes = [_large_bytes(tensor) for tensor in tensors]
    plain = {id(value) for value, size in zip(values, sizes, strict=True) if size and _is_plain(value)}
    large = {id(tensor) for tensor, size in zip(tensors, sizes, strict=True) if size}
    proto = ir.to_proto(_without_bytes(model, plain, large))
    entries = iter(proto.graph.initializer)
    starts = [
        _start(_entry(value, tensor) if id(value) in plain else next(entries), size)
        for value, tensor, size in zip(values, tensors, sizes, strict=True)
    ]
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    add_training(model, proto)
    rest: bytes = proto.SerializeToString(deterministic=True)
    del proto  # its nodes take more memory than their bytes
    total = len(graph) + sum(len(start) + size for start, size in zip(starts, sizes, strict=True))
    if total + len(rest) > MOST_BYTES:
        raise TooLarge
    for part in (rest, head(GRAPH, total), graph):
        file.write(part)
    del graph, part
    for start, tensor, size in zip(starts, tensors, sizes, strict=True):
        file.write(start)
        if size:
            file.write(tensor.tobytes())


def _large_bytes(tensor: ir.TensorProtocol) -> int:
    """Return how many bytes of a large constant are written last; 0 for one that is small or lies in a file of its own."""
    if isinstance(tensor, ir.ExternalTensor) or tensor.dtype == ir.DataType.STRING:
        return 0
    size = int(tensor.nbytes)
    return size if size > INLINE_BYTES else 0


def _is_plain(value: ir.Value) -> bool:
    """Return whether there is nothing to write of a constant but its name, type, shape and bytes."""
    tensor = value.const_value
    assert tensor is not None
    return not (value.metadata_props or value.doc_string or value.meta or tensor.metadata_props or tensor.doc_string)


def _entry(value: ir.Value, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """Return a constant without its bytes. Of the thousands in a tiled model most are so; the long way takes three times as long."""
    return onnx.TensorProto(name=value.name, data_type=int(tensor.dtype), dims=tensor.shape.numpy())


def _start(entry: onnx.TensorProto, size: int) -> bytes:
    """Return an initializer with its tag and length, up to the `size` bytes that follow."""
    if size:
        entry.ClearField("external_data")
        entry.ClearField("data_location")
    start: bytes = entry.SerializeToString(deterministic=True)
    start += head(RAW_DATA, size) if size else b""
    return head(INITIALIZER, len(start) + size) + start


def _without_bytes(model: ir.Model, left_out: set[int], large: set[int]) -> ir.Model:
    """Return a view of `model` without the constants whose ids are in `left_out`; tensors whose ids are in `large` have no bytes."""
    graph = model.graph
    initializers = [
        value
        if value.const_value is None or id(value.const_value) not in large
        else _stand_in(value, value.const_value)
        for value in graph.initializers.values()
        if id(value) not in left_out
    ]
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=list(graph),
        initializers=initializers,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    # A graph view is what the serialiser takes in a graph's place; the annotation of Model has not heard of it.
    return ir.Model(
        view,  # type: ignore[arg-type]
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=list(model.functions.values()),
        metadata_props=model.metadata_props,
        device_configurations=model.device_configurations,
    )


def _stand_in(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    nothing = ir.ExternalTensor(
        "-",
        None,
        None,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=value.name or "",
        doc_string=tensor.doc_string,
    )
    nothing.metadata_props.update(tensor.metadata_props)
    # What a tensor says of its type and shape is not said again, unless there is something more to say.
    known = (value.shape, value.type) if value.metadata_props or value.doc_string else (None, None)
    other = ir.Value(
        name=value.name, shape=known[0], type=known[1], doc_string=value.doc_string, const_value=nothing,
        metadata_props=value.metadata_props,
    )  # fmt: skip
    other.meta.update(value.meta)
    return other
