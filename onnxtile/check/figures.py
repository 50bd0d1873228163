"""The check of what a plan says beside its addresses: where each value is listed, what nodes and values are, and all figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from onnxtile.check.addresses import Holder, Placing, SizedBuffer, in_blocks, in_parts
from onnxtile.check.graph import STRING, Graph, GraphNode, Value
from onnxtile.check.operators import JOINS, SAME_ELEMENTS, TAKES_PARTS
from onnxtile.check.ranges import DocumentAtSizes
from onnxtile.check.sharing import Link, RunOrder, held
from onnxtile.declare.plan_document import (
    NO_SHAPE,
    UNSAID,
    Arena,
    Constant,
    CopyCount,
    Excluded,
    PlanDocument,
    PlanFailure,
    PlannedGraph,
    PlannedInput,
)
from onnxtile.system.dataclass import dataclass


@dataclass
class ExpectedLists:
    """The values that must be in the lists of a plan, of all graphs; `outside` with the reason.

    `tolerated` values may be in `outside`, too: those inside a function that runs as one kernel. `spare` are the constants that are outside
    unless a step of any graph reads them.
    """

    constants: dict[Value, None] = field(default_factory=dict)
    outside: dict[Value, str] = field(default_factory=dict)
    unplanned: dict[Value, None] = field(default_factory=dict)
    tolerated: dict[Value, str] = field(default_factory=dict)
    spare: dict[Value, None] = field(default_factory=dict)

    def settle(self) -> None:
        """Note as outside the constants that no step of any graph reads."""
        for value in self.spare:
            if value not in self.constants:
                self.outside.setdefault(value, "a constant that no step reads")


def note(placing: Placing, io: str, planned: Collection[GraphNode], lists: ExpectedLists) -> Iterator[PlanFailure]:
    """Add to `lists` the values of the graph without an address, for a lawful reason; yield a failure for any other.

    `planned` are the nodes whose bodies have plans of their own.
    """
    line, states = placing.line, placing.states
    outputs, after = line.handed_out, set(states.next_states.values())
    held = line.graph.initializers
    results = (value for node in line.nodes for value in node.outputs if value.name)
    lists.spare.update((v, None) for v in (*held, *results) if v.is_constant and v not in outputs)
    for value in line.graph.inputs:
        if not value.is_constant:
            is_inside = io == "inside" or value in states.next_states
            reason = "a graph input that comes row by row" if value.is_streamed else "a graph input"
            yield from _role(value, None if is_inside and not value.is_streamed else reason, placing, lists)
    for node in line.nodes:
        if any(not value.is_constant or value in outputs for value in node.outputs):
            # A constant that is a graph output is written in the run.
            read = (value for value in line.reads[node] if value.is_constant)
            lists.constants.update((v, None) for v in read if v.maker is None or not _is_handed_out(v))
        for value in node.outputs:
            if not value.name:
                continue
            if not value.is_constant or value in outputs:
                is_handed_out = io == "outside" and value in outputs and value not in after
                yield from _role(value, "a graph output" if is_handed_out else None, placing, lists)
            elif value in placing.rows:
                yield PlanFailure(f"{value.name!r} is constant, and has an address", (value.name,))
        if node not in planned:
            _note_inside(node, lists)
    lists.constants.update((v, None) for v in outputs if v.maker is None and v.is_constant)


def _is_handed_out(value: Value) -> bool:
    graph = value.graph
    return graph is not None and any(value is output for output in graph.outputs)


def _note_inside(node: GraphNode, lists: ExpectedLists) -> None:
    reason = f"made inside {node.name or node.first_output!r}, which runs as one kernel"
    lists.outside.update((value, reason) for value in node.made_inside)
    if node.function is not None:
        lists.tolerated.update((value, reason) for value in node.function.graph.made_inside)


def _role(value: Value, outside: str | None, placing: Placing, lists: ExpectedLists) -> Iterator[PlanFailure]:
    """Note the list that `value` must be in; yield a failure for an address it may not have, or does not have."""
    name = value.name
    reason = outside or value.known.never or _no_fixed_bytes(value)
    if value in placing.rows:
        if reason is not None:
            yield PlanFailure(f"{name!r} has an address, but lies outside: {reason}", (name,))
    elif reason is not None:
        lists.outside[value] = reason
    elif value.bytes is None:
        lists.unplanned[value] = None
    elif (seen := _seen_outside(value, placing)) is not None and value not in placing.line.handed_out:
        lists.outside[value] = seen
    else:
        yield PlanFailure(f"{name!r} has no address for its {value.bytes} bytes", (name,))


def _no_fixed_bytes(value: Value) -> str | None:
    kind = value.kind
    if kind is not None:
        return f"a {kind} has no fixed bytes"
    return "strings have no fixed bytes" if value.dtype == STRING else None


def _seen_outside(value: Value, placing: Placing) -> str | None:
    """Return the reason why `value` needs no bytes: it shares those of an operand outside the arena of this graph."""
    maker, states = value.maker, placing.states
    for link in held(maker, states) if maker is not None else ():
        source = link.operand
        # A node leaves a view in place where both are of one graph, or it is inside a planned call.
        may_borrow = maker is not None and (source.graph is maker.graph or maker.graph.is_call)
        if link.rule == "joined" or link.result is not value or not may_borrow:
            continue
        if source not in placing.rows and not source.is_constant:
            return f"a {link.rule} of {source.name!r}, which lies outside"
    return None


def compare(expected: ExpectedLists, claims: PlanDocument) -> Iterator[PlanFailure]:
    """Yield the differences between the lists of a plan and the expected ones. A missing list is not checked."""
    if claims.outside is not None:
        wanted = Counter((value.name, _plain(reason)) for value, reason in expected.outside.items())
        listed = Counter((row.name, _plain(row.reason)) for row in claims.outside)
        tolerated = Counter((value.name, _plain(reason)) for value, reason in expected.tolerated.items())
        for name, reason in wanted - listed:
            yield PlanFailure(f"{name!r} is not listed as outside: {reason}", (name,))
        for name, reason in listed - wanted - tolerated:
            yield PlanFailure(f"{name!r} is listed as outside, which it is not: {reason}", (name,))
    if claims.unplanned is not None:
        wanted_names = Counter(value.name for value in expected.unplanned)
        reasons = {(value.name, value.known.unknown) for value in expected.unplanned}
        for row in claims.unplanned:
            if row.name in wanted_names and (row.name, row.reason) not in reasons:
                yield PlanFailure(f"{row.name!r} is not unplanned because {row.reason}", (row.name,))
        listed_names = Counter(row.name for row in claims.unplanned)
        for name in wanted_names - listed_names:
            yield PlanFailure(f"{name!r} is not listed as unplanned, and its size is not known", (name,))
        for name in listed_names - wanted_names:
            yield PlanFailure(f"{name!r} is listed as unplanned, which it is not", (name,))
    if claims.constants is not None:
        yield from _compare_constants(expected, claims.constants, claims.alignment)


def _compare_constants(expected: ExpectedLists, listed: tuple[Constant, ...], alignment: int) -> Iterator[PlanFailure]:
    """Yield the constants that are not listed, or listed and not read by a step, and those at a wrong place."""
    sizes = Counter((value.name, value.bytes) for value in expected.constants)
    claimed = Counter((row.name, row.size) for row in listed)
    for name, size in sizes - claimed:
        yield PlanFailure(f"the constant {name!r} is not listed with its {size} bytes", (name,))
    for name, size in claimed - sizes:
        yield PlanFailure(
            f"{name!r} is listed as a constant of {size} bytes that a step reads, which it is not", (name,)
        )
    units: dict[tuple[str, int | None], list[int]] = {}
    for value in expected.constants:
        units.setdefault((value.name, value.bytes), []).append(value.alignment)
    yield from _region(listed, alignment, units)


def _plain(reason: str) -> str:
    """Return `reason` without its article."""
    return reason.removeprefix("a ").removeprefix("an ")


def _region(
    constants: tuple[Constant, ...], alignment: int, units: Mapping[tuple[str, int | None], Sequence[int]]
) -> Iterator[PlanFailure]:
    """Yield the constants that overlap or are not aligned.

    `units` are the alignments of the elements of the constants of one name and size: graphs and functions may use a name again.
    """
    for row in constants:
        if (row.size is None) != (row.offset is None):
            yield PlanFailure(f"the constant {row.name!r} of {row.size} bytes lies at {row.offset}", (row.name,))
    placed = [(row.offset, row.size, row.name) for row in constants if row.offset is not None and row.size is not None]
    yield from _misaligned(placed, alignment, units)
    end, before = 0, ""
    for offset, size, name in sorted(placed):
        if offset < end and size:
            where = f"the constants {before!r} and {name!r} overlap" if before else f"the constant {name!r} starts"
            yield PlanFailure(f"{where} at {offset}", (name,))
        if offset + size >= end:
            end, before = offset + size, name


def _misaligned(
    placed: Iterable[tuple[int, int, str]], alignment: int, units: Mapping[tuple[str, int | None], Sequence[int]]
) -> Iterator[PlanFailure]:
    """Yield the constants that are not aligned; of several of one name and size, each may be any of them."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for offset, size, name in placed:
        offsets.setdefault((name, size), []).append(offset)
    for key, at_offsets in offsets.items():
        wanted = sorted((max(alignment, unit) for unit in units.get(key, (1,) * len(at_offsets))), reverse=True)
        for unit, offset in zip(wanted, sorted(at_offsets, key=_power, reverse=True), strict=False):
            if offset % unit:
                yield PlanFailure(f"the constant {key[0]!r} at {offset} is not aligned to {unit}", (key[0],))


