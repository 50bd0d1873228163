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
from onnxtile.fitting.rewrites.strip_forms import is_over_whole_map
from onnxtile.model.node_kinds import dequantises
from onnxtile.operators.families.reductions import reduced_axes
from onnxtile.operators.node_view import STANDARD, NotApplicable
from onnxtile.system.runtime import Array

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
            _write_mean(edit, node, source, axes)
            changed.append(node)
    return changed


def _axes(edit: ModelEdit, node: ir.Node) -> list[int]:
    """Return the axes that a reduction goes over; none where they are not known, or it leaves some places of one."""
    view = edit.view(node)
    sizes, result = view.sizes(0), edit.sizes(node.outputs[0])
    if not sizes or result is None:
        return []
    if node.op_type == "GlobalAveragePool" or (node.op_type == "AveragePool" and is_over_whole_map(view)):
        return list(range(2, len(sizes)))
    if node.op_type == "AveragePool":
        return []
    try:
        return sorted(reduced_axes(view))
    except NotApplicable:
        return []


def _write_mean(edit: ModelEdit, node: ir.Node, source: ir.Value, axes: list[int]) -> None:
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


# Normalisations over rows become two sums, which are added up strip by strip, and elementwise operators, which run strip by strip.
#
# The first sum gives the mean. The second is that of the squares of what is left without the mean, as in the usual two passes: the
# difference of a mean square and a squared mean would lose all digits of a variance much smaller than the mean. What is left is also what
# is scaled, so it takes the place of the map.


_SPATIAL = 2
"""The first axis after the channels."""


class Normalisation(NamedTuple):
    """A `source` whose elements from `axis` on are normalised to the value `result`, those of each place before the axis together.

    With `groups`, those of a group of channels are normalised together. `scale` and `bias` fit the axes of the source; None where neutral.
    """

    source: ir.Value
    result: ir.Value
    groups: int
    axis: int
    scale: Array | None
    bias: Array | None


def sum_norms(edit: ModelEdit) -> list[ir.Node]:
    """Write normalisations of tensors that matter as sums and what follows; return the nodes that went."""
    changed = []
    for node in list(edit.model.graph):
        norm = _normalisation(edit, node) if node.domain in STANDARD else None
        if norm is not None and edit.dtype(norm.source) in WIDE and edit.bytes(norm.source) > edit.least:
            edit.replace(norm.result, _write_norm(edit, node, norm))
            changed.append(node)
    return changed


def _normalisation(edit: ModelEdit, node: ir.Node) -> Normalisation | None:
    """Return what a node normalises over rows; None for any other operator, or where its scale is no constant."""
    reader = _READERS.get(node.op_type)
    source = node.inputs[0] if reader is not None else None
    if reader is None or source is None or not edit.sizes(source) or any(value.uses() for value in node.outputs[1:]):
        return None
    known = [value is None or value in edit.constants for value in node.inputs[1:]]
    return reader(edit, node, source) if all(known) else None


def _layer(edit: ModelEdit, node: ir.Node, source: ir.Value) -> Normalisation | None:
    rank = len(edit.sizes(source) or ())
    axis = node.attributes.get_int("axis", -1) % rank
    if axis == rank - 1:
        return None  # rows are apart
    return Normalisation(source, node.outputs[0], 0, axis, *(_array(edit, node, place) for place in (1, 2)))


def _groups(edit: ModelEdit, node: ir.Node, source: ir.Value) -> Normalisation:
    groups = node.attributes.get_int("num_groups", 1)
    return _by_channel(edit, node, source, node.outputs[0], groups)


def _instances(edit: ModelEdit, node: ir.Node, source: ir.Value) -> Normalisation:
    """Return groups of channels where the node stands between two Reshapes that make each of them one, as exporters write them."""
    result, sizes = node.outputs[0], edit.sizes(source) or ()
    before, uses = source.producer(), list(result.uses())
    after = uses[0].node if len(uses) == 1 and not uses[0].idx and not result.is_graph_output() else None
    if before is not None and after is not None and before.op_type == after.op_type == "Reshape":
        whole, parts = before.inputs[0], after.outputs[0]
        channels = () if whole is None else edit.sizes(whole) or ()
        is_grouped = len(channels) > _SPATIAL and channels[0] == sizes[0] and channels[1] % sizes[1] == 0
        if whole is not None and is_grouped and channels == edit.sizes(parts):
            return _by_channel(edit, node, whole, parts, sizes[1])
    return _by_channel(edit, node, source, result, sizes[1])


