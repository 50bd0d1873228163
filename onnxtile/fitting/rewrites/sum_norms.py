"""Normalisations over rows become two sums, which are added up strip by strip, and elementwise operators, which run strip by strip.

The first sum gives the mean. The second is that of the squares of what is left without the mean, as in the usual two passes: the
difference of a mean square and a squared mean would lose all digits of a variance much smaller than the mean. What is left is also what is
scaled, so it takes the place of the map.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.sum_means import WIDE, sum_over
from onnxtile.operators.node_view import STANDARD
from onnxtile.system.runtime import Array

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
            edit.replace(norm.result, _write(edit, node, norm))
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


def _write(edit: ModelEdit, node: ir.Node, norm: Normalisation) -> ir.Value:
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
