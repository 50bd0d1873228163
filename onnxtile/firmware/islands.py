"""Meta-ops and quantised islands as calls of their nodes: on integers where that is proved, row by row where that saves workspace."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from onnxtile.firmware.program import (
    END,
    ByteAddress,
    CopyCall,
    HelperCall,
    KernelCall,
    ProgramCall,
)
from onnxtile.fusion.lower.driver import lower
from onnxtile.fusion.lower.lowering import Target
from onnxtile.fusion.pattern import select
from onnxtile.kernels.aliases import LayoutFacts, overwritable, parts, views
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import is_quantised
from onnxtile.operators.families.movement import slice_ranges
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink
from onnxtile.operators.table import axis_links
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.orders import named
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve, tensor_bytes
from onnxtile.system.dataclass import dataclass

_SMALL = 4096
"""Elements of a computed constant that is written out with a meta-op, as `written_out` does."""


def is_written_as_constant(value: ir.Value, constants: Constants) -> bool:
    """Return whether `written_out` makes an operand a constant of the model inside."""
    if value not in constants:
        return False
    return value.const_value is not None or constants.array(value).size <= _SMALL


@dataclass(frozen=True)
class PlannedIsland:
    """A meta-op that is written out, with its plan, whose inputs and outputs are outside.

    Where it runs row by row, it is that of one row, and `offsets` are those of `row_model`. `over` are the inputs, by number, that the
    result may be written over.
    """

    opened: Unfolded
    plan: PlanResult
    over: frozenset[int]
    offsets: tuple[tuple[int, ...], ...] = ()


_LITTLE = 1024
"""Bytes of temporaries for which a meta-op is not cut into rows; rows are not cut finer than these need."""


def planned_island(flat: ir.Model, alignment: int) -> PlannedIsland:
    """Return a meta-op that is written out, row by row where that takes less workspace."""
    opened = on_integers(flat)
    whole = _planned_alone(opened, alignment)
    sizes = opened.shapes.sizes(opened.model.graph.outputs[0]) or ()
    best = whole
    for axes in range(1, len(sizes)):
        if best.plan.arena_size <= _LITTLE:
            break
        row = row_model(opened, axes)
        if row is not None:
            planned = _planned_alone(row[0], alignment)
            best = min(best, replace(planned, offsets=row[1]), key=lambda island: island.plan.arena_size)
    if best.offsets and any(len({row[number] - row[-1] for row in best.offsets}) > 1 for number in best.over):
        return replace(best, over=frozenset())
    return best


_COARSE = frozenset({"QLinearSoftmax"})
"""Operators of onnxruntime that round more than their result: this one takes 1 / scale as a whole number, and is off by up to 0.4 %."""


def _is_off(node: ir.Node) -> bool:
    """Return whether an operator on integers computes another result than the floats that it stands for.

    A last window that `ceil_mode` makes has fewer elements than the kernel; that of emx-onnx-cgen divides by all with `count_include_pad`.
    """
    of_ends = all(node.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad"))
    return node.op_type in _COARSE or (node.op_type == "QLinearAveragePool" and of_ends)


def on_integers(flat: ir.Model) -> Unfolded:
    """Return a meta-op that is written out, with the operator on integers in its place where that is proved."""
    model = flat
    if is_quantised(flat):
        lowered = lower(flat, select(["quantised"]), Target("ort")).model
        if not any(node.op_identifier() in lowered.functions or _is_off(node) for node in lowered.graph):
            model = lowered
    known = resolve(model, run=True)
    return unfold(model, known, Constants(model))


def island_over_ranges(opened: Unfolded, alignment: int) -> PlannedIsland:
    """Return a meta-op that is written out at the largest sizes of a program over ranges, with the plan that it has at all sizes.

    A tensor begins where another does, or shares no bytes with it: where a part begins depends on sizes.
    """
    return _planned_alone(opened, alignment, share=frozenset({"in place"}))


def _planned_alone(opened: Unfolded, alignment: int, share: Collection[str] | None = None) -> PlannedIsland:
    plan = plan_model(*opened, PlanSettings(alignment=alignment, share=share, io="outside"))
    return PlannedIsland(opened, plan, _over(opened, plan))


def _over(opened: Unfolded, plan: PlanResult) -> frozenset[int]:
    """Return the inputs, by number, that the output may be written over: no kernel reads them later than the last, which makes it."""
    graph, facts = opened.model.graph, LayoutFacts(*opened)
    roots = {alias.value: alias.source for node in graph for alias in views(node, facts)}

    def root(value: ir.Value | None) -> ir.Value | None:
        while value in roots:
            value = roots[value]
        return value

    output = graph.outputs[0]
    last = output.producer()
    order = named(graph, plan.schedule)
    is_last = last is not None and order[-1] is last
    if last is None or not is_last or len(graph.outputs) > 1 or output in roots or any(parts(last, facts)):
        return frozenset()  # kernels before the last write the output, or there are several
    allowed = overwritable(last, facts)
    read = {root(value) for index, value in enumerate(last.inputs) if index not in allowed}
    inputs = [value for value in graph.inputs if value not in opened.constants]
    return frozenset(number for number, value in enumerate(inputs) if value not in read)


def between(call: ProgramCall, ends: Sequence[ByteAddress]) -> ProgramCall:
    """Return `call` of a meta-op with `ends`, the addresses of its operands and results."""

    def placed(address: ByteAddress) -> ByteAddress:
        return ends[address.number].at(address.offset) if address.kind == END else address

    if isinstance(call, KernelCall):
        return replace(call, addresses={name: placed(address) for name, address in call.addresses.items()})
    if isinstance(call, CopyCall):
        return replace(call, target=placed(call.target), source=placed(call.source))
    if isinstance(call, HelperCall):
        return replace(call, addresses=tuple(map(placed, call.addresses)))
    return call.changed(placed, lambda calls: (between(inner, ends) for inner in calls))


# A meta-op or an island row by row: the model of one row, and which bytes each row reads.
#
# Where the operators of an island read the same rows that they make, the same nodes run on one row after the other. Temporaries are then
# those of one row. A Slice of rows at the start becomes another first row.


MOST_ROWS = 4096
"""Rows of an island, at most."""


def row_model(opened: Unfolded, axes: int) -> tuple[Unfolded, tuple[tuple[int, ...], ...]] | None:
    """Return `opened` on one element of its first `axes` axes; None where it has several outputs, or cannot be cut so.

    With it, return for each row the bytes from the start of each input that is no constant, and of the output.

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
    return None if row is None else (row, tuple(_offsets(opened, axes, firsts)))


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
