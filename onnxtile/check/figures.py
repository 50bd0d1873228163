"""The figures of a plan, computed again from its rows: sizes, peaks, bounds and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxtile.check.addresses import Holder, Placing, in_blocks, in_parts
from onnxtile.check.document import UNSAID, ArenaClaim, Claims, CopyClaim
from onnxtile.check.graph import GraphFacts, RunOrder
from onnxtile.check.operators import JOINS, SAME_ELEMENTS, TAKES_PARTS
from onnxtile.check.sharing import Link, held
from onnxtile.planning.result import PlanFailure

Links = dict[ir.Value, list[Link]]


def figures(
    claims: Claims, placing: Placing, used: Links | None, line: RunOrder, known: GraphFacts
) -> Iterator[PlanFailure]:
    """Yield each wrong figure of `claims`. A missing figure is not checked, nor are aliases where `used` is not known."""
    yield from _arenas(claims, placing)
    peak, step = _peak(placing.holders, claims.alignment)
    tensors = sum(_rounded(row.size, claims.alignment) for row in placing.rows.values())
    yield from _unlike("peak", claims.peak, peak)
    yield from _unlike("peak_step", claims.peak_step, step)
    yield from _unlike("activation_bytes", claims.activation_bytes, tensors)
    yield from _totals(claims)
    units = [holder.unit for holder in placing.holders]
    yield from _bound(claims, min(units, default=claims.alignment))
    yield from _reason(claims, placing, line, known)
    if used is not None and claims.in_place != UNSAID:
        least, most = _in_place(placing, used)
        if not least <= claims.in_place <= most:
            yield from _unlike("in_place", claims.in_place, least)
    if (
        used is not None
        and claims.copies is not None
        and (right := _copies(placing, used, line, known)) != claims.copies
    ):
        yield PlanFailure(f"copies are {vars(claims.copies)}, not {vars(right)}")
    in_steps = len(set(line.steps)) == len(line.steps)
    if claims.order == "model" and in_steps and list(line.nodes) != list(line.graph):
        yield PlanFailure("order is 'model', but the schedule is not the order of the file")


def _unlike(name: str, claimed: int, right: int) -> Iterator[PlanFailure]:
    if claimed not in {UNSAID, right}:
        yield PlanFailure(f"{name} is {claimed}, not {right}")


def _totals(claims: Claims) -> Iterator[PlanFailure]:
    """Yield a wrong sum of the arenas or of the constants."""
    if claims.totals is None:
        return
    right = {"arenas": sum(arena.size for arena in claims.arenas)}
    if claims.constants is not None:
        right["constants"] = sum(constant.size or 0 for constant in claims.constants)
    for name, total in right.items():
        yield from _unlike(f"totals.{name}", getattr(claims.totals, name), total)


def _arenas(claims: Claims, placing: Placing) -> Iterator[PlanFailure]:
    names = [arena.name for arena in claims.arenas]
    if len(set(names)) < len(names):
        yield PlanFailure("two arenas have one name")
    for arena in claims.arenas:
        if arena.capacity is not None and arena.size > arena.capacity:
            yield PlanFailure(
                f"the arena {arena.name!r} of {arena.size} bytes is larger than its capacity of {arena.capacity}"
            )
        inside = [holder for holder in placing.holders if holder.row.arena == arena.name]
        peak, _ = _peak(inside, claims.alignment)
        if claims.is_at_sizes:
            yield from _end_of_formula(arena, inside, placing, claims)
        yield from _unlike(f"peak of the arena {arena.name!r}", arena.peak, peak)
        # An arena may end with its last byte; peaks are in whole blocks.
        unit = min((holder.unit for holder in inside), default=claims.alignment)
        if _rounded(arena.size, unit) < peak:
            yield PlanFailure(f"the arena {arena.name!r} of {arena.size} bytes is smaller than its peak of {peak}")


def _end_of_formula(
    arena: ArenaClaim, inside: Sequence[Holder], placing: Placing, claims: Claims
) -> Iterator[PlanFailure]:
    """Yield that the formula of an arena is not the end of its last buffer at the sizes of `claims`.

    A tensor without a formula, and a state, count with their largest size; so may any buffer with a scaled offset. A buffer that has no
    byte at these sizes, and some at others, counts with its start.
    """
    kept = {name for state in claims.states for name in (state.input, state.output)}
    ends, most = [0], [0]
    for holder in inside:
        rows = [placing.rows[value] for value in holder.members] or [holder.row]
        is_kept = not kept.isdisjoint(row.name for row in rows)
        sizes = [row.most if is_kept or not row.size_formula else row.size for row in rows]
        start = holder.row.offset
        size = max(row.offset - start + one for row, one in zip(rows, sizes, strict=True))
        largest_size = max(row.offset - start + row.most for row in rows)
        ends.append(start + _rounded(size, holder.unit) if largest_size else 0)
        most.append(start + _rounded(largest_size, holder.unit))
    largest = max(most) if claims.is_scaled else max(ends)
    if not max((holder.row.end for holder in inside), default=0) <= arena.size <= largest or (
        not claims.is_scaled and _rounded(arena.size, claims.alignment) < max(ends)
    ):
        yield PlanFailure(
            f"formulas give the arena {arena.name!r} {arena.size} bytes, and its buffers end at {max(ends)}"
        )


def _peak(holders: Sequence[Holder], alignment: int) -> tuple[int, int]:
    """Return the largest sum of live bytes in one step, and the first such step.

    The bytes are in whole blocks of the least alignment of `holders`, in bytes; without any, of the `alignment` of the plan.
    """
    unit = min((holder.unit for holder in holders), default=alignment)
    change: dict[int, int] = {}
    for piece in (piece for holder in holders for piece in in_blocks(holder.pieces, unit)):
        size = piece.end - piece.start
        change[piece.first] = change.get(piece.first, 0) + size
        change[piece.last + 1] = change.get(piece.last + 1, 0) - size
    live = highest = at = 0
    for step in sorted(change):
        live += change[step]
        if live > highest:
            highest, at = live, step
    return highest, at


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _bound(claims: Claims, unit: int) -> Iterator[PlanFailure]:
    """Yield contradictions between size, lower bound, peak and gap. The bound is in whole blocks of `unit` bytes, as peaks are."""
    size, bound = sum(arena.size for arena in claims.arenas), claims.lower_bound
    if bound == UNSAID:
        return
    least = sum(_rounded(arena.size, unit) for arena in claims.arenas)
    if bound > least:
        yield PlanFailure(f"lower_bound of {bound} bytes is above the {size} bytes of the arenas")
    if claims.gap not in {None, size - bound, least - bound}:
        yield PlanFailure(f"gap is {claims.gap}, not {size - bound}")
    yield from _optimality(claims, least, bound)


def _reason(claims: Claims, placing: Placing, line: RunOrder, known: GraphFacts) -> Iterator[PlanFailure]:
    """Yield that the lower bound is not what `bound` says. That of smaller bodies, whose bounds no plan has, is only below the peak."""
    bound, peak, kind = claims.lower_bound, claims.peak, claims.bound
    if not kind or UNSAID in {bound, peak}:
        return
    pinned = max((_pinned_end(holder, claims) for holder in placing.holders), default=0)
    right = {"peak": peak, "pin": pinned}.get(kind)
    if kind == "parts":
        right, _ = _peak(in_parts(placing, line, known), claims.alignment)
    if right is not None and bound != right:
        yield PlanFailure(f"lower_bound is {bound}, but bound says that it is the {kind}, {right}")
    if kind in {"every order", "search"} and bound <= max(peak, pinned):
        yield PlanFailure(f"bound is {kind!r}, but lower_bound of {bound} bytes is no more than the peak")
    if kind == "every order" and claims.order != "any":
        yield PlanFailure("bound is 'every order', but the plan holds for one order")
    if kind == "bodies" and not claims.bodies:
        yield PlanFailure("bound is 'bodies', and the plan has none")
    if kind in {"parts", "bodies"} and bound >= peak:
        yield PlanFailure(f"bound is {kind!r}, but lower_bound of {bound} bytes is no less than the peak")
    if kind == "pin" and bound == peak:
        yield PlanFailure("bound is 'pin', but lower_bound is the peak")


def _pinned_end(holder: Holder, claims: Claims) -> int:
    """Return the end of `holder` if a tensor in it is pinned, else 0."""
    names = {holder.row.name, *(value.name for value in holder.members)}
    return _rounded(holder.row.end, holder.unit) if not names.isdisjoint(claims.pins) else 0


def _optimality(claims: Claims, size: int, bound: int) -> Iterator[PlanFailure]:
    """Yield contradictions between the claims of optimality and the `size` of the arenas in whole blocks."""
    optimal = claims.optimal
    if optimal and size != bound:
        yield PlanFailure(f"optimal is said of {size} bytes, with a lower bound of {bound}")
    if optimal is False and size == bound and not claims.unplanned:
        yield PlanFailure(f"optimal is denied, but the arenas take no more than the lower bound of {bound} bytes")
    if optimal and claims.unplanned:
        yield PlanFailure(f"optimal is said, and {len(claims.unplanned)} tensors are unplanned")
    if claims.search is None:
        return
    least, over = claims.search.any_order_bound, claims.search.optimal_over
    if least is not None and least > size:
        yield PlanFailure(f"any_order_bound of {least} bytes is above the {size} bytes of the arenas")
    right = None if not optimal else "any order" if least == size else "order"
    if over != right:
        yield PlanFailure(f"optimal_over is {over!r}, not {right!r}")


def _in_place(placing: Placing, used: Links) -> tuple[int, int]:
    """Return the least and the greatest number of tensors written over an operand; those without bytes are undecided."""
    found = [value for value, links in used.items() if not any(link.holds for link in links)]
    return sum(placing.rows[value].size > 0 for value in found), len(found)


def _copies(placing: Placing, used: Links, line: RunOrder, known: GraphFacts) -> CopyClaim:
    """Return the copies of tensors that nodes which only move bytes need not make, and those that they make."""
    counts = {True: [0, 0], False: [0, 0]}
    for node in line.nodes:
        for value, is_there in _moved(node, placing, used, known) if known.is_standard(node) else ():
            counts[is_there][0] += 1
            counts[is_there][1] += known.bytes(value) or 0
    return CopyClaim(*counts[True], *counts[False])


def _moved(node: ir.Node, placing: Placing, used: Links, known: GraphFacts) -> Iterator[tuple[ir.Value, bool]]:
    """Yield each tensor that `node` moves, and whether it need not: it lies where it belongs."""
    results = [value for value in node.outputs if value in placing.rows]
    if node.op_type in TAKES_PARTS:
        yield from ((value, value in used) for value in results)
        for link in held(node, known):
            is_written = link.result in placing.rows or link.result.is_graph_output()
            if not is_written and link.operand not in known.constants:
                yield link.result, True
    elif node.op_type in JOINS and results:
        there = {link.operand for link in used.get(results[0], ()) if link.rule in {"joined", "over"}}
        for value in node.inputs:
            if value is not None:
                yield value, value in there
                there.discard(value)  # one that is joined twice lies in one of its places only
    elif node.op_type in SAME_ELEMENTS and results and (source := node.inputs[0]) is not None:
        same = known.shapes.dtype(results[0]) == known.shapes.dtype(source)
        if same and known.bytes(results[0]) is not None and known.bytes(results[0]) == known.bytes(source):
            yield results[0], results[0] in used