def _power(offset: int) -> float:
    """Return the largest power of two that divides `offset`."""
    return offset & -offset or math.inf


# Descriptions of nodes and values in a plan: operators, operands, results and attributes, the model's inputs and outputs, types.


def mislabelled(placing: Placing, claim: PlannedGraph) -> Iterator[PlanFailure]:
    """Yield which operators of `claim` are not those of its nodes, and which nodes are wrongly said to make constants only."""
    line = placing.line
    operators = tuple(node.operator for node in line.nodes)
    if claim.operators is not None and len(claim.operators) != len(operators):
        yield PlanFailure(f"the plan has {len(claim.operators)} operators for {len(operators)} nodes")
    elif claim.operators is not None:
        for name, step, operator, claimed in zip(line.names, line.steps, operators, claim.operators, strict=True):
            if claimed != operator:
                yield PlanFailure(f"the operator of {name!r} is {operator}, not {claimed}", (name,), step)
    yield from _misconnected(line, claim)
    if claim.constant_nodes is not None:
        constant = tuple(
            name
            for node, name in zip(line.nodes, line.names, strict=True)
            if all(value.is_constant and value not in line.handed_out for value in node.outputs)
        )
        if claim.constant_nodes != constant:
            wrong = sorted({*constant} ^ {*claim.constant_nodes})
            yield PlanFailure("constant_nodes are not the nodes that only make constants, in their order", tuple(wrong))


