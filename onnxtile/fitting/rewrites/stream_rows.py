"""An input that comes row by row is read by a Slice of its rows, which is then cut into strips as any operator is.

A strip reads the rows that no strip before it has read. So each row is read once, in order, and rows that are needed again are kept.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.model import keys
from onnxtile.system.errors import Infeasible, unknown


def stream_rows(edit: ModelEdit, name: str, axis: int | None) -> ir.Node:
    """Let a Slice read the input `name`, whose rows lie along an `axis` (None: it has none), for all its readers; return the Slice.

    Raises UsageError where there is no such input, Infeasible for one without rows.
    """
    graph = edit.model.graph
    inputs = {value.name: value for value in graph.inputs if value not in edit.constants}
    if name not in inputs:
        raise unknown("input", name, [known for known in inputs if known])
    value = inputs[name]
    sizes, dtype = edit.sizes(value) or (), edit.dtype(value)
    reason = _reason(value, sizes, axis, dtype)
    if reason:
        raise Infeasible(f"{name!r} cannot come row by row: {reason}", hint=f"leave --io {name}=rows out")
    assert axis is not None
    rows = edit.value(f"{name}/rows", sizes, dtype)
    bounds, attributes = edit.slice_bounds(([0], [sizes[axis]], [axis]), f"{name}/rows/sizes")
    readers = list(value.uses())
    first = next(iter(graph))
    edit.add(first, "Slice", [value, *bounds], rows, attributes)
    for use in readers:
        use.node.replace_input_with(use.idx, rows)
    value.metadata_props[keys.STREAM] = str(axis)
    maker = rows.producer()
    assert maker is not None
    return maker


def _reason(value: ir.Value, sizes: tuple[int, ...], axis: int | None, dtype: ir.DataType | None) -> str:
    """Return why an input cannot come row by row; empty where it can."""
    if value.is_graph_output():
        return "it is an output, too"
    if dtype is None or dtype.bitwidth < 8:
        return "its elements have less than a byte"
    if axis is None or sizes[axis] < 2:
        return "it has one row"
    return "" if value.uses() else "nothing reads it"
