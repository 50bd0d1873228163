"""Meta-ops and quantised islands as calls of their nodes: on integers where that is proved, row by row where that saves workspace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxtile.firmware.program import (
    END,
    Branch,
    ByteAddress,
    CopyCall,
    HelperCall,
    KernelCall,
    ProgramCall,
    RepeatedCalls,
)
from onnxtile.firmware.rows import row_model
from onnxtile.fusion.lower.driver import lower
from onnxtile.fusion.lower.lowering import Target
from onnxtile.fusion.pattern import select
from onnxtile.kernels.aliases import LayoutFacts, overwritable, parts, views
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import is_quantised
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.orders import named
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve
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

    Where it runs row by row, it is that of one row, and `offsets` are those of `RowModel`. `over` are the inputs, by number, that the
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
            planned = _planned_alone(row.opened, alignment)
            best = min(best, replace(planned, offsets=row.offsets), key=lambda island: island.plan.arena_size)
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
    if isinstance(call, Branch):
        then, otherwise = (tuple(between(inner, ends) for inner in side) for side in (call.then, call.otherwise))
        return Branch(placed(call.condition), then, otherwise)
    most, number = (None if address is None else placed(address) for address in (call.most, call.number))
    return RepeatedCalls(most, placed(call.goes_on), number, tuple(between(inner, ends) for inner in call.turn))
