"""Checks that every value is in the plan exactly once: with an address, or as constant, outside or unplanned, with a true reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxtile.check.addresses import Placing
from onnxtile.check.document import NO_SHAPE, BodyClaim, Claims, ConstantClaim, InputClaim, Reason
from onnxtile.check.graph import GraphFacts, RunOrder, first_output, graphs_of, home, made_in
from onnxtile.check.sharing import held
from onnxtile.model.binding import binding
from onnxtile.planning.result import PlanFailure


@dataclass
class ExpectedLists:
    """The values that must be in the lists of a plan, of all graphs; `outside` with the reason.

    `tolerated` values may be in `outside`, too: those inside a function that runs as one kernel. `spare` are the constants that are outside
    unless a step of any graph reads them.
    """

    constants: dict[ir.Value, None] = field(default_factory=dict)
    outside: dict[ir.Value, str] = field(default_factory=dict)
    unplanned: dict[ir.Value, None] = field(default_factory=dict)
    tolerated: dict[ir.Value, str] = field(default_factory=dict)
    spare: dict[ir.Value, None] = field(default_factory=dict)

    def settle(self) -> None:
        """Note as outside the constants that no step of any graph reads."""
        for value in self.spare:
            if value not in self.constants:
                self.outside.setdefault(value, "a constant that no step reads")


def note(
    line: RunOrder, placing: Placing, io: str, planned: Collection[ir.Node], known: GraphFacts, found: ExpectedLists
) -> Iterator[PlanFailure]:
    """Add to `found` the values of the graph of `line` without an address, for a lawful reason; yield a failure for any other.

    `planned` are the nodes whose bodies have plans of their own.
    """
    outputs, after = set(line.graph.outputs), set(known.next_states.values())
    held = line.graph.initializers.values()
    made = (value for node in line.nodes for value in node.outputs if value.name)
    found.spare.update((v, None) for v in (*held, *made) if v in known.constants and v not in outputs)
    for value in line.graph.inputs:
        if value not in known.constants:
            is_inside = io == "inside" or value in known.next_states
            yield from _role(value, None if is_inside else "a graph input", outputs, placing, known, found)
    for node in line.nodes:
        _note_constants(node, line, outputs, known, found)
        for value in node.outputs:
            if not value.name:
                continue
            if value not in known.constants or value in outputs:
                is_handed_out = io == "outside" and value in outputs and value not in after
                yield from _role(value, "a graph output" if is_handed_out else None, outputs, placing, known, found)
            elif value in placing.rows:
                yield PlanFailure(f"{value.name!r} is constant, and has an address", (value.name,))
        if node not in planned:
            _note_inside(node, known, found)
    found.constants.update((v, None) for v in outputs if v.producer() is None and v in known.constants)


def _note_constants(
    node: ir.Node, line: RunOrder, outputs: set[ir.Value], known: GraphFacts, found: ExpectedLists
) -> None:
    """Note the constants that `node` reads, unless it is computed before the run; one that is a graph output is made in the run."""
    if all(value in known.constants and value not in outputs for value in node.outputs):
        return
    for value in line.reads[node]:
        if value in known.constants and (value.producer() is None or not _is_handed_out(value)):
            found.constants[value] = None


def _is_handed_out(value: ir.Value) -> bool:
    graph = home(value)
    return graph is not None and any(value is output for output in graph.outputs)


def _note_inside(node: ir.Node, known: GraphFacts, found: ExpectedLists) -> None:
    reason = f"made inside {node.name or first_output(node)!r}, which runs as one kernel"
    for _, body in graphs_of(node):
        found.outside.update((value, reason) for value in made_in(body))
    function = known.model.functions.get(node.op_identifier())
    if function is not None:
        found.tolerated.update((value, reason) for value in made_in(function.graph))


def _role(
    value: ir.Value,
    outside: str | None,
    outputs: set[ir.Value],
    placing: Placing,
    known: GraphFacts,
    found: ExpectedLists,
) -> Iterator[PlanFailure]:
    """Note the list that `value` must be in; yield a failure for an address it may not have, or does not have."""
    reason = outside or known.shapes.never(value) or _no_fixed_bytes(value, known)
    name = value.name or ""
    if value in placing.rows:
        if reason is not None:
            yield PlanFailure(f"{name!r} has an address, but lies outside: {reason}", (name,))
    elif reason is not None:
        found.outside[value] = reason
    elif known.bytes(value) is None:
        found.unplanned[value] = None
    elif (seen := _seen_outside(value, placing, known)) is not None and value not in outputs:
        found.outside[value] = seen
    else:
        yield PlanFailure(f"{name!r} has no address for its {known.bytes(value)} bytes", (name,))


def _no_fixed_bytes(value: ir.Value, known: GraphFacts) -> str | None:
    kind = known.container(value)
    if kind is not None:
        return f"a {kind} has no fixed bytes"
    return "strings have no fixed bytes" if known.shapes.dtype(value) == ir.DataType.STRING else None


def _seen_outside(value: ir.Value, placing: Placing, known: GraphFacts) -> str | None:
    """Return the reason why `value` needs no bytes: it shares those of an operand outside the arena of this graph."""
    maker = value.producer()
    for link in held(maker, known) if maker is not None else ():
        source = link.operand
        if link.rule == "joined" or link.result is not value or not _may_borrow(maker, source, known):
            continue
        if source not in placing.rows and source not in known.constants:
            return f"a {link.rule} of {source.name!r}, which lies outside"
    return None


def _may_borrow(node: ir.Node | None, source: ir.Value, known: GraphFacts) -> bool:
    """Return whether `node` may leave a view of `source` in place: both are of one graph, or `node` is inside a planned call."""
    return node is not None and (home(source) is node.graph or node.graph in known.open_calls)


def compare(found: ExpectedLists, claims: Claims, known: GraphFacts) -> Iterator[PlanFailure]:
    """Yield the differences between the lists of a plan and the expected ones. A missing list is not checked."""
    if claims.outside is not None:
        wanted = Counter((value.name or "", _plain(reason)) for value, reason in found.outside.items())
        listed = Counter((row.name, _plain(row.reason)) for row in claims.outside)
        tolerated = Counter((value.name or "", _plain(reason)) for value, reason in found.tolerated.items())
        for name, reason in wanted - listed:
            yield PlanFailure(f"{name!r} is not listed as outside: {reason}", (name,))
        for name, reason in listed - wanted - tolerated:
            yield PlanFailure(f"{name!r} is listed as outside, which it is not: {reason}", (name,))
    if claims.unplanned is not None:
        wanted_names = Counter(value.name or "" for value in found.unplanned)
        reasons = {(value.name or "", _why_unknown(value, known)) for value in found.unplanned}
        for row in claims.unplanned:
            if row.name in wanted_names and (row.name, row.reason) not in reasons:
                yield PlanFailure(f"{row.name!r} is not unplanned because {row.reason}", (row.name,))
        listed_names = Counter(row.name for row in claims.unplanned)
        for name in wanted_names - listed_names:
            yield PlanFailure(f"{name!r} is not listed as unplanned, and its size is not known", (name,))
        for name in listed_names - wanted_names:
            yield PlanFailure(f"{name!r} is listed as unplanned, which it is not", (name,))
    if claims.constants is not None:
        yield from _compare_constants(found, claims.constants, claims.alignment, known)


def _why_unknown(value: ir.Value, known: GraphFacts) -> str:
    """Return why the bytes of `value` are not known."""
    if known.shapes.sizes(value) is not None:
        return "its element type is not known"
    bindable = [symbol for dim in known.shapes.dims(value) or () for symbol in known.unbound.bindable(dim)]
    if bindable:
        symbols = " and ".join(map(repr, dict.fromkeys(bindable)))
        return f"its size depends on {symbols}: bind it with {binding(bindable)}"
    return known.unbound.once_bound(known.shapes.reason(value))


def _compare_constants(
    found: ExpectedLists, listed: tuple[ConstantClaim, ...], alignment: int, known: GraphFacts
) -> Iterator[PlanFailure]:
    """Yield the constants that are not listed, or listed and not read by a step, and those at a wrong place."""
    sizes = Counter((value.name or "", known.bytes(value)) for value in found.constants)
    told = Counter((row.name, row.size) for row in listed)
    for name, size in sizes - told:
        yield PlanFailure(f"the constant {name!r} is not listed with its {size} bytes", (name,))
    for name, size in told - sizes:
        yield PlanFailure(
            f"{name!r} is listed as a constant of {size} bytes that a step reads, which it is not", (name,)
        )
    units: dict[tuple[str, int | None], list[int]] = {}
    for value in found.constants:
        units.setdefault((value.name or "", known.bytes(value)), []).append(known.alignment(value))
    yield from _region(listed, alignment, units)


def _plain(reason: str) -> str:
    """Return `reason` without its article."""
    return reason.removeprefix("a ").removeprefix("an ")


def _region(
    constants: tuple[ConstantClaim, ...], alignment: int, units: Mapping[tuple[str, int | None], Sequence[int]]
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
    for key, found in offsets.items():
        wanted = sorted((max(alignment, unit) for unit in units.get(key, (1,) * len(found))), reverse=True)
        for unit, offset in zip(wanted, sorted(found, key=_power, reverse=True), strict=False):
            if offset % unit:
                yield PlanFailure(f"the constant {key[0]!r} at {offset} is not aligned to {unit}", (key[0],))


def _power(offset: int) -> float:
    """Return the largest power of two that divides `offset`."""
    return offset & -offset or math.inf


# Descriptions of nodes and values in a plan: operators, operands, results and attributes, the model's inputs and outputs, types.


def mislabelled(line: RunOrder, claim: BodyClaim, known: GraphFacts) -> Iterator[PlanFailure]:
    """Yield which operators of `claim` are not those of its nodes, and which nodes are wrongly said to make constants only."""
    operators = tuple(map(_operator, line.nodes))
    if claim.operators is not None and len(claim.operators) != len(operators):
        yield PlanFailure(f"the plan has {len(claim.operators)} operators for {len(operators)} nodes")
    elif claim.operators is not None:
        for name, step, operator, said in zip(line.names, line.steps, operators, claim.operators, strict=True):
            if said != operator:
                yield PlanFailure(f"the operator of {name!r} is {operator}, not {said}", (name,), step)
    yield from _misconnected(line, claim)
    if claim.constant_nodes is not None:
        constant = tuple(
            name
            for node, name in zip(line.nodes, line.names, strict=True)
            if all(value in known.constants and value not in line.handed_out for value in node.outputs)
        )
        if claim.constant_nodes != constant:
            wrong = sorted({*constant} ^ {*claim.constant_nodes})
            yield PlanFailure("constant_nodes are not the nodes that only make constants, in their order", tuple(wrong))


def _misconnected(line: RunOrder, claim: BodyClaim) -> Iterator[PlanFailure]:
    """Yield the nodes whose operands, results or attributes in `claim` are not those of the graph."""
    described: dict[str, list[Any]] = {
        "operands": [tuple((v.name or "") if v is not None else "" for v in node.inputs) for node in line.nodes],
        "results": [tuple(v.name or "" for v in node.outputs) for node in line.nodes],
        "attributes": [dict(_attributes(node)) for node in line.nodes],
    }
    for kind, wanted in described.items():
        told = getattr(claim, kind)
        if told is not None and len(told) != len(wanted):
            yield PlanFailure(f"the plan has {kind} for {len(told)} of {len(wanted)} nodes")
        elif told is not None:
            for name, step, is_so, said in zip(line.names, line.steps, wanted, told, strict=True):
                if said != is_so:
                    yield PlanFailure(f"the {kind} of {name!r} are not those of the graph", (name,), step)


def _attributes(node: ir.Node) -> Iterator[tuple[str, object]]:
    """Yield the attributes of `node` that are numbers, texts or lists of these."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type in {ir.AttributeType.INT, ir.AttributeType.STRING}:
            yield name, attribute.value
        elif attribute.type == ir.AttributeType.FLOAT:
            yield name, _finite(attribute.value)
        elif attribute.type in {ir.AttributeType.INTS, ir.AttributeType.STRINGS}:
            yield name, tuple(attribute.value)
        elif attribute.type == ir.AttributeType.FLOATS:
            yield name, tuple(map(_finite, attribute.value))


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _operator(node: ir.Node) -> str:
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}::{node.op_type}"