def _misconnected(line: RunOrder, claim: PlannedGraph) -> Iterator[PlanFailure]:
    """Yield the nodes whose operands, results or attributes in `claim` are not those of the graph."""
    described: dict[str, list[Any]] = {
        "operands": [tuple((v.name) if v is not None else "" for v in node.inputs) for node in line.nodes],
        "results": [tuple(v.name for v in node.outputs) for node in line.nodes],
        "attributes": [
            {name: _plain_value(attribute) for name, attribute in node.attributes.items()} for node in line.nodes
        ],
    }
    for kind, expected in described.items():
        claimed = getattr(claim, kind)
        if claimed is not None and len(claimed) != len(expected):
            yield PlanFailure(f"the plan has {kind} for {len(claimed)} of {len(expected)} nodes")
        elif claimed is not None:
            for name, step, wanted, entry in zip(line.names, line.steps, expected, claimed, strict=True):
                if entry != wanted and (kind == "attributes" or _without_trailing(entry) != _without_trailing(wanted)):
                    yield PlanFailure(f"the {kind} of {name!r} are not those of the graph", (name,), step)


def _without_trailing(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` without empty ones at the end: a file may leave those out."""
    count = max((number for number, name in enumerate(names, 1) if name), default=0)
    return tuple(names[:count])


def _plain_value(value: Any) -> Any:
    """Return the value of an attribute, in which floats that are not finite are texts."""
    if isinstance(value, tuple):
        return tuple(map(_plain_value, value))
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def wrong_ends(claims: PlanDocument, graph: Graph) -> Iterator[PlanFailure]:
    """Yield a failure where the inputs or outputs of a plan are not those of the graph."""
    given = [value for value in graph.inputs if not value.is_constant]
    for kind, claimed, values in (
        ("inputs", claims.inputs, given),
        ("outputs", claims.outputs, graph.outputs),
    ):
        if claimed is not None and not _are_ends(claimed, values):
            yield PlanFailure(f"{kind} are not those of the graph, with their element types and shapes")


def _are_ends(claimed: Sequence[PlannedInput], values: Sequence[Value]) -> bool:
    """Return whether `values` are as they are `claimed`."""
    names = [(end.name, end.dtype) for end in claimed]
    if names != [(value.name, value.type_name) for value in values]:
        return False
    shapes = [(end.shape, value.shape) for end, value in zip(claimed, values, strict=True)]
    return all(shape in (NO_SHAPE, right) for shape, right in shapes)


def wrong_types(expected: ExpectedLists, claims: PlanDocument) -> Iterator[PlanFailure]:
    """Yield the values without an address in an arena whose element type or shape in `claims` is not that of the graph."""
    types_by_name: dict[str, set[tuple[str | None, tuple[int, ...] | None]]] = {}
    values: list[Value] = [*expected.constants, *expected.outside, *expected.unplanned, *expected.tolerated]
    for value in values:
        types_by_name.setdefault(value.name, set()).add((value.type_name, value.shape))
    rows: list[Constant | Excluded] = [*(claims.constants or ()), *(claims.outside or ()), *(claims.unplanned or ())]
    for row in rows:
        types = types_by_name.get(row.name)
        if types is None:  # the comparison of the lists names it
            continue
        if row.dtype != "" and row.dtype not in {dtype for dtype, _ in types}:
            yield PlanFailure(f"{row.name!r} does not have the element type {row.dtype}", (row.name,))
        if row.shape != NO_SHAPE and row.shape not in {shape for _, shape in types}:
            yield PlanFailure(f"{row.name!r} does not have the shape {row.shape}", (row.name,))


# The figures of a plan, computed again from its rows: sizes, peaks, bounds and counts.


Links = dict[Value, list[Link]]


def figures(claims: PlanDocument, placing: Placing, used: Links | None) -> Iterator[PlanFailure]:
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
    yield from _reason(claims, placing)
    if used is not None and claims.in_place != UNSAID:
        least, most = _in_place(placing, used)
        if not least <= claims.in_place <= most:
            yield from _unlike("in_place", claims.in_place, least)
    if used is not None and claims.copies is not None and (right := _copies(placing, used)) != claims.copies:
        yield PlanFailure(f"copies are {vars(claims.copies)}, not {vars(right)}")
    line = placing.line
    in_steps = len(set(line.steps)) == len(line.steps)
    if claims.order == "model" and in_steps and list(line.nodes) != line.graph.nodes:
        yield PlanFailure("order is 'model', but the schedule is not the order of the file")


def _unlike(name: str, claimed: int, right: int) -> Iterator[PlanFailure]:
    if claimed not in {UNSAID, right}:
        yield PlanFailure(f"{name} is {claimed}, not {right}")


def _totals(claims: PlanDocument) -> Iterator[PlanFailure]:
    """Yield a wrong sum of the arenas or of the constants."""
    if claims.totals is None:
        return
    right = {"arenas": sum(arena.size for arena in claims.arenas)}
    if claims.constants is not None:
        right["constants"] = sum(constant.size or 0 for constant in claims.constants)
    for name, total in right.items():
        yield from _unlike(f"totals.{name}", getattr(claims.totals, name), total)


def _arenas(claims: PlanDocument, placing: Placing) -> Iterator[PlanFailure]:
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
        if isinstance(claims, DocumentAtSizes):
            yield from _end_of_formula(arena, inside, placing, claims)
        yield from _unlike(f"peak of the arena {arena.name!r}", arena.peak, peak)
        # An arena may end with its last byte; peaks are in whole blocks.
        unit = min((holder.unit for holder in inside), default=claims.alignment)
        if _rounded(arena.size, unit) < peak:
            yield PlanFailure(f"the arena {arena.name!r} of {arena.size} bytes is smaller than its peak of {peak}")


def _end_of_formula(
    arena: Arena, inside: Sequence[Holder], placing: Placing, claims: DocumentAtSizes
) -> Iterator[PlanFailure]:
    """Yield a failure where the formula of an arena is not the end of its last buffer at the sizes of `claims`.

    A tensor without a formula, and a state, count with their largest size; so may any buffer with a scaled offset. A buffer that has no
    byte at these sizes, and some at others, counts with its start.
    """
    kept = {name for state in claims.states for name in (state.input, state.output)}
    ends, most = [0], [0]
    for holder in inside:
        rows = [placing.rows[value] for value in holder.members] or [holder.row]
        is_kept = not kept.isdisjoint(row.name for row in rows)
        largest_sizes = [row.most if isinstance(row, SizedBuffer) else row.size for row in rows]
        pairs = zip(rows, largest_sizes, strict=True)
        sizes = [most if is_kept or not row.size_formula else row.size for row, most in pairs]
        start = holder.row.offset
        size = max(row.offset - start + row_size for row, row_size in zip(rows, sizes, strict=True))
        largest_size = max(row.offset - start + row_size for row, row_size in zip(rows, largest_sizes, strict=True))
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


def _bound(claims: PlanDocument, unit: int) -> Iterator[PlanFailure]:
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


def _reason(claims: PlanDocument, placing: Placing) -> Iterator[PlanFailure]:
    """Yield a failure where the lower bound is not what `bound` says.

    That of parts may be of a layout that shares more bytes: it is no more than the peak of these buffers in parts. That of smaller bodies,
    whose bounds no plan has, is only below the peak.
    """
    bound, peak, kind = claims.lower_bound, claims.peak, claims.bound
    if not kind or UNSAID in {bound, peak}:
        return
    pinned = max((_pinned_end(holder, claims) for holder in placing.holders), default=0)
    right = {"peak": peak, "pin": pinned}.get(kind)
    if right is not None and bound != right:
        yield PlanFailure(f"lower_bound is {bound}, but bound says that it is the {kind}, {right}")
    if kind == "parts" and bound > (most := max(pinned, _peak(in_parts(placing), claims.alignment)[0])):
        yield PlanFailure(f"bound is 'parts', but lower_bound of {bound} bytes is more than their peak, {most}")
    if kind in {"every order", "search"} and bound <= max(peak, pinned):
        yield PlanFailure(f"bound is {kind!r}, but lower_bound of {bound} bytes is no more than the peak")
    if kind == "every order" and claims.order != "any":
        yield PlanFailure("bound is 'every order', but the plan holds for one order")
    if kind == "bodies" and not claims.bodies:
        yield PlanFailure("bound is 'bodies', and the plan has none")
    if (kind == "parts" and bound >= peak) or (kind == "bodies" and bound >= max(peak, pinned)):
        yield PlanFailure(f"bound is {kind!r}, but lower_bound of {bound} bytes is no less than the peak")
    if kind == "pin" and bound == peak:
        yield PlanFailure("bound is 'pin', but lower_bound is the peak")


def _pinned_end(holder: Holder, claims: PlanDocument) -> int:
    """Return the end of `holder` if a tensor in it is pinned, else 0."""
    names = {holder.row.name, *(value.name for value in holder.members)}
    return _rounded(holder.row.end, holder.unit) if not names.isdisjoint(claims.pins) else 0


def _optimality(claims: PlanDocument, size: int, bound: int) -> Iterator[PlanFailure]:
    """Yield contradictions between the claims of optimality and the `size` of the arenas in whole blocks."""
    optimal = claims.optimal
    if optimal and size != bound:
        yield PlanFailure(f"the plan says optimal, but takes {size} bytes, and the lower bound is {bound}")
    if optimal is False and size == bound and not claims.unplanned:
        yield PlanFailure(f"the plan says not optimal, but takes no more than the lower bound of {bound} bytes")
    if optimal and claims.unplanned:
        yield PlanFailure(f"the plan says optimal, but {len(claims.unplanned)} tensors are unplanned")
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
    overwriting = [value for value, links in used.items() if not any(link.holds for link in links)]
    return sum(placing.rows[value].size > 0 for value in overwriting), len(overwriting)


def _copies(placing: Placing, used: Links) -> CopyCount:
    """Return the copies of tensors that nodes which only move bytes need not make, and those that they make."""
    counts = {True: [0, 0], False: [0, 0]}
    for node in placing.line.nodes:
        for value, is_there in _moved(node, placing, used) if node.is_standard else ():
            counts[is_there][0] += 1
            counts[is_there][1] += value.bytes or 0
    return CopyCount(*counts[True], *counts[False])


def _moved(node: GraphNode, placing: Placing, used: Links) -> Iterator[tuple[Value, bool]]:
    """Yield each tensor that `node` moves, and whether it need not: it lies where it belongs."""
    states, results = placing.states, [value for value in node.outputs if value in placing.rows]
    if node.op_type in TAKES_PARTS:
        yield from ((value, value in used) for value in results)
        for link in held(node, states):
            is_written = link.result in placing.rows or link.result.is_output
            if not is_written and not link.operand.is_constant:
                yield link.result, True
    elif node.op_type in JOINS and results:
        there = {link.operand for link in used.get(results[0], ()) if link.rule in {"joined", "over"}}
        for value in node.inputs:
            if value is not None:
                yield value, value in there
                there.discard(value)  # one that is joined twice lies in one of its places only
    elif node.op_type in SAME_ELEMENTS and results and (source := node.inputs[0]) is not None:
        same = results[0].dtype == source.dtype
        if same and results[0].bytes is not None and results[0].bytes == source.bytes:
            yield results[0], results[0] in used
