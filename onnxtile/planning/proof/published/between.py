"""The check of the formulas of a plan over ranges between the sizes at which the model is inferred.

Sizes and shapes are compared with the formulas that inference finds over the ranges. Two formulas that are polynomials are equal if they
have one normal form, so that equality at all sizes is proved; others are compared at many sizes. Scaled offsets are checked at these sizes,
too: no two buffers that are live together overlap, and none leaves its arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxtile.model.size_expression import read_size
from onnxtile.model.size_formula import SizeFormula, product_of
from onnxtile.model.unfold import Unfolded
from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.claims import UNSAID, ClaimedRow, Claims
from onnxtile.planning.proof.published.overlaps import overlaps
from onnxtile.planning.proof.published.placing import Holder
from onnxtile.planning.proof.published.sizes import SizeOfSymbols, claimed_at, evaluated, further_sizes, largest, listed


def wrong_between(claims: Claims, over: Unfolded) -> Iterator[PlanFailure]:
    """Yield the formulas of `claims` that are wrong somewhere in the ranges. `over` is the model over them. Raises WrongFormula."""
    sizes = list(further_sizes(claims.ranges))
    graph = over.model.graph
    values = {value.name: value for value in (*graph.inputs, *(value for node in graph for value in node.outputs))}
    for row in claims.buffers:
        if row.name in values and row.kind != "workspace":
            yield from _wrong_row(row, values[row.name], claims, over, sizes)
    for end in (*(claims.inputs or ()), *(claims.outputs or ())):
        value = values.get(end.name)
        shape = None if value is None else over.shapes.formulas(value)
        if end.shape_formula is not None and not _are_equal(end.shape_formula, shape, claims, sizes):
            yield PlanFailure(f"shape_formula of {end.name!r} is not that of the graph", (end.name,))
    for formula in claims.formulas or ():
        for pieces in (formula.fixed, formula.scaled, formula.peak):
            _ = pieces and [largest(pieces, at) for at in sizes]
    if any(formula.scaled is not None for formula in claims.formulas or ()):
        yield from _overlapping(claims, sizes)


def _wrong_row(
    row: ClaimedRow, value: ir.Value, claims: Claims, over: Unfolded, sizes: Sequence[SizeOfSymbols]
) -> Iterator[PlanFailure]:
    shape, dtype = over.shapes.formulas(value), over.shapes.dtype(value)
    if row.shape_formula is not None and not _are_equal(row.shape_formula, shape, claims, sizes):
        yield PlanFailure(f"shape_formula of {row.name!r} is not that of the graph", (row.name,))
    if shape is None or dtype is None:
        return
    size = (product_of(shape) * dtype.bitwidth + 7) // 8
    if row.size_formula and not _are_equal((row.size_formula,), (size,), claims, sizes):
        yield PlanFailure(f"size_formula of {row.name!r} is not that of the graph", (row.name,))


def _are_equal(
    texts: Sequence[str], formulas: Sequence[SizeFormula] | None, claims: Claims, sizes: Sequence[SizeOfSymbols]
) -> bool:
    """Return whether `texts` have the values of `formulas`; also where these are not known."""
    if formulas is None:
        return True
    if len(texts) != len(formulas):
        return False
    known: Mapping[str, tuple[int, int]] = claims.ranges
    left = [(text, one) for text, one in zip(texts, formulas, strict=True) if read_size(text, known) != one]
    return all(evaluated(text, at) == one.at(at) for text, one in left for at in sizes)


def _overlapping(claims: Claims, sizes: Sequence[SizeOfSymbols]) -> Iterator[PlanFailure]:
    """Yield the buffers with scaled offsets that overlap or leave their arena at the first of `sizes` where some do."""
    for at in sizes:
        one = claimed_at(claims, at, scaled=True)
        ends = {arena.name: arena.size for arena in one.arenas}
        inside: dict[str, list[ClaimedRow]] = {}
        for row in one.buffers:
            inside.setdefault(row.alias or row.name, []).append(row)
        owners = [row for row in one.buffers if row.alias is None and row.first != UNSAID]
        holders = [_holder(row, inside[row.name]) for row in owners]
        outside = [
            holder.row
            for holder in holders
            if holder.row.size and not 0 <= holder.row.offset <= holder.row.end <= ends.get(holder.row.arena, 0)
        ]
        failures = [*overlaps(holders), *(PlanFailure(f"{row.place} leaves its arena", (row.name,)) for row in outside)]
        if failures:
            where = f"at {listed(at)} with scaled offsets: "
            yield from (PlanFailure(where + failure.reason, failure.names, failure.step) for failure in failures)
            return


def _holder(row: ClaimedRow, members: Sequence[ClaimedRow]) -> Holder:
    """Return the holder of the owner `row` of `members`. A tensor without a formula may have its largest size."""
    ends = ((other.offset - row.offset + (other.most if other.size == UNSAID else other.size)) for other in members)
    return Holder(replace(row, size=max(ends), parts=None), (), row.first, row.last, 1)
