"""A meta-op or an island row by row: the model of one row, and which bytes each row reads.

Where the operators of an island read the same rows that they make, the same nodes run on one row after the other. Temporaries are
then those of one row. A Slice of rows at the start becomes another first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.operators.families.movement import slice_ranges
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink
from onnxtile.operators.table import axis_links
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve, tensor_bytes
from onnxtile.system.dataclass import dataclass

MOST_ROWS = 4096
"""Rows of an island, at most."""


@dataclass(frozen=True)
class RowModel:
    """The model of one row. `offsets` has for each row the bytes from the start of each input that is no constant, and of the output."""

    opened: Unfolded
    offsets: tuple[tuple[int, ...], ...]


def row_model(opened: Unfolded, axes: int) -> RowModel | None:
    """Return `opened` on one element of its first `axes` axes; None where it has several outputs, or cannot be cut so.

    All operands and results along these axes must have the elements of the output, from some first element on.
    """
    graph = opened.model.graph
    sizes = opened.shapes.sizes(graph.outputs[0]) if len(graph.outputs) == 1 else None
    if sizes is None or not 1 < prod(sizes[:axes]) <= MOST_ROWS:
        return None
    firsts = _firsts(opened, axes)
    if firsts is None:
        return None
    row = _row(opened, axes, firsts)
    return None if row is None else RowModel(row, tuple(_offsets(opened, axes, firsts)))


_Firsts = Mapping[ir.Value, tuple[int, ...] | None]
"""The element of each of the first axes of a value that the first row reads; None for a value that each row reads whole."""


def _firsts(opened: Unfolded, axes: int) -> dict[ir.Value, tuple[int, ...] | None] | None:
    """Return which elements of each value the first row reads; None where rows are not those of the output."""
    model, shapes, constants = opened
    firsts: dict[ir.Value, tuple[int, ...] | None] = {model.graph.outputs[0]: (0,) * axes}
    for node in reversed(list(model.graph)):
        result, opset = node.outputs[0], model.graph.opset_imports.get("", 1)
        first = firsts.get(result)
        if first is None or len(node.outputs) != 1:
            return None
        try:
            links = [axis_links(NodeView(node, shapes, constants, opset), axis) for axis in range(axes)]
        except NotApplicable:
            return None
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            read = _first(first, [link[index] for link in links])
            whole = read is None
            if read == () or (value in constants and not whole) or (whole and value.producer() is not None):
                return None
            if firsts.setdefault(value, read) != read:
                return None
    return firsts


def _first(first: Sequence[int], links: Sequence[AxisLink | None]) -> tuple[int, ...] | None:
    """Return which element the first row reads along each axis, by the links of one operand; () where that is no row."""
    if all(link is None for link in links):
        return None
    starts = []
    for axis, (before, link) in enumerate(zip(first, links, strict=True)):
        start = None if link is None or link.axis != axis else _start(link)
        if start is None:
            return ()
        starts.append(before + start)
    return tuple(starts)


def _start(link: AxisLink) -> int | None:
    """Return the element that element 0 of the result reads where each reads one, all of them in a row; else None."""
    if link.sources is not None:
        places = link.sources.places
        rising = places is not None and bool((np.diff(places) == 1).all())
        return int(places[0]) if places is not None and rising else None
    window = link.window
    if window is None:
        return 0 if link.factor == 1 else None
    is_row = window.kernel == window.stride == 1 and window.before <= 0 and not window.transposed
    return -window.before if is_row else None


def _row(opened: Unfolded, axes: int, firsts: _Firsts) -> Unfolded | None:
    """Return the model with one element along the first axes; None where a node makes something else of that."""
    model = opened.model.clone()
    values = dict(zip(_values(opened.model), _values(model), strict=True))
    wanted = {}
    for value, copied in values.items():
        sizes = opened.shapes.sizes(value)
        if value in opened.constants or sizes is None:
            continue
        wanted[copied] = sizes if firsts.get(value) is None else ((1,) * axes + sizes[axes:])
        copied.shape, copied.type = ir.Shape(wanted[copied]), _type(opened, value)
    for node, copy in zip(list(opened.model.graph), list(model.graph), strict=True):
        if node.op_type == "Slice" and not _cut(node, copy, axes, opened):
            return None
    shapes = resolve(model, run=True)
    by_name = {value.name: sizes for value, sizes in wanted.items()}
    if any(shapes.sizes(value) != by_name.get(value.name, shapes.sizes(value)) for value in _values(model)):
        return None
    return unfold(model, shapes, Constants(model))


def _type(opened: Unfolded, value: ir.Value) -> ir.TypeProtocol | None:
    dtype = opened.shapes.dtype(value)
    return value.type if dtype is None else ir.TensorType(dtype)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from (value for node in model.graph for value in node.outputs)


def _cut(node: ir.Node, copy: ir.Node, axes: int, opened: Unfolded) -> bool:
    """Let the `copy` of a Slice cut the axes after the first `axes` alone (in place); return whether that is possible."""
    opset = opened.model.graph.opset_imports.get("", 1)
    ranges = slice_ranges(NodeView(node, opened.shapes, opened.constants, opset))
    left = {axis: taken for axis, taken in ranges.items() if axis >= axes}
    if left and opset < 10:  # its bounds are attributes
        return False
    graph, result = copy.graph, copy.outputs[0]
    assert isinstance(graph, ir.Graph)
    operands = [copy.inputs[0]]
    if left:
        numbers = zip(*((bounds.start, bounds.stop, axis, bounds.step) for axis, bounds in left.items()), strict=True)
        operands += [_constant(graph, f"{result.name}/{index}", each) for index, each in enumerate(numbers)]
    cut = ir.node("Slice" if left else "Identity", operands)
    value = cut.outputs[0]
    value.shape, value.type, value.name = result.shape, result.type, result.name
    graph.insert_before(copy, cut)
    result.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(copy, safe=True)
    return True


def _constant(graph: ir.Graph, name: str, numbers: Sequence[int]) -> ir.Value:
    tensor = ir.tensor(np.asarray(numbers, np.int64), name=name)
    value = ir.Value(
        name=name, shape=ir.Shape([len(numbers)]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _offsets(opened: Unfolded, axes: int, firsts: _Firsts) -> Iterator[tuple[int, ...]]:
    """Yield for each row the bytes from the start of each input, and of the output."""
    graph, shapes = opened.model.graph, opened.shapes
    ends = [*(value for value in graph.inputs if value not in opened.constants), graph.outputs[0]]
    sizes = shapes.sizes(graph.outputs[0])
    assert sizes is not None
    for row in np.ndindex(*sizes[:axes]):
        yield tuple(_offset(opened, value, row, firsts.get(value)) for value in ends)


def _offset(opened: Unfolded, value: ir.Value, row: Sequence[int], first: Sequence[int] | None) -> int:
    sizes, size = opened.shapes.sizes(value), tensor_bytes(value, opened.shapes)
    if first is None or sizes is None or not size:
        return 0
    at = 0
    for index, start, length in zip(row, first, sizes, strict=False):
        at = at * length + start + index
    return at * size // prod(sizes[: len(row)])
