"""The certificate of a plan: a file from which a checker without onnxtile proves that no plan takes fewer bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onnxtile.model.validity import skeleton
from onnxtile.planning.check_certificate import ByteGraph, around, graph_of
from onnxtile.planning.result import PlanResult

_MOST_SETS = 4_000
"""Sets of nodes, at most, that a checker has to try: some seconds."""
_MOST_NODES = 20_000
"""Nodes of a graph, at most: the checker takes a bit for each node in each set."""
_MOST_PEAKS = 8
"""Steps with the most live bytes, at most, at which the bytes of every order are counted."""


def certificate(model: ir.Model, plan: PlanResult) -> dict[str, Any]:
    """Return the certificate of `plan`, the plan of `model`, ready for JSON; its `proof` is None, with the `reason`, where none is found.

    `planning.check_certificate` accepts it. The proof is found with the checker's own account of the bytes, which shares nothing with the
    planner's: it counts fewer bytes, never more.
    """
    said: dict[str, Any] = {
        "version": 1,
        "digest": plan.digest,
        "claim": plan.optimal_over,
        "arena": plan.arena_size,
        "alignment": plan.alignment,
        "io": plan.io,
        "overwrite_inputs": plan.overwrite_inputs,
        "dims": dict(plan.dims),
        "types": _types(plan),
        "order": [next(filter(None, names)) for names in plan.results],
    }
    proof, reason = None, _not_covered(plan)
    if reason is None:
        problem = graph_of(_proto(model), said)
        # A bound above the arena would be a fault of the checker's account, never a proof.
        proof = next((one for one in _proofs(problem, said) if one["bound"] <= plan.arena_size), None)
        reason = (
            None
            if proof
            else "the checker's account of the bytes proves less: parts, bodies and workspaces are not counted"
        )
    return {**said, "proof": proof, "reason": reason}


def _not_covered(plan: PlanResult) -> str | None:
    """Return the reason why no proof of `plan` is looked for."""
    if plan.optimal_over is None:
        return "the plan is not proved the smallest"
    if plan.ranges:
        return "the plan holds for ranges of sizes"
    if len(plan.arenas) != 1:
        return "the plan has several arenas"
    if plan.kept_states:
        return "the plan keeps states, whose inputs and outputs share bytes"
    if len(plan.schedule) > _MOST_NODES:
        return f"the graph has more than {_MOST_NODES:,} nodes"
    return None


def _types(plan: PlanResult) -> dict[str, list[int]]:
    """Return the element type, as onnx numbers it, and the sizes of each value that the plan knows."""
    kinds = {row.name: (row.dtype, row.shape) for row in plan.buffers}
    kinds |= {row.name: (row.dtype, row.shape) for row in plan.outside}
    kinds |= {row.name: (row.dtype, row.shape) for row in (*plan.inputs, *plan.outputs)}
    return {n: [ir.DataType[d].value, *shape] for n, (d, shape) in kinds.items() if d is not None and shape is not None}


def _proto(model: ir.Model) -> onnx.ModelProto:
    """Return `model` without the bytes of its large constants, which are initializers kept elsewhere, as in a file read without them."""
    proto = skeleton(model)
    given = {value.name for value in model.graph.inputs}
    for value in [value for value in proto.graph.input if value.name not in given]:
        kind = value.type.tensor_type
        dims = [dim.dim_value for dim in kind.shape.dim]
        proto.graph.initializer.append(
            onnx.TensorProto(
                name=value.name, dims=dims, data_type=kind.elem_type, data_location=onnx.TensorProto.EXTERNAL
            )
        )
        proto.graph.input.remove(value)
    return proto


def _proofs(problem: ByteGraph, said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the proofs of the claim, the simplest first."""
    place = {name: number for number, node in enumerate(problem.nodes) for name in node.output if name}
    # Large Constant nodes are initializers here.
    order = [place[name] for name in said["order"] if name in place]
    limit = said["arena"] - said["alignment"]
    needed, before = {}, 0
    for node in order:
        needed[node] = problem.live(node, *around(node, before, len(order)))
        before |= 1 << node
    peak = max(bound for _, bound in needed.values())
    if peak <= limit:
        return
    peaks = [node for node in order if needed[node][1] == peak]
    for node in peaks[:_MOST_PEAKS]:
        live, bound = problem.live(node, problem.span(node), problem.span(node, backward=True))
        if bound > limit:
            yield {"kind": "node", "node": _name(problem, node), "bound": bound, "live": live}
    if said["claim"] == "order":
        yield {"kind": "step", "node": _name(problem, peaks[0]), "bound": peak, "live": needed[peaks[0]][0]}
        return
    for backward in (False, True):
        bound = problem.blocked(limit, _MOST_SETS, backward=backward) or 0
        if bound:
            yield {"kind": "search", "backward": backward, "sets": _MOST_SETS, "bound": bound}


def _name(problem: ByteGraph, node: int) -> str:
    return next(name for name in problem.nodes[node].output if name)
