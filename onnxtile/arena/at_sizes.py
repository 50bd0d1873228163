"""A plan over ranges of dimensions at one size of each: what is published for it, to be checked and run like any plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import onnx_ir as ir

from onnxtile.check.document import UNSAID, Claims
from onnxtile.check.graph import entered_bodies, names_of
from onnxtile.check.ranges import SizeOfSymbols, WrongFormula, claimed_at, listed
from onnxtile.planning.result import ArenaFormula, PlannedBody, PlannedBuffer, PlanResult
from onnxtile.shapes.resolve import Shapes, tensor_bytes
from onnxtile.system.errors import CheckFailed


@dataclass(frozen=True)
class PlanAtSizes:
    """A plan at one size of each dimension: `result` for the run, `claims` for the check."""

    result: PlanResult
    claims: Claims


def at_sizes(plan: PlanResult, sizes: SizeOfSymbols, model: ir.Model, shapes: Shapes, *, scaled: bool) -> PlanAtSizes:
    """Return `plan` at `sizes`, with its fixed or its scaled offsets.

    `model` has these sizes and `shapes`. They give the sizes of tensors that have no formula, which the plan has at their largest. Raises
    CheckFailed where one is larger than that.
    """
    arenas = {formula.name: formula for formula in plan.formulas}
    terms = _RowsAtSizes(sizes, model, model.graph, shapes, scaled)
    result = replace(
        plan,
        dims={**plan.dims, **sizes},
        ranges={},
        formulas=(),
        buffers=tuple(map(terms.row, plan.buffers)),
        bodies=tuple(map(terms.body, plan.bodies)),
        arenas=tuple(replace(arena, **_figures(arenas[arena.name], sizes, scaled=scaled)) for arena in plan.arenas),
        inputs=(),
        outputs=(),
    )
    try:
        return PlanAtSizes(result, claimed_at(Claims.of(plan), sizes, scaled=scaled))
    except WrongFormula as error:
        raise CheckFailed(f"the plan is not sound: {error}", hint="please report it with the model") from None


def _figures(formula: ArenaFormula, sizes: SizeOfSymbols, *, scaled: bool) -> dict[str, Any]:
    """Return the size of an arena at `sizes`, and its peak where a formula says it."""
    size = formula.least if scaled else formula.fixed
    return {"size": size.at(sizes), "peak": UNSAID if formula.peak is None else formula.peak.at(sizes)}


@dataclass(frozen=True)
class _RowsAtSizes:
    """The rows of one `graph` of a model at the sizes. Names of values return in sibling bodies, with other sizes."""

    sizes: SizeOfSymbols
    model: ir.Model
    graph: ir.Graph
    shapes: Shapes
    scaled: bool

    @cached_property
    def known(self) -> dict[str, ir.Value]:
        """The values of the graph by name."""
        made = (value for node in self.graph for value in node.outputs)
        return {value.name or "": value for value in (*self.graph.inputs, *made)}

    @cached_property
    def nodes(self) -> dict[str, ir.Node]:
        """The nodes of the graph by their names in a plan."""
        return {name: node for node, name in names_of(self.graph).items()}

    def row(self, row: PlannedBuffer) -> PlannedBuffer:
        """Return `row` at the sizes."""
        offset = row.scaled_offset.at(self.sizes) if self.scaled and row.scaled_offset is not None else row.offset
        shape = row.shape if row.shape_formula is None else tuple(size.at(self.sizes) for size in row.shape_formula)
        size = row.size if row.size_formula is None else row.size_formula.at(self.sizes)
        if row.size_formula is None and row.name in self.known:
            value = self.known[row.name]
            found = tensor_bytes(value, self.shapes)
            shape, size = self.shapes.sizes(value) or shape, size if found is None else found
        if size > row.size:
            raise CheckFailed(
                f"{row.name!r} has {size} bytes at {listed(self.sizes)}, more than the {row.size} of the plan"
            )
        if row.strides_formula is not None:
            row = replace(row, strides=tuple(stride.at(self.sizes) for stride in row.strides_formula))
        names = ("size_formula", "shape_formula", "strides_formula", "scaled_offset")
        formulas: dict[str, Any] = dict.fromkeys(names)
        return replace(row, offset=offset, shape=shape, size=size, **formulas)

    def body(self, body: PlannedBody) -> PlannedBody:
        """Return the plan of a body at the sizes."""
        graph = entered_bodies(self.nodes[body.node], self.model)[body.attribute]
        inside = replace(self, graph=graph)
        buffers, inner = tuple(map(inside.row, body.buffers)), tuple(map(inside.body, body.bodies))
        return replace(body, buffers=buffers, bodies=inner, size=UNSAID)
