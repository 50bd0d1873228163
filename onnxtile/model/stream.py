"""A model written piece by piece, so that no second copy of its weights or its nodes is ever in memory.

The lengths of large constants are known before their bytes are, so the file is written in its order. A repeated field of a message may
stand in several pieces (https://protobuf.dev/programming-guides/encoding/#last-one-wins).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from os import SEEK_CUR
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

import onnx
import onnx_ir as ir

from onnxtile.model.preserved import (
    add_body_outputs,
    add_graph_outputs,
    add_training,
    is_stated_inline,
    warn_of_unlisted,
    without_outputs,
)
from onnxtile.model.validity import INLINE_BYTES
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.process import collector_paused
from onnxtile.system.protobuf_wire import GRAPH, INITIALIZER, RAW_DATA, head

MOST_BYTES = 2**31 - 1
"""Of one file: what protobuf reads (https://protobuf.dev/programming-guides/proto-limits/)."""
_CHUNK = 256
"""Nodes whose messages are in memory at a time."""
_ZEROS = bytes(2**16)
"""The least run of zeros that becomes a hole: some blocks of any file system."""


class ModelTooLarge(ModelError):
    """A model does not fit into one file."""

    def __init__(self) -> None:
        super().__init__("the model takes more than 2 GiB in one file", hint="give -o OUT, which may use external data")


@dataclass(frozen=True)
class Written:
    """The nodes that stand for one node in the file, and the constants that they read, which are of the main graph, too.

    `nodes` and `constants` are those.
    """

    nodes: Sequence[ir.Node]
    constants: Sequence[ir.Value]


@dataclass(frozen=True)
class Draft:
    """A model in which other nodes are written for some nodes of the main graph.

    `later` makes them, the same ones each time, when they are written; then they are let go, so that all of them are never in memory. Its
    order is that of the model. Their constants follow those of the model, those of the last node first. `model` is the model with the nodes
    that are replaced.
    """

    model: ir.Model
    later: Mapping[ir.Node, Callable[[], AbstractContextManager[Written]]] = field(default_factory=dict)

    def constants(self) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
        """Yield the initializers of the main graph, as they stand in the file."""
        yield from _held(self.model.graph.initializers.values())
        for make in reversed(list(self.later.values())):
            with make() as written:
                yield from _held(written.constants)

    def nodes(self) -> Iterator[Sequence[ir.Node]]:
        """Yield the nodes of the main graph as they stand in the file, some at a time."""
        some: list[ir.Node] = []
        for node in self.model.graph:
            if node in self.later:
                yield some
                some = []
                with self.later[node]() as written:
                    for start in range(0, len(written.nodes), _CHUNK):
                        some = list(written.nodes[start : start + _CHUNK])
                        yield some
                        some.clear()
            elif len(some) == _CHUNK:
                yield some
                some = [node]
            else:
                some.append(node)
        yield some


class _StreamEntry(NamedTuple):
    """An initializer: its bytes up to its content, how many bytes that is in this file, and the tensor that has it."""

    start: bytes
    size: int
    tensor: ir.TensorProtocol


@collector_paused()
def write_model(source: ir.Model | Draft, file: BinaryIO, *, beside: str = "") -> None:
    """Write a model to `file`; external weights stay references.

    Large constants of the main graph are asked for one after another, in their order, and let go once they are written. With `beside`
    they are references to the file of that name, which `write_data` writes. Raises ModelTooLarge, before anything is written, where `file`
    would take more than 2 GiB.
    """
    draft = source if isinstance(source, Draft) else Draft(source)
    rest, graph = _around(draft.model)
    total = len(graph) + sum(len(entry.start) + entry.size for entry in _entries(draft, beside))
    if total > MOST_BYTES:
        raise ModelTooLarge
    with TemporaryFile() as nodes, TemporaryFile() as facts:
        for some in draft.nodes():
            _write_nodes(some, draft.model.ir_version, nodes, facts)
        total += nodes.tell() + facts.tell()
        if total + len(rest) > MOST_BYTES:
            raise ModelTooLarge
        file.write(rest)
        file.write(head(GRAPH, total))
        for part in (nodes, facts):
            part.seek(0)
            copyfileobj(part, file)
    file.write(graph)
    for start, size, tensor in _entries(draft, beside):
        file.write(start)
        if size:
            file.write(tensor.tobytes())


@collector_paused()
def write_data(source: ir.Model | Draft, file: BinaryIO) -> None:
    """Write the bytes of the large constants of a model's main graph, one after another, where `write_model` refers to them.

    Long runs of zeros become holes of the file, as they are in the sparse file of weights that are not known yet.
    """
    draft = source if isinstance(source, Draft) else Draft(source)
    for _, tensor in draft.constants():
        if _large_bytes(tensor):
            _write_with_holes(tensor.tobytes(), file)
    file.truncate()


def _write_with_holes(data: bytes, file: BinaryIO) -> None:
    """Write `data`, and pass over pieces of it that are zeros alone."""
    view = memoryview(data)
    for start in range(0, len(data), len(_ZEROS)):
        if data.startswith(_ZEROS[: len(data) - start], start):
            file.seek(min(len(_ZEROS), len(data) - start), SEEK_CUR)
        else:
            file.write(view[start : start + len(_ZEROS)])


def _held(values: Iterable[ir.Value]) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    return ((value, value.const_value) for value in values if value.const_value is not None)


def _write_nodes(nodes: Sequence[ir.Node], ir_version: int, file: BinaryIO, facts: BinaryIO) -> None:
    """Write nodes to `file`, and what is said of their outputs to `facts`."""
    if not nodes:
        return
    proto = onnx.GraphProto()
    view = ir.GraphView([], [], nodes=nodes)
    ir.serde.serialize_graph_into(proto, view, model_ir_version=ir_version)  # type: ignore[arg-type]
    add_body_outputs(nodes, proto.node)
    file.write(onnx.GraphProto(node=proto.node).SerializeToString(deterministic=True))
    proto.ClearField("node")
    facts.write(proto.SerializeToString(deterministic=True))


def _entries(draft: Draft, beside: str) -> Iterator[_StreamEntry]:
    """Yield the initializers of the file in their order, each made anew, so that not all tensors are in memory."""
    offset = 0
    for value, tensor in draft.constants():
        size = _large_bytes(tensor)
        entry, facts = _plain_entry(value, tensor) if size and _is_plain(value) else _full_entry(value, tensor, size)
        if size:
            entry.ClearField("external_data")
            entry.ClearField("data_location")
        if size and not beside and is_stated_inline(tensor):
            entry.data_location = onnx.TensorProto.DEFAULT
        if size and beside:
            entry.data_location = onnx.TensorProto.EXTERNAL
            for key, text in (("location", beside), ("offset", str(offset)), ("length", str(size))):
                entry.external_data.add(key=key, value=text)
            offset += size
            size = 0
        start: bytes = entry.SerializeToString(deterministic=True)
        start += head(RAW_DATA, size) if size else b""
        yield _StreamEntry(facts + head(INITIALIZER, len(start) + size) + start, size, tensor)


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


def _plain_entry(value: ir.Value, tensor: ir.TensorProtocol) -> tuple[onnx.TensorProto, bytes]:
    """Return a constant without its bytes. Of the thousands in a tiled model most are so; the long way takes many times as long."""
    return onnx.TensorProto(name=value.name, data_type=int(tensor.dtype), dims=tensor.shape.numpy()), b""


def _full_entry(value: ir.Value, tensor: ir.TensorProtocol, size: int) -> tuple[onnx.TensorProto, bytes]:
    """Return a constant, without its bytes where it is large, and what else is said of it, unless it is an input, which says it."""
    held = _stand_in(value, tensor) if size else value
    proto = onnx.GraphProto()
    ir.serde.serialize_graph_into(proto, ir.GraphView([], [], nodes=[], initializers=[held]))  # type: ignore[arg-type]
    entry = proto.initializer.pop()
    without_outputs([held], proto)
    if value.is_graph_output():
        proto.ClearField("quantization_annotation")  # the outputs, which are written elsewhere, have it
    return entry, b"" if value.is_graph_input() else proto.SerializeToString(deterministic=True)


def _around(model: ir.Model) -> tuple[bytes, bytes]:
    """Return the fields of `model` beside its main graph, and the fields of that graph beside nodes, initializers and their annotations."""
    graph = model.graph
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=[],
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    # A graph view is what the serialiser takes in a graph's place; the annotation of Model has not heard of it.
    bare = ir.Model(
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
    proto = ir.to_proto(bare)
    add_graph_outputs(graph, proto.graph)
    inside: bytes = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    add_training(model, proto)
    warn_of_unlisted(model)
    return proto.SerializeToString(deterministic=True), inside


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
