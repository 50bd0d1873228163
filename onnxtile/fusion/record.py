"""The record from which unfuse restores the nodes of a meta-op: places, names, doc strings, metadata, value_info.

All records are kept together in the metadata of the model's graph, as packed JSON: they share most of their words. A call has the number of
its record. A meta-op inside a meta-op has its number in the outer record, since a function's body is shared by sites whose names differ.
"""

from __future__ import annotations

import base64
import bz2
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, field, fields, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from typing import Any

import onnx
import onnx_ir as ir
import pydantic

from onnxtile.model import keys
from onnxtile.model.preserved import copied_tensor
from onnxtile.model.topology import all_nodes, all_values, graphs_in, main_graphs, roots
from onnxtile.system.dataclass import dataclass

# Long text as short text: compressed, and written in characters that metadata can have.
#
# bzip2 has one implementation, so the same text gives the same characters everywhere.

_MOST_BYTES = 2**28
"""Of a text that is unpacked: the records of a model of a million nodes take less."""


def packed(text: bytes) -> str:
    """Return `text` compressed, in base 85."""
    return base64.b85encode(bz2.compress(text)).decode()


def unpacked(text: str) -> bytes:
    """Return the text that `packed` was given. Raises ValueError for anything else, and where it takes more than 256 MiB."""
    decompressor = bz2.BZ2Decompressor()
    try:
        data = decompressor.decompress(base64.b85decode(text), max_length=_MOST_BYTES)
    except (OSError, EOFError) as error:
        raise ValueError(str(error)) from None
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("it is cut off, or too long")
    return data


_QUANTIZATION = "quant_parameter_tensor_names"
"""Key under which onnx_ir keeps the quantization annotation of a value."""


@dataclass(frozen=True)
class ValueRecord:
    """A value's name, and what its value_info says: element type, dimensions, doc string, metadata, quantization annotation.

    `info` is the whole value_info (protobuf, base64) where element type and dimensions do not say it all, as for a sequence.
    """

    name: str
    dtype: ir.DataType | None = None
    dims: tuple[int | str | None, ...] | None = None
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    quantization: dict[str, str] = field(default_factory=dict)
    info: str = ""


@dataclass(frozen=True)
class TensorRecord:
    """What a tensor says beside its elements, which sites that share a function need not share."""

    name: str = ""
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeRecord:
    """A node's place among the nodes of its graph (counted from 0; None for a call made by the same run), and what is its own.

    `tensors` are those in its attributes, `docs` the doc strings of these; sites that share a function need not share them. A node that is
    `copied` is one node of the original for all calls that have it.
    """

    outputs: tuple[ValueRecord, ...]
    place: int | None = None
    name: str = ""
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    docs: dict[str, str] = field(default_factory=dict)
    copied: bool = False


@dataclass(frozen=True)
class ConstantRecord:
    """A constant that moved into the function: a Constant node, or (without one) an initializer with its tensor.

    `place` is that of the initializer among those of its graph, counted from 0.
    """

    value: ValueRecord
    node: NodeRecord | None = None
    tensor: TensorRecord | None = None
    place: int | None = None


@dataclass(frozen=True)
class Record:
    """What one call stands for. `run` counts the runs of fuse on the model: the last is undone first.

    `body` is the digest of the function that the call was made for.
    """

    run: int
    body: str
    nodes: tuple[NodeRecord, ...]
    constants: tuple[ConstantRecord, ...] = ()

    @property
    def inner(self) -> list[str]:
        """The numbers of the records of the calls inside this one."""
        return [node.metadata[keys.FUSED] for node in self.nodes if keys.FUSED in node.metadata]


@dataclass(frozen=True)
class History:
    """What one run of fuse changed of the model as a whole.

    `domain` tells whether the domain of meta-ops was imported before. `inputs` are the names of all inputs, where some had to go.
    `functions` are the identifiers of functions of the user that had to import that domain.
    """

    run: int
    ir_version: int
    domain: bool
    inputs: tuple[str, ...] | None = None
    functions: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Past:
    """What fuse did to a model: its runs, and the records of its calls, by number; None for a call that is no more."""

    history: tuple[History, ...] = ()
    records: tuple[Record | None, ...] = ()

    def record(self, call: ir.Node) -> Record:
        """Return the record of `call`. Raises ValueError where there is none, KeyError where `call` has no number."""
        return self.numbered(call.metadata_props[keys.FUSED])

    def numbered(self, text: str) -> Record:
        """Return the record with the number that `text` is. Raises ValueError where there is none."""
        number = int(text) if text.isdecimal() else -1
        record = self.records[number] if 0 <= number < len(self.records) else None
        if record is None:
            raise ValueError(f"{text!r} is the number of no record")
        return record

    def only(self, calls: Iterable[ir.Node]) -> Past:
        """Return the past without the records of other calls than `calls` and those in them. Raises ValueError."""
        kept: set[int] = set()
        todo = [call.metadata_props[keys.FUSED] for call in calls]
        while todo:
            record = self.numbered(text := todo.pop())
            if int(text) not in kept:
                kept.add(int(text))
                todo += record.inner
        return Past(self.history, tuple(r if i in kept else None for i, r in enumerate(self.records)))