def wrong_ends(claims: Claims, known: GraphFacts) -> Iterator[PlanFailure]:
    """Yield that the inputs or outputs of a plan are not those of the graph."""
    given = [value for value in known.model.graph.inputs if value not in known.constants]
    for kind, claimed, values in (
        ("inputs", claims.inputs, given),
        ("outputs", claims.outputs, known.model.graph.outputs),
    ):
        if claimed is not None and not _are_ends(claimed, values, known):
            yield PlanFailure(f"{kind} are not those of the graph, with their element types and shapes")


def _are_ends(claimed: Sequence[InputClaim], values: Sequence[ir.Value], known: GraphFacts) -> bool:
    """Return whether `values` are as they are `claimed`."""
    names = [(one.name, one.dtype) for one in claimed]
    if names != [(value.name or "", _dtype(value, known)) for value in values]:
        return False
    shapes = [(one.shape, known.shapes.sizes(value)) for one, value in zip(claimed, values, strict=True)]
    return all(shape in (NO_SHAPE, right) for shape, right in shapes)


def wrong_types(expected: ExpectedLists, claims: Claims, known: GraphFacts) -> Iterator[PlanFailure]:
    """Yield the values without an address in an arena whose element type or shape in `claims` is not that of the graph."""
    found: dict[str, set[tuple[str | None, tuple[int, ...] | None]]] = {}
    values: list[ir.Value] = [*expected.constants, *expected.outside, *expected.unplanned, *expected.tolerated]
    for value in values:
        found.setdefault(value.name or "", set()).add((_dtype(value, known), known.shapes.sizes(value)))
    rows: list[ConstantClaim | Reason] = [*(claims.constants or ()), *(claims.outside or ()), *(claims.unplanned or ())]
    for row in rows:
        types = found.get(row.name)
        if types is None:  # the comparison of the lists names it
            continue
        if row.dtype != "" and row.dtype not in {dtype for dtype, _ in types}:
            yield PlanFailure(f"{row.name!r} has not the element type {row.dtype}", (row.name,))
        if row.shape != NO_SHAPE and row.shape not in {shape for _, shape in types}:
            yield PlanFailure(f"{row.name!r} has not the shape {row.shape}", (row.name,))


def _dtype(value: ir.Value, known: GraphFacts) -> str | None:
    dtype = known.shapes.dtype(value)
    return None if dtype is None else dtype.name
