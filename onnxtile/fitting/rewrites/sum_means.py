"""Means and norms become sums, which are added up strip by strip, and one product or root of the sum.

So a map of which only the mean is read, before a head or the gate of squeeze-and-excitation, needs not exist as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.model.node_kinds import dequantises
from onnxtile.operators.families.reductions import reduced_axes
from onnxtile.operators.node_view import STANDARD, NotApplicable

WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
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
        if source is None or edit.dtype(source) not in WIDE or edit.bytes(source) <= edit.least:
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
    total = sum_over(edit, node, op, source, axes, edit.sizes(result) or ())
    after = edit.value(f"{result.name}/after", edit.sizes(result) or (), dtype)
    if op == "ReduceSumSquare":
        edit.add(node, "Sqrt", [total], after)
    else:
        share = edit.shared("share", np.asarray(1 / prod(sizes[axis] for axis in axes), dtype.numpy()))
        edit.add(node, "Mul", [total, share], after)
    _take_over(edit, node, total, after)


def sum_over(
    edit: ModelEdit, before: ir.Node, op: str, source: ir.Value, axes: list[int], sizes: Sequence[int]
) -> ir.Value:
    """Add the sum `op` of a value over axes before a node; return it. Its `sizes` have these axes as ones, or leave them out."""
    attributes = [ir.AttrInt64("keepdims", int(len(sizes) == len(edit.sizes(source) or ())))]
    operands = [source]
    # The axes of a ReduceSum are an operand since opset 13, those of a ReduceSumSquare since opset 18.
    if edit.opset >= (13 if op == "ReduceSum" else 18):
        operands.append(edit.numbers(axes))
    else:
        attributes.append(ir.AttrInt64s("axes", axes))
    total = edit.value(f"{before.outputs[0].name}/total", sizes, edit.dtype(source))
    return edit.add(before, op, operands, total, attributes)


def _take_over(edit: ModelEdit, node: ir.Node, total: ir.Value, after: ir.Value) -> None:
    """Let readers of the mean `node` take `after`; the sum takes its name."""
    edit.replace(node.outputs[0], after)
    edit.model.graph.remove(node, safe=True)
    maker = total.producer()
    assert maker is not None
    maker.name = node.name


# Means of quantised maps: the integers are added up without rounding, and the sum is scaled and quantised once.
#
# A product with ones adds up the last axis. It makes sums of 32 bits of integers of 8 without a wider copy of them.

_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_LARGE = 2
"""The part of the largest stored map from which on a map is summed up: a smaller one may be made in chunks of channels instead."""
_MOST_SUMMED = 1 << 23
"""The elements of the largest tensor whose sums have no more than 31 bits."""


def sum_quantised_means(edit: ModelEdit) -> list[ir.Node]:
    """Write means of dequantised maps that matter as sums of their integers; return the means that went."""
    changed = []
    made = [value for node in edit.model.graph for value in node.outputs if edit.dtype(value) in _BYTES]
    least = max(map(edit.bytes, made), default=0) // _LARGE
    for node in list(edit.model.graph):
        source = node.inputs[0] if _SUMS.get(node.op_type) == "ReduceSum" and node.domain in STANDARD else None
        stored = None if source is None else _stored(edit, source)
        axes = [] if stored is None or edit.bytes(stored.value) < least else _axes(edit, node)
        sizes = () if source is None else edit.sizes(source) or ()
        if stored is not None and axes and axes[-1] == len(sizes) - 1 and prod(sizes) <= _MOST_SUMMED:
            _write_quantised(edit, node, stored, axes)
            changed.append(node)
    return changed


class StoredIntegers(NamedTuple):
    """A tensor of integers of 8 bits that floats are made of, with the scale and the zero point of all of them."""

    value: ir.Value
    scale: float
    zero_point: int


def _stored(edit: ModelEdit, value: ir.Value) -> StoredIntegers | None:
    """Return the integers that a value is made of; None for a value that is not made of such integers."""
    maker = value.producer()
    if maker is None or not dequantises(maker) or value in edit.constants or edit.dtype(value) != ir.DataType.FLOAT:
        return None
    stored, *numbers = maker.inputs
    if stored is None or edit.dtype(stored) not in _BYTES:
        return None
    known = [edit.constants.array(number) for number in numbers if number is not None and number in edit.constants]
    if len(known) < len(numbers) or any(array.size != 1 for array in known):
        return None
    return StoredIntegers(stored, float(known[0].item()), int(known[1].item()) if len(known) > 1 else 0)


def _write_quantised(edit: ModelEdit, node: ir.Node, stored: StoredIntegers, axes: list[int]) -> None:
    result, sizes = node.outputs[0], edit.sizes(stored.value) or ()
    wanted, count = edit.sizes(result) or (), prod(sizes[axis] for axis in axes)
    ones = edit.shared("ones", np.ones((sizes[-1], 1), np.int8))
    total = edit.value(f"{result.name}/summed", (*sizes[:-1], 1), ir.DataType.INT32)
    edit.add(node, "MatMulInteger", [stored.value, ones], total)
    if wanted != (*sizes[:-1], 1):
        total = sum_over(edit, node, "ReduceSum", total, axes, wanted)
    zeros = edit.shared("zeros", np.asarray(count * stored.zero_point, np.int32))
    centred = edit.value(f"{result.name}/centred", wanted, ir.DataType.INT32)
    edit.add(node, "Sub", [total, zeros], centred)
    number = edit.value(f"{result.name}/float", wanted, ir.DataType.FLOAT)
    edit.add(node, "Cast", [centred], number, [ir.AttrInt64("to", ir.DataType.FLOAT.value)])
    after = edit.value(f"{result.name}/after", wanted, ir.DataType.FLOAT)
    edit.add(node, "Mul", [number, edit.shared("share", np.asarray(stored.scale / count, np.float32))], after)
    _take_over(edit, node, total, after)
