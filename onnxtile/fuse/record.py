"""What a call of a meta-op keeps so that unfuse can restore its nodes: places, names, doc strings, metadata, value_info.

Kept as JSON in the call's metadata. A meta-op inside a meta-op has its record inside the outer one, since a function's body
is shared by sites whose names differ.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxtile import keys


@dataclass(frozen=True)
class ValueRecord:
    """A value's name, and what its value_info says: element type (an ONNX number), dimensions, doc string, metadata."""

    name: str
    dtype: int | None = None
    dims: tuple[int | str | None, ...] | None = None
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeRecord:
    """A node's place among the nodes of its graph (counted from 0; None for a call made by the same run), and what is its own."""

    place: int | None
    name: str
    outputs: tuple[ValueRecord, ...]
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConstantRecord:
    """A constant that moved into the function: a Constant node, or (without one) an initializer."""

    value: ValueRecord
    node: NodeRecord | None


@dataclass(frozen=True)
class Record:
    """What one call stands for. `run` counts the runs of fuse on the model: the last is undone first."""

    run: int
    nodes: tuple[NodeRecord, ...]
    constants: tuple[ConstantRecord, ...]


def of_value(value: ir.Value) -> ValueRecord:
    """Return the record of a value."""
    dtype = value.dtype.value if isinstance(value.type, ir.TensorType) and value.dtype is not None else None
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return ValueRecord(value.name or "", dtype, dims, value.doc_string or "", dict(value.metadata_props))


def of_node(node: ir.Node, place: int | None) -> NodeRecord:
    """Return the record of a node that stood at `place`."""
    metadata = {key: text for key, text in node.metadata_props.items() if key != keys.PLACE}
    return NodeRecord(place, node.name or "", tuple(of_value(v) for v in node.outputs), node.doc_string or "", metadata)


def restore_value(value: ir.Value, record: ValueRecord) -> None:
    """Give `value` what `record` says of it."""
    value.name = record.name
    if record.dtype is not None:
        value.type = ir.TensorType(ir.DataType(record.dtype))
    value.shape = None if record.dims is None else ir.Shape(record.dims)
    value.doc_string = record.doc or None
    value.metadata_props.clear()
    value.metadata_props.update(record.metadata)


def dumps(record: Record) -> str:
    """Return `record` as compact JSON, without what is empty."""
    return json.dumps(_plain(record), separators=(",", ":"), ensure_ascii=False)


def loads(text: str) -> Record:
    """Return the record that `dumps` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    content = json.loads(text)
    constants = tuple(
        ConstantRecord(_value(c["value"]), _node(c["node"]) if c.get("node") is not None else None)
        for c in content.get("constants", ())
    )
    return Record(int(content["run"]), tuple(_node(n) for n in content["nodes"]), constants)


def _plain(record: Any) -> Any:
    if isinstance(record, tuple):
        return [_plain(item) for item in record]
    if not hasattr(record, "__dataclass_fields__"):
        return record
    fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return {name: _plain(value) for name, value in fields.items() if value is not None and value not in ("", {})}


def _node(content: dict[str, Any]) -> NodeRecord:
    outputs = tuple(_value(value) for value in content["outputs"])
    return NodeRecord(
        content.get("place"), content.get("name", ""), outputs, content.get("doc", ""), content.get("metadata", {})
    )


def _value(content: dict[str, Any]) -> ValueRecord:
    dims = content.get("dims")
    return ValueRecord(
        content.get("name", ""),
        content.get("dtype"),
        None if dims is None else tuple(dims),
        content.get("doc", ""),
        content.get("metadata", {}),
    )