def past_of(model: ir.Model) -> Past:
    """Return the record that fuse left on `model`. Raises ValueError where it is damaged."""
    text = model.graph.metadata_props.get(keys.ORIGINAL)
    if text is None:
        return Past()
    written, past = model.graph.meta.get(keys.ORIGINAL, (None, None))
    return past if past is not None and written == text else loads(text)


def write_past(model: ir.Model, past: Past) -> None:
    """Leave `past` on `model`, in its metadata; as long as these stay as they are, nothing reads them again."""
    model.graph.metadata_props[keys.ORIGINAL] = text = dumps(past)
    model.graph.meta[keys.ORIGINAL] = (text, past)


def fused_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the graphs that fuse looks at: those of `model` and of the user's functions, not those inside meta-ops."""
    for root in roots(model):
        if not isinstance(root, ir.Function) or keys.META_OP not in root.metadata_props:
            yield from (graph for _, graph in graphs_in(root))


def fused_calls(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the calls of `model` that have records."""
    return (node for graph in fused_graphs(model) for node in graph if keys.FUSED in node.metadata_props)


def of_value(value: ir.Value) -> ValueRecord:
    """Return the record of a value."""
    name, quantization = value.name or "", dict(value.meta.get(_QUANTIZATION) or {})
    if value.type is not None and not _is_plain(value):
        info = base64.b64encode(ir.to_proto(value).SerializeToString(deterministic=True)).decode()
        return ValueRecord(name, quantization=quantization, info=info)
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return ValueRecord(name, value.dtype, dims, value.doc_string or "", dict(value.metadata_props), quantization)


def _is_plain(value: ir.Value) -> bool:
    """Tell whether element type and dimensions say all of the type of `value`."""
    if not isinstance(value.type, ir.TensorType) or value.type.denotation:
        return False
    return value.shape is None or not any(value.shape.get_denotation(i) for i in range(len(value.shape)))


def of_node(node: ir.Node, position: int | None, run: int, *, copied: bool = False) -> NodeRecord:
    """Return the record of a node that stood at `position` before this `run`, and that others may have `copied`, too."""
    metadata = dict(node.metadata_props)
    moved = {r: p for r, p in places_of(node).items() if r != run}
    metadata.pop(keys.PLACE, None)
    if moved:
        metadata[keys.PLACE] = _places(moved)
    tensors = {a.name: of_tensor(a.value) for a in node.attributes.values() if _is_tensor(a)}
    docs = {a.name: a.doc_string for a in node.attributes.values() if a.doc_string}
    outputs = tuple(of_value(v) for v in node.outputs)
    return NodeRecord(outputs, position, node.name or "", node.doc_string or "", metadata, tensors, docs, copied)


def of_tensor(tensor: ir.TensorProtocol) -> TensorRecord:
    """Return the record of a tensor."""
    return TensorRecord(tensor.name or "", tensor.doc_string or "", dict(tensor.metadata_props))


def restored_attributes(node: ir.Node, record: NodeRecord) -> list[ir.Attr]:
    """Return the attributes of `node` with the doc strings that `record` says, and their tensors with what it says of them."""
    return [_restored(attribute, record) for attribute in node.attributes.values()]


def _restored(attribute: ir.Attr, record: NodeRecord) -> ir.Attr:
    doc, known = record.docs.get(attribute.name), record.tensors.get(attribute.name)
    if known is not None and _is_tensor(attribute):
        return ir.AttrTensor(attribute.name, restored_tensor(attribute.value, known), doc_string=doc)
    if (attribute.doc_string or None) == doc or attribute.is_ref():
        return attribute
    return ir.Attr(attribute.name, attribute.type, attribute.value, doc_string=doc)


def restored_tensor(tensor: ir.TensorProtocol, record: TensorRecord) -> ir.TensorProtocol:
    """Return `tensor` with what `record` says of it."""
    return tensor if of_tensor(tensor) == record else copied_tensor(tensor, record.name, record.doc, record.metadata)


def _is_tensor(attribute: ir.Attr) -> bool:
    return attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref()


def restore_value(value: ir.Value, record: ValueRecord) -> None:
    """Give `value` what `record` says of it. Raises ValueError where that is damaged."""
    value.name = record.name
    value.shape = None if record.dims is None else ir.Shape(record.dims)
    if record.dtype is not None:
        value.type = ir.TensorType(record.dtype)
    value.doc_string = record.doc or None
    value.metadata_props.clear()
    value.metadata_props.update(record.metadata)
    if record.info:
        proto = onnx.ValueInfoProto.FromString(base64.b64decode(record.info, validate=True))
        hand_on(ir.from_proto(proto), value)
    if record.quantization:
        value.meta[_QUANTIZATION] = dict(record.quantization)


def hand_on(old: ir.Value, new: ir.Value) -> None:
    """Give `new` all that the file says of `old`, save its name."""
    new.type, new.shape, new.doc_string = old.type, old.shape, old.doc_string
    new.metadata_props.update(old.metadata_props)
    if _QUANTIZATION in old.meta:
        new.meta[_QUANTIZATION] = old.meta[_QUANTIZATION]


def places_of(node: ir.Node) -> dict[int, int]:
    """Return where `node` stood before the runs that moved it, by run. Raises ValueError where that is damaged."""
    marks = (mark.split(":") for mark in node.metadata_props.get(keys.PLACE, "").split())
    places = {int(run): int(position) for run, position in marks}
    if any(number < 0 for number in places.values()) or (keys.PLACE in node.metadata_props and not places):
        raise ValueError(node.metadata_props[keys.PLACE])
    return places


def note_place(node: ir.Node, run: int, position: int) -> None:
    """Note on `node`, unless it is there already, that it stood at `position` before this `run`."""
    node.metadata_props[keys.PLACE] = _places({run: position} | places_of(node))


def take_place(node: ir.Node, run: int) -> int | None:
    """Return where `node` stood before `run`, and remove the note; None where that run did not move it."""
    places = places_of(node)
    position = places.pop(run, None)
    if position is None:
        return None
    del node.metadata_props[keys.PLACE]
    if places:
        node.metadata_props[keys.PLACE] = _places(places)
    return position


def _places(places: dict[int, int]) -> str:
    return " ".join(f"{run}:{position}" for run, position in sorted(places.items()))


def dumps(past: Past) -> str:
    """Return `past` as packed JSON, without what is as it is by default."""
    return packed(json.dumps(_plain(past), ensure_ascii=False, separators=(",", ":")).encode())


def _plain(record: Any) -> Any:
    """Return `record` as JSON has it. Written by hand: pydantic, which reads it, is loaded and learns the schema in 0.1 s."""
    if isinstance(record, tuple):
        return [part if isinstance(part, str) else _plain(part) for part in record]
    if isinstance(record, dict):
        return {key: _plain(part) for key, part in record.items()}
    if type(record) not in _DEFAULTS:
        return record
    parts = ((name, getattr(record, name), default) for name, default in _DEFAULTS[type(record)])
    return {name: part if isinstance(part, str) else _plain(part) for name, part, default in parts if part != default}


_DEFAULTS: dict[type[Any], list[tuple[str, Any]]] = {
    kind: [(f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in fields(kind)]
    for kind in (ValueRecord, TensorRecord, NodeRecord, ConstantRecord, Record, History, Past)
}
"""The fields of each kind of record, and what they hold by default; MISSING where that has to be said."""


def loads(text: str) -> Past:
    """Return the past that `dumps` wrote. Raises ValueError for anything else."""
    past = _adapter().validate_json(unpacked(text))
    _require_no_circle(past)
    return past


def _require_no_circle(past: Past) -> None:
    """Raise ValueError where a call is inside itself."""
    inner = {str(number): record.inner for number, record in enumerate(past.records) if record is not None}
    try:
        TopologicalSorter(inner).prepare()
    except CycleError:
        raise ValueError("a fused node is inside itself") from None


@cache
def _adapter() -> pydantic.TypeAdapter[Past]:
    return pydantic.TypeAdapter(Past)


# Records of calls that a function of the user's had inside: once that is written out, each of its calls has one of its own.
#
# The names in the record are those of the function. In the graph they may be taken, by another call of the same function, or by a constant
# that is not the same; and what the function returned has the name that the graph gave it.

InnerCalls = Mapping[str, tuple[str, ...]]
"""The names of the results of calls inside functions, by the number of the record."""


def calls_inside(model: ir.Model, functions: Collection[ir.Function]) -> InnerCalls:
    """Return the calls inside those `functions` of the user's that are to be written out, in which places count for nothing from now on."""
    for node in (node for function in functions for node in function.all_nodes()):
        node.metadata_props.pop(keys.PLACE, None)
    outside = {node for graph in main_graphs(model) for node in graph}
    calls = (call for call in fused_calls(model) if call not in outside)
    return {call.metadata_props[keys.FUSED]: tuple(value.name or "" for value in call.outputs) for call in calls}


def renew_records(model: ir.Model, inside: InnerCalls) -> None:
    """Give each call of the main graph that was `inside` a function a record of its own; a damaged record stays as it is."""
    calls = [node for graph in main_graphs(model) for node in graph if node.metadata_props.get(keys.FUSED) in inside]
    if not calls:
        return
    with suppress(ValueError):
        past = past_of(model)
        others = [r for number, r in enumerate(past.records) if r is not None and str(number) not in inside]
        values = {value.name or "" for value in all_values(model)}.union(*map(_values, others))
        nodes = {node.name or "" for node in all_nodes(model)}.union(node.name for r in others for node in r.nodes)
        renewing = _Renewing(past, values, nodes)
        numbers = [renewing.record(call.metadata_props[keys.FUSED], _results(call, inside)) for call in calls]
        for call, number in zip(calls, numbers, strict=True):
            call.metadata_props[keys.FUSED] = number
        write_past(model, Past(past.history, tuple(renewing.records)))


def _results(call: ir.Node, inside: InnerCalls) -> dict[str, ValueRecord]:
    names = inside[call.metadata_props[keys.FUSED]]
    return {name: of_value(value) for name, value in zip(names, call.outputs, strict=True)}


def _values(record: Record) -> set[str]:
    nodes = {value.name for node in record.nodes for value in node.outputs}
    return nodes | {constant.value.name for constant in record.constants}


class _Renewing:
    """Writes records after those of the `past`, with names that are neither among `values` nor among `nodes`."""

    def __init__(self, past: Past, values: set[str], nodes: set[str]) -> None:
        self._past = past
        self._values = values
        self._nodes = nodes
        self.records = list(past.records)

    def record(self, number: str, known: dict[str, ValueRecord]) -> str:
        """Write the record with `number` anew, and those inside it; return its new number. `known` are the values that are renewed."""
        old = self._past.numbered(number)
        constants = tuple(self._constant(constant, known) for constant in old.constants)
        nodes = tuple(self._node(node, known) for node in old.nodes)
        self.records.append(replace(old, nodes=nodes, constants=constants))
        return str(len(self.records) - 1)

    def _constant(self, constant: ConstantRecord, known: dict[str, ValueRecord]) -> ConstantRecord:
        node = None if constant.node is None else self._node(constant.node, known)
        return replace(constant, value=self._value(constant.value, known), node=node, place=None)

    def _node(self, node: NodeRecord, known: dict[str, ValueRecord]) -> NodeRecord:
        """Return the record of a node of this call alone, which has no place in the graph."""
        metadata = {key: text for key, text in node.metadata.items() if key != keys.PLACE}
        if keys.FUSED in metadata:
            metadata[keys.FUSED] = self.record(metadata[keys.FUSED], known)
        outputs = tuple(self._value(value, known) for value in node.outputs)
        name = _free(node.name, self._nodes)
        return replace(node, outputs=outputs, place=None, name=name, metadata=metadata, copied=False)

    def _value(self, value: ValueRecord, known: dict[str, ValueRecord]) -> ValueRecord:
        if value.name not in known:
            known[value.name] = replace(value, name=_free(value.name, self._values))
        return known[value.name]


def _free(name: str, taken: set[str]) -> str:
    """Return `name`, or the first copy of it that is not `taken`, and take it; nothing has no name."""
    free = (
        next(candidate for candidate in chain([name], (f"{name}_{n}" for n in count(2))) if candidate not in taken)
        if name
        else ""
    )
    taken.add(free)
    return free
