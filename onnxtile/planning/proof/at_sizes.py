"""A plan over ranges of dimensions at one size of each: what is published for it, to be checked and run like any plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxtile.errors import CheckFailed
from onnxtile.model.bytes import tensor_bytes
from onnxtile.model.shapes import Shapes
from onnxtile.model.size_formula import SizeRanges
from onnxtile.planning.arena_formula import ArenaFormula
from onnxtile.planning.proof.published.claims import NO_SHAPE, UNSAID, BodyClaim, ClaimedRow, Claims
from onnxtile.planning.proof.published.evidence import entered_bodies, names_of
from onnxtile.planning.result import PlannedBody, PlannedBuffer, PlanResult

BETWEEN = 5
"""Sizes between the corners of the ranges at which a plan is proved."""

SizeOfSymbols: TypeAlias = Mapping[str, int]
"""One size for each dimension, by name."""
_FRACTIONS = (0.5, 0.236, 0.854, 0.382, 0.708, 0.146, 0.618, 0.927, 0.073, 0.326)
"""Parts of a range, so that the sizes of several dimensions and steps differ."""


def proved_sizes(ranges: SizeRanges) -> list[dict[str, int]]:
    """Return the sizes at which a plan over `ranges` is proved: all corners, the largest first, then five between them."""
    corners = [
        dict(zip(ranges, ends, strict=True)) for ends in product(*((high, low) for low, high in ranges.values()))
    ]
    found = list(corners)
    for sizes in _between(ranges):
        if sizes not in found:
            found.append(sizes)
        if len(found) == len(corners) + BETWEEN:
            break
    return found


def _between(ranges: SizeRanges) -> Iterator[dict[str, int]]:
    for start in range(len(_FRACTIONS)):
        parts = (_FRACTIONS[(start + 3 * place) % len(_FRACTIONS)] for place in range(len(ranges)))
        yield {
            name: low + round((high - low) * part)
            for (name, (low, high)), part in zip(ranges.items(), parts, strict=True)
        }
    for steps in range(1, 1 + BETWEEN):
        yield {name: min(low + steps, high) for name, (low, high) in ranges.items()}


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
    claims = Claims.of(result)
    # The figures of the largest sizes are not claimed of others.
    figures = ("peak", "peak_step", "lower_bound", "any_order_bound", "activation_bytes", "in_place")
    lists = ("inputs", "outputs", "copies", "totals", "gap", "optimal")
    outside = tuple(replace(reason, shape=NO_SHAPE) for reason in claims.outside or ())
    unplanned = tuple(replace(reason, shape=NO_SHAPE) for reason in claims.unplanned or ())
    left_out: dict[str, Any] = {**dict.fromkeys(figures, UNSAID), **dict.fromkeys(lists), "optimal_over": ""}
    if any(sizes[name] < high for name, (_, high) in plan.ranges.items()):
        left_out["states"] = tuple(replace(state, size=UNSAID, copied=UNSAID) for state in claims.states)
        left_out |= {
            "buffers": _without_parts(claims.buffers),
            "bodies": tuple(map(_body_without_parts, claims.bodies)),
        }
    return PlanAtSizes(result, replace(claims, **left_out, outside=outside, unplanned=unplanned))


def _without_parts(rows: Iterable[ClaimedRow]) -> tuple[ClaimedRow, ...]:
    """Leave out the parts of rows, which lie elsewhere at smaller sizes: the check then takes the live bytes from the graph."""
    return tuple(replace(row, parts=None, first=UNSAID, last=UNSAID) if row.parts else row for row in rows)


def _body_without_parts(body: BodyClaim) -> BodyClaim:
    return replace(body, buffers=_without_parts(body.buffers), bodies=tuple(map(_body_without_parts, body.bodies)))


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
        formulas: dict[str, Any] = dict.fromkeys(("size_formula", "shape_formula", "scaled_offset"))
        return replace(row, offset=offset, shape=shape, size=size, **formulas)

    def body(self, body: PlannedBody) -> PlannedBody:
        """Return the plan of a body at the sizes."""
        graph = entered_bodies(self.nodes[body.node], self.model)[body.attribute]
        inside = replace(self, graph=graph)
        buffers, inner = tuple(map(inside.row, body.buffers)), tuple(map(inside.body, body.bodies))
        return replace(body, buffers=buffers, bodies=inner, size=UNSAID)


def listed(sizes: SizeOfSymbols) -> str:
    """Return sizes as `--dim` takes them: "batch=1 seq=512"."""
    return " ".join(f"{name}={size}" for name, size in sizes.items())
