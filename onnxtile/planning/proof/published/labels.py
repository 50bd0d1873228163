"""Descriptions of nodes and values in a plan: operators, operands, results and attributes, the model's inputs and outputs, types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.claims import NO_SHAPE, BodyClaim, Claims, ConstantClaim, InputClaim, Reason
from onnxtile.planning.proof.published.evidence import GraphFacts
from onnxtile.planning.proof.published.listing import ExpectedLists
from onnxtile.planning.proof.published.timeline import RunOrder


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
