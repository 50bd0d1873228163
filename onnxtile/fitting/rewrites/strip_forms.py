"""Forms of operators that can be cut into strips or parts, where the model has others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.model import keys
from onnxtile.model.node_kinds import converts
from onnxtile.model.topology import has_body
from onnxtile.operators.families.movement import interpolates, is_mirrored, pad_sizes, resize_scales
from onnxtile.operators.node_view import STANDARD, NodeView, NotApplicable
from onnxtile.operators.table import movement_of
from onnxtile.system.errors import Infeasible, unknown
from onnxtile.system.runtime import Array

# An input that comes row by row is read by a Slice of its rows, which is then cut into strips as any operator is.
#
# A strip reads the rows that no strip before it has read. So each row is read once, in order, and rows that are needed again are kept.


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


# Products with a transposed tensor become Gemms that read it row by row, so that pieces of its rows need no copy to be joined.
#
# Exporters transpose the keys of attention. The keys of a piece of the tokens would be columns then, and columns are joined by a copy; rows
# lie one after the other.


_OLDEST = 11
"""The first opset in which Gemm needs no third operand."""
_DEEPEST_VIEWS = 4
"""Products with one number between a Transpose and the product of matrices, at most."""


class Transposed(NamedTuple):
    """A value whose elements, in their order, are the rows of a transposed matrix, and the number that scales them."""

    rows: ir.Value
    scale: float


def read_by_rows(edit: ModelEdit) -> list[ir.Node]:
    """Write products of one matrix with a transposed one as Gemms (in place); return the products that went."""
    changed = []
    for node in list(edit.model.graph) if edit.opset >= _OLDEST else ():
        if node.op_type != "MatMul" or node.domain not in STANDARD or None in node.inputs:
            continue
        left, right = ((value, edit.sizes(value) or ()) for value in node.inputs if value is not None)
        is_one = all(len(sizes) > 1 and prod(sizes[:-2]) == 1 for _, sizes in (left, right))
        turned = _transposed(edit, right[0]) if is_one and edit.dtype(left[0]) == ir.DataType.FLOAT else None
        if turned is not None:
            _write(edit, node, left[0], turned)
            changed.append(node)
    return changed


def _transposed(edit: ModelEdit, value: ir.Value, depth: int = 0) -> Transposed | None:
    """Return the rows of which a matrix is the transpose; None where it is not made so."""
    node, sizes = value.producer(), edit.sizes(value) or ()
    if node is None or node.domain not in STANDARD or value in edit.constants or depth > _DEEPEST_VIEWS:
        return None
    operand, factor = (*node.inputs, None)[:2]
    if node.op_type == "Mul" and operand is not None and factor is not None and factor in edit.constants:
        number = edit.constants.array(factor)
        inner = _transposed(edit, operand, depth + 1) if number.size == 1 and edit.sizes(operand) == sizes else None
        return None if inner is None else inner._replace(scale=inner.scale * float(number.item()))
    if node.op_type != "Transpose" or operand is None:
        return None
    order = node.attributes.get_ints("perm") or range(len(sizes))[::-1]
    long = [axis for axis in order if (edit.sizes(operand) or ())[axis] > 1]
    is_turned = min(sizes[-2:]) > 1 and len(long) == 2 and long[0] > long[1]
    return Transposed(operand, 1.0) if is_turned else None


def _write(edit: ModelEdit, node: ir.Node, left: ir.Value, right: Transposed) -> None:
    result = node.outputs[0]
    sizes, dtype = edit.sizes(result) or (), edit.dtype(result)
    rows, summed, columns = (edit.sizes(left) or ())[-2], (edit.sizes(left) or ())[-1], sizes[-1]

    def flat(value: ir.Value, *length: int) -> ir.Value:
        shaped = edit.value(f"{value.name}/flat", length, dtype)
        return edit.add(node, "Reshape", [value, edit.constant(f"{value.name}/sizes", np.asarray(length))], shaped)

    product = edit.value(f"{result.name}/product", (rows, columns), dtype)
    attributes = [ir.AttrInt64("transB", 1), ir.AttrFloat32("alpha", right.scale)]
    edit.add(node, "Gemm", [flat(left, rows, summed), flat(right.rows, columns, summed)], product, attributes)
    edit.replace(result, flat(product, *sizes))
    edit.model.graph.remove(node, safe=True)


# Operators over whole maps, written as those that are made strip by strip: a pooling with a window as large as the map, and a Resize of one
# pixel. Exporters write these for poolings to one pixel, and where a mean joins the branches of a pyramid.


_GLOBAL = {"MaxPool": "GlobalMaxPool", "AveragePool": "GlobalAveragePool"}
"""By pooling, the operator that pools a whole map."""
_EXPANDS = 8
"""The first opset with Expand."""


def pool_whole_maps(edit: ModelEdit, *, exact: bool) -> list[ir.Node]:
    """Let poolings whose one window is the whole map be global ones; return the poolings that went.

    A mean adds up in an order that the operator chooses, so with `exact` only maxima become global.
    """
    changed = []
    for node in list(edit.model.graph):
        allowed = node.op_type == "MaxPool" or (node.op_type == "AveragePool" and not exact)
        source = node.inputs[0] if allowed and node.domain in STANDARD else None
        if source is None or edit.bytes(source) <= edit.least or not is_over_whole_map(edit.view(node)):
            continue
        result = node.outputs[0]
        pooled = edit.value(f"{result.name}/pooled", edit.sizes(result) or (), edit.dtype(result))
        edit.replace(result, edit.add(node, _GLOBAL[node.op_type], [source], pooled))
        edit.model.graph.remove(node, safe=True)
        changed.append(node)
    return changed


def is_over_whole_map(pool: NodeView) -> bool:
    """Return whether the one window of a pooling with a single result is the whole map, without padding."""
    sizes = pool.sizes(0)
    if not sizes or any(value.name for value in pool.node.outputs[1:]):
        return False
    is_one = tuple(pool.ints("kernel_shape", ())) == sizes[2:] and prod(pool.result[2:]) == 1
    return is_one and not any(pool.ints("pads", ())) and set(pool.ints("dilations", ())) <= {1}


def repeat_pixels(edit: ModelEdit, *, exact: bool) -> list[ir.Node]:
    """Let each Resize of one pixel be an Expand, whose rows are made one by one; return those that went.

    Weights of interpolation may add up to one but for rounding, so with `exact` only copies of the nearest pixel are repeated.
    """
    changed = []
    for node in list(edit.model.graph) if edit.opset >= _EXPANDS else ():
        is_resize = node.op_type in {"Resize", "Upsample"} and node.domain in STANDARD
        result = node.outputs[0]
        if not is_resize or edit.bytes(result) <= edit.least or not _repeats_pixel(edit.view(node), exact=exact):
            continue
        repeated = edit.value(f"{result.name}/repeated", edit.sizes(result) or (), edit.dtype(result))
        edit.replace(
            result, edit.add(node, "Expand", [node.inputs[0], edit.numbers(edit.sizes(result) or ())], repeated)
        )
        edit.model.graph.remove(node, safe=True)
        changed.append(node)
    return changed


def _repeats_pixel(view: NodeView, *, exact: bool) -> bool:
    """Return whether each element of a Resize is the one element of its operand along all axes that it changes."""
    attributes = view.node.attributes
    modes = {"nearest"} if exact else {"nearest", "linear"}
    plain = attributes.get_string("mode", "nearest") in modes and not attributes.get_int("exclude_outside", 0)
    is_part = attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    before = view.sizes(0) or ()
    changed = _changed(view)
    return plain and not is_part and bool(changed) and all(before[axis] == 1 for axis in changed)


# A Transpose that moves axes of one element alone, as that of a batch of one before attention or a recurrent layer, is a Reshape.
#
# A Reshape has the bytes of its operand, where a Transpose copies them.


def rename_transposes(edit: ModelEdit) -> list[ir.Node]:
    """Let each Transpose that leaves all elements in their order be a Reshape; return those that went."""
    changed = []
    for node in list(edit.model.graph):
        is_transpose = node.op_type == "Transpose" and node.domain in STANDARD
        source, result = node.inputs[0] if is_transpose else None, node.outputs[0]
        sizes, result_sizes = edit.sizes(source) if source is not None else None, edit.sizes(result)
        if source is None or not sizes or not result_sizes or result in edit.constants or source in edit.constants:
            continue
        order = node.attributes.get_ints("perm") or range(len(sizes))[::-1]
        long = [axis for axis in order if sizes[axis] > 1]
        if long == sorted(long):
            reshaped = edit.value(f"{result.name}/renamed", result_sizes, edit.dtype(result))
            edit.replace(result, edit.add(node, "Reshape", [source, edit.numbers(result_sizes)], reshaped))
            edit.model.graph.remove(node, safe=True)
            changed.append(node)
    return changed


# A ScatterND over a box of its operand, as exporters write `x[:, 1:] = y`, joins the box with what is beside it.


def join_boxes(edit: ModelEdit) -> list[ir.Node]:
    """Let each ScatterND that overwrites a box of its operand join what it writes with the elements beside it; return those that went."""
    changed = []
    for node in list(edit.model.graph):
        is_update = node.op_type == "ScatterND" and node.domain in STANDARD and edit.bytes(node.outputs[0]) > edit.least
        if not is_update or node.attributes.get_string("reduction", "none") != "none":
            continue
        data, places, box = node.inputs
        sizes = None if data is None else edit.sizes(data)
        if data is None or box is None or places is None or places not in edit.constants or not sizes:
            continue
        ranges = _box(edit.constants.array(places), sizes)
        if ranges is not None:
            _join_box(edit, node, data, box, ranges)
            changed.append(node)
    return changed


def _box(places: Array, sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return the range of each axis that the places of a ScatterND name, where they are all places of a box in their order; else None."""
    lengths, count = places.shape[:-1], places.shape[-1]
    if len(lengths) != count or 0 in lengths:
        return None
    ranges = []
    for axis in range(count):
        numbers = places[..., axis]
        start = int(numbers.flat[0])
        line = np.arange(start, start + lengths[axis]).reshape([-1 if one == axis else 1 for one in range(count)])
        start %= sizes[axis]
        if start + lengths[axis] > sizes[axis] or not (numbers == line).all():
            return None
        ranges.append((start, start + lengths[axis]))
    return ranges


