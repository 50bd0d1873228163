"""Plans over ranges of dimensions: equal dimensions, formulas of arenas, scaled offsets, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.declare.plan_document import SHARED, WORKSPACE, ArenaFormula, PlannedBody, PlannedBuffer, PlannedState
from onnxtile.declare.verb import JsonFields
from onnxtile.kernels.aliases import operands_of_state
from onnxtile.model.binding import free_inputs, rename_symbols, symbols
from onnxtile.model.formula import Extreme, SizeFormula, SizePieces, SizeRanges, extreme, read_size
from onnxtile.planning.layout import Layout
from onnxtile.planning.offsets.memories import Allocation, Filled
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.offsets.range_formulas import RangeFormulas
from onnxtile.planning.result import PlanResult, size_text
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded
from onnxtile.shapes.resolve import Shapes, bytes_formula, resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible, UsageError


@dataclass(frozen=True)
class ScaledArena:
    """The formulas of one arena, and the scaled offsets of its buffers by name; empty without such offsets."""

    formula: ArenaFormula
    offsets: Mapping[str, SizePieces]

    @classmethod
    def from_arena(
        cls,
        arena: Filled,
        fixed: SizePieces,
        scaled: SizePieces | None = None,
        peak: SizePieces | None = None,
        offsets: Mapping[str, SizePieces] = MappingProxyType({}),
    ) -> ScaledArena:
        """Return the formulas of `arena` with these sizes."""
        others = (None if size is None else size_text(size) for size in (scaled, peak))
        return cls(ArenaFormula(arena.memory.name, size_text(fixed), *others), offsets)


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
    if layout.graph.states:
        return tuple(_fixed(arena, sizes, ranges) for arena in allocation.arenas)
    arenas = tuple(_scaled(arena, sizes, ranges) for arena in allocation.arenas)
    tensors = layout.graph.tensors
    if all(shapes.formulas(tensors[number].value) is not None for number in layout.sharing.alias_sets.of):
        return arenas
    # A tensor without a formula counts with its largest size, so that a peak would be too large.
    return tuple(replace(arena, formula=replace(arena.formula, peak=None)) for arena in arenas)


def with_scaled(rows: Sequence[PlannedBuffer], arenas: Iterable[ScaledArena]) -> tuple[PlannedBuffer, ...]:
    """Return `rows` with their scaled offsets."""
    offsets = {name: offset for arena in arenas for name, offset in arena.offsets.items()}
    if not offsets:
        return tuple(rows)
    owners = {row.name: row for row in rows if row.alias is None}
    scaled_rows = []
    for row in rows:
        owner = owners[row.alias or row.name]
        start = offsets.get(owner.name, _fixed_offset(owner))
        scaled_rows.append(replace(row, scaled_offset=str(start + (row.offset - owner.offset))))
    return tuple(scaled_rows)


def with_scaled_bodies(
    bodies: Sequence[PlannedBody], rows: Iterable[PlannedBuffer], arenas: Iterable[ScaledArena]
) -> tuple[PlannedBody, ...]:
    """Return `bodies` with the scaled offsets of their rows, which lie in the workspaces among `rows` wherever these start."""
    workspaces = {row.node: row for row in rows if row.kind == WORKSPACE and row.name == f"{row.node} {SHARED}"}
    offsets = {name: offset for arena in arenas for name, offset in arena.offsets.items()}

    def scaled(body: PlannedBody, workspace: PlannedBuffer) -> PlannedBody:
        start = offsets.get(workspace.name, _fixed_offset(workspace))
        rows = tuple(replace(row, scaled_offset=str(start + (row.offset - workspace.offset))) for row in body.buffers)
        return replace(body, buffers=rows, bodies=tuple(scaled(inner, workspace) for inner in body.bodies))

    inside = workspaces if offsets else {}
    return tuple(scaled(body, inside[body.node]) if body.node in inside else body for body in bodies)


def _fixed_offset(row: PlannedBuffer) -> SizePieces:
    return SizePieces.from_formulas([SizeFormula.number(row.offset)])


def buffer_sizes(layout: Layout, shapes: Shapes, ranges: SizeRanges) -> dict[str, SizeFormula]:
    """Return the bytes of each buffer: the end of the last tensor in it. A tensor without a formula has its largest size throughout."""
    ends: dict[str, dict[SizeFormula, None]] = {}
    alias_sets, tensors = layout.sharing.alias_sets, layout.graph.tensors
    for number, alias_set in alias_sets.of.items():
        size = bytes_formula(tensors[number].value, shapes) or SizeFormula.number(alias_sets.size(number))
        ends.setdefault(tensors[alias_set.owner].name, {})[size + alias_sets.start(number)] = None
    sizes = {name: extreme("max", formulas, ranges) for name, formulas in ends.items()}
    for state in layout.graph.states:
        held = alias_sets.of[state.input]
        sizes[tensors[held.owner].name] = SizeFormula.number(held.size)
    return {b.name: sizes.get(b.name) or SizeFormula.number(b.size) for b in layout.problem.buffers}


def _fixed(arena: Filled, sizes: Mapping[str, SizeFormula], ranges: SizeRanges) -> ScaledArena:
    formulas = RangeFormulas(arena.problem, arena.plan.offsets, sizes, ranges)
    return ScaledArena.from_arena(arena, formulas.fixed())


def _scaled(arena: Filled, sizes: Mapping[str, SizeFormula], ranges: SizeRanges) -> ScaledArena:
    formulas = RangeFormulas(arena.problem, arena.plan.offsets, sizes, ranges)
    fixed, scaled = formulas.fixed(), None if arena.problem.pinned else formulas.scaled(arena.plan.size)
    corners = [dict(zip(ranges, ends, strict=True)) for ends in product(*ranges.values())]
    if scaled is None or all(scaled.size.at(c) >= fixed.at(c) for c in corners):
        return ScaledArena.from_arena(arena, fixed, None, formulas.peak())
    return ScaledArena.from_arena(arena, fixed, scaled.size, formulas.peak(), scaled.offsets)


# The smallest sizes of dimensions for which no plan fits a capacity.


def none_fits(
    ranges: SizeRanges, refusal: Callable[[SizeRanges], Infeasible | None], largest: Infeasible
) -> Infeasible:
    """Return the error for `ranges` that no plan holds for; `largest` is that of the largest sizes.

    `refusal` returns the error of a plan for smaller ranges. Sizes are found for which a plan up to them is refused, and is not with the
    last of them smaller by one. The dimensions are made smaller in their order.
    """
    limits, error = dict(ranges), largest
    for name, (least, most) in ranges.items():
        low, high = least, most
        while low < high:
            middle = (low + high) // 2
            refused = refusal({**limits, name: (least, middle)})
            if refused is None:
                low = middle + 1
            else:
                high, error = middle, refused
        limits[name] = (least, high)
    listed = " ".join(f"{name}={high}" for name, (_, high) in limits.items())
    reason = f"DOES NOT FIT: at {listed}, the smallest sizes without a plan, {error.message}"
    return Infeasible(reason, hint="make a range smaller or the capacity larger")


# The sizes of runs that follow each other, each longer than the one before by what that appended to states.


def sizes_of_runs(plan: PlanResult, opened: Unfolded, runs: int) -> list[dict[str, int]]:
    """Return the sizes of up to `runs` runs that follow each other: each is longer than the one before by what that appended.

    A length begins with the least of its range. What a run appends is as short as its range allows; other dimensions are at their largest.
    Raises UsageError for a growing state whose length is not one dimension with a range.
    """
    lengths = {name: step for state in plan.states for name, step in growths_of_state(plan, state, opened)}
    appended = {name for step in lengths.values() for name in step.symbols}
    sizes = {name: low if name in lengths or name in appended else high for name, (low, high) in plan.ranges.items()}
    return list(islice(_following(sizes, lengths, plan), runs))


def _following(sizes: dict[str, int], lengths: Mapping[str, SizeFormula], plan: PlanResult) -> Iterator[dict[str, int]]:
    while all(size <= plan.ranges[name][1] for name, size in sizes.items()):
        yield sizes
        sizes = {**sizes, **{name: sizes[name] + step.at(sizes) for name, step in lengths.items()}}


def growths_of_state(plan: PlanResult, state: PlannedState, opened: Unfolded) -> Iterator[tuple[str, SizeFormula]]:
    """Yield the dimension that is the length of `state`, with the number of elements that a run appends; none of a state of one length.

    Of an output whose sizes have no formula, it is the number at the largest sizes; the runs show whether it is that at others.
    """
    if state.axis is None:
        return
    values = {value.name: value for value in (*opened.model.graph.inputs, *opened.model.graph.outputs)}
    before, after = values[state.input], values[state.output]
    known = [opened.shapes.formulas(value) for value in (before, after)]
    sizes = [(opened.shapes.sizes(value) or ())[state.axis] for value in (before, after)]
    if known[0] is None or known[0] == known[1]:
        return
    length = known[0][state.axis]
    name = next(iter(length.symbols), "")
    if name not in plan.ranges or length != SizeFormula.symbol(name):
        raise UsageError(
            f"the length of the state {state.input!r} is {length}, not one dimension with a range",
            hint="write one name for it in the file",
        )
    yield name, SizeFormula.number(sizes[1] - sizes[0]) if known[1] is None else known[1][state.axis] - length


# Dimensions of inputs that nobody gave a size, and that operators join with others: exporters write several names for one length.

_JoinedSizes: TypeAlias = Iterator[tuple[SizeFormula, SizeFormula]]
_ANY = (1, 2**15)
"""The range of a size of which nothing is known: products of four of them are numbers of 64 bits."""


def with_equal_dims(model: ir.Model, sized: Collection[str]) -> dict[str, str]:
    """Replace in `model` (in place) names of dimensions by those that operators join them with; return what replaces each.

    `sized` are the names that have sizes. A name without one is replaced by one of them, or by a sum of them, "past + seq". Operators that
    need equal sizes count first: MatMul, Gemm, Concat, and the keys and values of attention. Then those that broadcast: there
    one of two sizes might also be 1.
    """
    replaced: dict[str, str] = {}
    while open_ := frozenset(name for name in symbols(free_inputs(model)) if name.isidentifier() and name not in sized):
        names = {*open_, *(name for name in sized if name.isidentifier())}
        shapes = resolve(model, ranges=dict.fromkeys(sorted(names), _ANY))
        news: dict[str, str] = {}
        for joins in (_contracted(model, shapes), _broadcast(model, shapes)):
            for first, second in joins:
                solved = _solved(first, second, open_)
                if solved is not None:
                    news.setdefault(*solved)
            if news:
                break
        if not news:
            break
        rename_symbols(model, news)
        replaced |= news
    return replaced


def _contracted(model: ir.Model, shapes: Shapes) -> _JoinedSizes:
    """Yield pairs of sizes that operators need to be equal."""
    for node in model.graph:
        sizes = [None if value is None else shapes.formulas(value) for value in node.inputs]
        is_standard = not node.domain
        if is_standard and node.op_type == "Concat":
            yield from _beside(node.attributes.get_int("axis", 0), [shape for shape in sizes if shape])
        elif is_standard and node.op_type in {"MatMul", "Gemm"}:
            yield from _inner(node, sizes[0] or (), sizes[1] or ())
        elif node.op_type.endswith("Attention"):
            places = operands_of_state(node, is_standard=is_standard).values()
            held = [sizes[index] or () for index in places if index < len(sizes)]
            if len(held) == 2:
                yield from zip(held[0][:-1], held[1][:-1], strict=False)


def _beside(axis: int, operands: list[tuple[SizeFormula, ...]]) -> _JoinedSizes:
    for sizes in operands[1:]:
        if len(sizes) == len(operands[0]):
            pairs = enumerate(zip(operands[0], sizes, strict=True))
            yield from (pair for index, pair in pairs if index != axis % len(sizes))


def _inner(node: ir.Node, first: tuple[SizeFormula, ...], second: tuple[SizeFormula, ...]) -> _JoinedSizes:
    if not first or not second:
        return
    column = 0 if node.attributes.get_int("transA", 0) else -1
    row = -1 if node.attributes.get_int("transB", 0) or len(second) == 1 else -2
    yield first[column], second[row]


def _broadcast(model: ir.Model, shapes: Shapes) -> _JoinedSizes:
    """Yield pairs of sizes that are broadcast to the larger one: inference writes that one as a maximum."""
    for value in values(model):
        factors = (f for size in shapes.formulas(value) or () for product, _ in size.terms for f in product)
        for factor in factors:
            if isinstance(factor, Extreme) and factor.kind == "max":
                first, *others = factor.operands
                yield from ((first, other) for other in others)


def _solved(first: SizeFormula, second: SizeFormula, open_: frozenset[str]) -> tuple[str, str] | None:
    """Return the name in `open_` that is a sum of others where both sizes are equal, and the sum; None where none is."""
    for difference in (first - second, second - first):
        for name in sorted(open_):
            rest = SizeFormula.symbol(name) - difference
            if (name,) in dict(difference.terms) and _is_sum(rest, open_):
                return name, str(rest)
    return None


def _is_sum(size: SizeFormula, open_: frozenset[str]) -> bool:
    """Return whether `size` is a sum of names that have sizes, each once, and of a number that is not negative."""
    named = [(product, times) for product, times in size.terms if product]
    return (
        bool(named)
        and all(times == 1 and len(product) == 1 and isinstance(product[0], str) for product, times in named)
        and open_.isdisjoint(size.symbols)
        and sum(times for product, times in size.terms if not product) >= 0
    )


# The largest size of one dimension with which a plan fits a capacity: a search of few plans, led by the formulas of each.


MOST_SIZE = 2**62
"""No dimension is searched beyond this size."""
_GUIDED = 6
"""After so many plans each further one halves the sizes that are left."""


@dataclass(frozen=True)
class NeededBytes(JsonFields):
    """The bytes that a plan up to one size takes: of its `weights`, its `state`, and the rest of its `arena`.

    `state` has the states that stay in the arena between runs, and the inputs outside the arena that are states not kept. `total` is the
    sum of the three.
    """

    weights: int
    state: int
    arena: int
    total: int


@dataclass(frozen=True)
class RefusedSize(JsonFields):
    """A size for which no plan fits: with the best that was found, or by a lower bound, at least `total` bytes are needed.

    `size` is in elements.
    """

    size: int
    total: int


@dataclass(frozen=True)
class LargestSize(JsonFields):
    """The largest `size` of `dimension` for which the plan of all sizes from `least` on fits the `capacity`, all in bytes.

    `needed` are the bytes at this size, `apart` those of inputs and outputs outside the arena, which do not count. `refused` is the next
    size; None where the range of sizes ends with `size`.
    """

    dimension: str
    least: int
    size: int
    needed: NeededBytes
    apart: int
    capacity: int
    refused: RefusedSize | None


# The search.

Growth = Callable[[int], float]
"""Returns an estimate of the bytes that are needed at a size."""


@dataclass(frozen=True)
class SizeTrial:
    """A plan up to `size` that was made: it takes `total` bytes, or at least these where none that fits was found.

    `growth` estimates the bytes at other sizes; None where no plan tells.
    """

    size: int
    total: int
    fits: bool
    growth: Growth | None = None


def largest_fitting(
    trial_at: Callable[[int], SizeTrial], start: SizeTrial, least: int, most: int | None, capacity: int
) -> tuple[int | None, SizeTrial | None]:
    """Return the largest size from `least` to `most` (None: no limit) that fits `capacity` bytes, and the trial of the next size.

    No size is returned where `least` does not fit, no trial where `most` fits. Every size that fits is taken to fit with all smaller ones.
    `start` has the first estimate; `trial_at` makes a plan. Where estimates are exact, two plans are made.
    """
    fit: int | None = None
    over: SizeTrial | None = None
    growth, latest, count = start.growth, start, 0
    while True:
        low = least if fit is None else fit + 1
        high = most if over is None else over.size - 1
        if high is not None and low > high:
            return fit, over
        if high is not None and count >= _GUIDED:
            latest = trial_at((low + high) // 2)
        else:
            latest = trial_at(_estimated(growth, latest, low, high, capacity))
        count += 1
        growth = latest.growth or growth
        if latest.fits:
            fit = latest.size
        else:
            over = latest


def _estimated(growth: Growth | None, latest: SizeTrial, low: int, high: int | None, capacity: int) -> int:
    """Return the largest size from `low` to `high` that fits by an estimate through the bytes of `latest`; `low` where none does."""
    assert growth is not None
    beside = latest.total - growth(latest.size)

    def fits(size: int) -> bool:
        return growth(size) + beside <= capacity

    largest, step = low, 1
    top = MOST_SIZE if high is None else high
    while largest + step <= top and fits(largest + step):
        largest, step = largest + step, 2 * step
    while step:
        if largest + step <= top and fits(largest + step):
            largest += step
        step //= 2
    return largest


# The estimate.


def growth_of(plan: PlanResult, name: str, others: Iterable[tuple[SizeFormula, int]] = ()) -> Growth:
    """Return the largest sum of live bytes of `plan` as an estimate for other sizes of the dimension `name`.

    `others` are bytes that live throughout, with their sizes in the plan: those outside the arena. Other dimensions have their largest
    sizes. A buffer without a formula counts as it is. No formula of a plan holds beyond its ranges: another order or other shared bytes
    may be better there.
    """
    largest = {dimension: high for dimension, (_, high) in plan.ranges.items()}
    rows: dict[SizeFormula, dict[int, float]] = {}

    def live(formula: SizeFormula, size: int, first: int, last: int) -> None:
        whole = formula.at(largest)
        changes = rows.setdefault(formula if whole > 0 else SizeFormula.number(1), {})
        share = size / whole if whole > 0 else float(size)
        changes[first] = changes.get(first, 0.0) + share
        changes[last + 1] = changes.get(last + 1, 0.0) - share

    for row in plan.buffers:
        if row.alias is None:
            formula = read_size(row.size_formula or row.size, plan.ranges) or SizeFormula.number(row.size)
            if not row.parts:
                live(formula, align(row.size, plan.alignment), row.first, row.last)
            for part in row.parts or ():
                live(formula, part.size, part.first, part.last)
    last = max((row.last for row in plan.buffers), default=0)
    for formula, size in others:
        live(formula, size, 0, last)
    counts = np.array([_running(changes, last) for changes in rows.values()], np.float64).reshape(len(rows), last + 1)
    counts = np.unique(counts, axis=1)
    formulas = list(rows)

    def growth(size: int) -> float:
        sizes = {**largest, name: size}
        return float((np.array([float(formula.at(sizes)) for formula in formulas]) @ counts).max(initial=0.0))

    return growth


def _running(changes: Mapping[int, float], last: int) -> list[float]:
    """Return the sum of `changes` up to each step from 0 to `last`."""
    sums = np.zeros(last + 2)
    for step, change in changes.items():
        sums[step] += change
    return [float(total) for total in sums.cumsum()[:-1]]
