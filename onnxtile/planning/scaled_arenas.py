"""The formulas of the arenas of a plan over ranges of dimensions, and the scaled offsets of its buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import onnx_ir as ir

from onnxtile.model.bytes import bytes_formula
from onnxtile.model.shapes import Shapes
from onnxtile.model.size_formula import SizeFormula, SizeRanges, extreme
from onnxtile.model.size_pieces import SizePieces
from onnxtile.planning.arena_formula import ArenaFormula
from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.layout.workspaces import SHARED
from onnxtile.planning.offsets.memories import Allocation, Filled
from onnxtile.planning.offsets.range_formulas import RangeFormulas
from onnxtile.planning.result import PlannedBody, PlannedBuffer


@dataclass(frozen=True)
class ScaledArena:
    """The formulas of one arena, and the scaled offsets of its buffers by name; empty without such offsets."""

    formula: ArenaFormula
    offsets: Mapping[str, SizePieces]


def scaled_arenas(
    layout: Layout, allocation: Allocation, shapes: Shapes, ranges: SizeRanges
) -> tuple[ScaledArena, ...]:
    """Return the formulas of the arenas of `allocation`; none without `ranges`.

    Offsets are scaled where that takes fewer bytes at some sizes, and no more at any corner of the ranges. Arenas with pins have none.
    A state keeps its offset and its largest size, so that a run at one size finds the state of a run at another.
    """
    if not ranges:
        return ()
    sizes = buffer_sizes(layout, shapes, ranges)
    if layout.scope.states:
        return tuple(_fixed(arena, sizes, ranges) for arena in allocation.arenas)
    found = tuple(_scaled(arena, sizes, ranges) for arena in allocation.arenas)
    if all(shapes.formulas(value) is not None for value in layout.sharing.alias_sets.of):
        return found
    # A tensor without a formula counts with its largest size, so that a peak would be too large.
    return tuple(replace(arena, formula=replace(arena.formula, peak=None)) for arena in found)


def with_scaled(rows: Sequence[PlannedBuffer], arenas: Iterable[ScaledArena]) -> tuple[PlannedBuffer, ...]:
    """Return `rows` with their scaled offsets."""
    offsets = {name: offset for arena in arenas for name, offset in arena.offsets.items()}
    if not offsets:
        return tuple(rows)
    starts = {row.name: row.offset for row in rows if row.alias is None}
    found = []
    for row in rows:
        owner = row.alias or row.name
        scaled = offsets.get(owner, SizePieces.of([SizeFormula.number(starts[owner])]))
        found.append(replace(row, scaled_offset=scaled + (row.offset - starts[owner])))
    return tuple(found)


def with_scaled_bodies(bodies: Sequence[PlannedBody], rows: Iterable[PlannedBuffer]) -> tuple[PlannedBody, ...]:
    """Return `bodies` with the scaled offsets of their rows, which lie in the workspaces among `rows` wherever these start."""
    workspaces = {row.node: row for row in rows if row.kind == "workspace" and row.name == f"{row.node} {SHARED}"}
    return tuple(_in_scaled(body, workspaces[body.node]) if body.node in workspaces else body for body in bodies)


def _in_scaled(body: PlannedBody, workspace: PlannedBuffer) -> PlannedBody:
    start = workspace.scaled_offset
    if start is None:
        return body
    rows = tuple(replace(row, scaled_offset=start + (row.offset - workspace.offset)) for row in body.buffers)
    return replace(body, buffers=rows, bodies=tuple(_in_scaled(inner, workspace) for inner in body.bodies))


def buffer_sizes(layout: Layout, shapes: Shapes, ranges: SizeRanges) -> dict[str, SizeFormula]:
    """Return the bytes of each buffer: the end of the last tensor in it. A tensor without a formula has its largest size throughout."""
    ends: dict[str, dict[SizeFormula, None]] = {}
    alias_sets = layout.sharing.alias_sets
    for value, alias_set in alias_sets.of.items():
        size = bytes_formula(value, shapes) or SizeFormula.number(alias_sets.size(value))
        ends.setdefault(_name(alias_set.owner), {})[size + alias_sets.start(value)] = None
    sizes = {name: extreme("max", found, ranges) for name, found in ends.items()}
    for pair in layout.scope.states:
        held = alias_sets.of[pair.input]
        sizes[_name(held.owner)] = SizeFormula.number(held.size)
    return {b.name: sizes.get(b.name) or SizeFormula.number(b.size) for b in layout.problem.buffers}


def _fixed(arena: Filled, sizes: Mapping[str, SizeFormula], ranges: SizeRanges) -> ScaledArena:
    formulas = RangeFormulas(arena.problem, arena.plan.offsets, sizes, ranges)
    return ScaledArena(ArenaFormula(arena.memory.name, formulas.fixed(), None, None), {})


def _scaled(arena: Filled, sizes: Mapping[str, SizeFormula], ranges: SizeRanges) -> ScaledArena:
    formulas = RangeFormulas(arena.problem, arena.plan.offsets, sizes, ranges)
    fixed, scaled = formulas.fixed(), None if arena.problem.pinned else formulas.scaled(arena.plan.size)
    corners = [dict(zip(ranges, ends, strict=True)) for ends in product(*ranges.values())]
    if scaled is None or all(scaled.size.at(c) >= fixed.at(c) for c in corners):
        return ScaledArena(ArenaFormula(arena.memory.name, fixed, None, formulas.peak()), {})
    return ScaledArena(ArenaFormula(arena.memory.name, fixed, scaled.size, formulas.peak()), scaled.offsets)


def _name(value: ir.Value) -> str:
    return value.name or ""