def _join_box(edit: ModelEdit, node: ir.Node, data: ir.Value, box: ir.Value, ranges: Sequence[tuple[int, int]]) -> None:
    """Write the operand with a box of it overwritten: joined along the last axis with what is before and after it, then along others."""
    result = node.outputs[0]
    sizes, dtype = edit.sizes(result) or (), edit.dtype(result)

    def beside(axis: int, start: int, stop: int) -> list[ir.Value]:
        if start == stop:
            return []
        starts, stops = zip(*ranges[:axis], (start, stop), strict=True)
        bounds, attributes = edit.slice_bounds((starts, stops, range(axis + 1)), "box")
        lengths = [last - first for first, last in zip(starts, stops, strict=True)]
        part = edit.value(f"{result.name}/beside", (*lengths, *sizes[axis + 1 :]), dtype)
        return [edit.add(node, "Slice", [data, *bounds], part, attributes)]

    lengths = list(edit.sizes(box) or ())
    value = edit.add(node, "Reshape", [box, edit.numbers(lengths)], edit.value(f"{result.name}/box", lengths, dtype))
    for axis in range(len(ranges))[::-1]:
        start, stop = ranges[axis]
        parts = [*beside(axis, 0, start), value, *beside(axis, stop, sizes[axis])]
        lengths[axis] = sizes[axis]
        if len(parts) > 1:
            whole = edit.value(f"{result.name}/joined", lengths, dtype)
            value = edit.add(node, "Concat", parts, whole, [ir.AttrInt64("axis", axis)])
    edit.replace(result, value)
    edit.model.graph.remove(node, safe=True)


