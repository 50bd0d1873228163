"""Inputs that come row by row: Slices read them in order, each row once, into memory of the run. The whole input is in no memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.opset import opset_of
from onnxtile.operators.families.movement import slice_ranges
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError


@dataclass(frozen=True)
class StreamRead:
    """A Slice that reads `count` rows of an input, from the row `first` on."""

    node: ir.Node
    first: int
    count: int


@dataclass(frozen=True)
class InputStream:
    """An input whose `rows` along an `axis` come one after the other, `row_bytes` each, and what reads them, in their order."""

    input: ir.Value
    axis: int
    rows: int
    row_bytes: int
    reads: tuple[StreamRead, ...]


def streams_of(model: ir.Model, shapes: Shapes, constants: Constants) -> dict[ir.Value, InputStream]:
    """Return the inputs of a model whose metadata say that they come row by row.

    Raises UsageError where one is read otherwise: not by Slices of consecutive rows, or a row twice, or after a later one.
    """
    marked = [value for value in model.graph.inputs if keys.STREAM in value.metadata_props]
    return {value: _stream(value, model, shapes, constants) for value in marked}


def _stream(value: ir.Value, model: ir.Model, shapes: Shapes, constants: Constants) -> InputStream:
    sizes, dtype = shapes.sizes(value), shapes.dtype(value)
    axis = value.metadata_props[keys.STREAM]
    if sizes is None or dtype is None or dtype.bitwidth < 8:
        raise UsageError(f"{value.name!r} cannot come row by row: the bytes of its rows are not known")
    if not axis.isdecimal() or int(axis) >= len(sizes):
        raise UsageError(f"{value.name!r} cannot come row by row: it has no axis {axis!r}", hint=_HINT)
    places = {node: place for place, node in enumerate(model.graph)}
    if value.is_graph_output() or any(use.node not in places for use in value.uses()):
        raise UsageError(f"{value.name!r} cannot come row by row: a body reads it, or it is an output", hint=_HINT)
    readers = sorted({use.node for use in value.uses()}, key=places.__getitem__)
    views = [NodeView(node, shapes, constants, opset_of(model)) for node in readers]
    reads = tuple(_reads(value, views, int(axis)))
    rows = sizes[int(axis)]
    return InputStream(value, int(axis), rows, prod(sizes) // max(rows, 1) * (dtype.bitwidth // 8), reads)


_HINT = "onnxtile fit with --io INPUT=rows writes such a model"


def _reads(value: ir.Value, readers: list[NodeView], axis: int) -> Iterator[StreamRead]:
    """Yield what reads the rows of an input, in the order of the nodes. Raises UsageError for another order."""
    end = 0
    for view in readers:
        node, rows = view.node, _rows_read(value, view, axis)
        if rows is None:
            raise UsageError(
                f"{value.name!r} cannot come row by row: {node.name!r} reads it and is not a Slice of its rows",
                hint=_HINT,
            )
        if rows[0] < end:
            raise UsageError(
                f"{value.name!r} cannot come row by row: {node.name!r} reads row {rows[0]}, which was read before",
                hint=_HINT,
            )
        end = rows[1]
        yield StreamRead(node, rows[0], rows[1] - rows[0])


def _rows_read(value: ir.Value, view: NodeView, axis: int) -> tuple[int, int] | None:
    """Return the first row that a Slice reads, and the one after the last; None for any other node."""
    if view.operator != "Slice" or list(view.inputs).count(value) != 1:
        return None
    try:
        cut, sizes, result = slice_ranges(view), view.operand(0), view.result
    except NotApplicable:
        return None
    range_ = cut.get(axis)
    others = all(size == made for at, (size, made) in enumerate(zip(sizes, result, strict=True)) if at != axis)
    if range_ is None or any(one.step != 1 for one in cut.values()) or not others or not result[axis]:
        return None
    start = min(max(range_.start + sizes[axis] if range_.start < 0 else range_.start, 0), sizes[axis])
    return start, start + result[axis]
