"""Means and norms become sums, which are added up strip by strip, and one product or root of the sum.

So a map of which only the mean is read, before a head or the gate of squeeze-and-excitation, needs not exist as a whole.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.operators.families.reductions import reduced_axes
from onnxtile.operators.node_view import STANDARD, NotApplicable

_WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""The element types in which sums are added up: those of 16 bits would lose too many."""
_SUMS = {
    "GlobalAveragePool": "ReduceSum",
    "AveragePool": "ReduceSum",
    "ReduceMean": "ReduceSum",
    "ReduceL2": "ReduceSumSquare",
}
"""By reduction, the sum that it is made of."""


def sum_means(edit: ModelEdit) -> list[ir.Node]:
    """Write means and norms of tensors that matter as sums and what follows; return the reductions that went."""
    changed = []
    for node in list(edit.model.graph):
        source = node.inputs[0] if node.op_type in _SUMS and node.domain in STANDARD else None
        if source is None or edit.dtype(source) not in _WIDE or edit.bytes(source) <= edit.least:
            continue
        axes = _axes(edit, node)
        if axes:
            _write(edit, node, source, axes)
            changed.append(node)
    return changed


def _axes(edit: ModelEdit, node: ir.Node) -> list[int]:
    """Return the axes that a reduction goes over; none where they are not known, or it leaves some places of one."""
    view = edit.view(node)
    sizes, result = view.sizes(0), edit.sizes(node.outputs[0])
    if not sizes or result is None:
        return []
    if node.op_type == "AveragePool":
        is_whole = tuple(view.ints("kernel_shape", ())) == sizes[2:] and prod(result[2:]) == 1
        return list(range(2, len(sizes))) if is_whole and not any(view.ints("pads", ())) else []
    if node.op_type == "GlobalAveragePool":
        return list(range(2, len(sizes)))
    try:
        return sorted(reduced_axes(view))
    except NotApplicable:
        return []


def _write(edit: ModelEdit, node: ir.Node, source: ir.Value, axes: list[int]) -> None:
    result = node.outputs[0]
    sizes, dtype = edit.sizes(source) or (), edit.dtype(source)
    assert dtype is not None
    op = _SUMS[node.op_type]
    attributes = [ir.AttrInt64("keepdims", int(len(edit.sizes(result) or ()) == len(sizes)))]
    operands = [source]
    # The axes of a ReduceSum are an operand since opset 13, those of a ReduceSumSquare since opset 18.
    if edit.opset >= (13 if op == "ReduceSum" else 18):
        operands.append(edit.numbers(axes))
    else:
        attributes.append(ir.AttrInt64s("axes", axes))
    total = edit.add(
        node, op, operands, edit.value(f"{result.name}/total", edit.sizes(result) or (), dtype), attributes
    )
    after = edit.value(f"{result.name}/after", edit.sizes(result) or (), dtype)
    if op == "ReduceSumSquare":
        edit.add(node, "Sqrt", [total], after)
    else:
        share = edit.shared("share", np.asarray(1 / prod(sizes[axis] for axis in axes), dtype.numpy()))
        edit.add(node, "Mul", [total, share], after)
    edit.replace(result, after)
    edit.model.graph.remove(node, safe=True)
    maker = total.producer()
    assert maker is not None
    maker.name = node.name