# Operators that interpolate or mirror along rows and columns at once work along one axis after the other, so that rows can be cut.


BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
"""The element types of quantised tensors that operators copy and add up."""
_OF_SIZES = frozenset({"axes", "keep_aspect_ratio_policy", "pads"})
"""Attributes about the axes that a node changes."""


def separate_axes(edit: ModelEdit, *, exact: bool) -> list[ir.Node]:
    """Let each Resize and Pad whose rows depend on neighbours change its rows first, then the other axes; return those that did both.

    Sums along one axis after the other differ in the last bits, so with `exact` only copies are taken apart. Integers are copied in the
    place of floats that are made of them.
    """
    separated = []
    for node in list(edit.model.graph):
        facts = edit.view(node)
        if node.domain in STANDARD and edit.bytes(node.outputs[0]) > edit.least and _is_apart(facts, exact=exact):
            _take_apart(edit, facts)
            separated.append(node)
    return separated


def _is_apart(facts: NodeView, *, exact: bool) -> bool:
    """Return whether a node changes several axes, the first by interpolating or mirroring."""
    changed = _changed(facts)
    if len(changed) < 2:
        return False
    try:
        if facts.node.op_type == "Pad":
            return is_mirrored(facts) and min(pad_sizes(facts)) >= 0
        sums = facts.node.attributes.get_string("mode", "nearest") != "nearest"
        return interpolates(facts, changed[0]) and not (sums and exact)
    except NotApplicable:
        return False


