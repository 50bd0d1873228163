"""The formulas of the arenas of a plan over ranges of dimensions, and the scaled offsets of its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import onnx_ir as ir

from onnxtile.model.formula import SizeFormula, SizePieces, SizeRanges, extreme
from onnxtile.planning.layout import Layout
from onnxtile.planning.offsets.memories import Allocation, Capacity, Filled
from onnxtile.planning.offsets.range_formulas import RangeFormulas
from onnxtile.planning.result import ArenaFormula, PlannedBody, PlannedBuffer, PlanResult
from onnxtile.planning.workspaces import SHARED
from onnxtile.shapes.resolve import Shapes, bytes_formula
from onnxtile.system.errors import Infeasible


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


# The smallest sizes at which a plan over ranges of dimensions exceeds a capacity.

_LISTED = 8
"""The most sizes in a message."""
_HINT = "make a range smaller or the capacity larger"


def does_not_fit(
    plan: PlanResult, capacity: Capacity, refusal: Callable[[SizeRanges], Infeasible | None], largest: Infeasible
) -> Infeasible:
    """Return the error for a `plan` over ranges, made without a limit, that exceeds `capacity`; `largest` is that of the largest sizes.

    `refusal` returns the error of a plan for smaller ranges. A plan up to the sizes that are named must be refused, too: sizes that have
    bounds instead of formulas count with their maximum in a plan over larger ranges.
    """
    limit = next(iter(capacity.values()), None) if isinstance(capacity, Mapping) else capacity
    found = [] if limit is None else list(islice(smallest_over(plan, limit), _LISTED + 1))
    listed = sorted(found[:_LISTED], key=lambda sizes: tuple(sizes.values()))
    if not found:
        return largest
    if any(
        refusal({name: (least, sizes[name]) for name, (least, _) in plan.ranges.items()}) is None for sizes in listed
    ):
        return none_fits(plan.ranges, refusal, largest)
    which = "the smallest sizes" if len(found) <= _LISTED else f"{_LISTED} of the smallest sizes"
    needed, places = plan.arena_size_at(listed[0]), ", or ".join(map(_listed, listed))
    return Infeasible(
        f"DOES NOT FIT: the plan takes {needed:,} bytes of {limit:,} at {places}, {which} that exceed the capacity",
        hint=_HINT,
    )


def none_fits(
    ranges: SizeRanges, refusal: Callable[[SizeRanges], Infeasible | None], largest: Infeasible
) -> Infeasible:
    """Return the error for `ranges` that no plan into several memories holds for; `largest` is that of the largest sizes.

    `refusal` returns the error of a plan for smaller ranges. Sizes are found for which a plan up to them is refused, and is not with the
    last of them smaller by one. The dimensions are made smaller in their order.
    """
    found, error = dict(ranges), largest
    for name, (least, most) in ranges.items():
        low, high = least, most
        while low < high:
            middle = (low + high) // 2
            refused = refusal({**found, name: (least, middle)})
            if refused is None:
                low = middle + 1
            else:
                high, error = middle, refused
        found[name] = (least, high)
    listed = _listed({name: high for name, (_, high) in found.items()})
    return Infeasible(f"DOES NOT FIT: at {listed}, the smallest sizes without a plan, {error}", hint=_HINT)


def _listed(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def smallest_over(plan: PlanResult, limit: int) -> Iterator[dict[str, int]]:
    """Yield all sizes at which the arenas of `plan` take more than `limit` bytes, and with any size smaller no more than that.

    Nothing is yielded for formulas that may fall where a size grows.
    """
    if not all(piece.grows for arena in plan.formulas for piece in arena.least.pieces):
        return
    # Every other size that exceeds the limit is no larger than one of these, and no smaller than one that was yielded.
    tops = [{name: high for name, (_, high) in plan.ranges.items()}]
    while tops:
        sizes = dict(tops[0])
        if plan.arena_size_at(sizes) <= limit:
            del tops[0]
            continue
        for name in plan.ranges:
            sizes[name] = _least(plan, sizes, name, limit)
        yield sizes
        tops = _below(tops, sizes, plan.ranges)


def _below(tops: list[dict[str, int]], sizes: Mapping[str, int], ranges: SizeRanges) -> list[dict[str, int]]:
    """Return the largest of those sizes up to one of `tops` that have a dimension smaller than in `sizes`."""
    found: list[dict[str, int]] = []
    for top in tops:
        if any(top[name] < size for name, size in sizes.items()):
            found.append(top)
            continue
        found += ({**top, name: size - 1} for name, size in sizes.items() if size > ranges[name][0])
    unique = [one for place, one in enumerate(found) if one not in found[:place]]
    return [
        one
        for one in unique
        if not any(other is not one and all(other[name] >= one[name] for name in ranges) for other in unique)
    ]


def _least(plan: PlanResult, sizes: Mapping[str, int], name: str, limit: int) -> int:
    """Return the least size of the dimension `name` that exceeds `limit` where the others have these `sizes`."""
    low, high = plan.ranges[name]
    while low < high:
        middle = (low + high) // 2
        if plan.arena_size_at({**sizes, name: middle}) > limit:
            high = middle
        else:
            low = middle + 1
    return high
