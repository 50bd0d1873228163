"""Descriptions of nodes and inputs in a plan: the operator of each node, which make constants only, and the model's inputs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.claims import BodyClaim, Claims, InputClaim
from onnxtile.planning.proof.published.evidence import GraphFacts
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
    if claim.constant_nodes is not None:
        constant = tuple(
            name
            for node, name in zip(line.nodes, line.names, strict=True)
            if all(value in known.constants and value not in line.handed_out for value in node.outputs)
        )
        if claim.constant_nodes != constant:
            wrong = sorted({*constant} ^ {*claim.constant_nodes})
            yield PlanFailure("constant_nodes are not the nodes that only make constants, in their order", tuple(wrong))


def _operator(node: ir.Node) -> str:
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}::{node.op_type}"


def wrong_inputs(claims: Claims, known: GraphFacts) -> Iterator[PlanFailure]:
    """Yield that the inputs of a plan are not those of the graph."""
    if claims.inputs is None:
        return
    given = (value for value in known.model.graph.inputs if value not in known.constants)
    inputs = tuple(InputClaim(value.name or "", _dtype(value, known), known.shapes.sizes(value)) for value in given)
    if claims.inputs != inputs:
        yield PlanFailure("inputs are not those of the graph, with their element types and shapes")


def _dtype(value: ir.Value, known: GraphFacts) -> str | None:
    dtype = known.shapes.dtype(value)
    return None if dtype is None else dtype.name