def _changed(facts: NodeView) -> list[int]:
    before, after = facts.sizes(0) or (), facts.shapes.sizes(facts.node.outputs[0]) or ()
    if len(before) != len(after):
        return []
    return [axis for axis, size in enumerate(before) if size != after[axis]]


def _take_apart(edit: ModelEdit, facts: NodeView) -> None:
    node, changed = facts.node, _changed(facts)
    floats = node.inputs[0]
    assert floats is not None
    maker, sizes, value = floats.producer(), list(facts.operand(0)), _copied(edit, floats)
    is_stored = value is not floats
    for axes in (changed[:1], changed[1:]):
        for axis in axes:
            sizes[axis] = facts.result[axis]
        result = edit.value(f"{node.outputs[0].name}/axis{axes[0]}", sizes, edit.dtype(value))
        kept = [attribute for attribute in node.attributes.values() if attribute.name not in _OF_SIZES]
        operands, pads = (
            edit.pads(_pads(facts, axes)) if node.op_type == "Pad" else (_scaling(edit, facts, axes, sizes), [])
        )
        value = edit.add(node, node.op_type, [value, *operands], result, kept + pads)
    if is_stored and maker is not None:
        result = edit.value(f"{node.outputs[0].name}/floats", sizes, edit.dtype(node.outputs[0]))
        edit.again(node, maker, [value, *maker.inputs[1:]], [result])
        value = result
    edit.replace(node.outputs[0], value)
    edit.model.graph.remove(node, safe=True)


def _copied(edit: ModelEdit, floats: ir.Value) -> ir.Value:
    """Return the integers of 8 bits that floats are made of with one scale, which are copied in their place; else the floats."""
    stored, maker = edit.stored(floats), floats.producer()
    scale = None if maker is None or stored is floats or edit.dtype(stored) not in BYTES else maker.inputs[1]
    sizes = None if scale is None else edit.sizes(scale)
    return stored if sizes is not None and prod(sizes) == 1 else floats


def _pads(facts: NodeView, axes: Sequence[int]) -> list[int]:
    rank = len(facts.result)
    return [size if index % rank in axes else 0 for index, size in enumerate(pad_sizes(facts))]


def _scaling(edit: ModelEdit, facts: NodeView, axes: Sequence[int], sizes: Sequence[int]) -> list[ir.Value | None]:
    """Return the operands after the first of a Resize along `axes` alone: scales or sizes, as the node has them."""
    scales = resize_scales(facts)
    # Before opset 13 operands that are not given are empty tensors.
    none = None if edit.opset > 12 else edit.constant("none", np.zeros(0, np.float32))
    if scales is None:
        return [none, none, edit.numbers(sizes)]
    wanted = [scale if axis in axes else 1.0 for axis, scale in enumerate(scales)]
    return [none, edit.constant("scales", np.asarray(wanted, np.float32))]


# Products of several weights packed into one, such as queries, keys and values, become one product for each part that is read alone.


_DEEPEST = 12
"""Nodes between a product and the node that takes a part of its result, at most; those that quantise or dequantise are not counted."""


_OF_PARTS = frozenset({"converts", "permutes", "renames"})
"""The ways in which operators move the elements of a part alone."""


class _NotPacked(Exception):
    """A part of a tensor is not a product with a part of constant weights."""


def split_packed_products(edit: ModelEdit, least: int = 0) -> list[ir.Node]:
    """Let each result of a Split, or of a Gather of one place, come from a product of its own; return the nodes that went.

    Packed tensors of fewer than `least` bytes stay. Nodes that nothing reads any more are left in the graph.
    """
    parted = []
    for node in list(edit.model.graph):
        if not node.inputs or node.inputs[0] is None or edit.bytes(node.inputs[0]) < least:
            continue
        try:
            results = _parts(edit, node)
        except _NotPacked:
            continue
        if results:
            for old, new in zip(node.outputs, results, strict=True):
                edit.replace(old, new)
            parted.append(node)
    return parted