_READERS = {"GroupNormalization": _groups, "InstanceNormalization": _instances, "LayerNormalization": _layer}


def _array(edit: ModelEdit, node: ir.Node, place: int) -> Array | None:
    value = node.inputs[place] if place < len(node.inputs) else None
    return None if value is None else edit.constants.array(value)


def _by_channel(edit: ModelEdit, node: ir.Node, source: ir.Value, result: ir.Value, groups: int) -> Normalisation:
    """Return the normalisation of groups of channels; a scale or a bias of each group is that of each of its channels."""
    sizes = edit.sizes(source) or ()
    numbers: list[Array | None] = []
    for place, neutral in ((1, 1), (2, 0)):
        array = _array(edit, node, place)
        if array is not None:
            array = np.repeat(array, sizes[1] // len(array)).reshape(-1, *(1 for _ in sizes[_SPATIAL:]))
        numbers.append(None if array is None or bool(np.all(array == neutral)) else array)
    return Normalisation(source, result, groups, _SPATIAL, *numbers)


def _write_norm(edit: ModelEdit, node: ir.Node, norm: Normalisation) -> ir.Value:
    """Add the nodes of a normalisation before `node`; return their result."""
    source, dtype = norm.source, edit.dtype(norm.source)
    assert dtype is not None
    sizes, stem = edit.sizes(source) or (), norm.result.name
    epsilon = edit.shared("epsilon", np.asarray(node.attributes.get_float("epsilon", 1e-5), dtype.numpy()))

    def add(op: str, ending: str, *operands: ir.Value) -> ir.Value:
        shape = np.broadcast_shapes(*(edit.sizes(value) or () for value in operands))
        return edit.add(node, op, operands, edit.value(f"{stem}/{ending}", shape, dtype))

    apart = add("Sub", "apart", source, _mean(edit, node, norm, "ReduceSum", source))
    variance = _mean(edit, node, norm, "ReduceSumSquare", apart)
    root = add("Sqrt", "root", add("Add", "variance", variance, epsilon))
    if norm.groups and norm.scale is not None:
        factor = add("Div", "factor", edit.constant(f"{stem}/scale", norm.scale), root)
        value = add("Mul", "scaled", apart, factor)
    else:
        value = add("Div", "normal", apart, root)
        value = value if norm.scale is None else add("Mul", "scaled", value, edit.constant(f"{stem}/scale", norm.scale))
    assert (edit.sizes(value) or ()) == sizes
    return value if norm.bias is None else add("Add", "shifted", value, edit.constant(f"{stem}/bias", norm.bias))


def _mean(edit: ModelEdit, node: ir.Node, norm: Normalisation, op: str, value: ir.Value) -> ir.Value:
    """Add the mean of elements, or of their squares, for all that are normalised together; it fits the axes of the value."""
    sizes, dtype = edit.sizes(value) or (), edit.dtype(value)
    assert dtype is not None
    axes = range(norm.axis, len(sizes))
    each = sizes[1] // norm.groups if norm.groups else 1
    share = 1 / (each * prod(sizes[axis] for axis in axes))
    total = sum_over(
        edit, node, op, value, list(axes), tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    )
    whole = edit.sizes(total) or ()
    if each == 1:
        return edit.add(
            node,
            "Mul",
            [total, edit.shared("share", np.asarray(share, dtype.numpy()))],
            edit.value(f"{value.name}/mean", whole, dtype),
        )

    def shaped(value: ir.Value, sizes: tuple[int, ...], ending: str) -> ir.Value:
        return edit.add(
            node, "Reshape", [value, edit.numbers(sizes)], edit.value(f"{value.name}/{ending}", sizes, dtype)
        )

    grouped = shaped(total, (sizes[0], norm.groups, each), "grouped")
    of_group = sum_over(edit, node, "ReduceSum", grouped, [2], (sizes[0], norm.groups, 1))
    # The mean of a group is that of each of its channels.
    shares = edit.shared("shares", np.full((1, 1, each), share, dtype.numpy()))
    by_channel = edit.add(
        node, "Mul", [of_group, shares], edit.value(f"{value.name}/means", (sizes[0], norm.groups, each), dtype)
    )
    return shaped(by_channel, whole, "mean")
