"""The tensors of states that grow in a run: rows in the arena, at the distance that they have at the largest length.

onnxruntime reads and writes contiguous tensors only. So each has a contiguous copy outside the arena, which is read from the arena before
every use. Of a result, only the elements that are new go back: those of the operand must be in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.model.shapes import Shapes
from onnxtile.model.walk import has_body
from onnxtile.planning.layout.aliases.find import LayoutFacts, views
from onnxtile.planning.proof.memory import ArenaMemory, StateRows, TensorMemory
from onnxtile.planning.proof.prepared import PairedValues, ValueTable
from onnxtile.planning.result import PlannedState

_APPENDS = frozenset({"Attention", "Concat", "MultiHeadAttention"})
"""Operators whose result begins with all elements of the operand, unchanged."""


@dataclass(frozen=True)
class GrowingStates:
    """The rows of each tensor of a growing state, and the operand, if any, that each result begins with."""

    rows: Mapping[ir.Value, StateRows] = field(default_factory=dict)
    begun: Mapping[ir.Value, ir.Value] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        graph: ir.Graph,
        states: Iterable[PlannedState],
        sites: Mapping[ir.Value, TensorMemory],
        blocks: Mapping[str, ArenaMemory],
        facts: LayoutFacts,
    ) -> GrowingStates:
        """Return those of `states` of `graph`, whose values have `sites` in the arenas `blocks`."""
        ends = {value.name: value for value in graph.inputs}, {value.name: value for value in graph.outputs}
        rows: dict[ir.Value, StateRows] = {}
        for state in states:
            before, after = ends[0][state.input], ends[1][state.output]
            found = rows_of_state(state, blocks, facts.shapes.sizes(before) or ())
            if found is not None:
                rows.update(dict.fromkeys(_tensors(before, facts.root(after), len(found.data), sites, facts), found))
        begun = {value: operand for value in rows for operand in _begun(value, rows)}
        return cls(rows, begun)

    def read(self, values: Iterable[ir.Value], paired: PairedValues) -> None:
        """Read those of `values` that are such tensors from the arena."""
        for value in values:
            if value in self.rows:
                self.rows[value].read(paired.arena[value])

    def write(self, values: Iterable[ir.Value], arena: ValueTable) -> None:
        """Write the new elements of those of `values` that are such tensors into the arena, and read all again."""
        for value in values:
            if value in self.rows:
                rows, operand = self.rows[value], self.begun.get(value)
                rows.write(arena[value], 0 if operand is None else len(arena[operand].data) // rows.rows)
                rows.read(arena[value])


def rows_of_state(state: PlannedState, blocks: Mapping[str, ArenaMemory], shape: tuple[int, ...]) -> StateRows | None:
    """Return the rows of `state`, whose input has `shape`; None where it is one row, or has one shape."""
    if state.strides is None or not state.axis or math.prod(shape[: state.axis]) < 2:
        return None
    data = blocks[state.arena or ""].part(state.offset or 0, state.size or 0)
    pitch = state.strides[state.axis - 1]
    return None if data is None or not pitch else StateRows(data, len(data) // pitch, pitch)


def _tensors(
    before: ir.Value, root: ir.Value, size: int, sites: Mapping[ir.Value, TensorMemory], facts: LayoutFacts
) -> Iterator[ir.Value]:
    """Yield both ends of a state of `size` bytes, and the views of those that are shorter."""
    todo = [value for value in (before, root) if value in sites and len(sites[value].data)]
    while todo:
        value = todo.pop()
        yield value
        if len(sites[value].data) == size and not facts.shapes.is_bound(value):
            continue
        shown = (alias for node in value.consumers() for alias in views(node, facts) if alias.source is value)
        here = (one.value for one in shown if one.value in sites)
        todo += (one for one in here if sites[one].address == sites[value].address)


def _begun(value: ir.Value, rows: Mapping[ir.Value, StateRows]) -> Iterator[ir.Value]:
    maker = value.producer()
    if maker is not None and maker.op_type in _APPENDS:
        yield from (operand for operand in dependencies(maker) if rows.get(operand) is rows[value])


def is_appended(node: ir.Node, sites: Mapping[ir.Value, TensorMemory], shapes: Shapes) -> bool:
    """Return whether a result of `node` begins at the address of a shorter operand, a state that grows, or of one that its bodies read.

    Kernels of onnxruntime do not append to their operand. Such a node runs beside the arena, and its result is put there.
    """
    made = [sites[value] for value in node.outputs if value in sites and not shapes.is_bound(value)]
    read = [sites[value] for value in dict.fromkeys(dependencies(node)) if value in sites]
    together = [(one, other) for one in made for other in read if one.address == other.address and len(other.data)]
    return any(len(one.data) > len(other.data) for one, other in together) or (bool(together) and has_body(node))


def begun_in_place(
    node: ir.Node, sites: Mapping[ir.Value, TensorMemory]
) -> dict[ir.Value, tuple[tuple[int, int], ...]]:
    """Return the bytes, by result of `node`, that are in place because the node appends to the operand there, which is one row."""
    if node.op_type not in _APPENDS:
        return {}
    made = {value: sites[value] for value in node.outputs if value in sites}
    read = [sites[value] for value in dict.fromkeys(dependencies(node)) if value in sites]
    found = ((value, len(one.data)) for value, site in made.items() for one in read if one.address == site.address)
    return {value: ((0, size),) for value, size in found if size < len(made[value].data)}