def _parts(edit: ModelEdit, node: ir.Node) -> list[ir.Value]:
    """Return the parts that `node` takes, made anew before it; empty for a node that takes none."""
    source = node.inputs[0] if node.inputs else None
    sizes = None if source is None else edit.sizes(source)
    if source is None or not sizes or source in edit.constants or node.domain not in STANDARD:
        return []
    axis = node.attributes.get_int("axis", 0) % len(sizes)
    maker = _PartMaker(edit, node)
    if node.op_type == "Split":
        ends = accumulate(((edit.sizes(value) or sizes)[axis] for value in node.outputs), initial=0)
        return [maker.part(source, axis, *both) for both in pairwise(ends)]
    index = _place(edit, node, sizes[axis])
    if index is None:
        return []
    return [_reshaped(edit, node, maker.part(source, axis, index, index + 1), node.outputs[0])]


def slice_parts(edit: ModelEdit) -> None:
    """Let a Slice take the place of a Gather of one place, and one for each result that of a Split, so that each part is cut by itself."""
    for node in list(edit.model.graph):
        source, sizes = node.inputs[0] if node.inputs else None, [edit.sizes(value) for value in node.outputs]
        whole = None if source is None else edit.sizes(source)
        if node.domain not in STANDARD or source is None or not whole or None in sizes:
            continue
        axis = node.attributes.get_int("axis", 0) % len(whole)
        place = _place(edit, node, whole[axis])
        if node.op_type != "Split" and place is None:
            continue
        ends = accumulate(((size or ())[axis] for size in sizes), initial=0) if place is None else (place, place + 1)
        for result, (start, stop) in zip(node.outputs, pairwise(ends), strict=True):
            part = edit.value(
                f"{result.name}/part", (*whole[:axis], stop - start, *whole[axis + 1 :]), edit.dtype(result)
            )
            bounds, attributes = edit.slice_bounds(([start], [stop], [axis]), "parts")
            edit.add(node, "Slice", [source, *bounds], part, attributes)
            edit.replace(result, part if place is None else _reshaped(edit, node, part, result))
        edit.model.graph.remove(node, safe=True)


def _place(edit: ModelEdit, node: ir.Node, size: int) -> int | None:
    """Return the one place of an axis of `size` elements that a Gather takes; None of any other node."""
    chosen = node.inputs[1] if node.op_type == "Gather" else None
    is_one = chosen is not None and chosen in edit.constants and edit.sizes(chosen) == ()
    return int(edit.constants.array(chosen)) % size if chosen is not None and is_one else None


def _reshaped(edit: ModelEdit, before: ir.Node, part: ir.Value, result: ir.Value) -> ir.Value:
    """Return `part` with the sizes of `result`."""
    after = edit.sizes(result) or ()
    numbers = edit.constant(f"{result.name}/sizes", np.asarray(after, np.int64))
    return edit.add(before, "Reshape", [part, numbers], edit.value(f"{result.name}/part", after, edit.dtype(result)))


class _PartMaker:
    """Makes parts of tensors from products with parts of their weights, before one node."""

    def __init__(self, edit: ModelEdit, before: ir.Node) -> None:
        self.edit, self.before = edit, before

    def part(self, value: ir.Value, axis: int, start: int, stop: int, depth: int = 0) -> ir.Value:
        """Return the elements of `value` from `start` to `stop`. Raises _NotPacked."""
        node, sizes = value.producer(), self.edit.sizes(value)
        if node is None or sizes is None or depth > _DEEPEST or has_body(node) or len(node.outputs) > 1:
            raise _NotPacked
        is_product, is_converted = self.edit.has_weights(node), converts(node)
        is_moved = is_converted or node.op_type in {"Add", "Mul"} or movement_of(node) in _OF_PARTS
        if not is_product and not is_moved:
            raise _NotPacked
        links = self.edit.links(node, axis)
        if links is None or (is_product and links[1] is None):
            raise _NotPacked
        inputs: list[ir.Value | None] = []
        for operand, link in zip(node.inputs, links, strict=True):
            if operand is None or link is None:
                inputs.append(operand)
                continue
            window = link.reads(start, stop)
            if link.sources is not None or link.factor > 1 or window.before or window.after:
                raise _NotPacked
            rows = link.axis, window.start, window.stop
            if operand in self.edit.constants:
                inputs.append(self.edit.part(f"{operand.name}/{window.start}", operand, rows))
            else:
                inputs.append(self.part(operand, *rows, depth + (not is_converted)))
        result = self.edit.resized(value, axis, stop - start, f"part{start}")
        self.edit.again(self.before, node, inputs, [result])
        return result
