"""Number of runs of the bodies of a node, where the graph determines it."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes


def repetitions(node: ir.Node, shapes: Shapes, constants: Constants) -> dict[str, int] | None:
    """Return how often each body of `node` runs, by its attribute; None where only a run can tell.

    A Scan runs once for each slice of what it scans, a Loop as often as its trip count says where that is constant and nothing ends it
    before, an If whose condition is constant one of its branches.
    """
    if node.domain not in {"", "ai.onnx"}:
        return None
    match node.op_type:
        case "Scan":
            count = _slices(node, shapes)
        case "Loop":
            count = _trips(node, constants)
        case "If":
            taken = _constant(node.inputs[0], constants)
            return None if taken is None else {"then_branch": int(taken != 0), "else_branch": int(taken == 0)}
        case _:
            count = None
    return None if count is None else {"body": count}


def _slices(node: ir.Node, shapes: Shapes) -> int | None:
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    # Scan-8 has a batch axis, and lengths that are data.
    if not scanned or "directions" in node.attributes:
        return None
    value = node.inputs[-scanned]
    sizes = None if value is None else shapes.sizes(value)
    axis = (node.attributes.get_ints("scan_input_axes", None) or [0])[0]
    return sizes[axis] if sizes and -len(sizes) <= axis < len(sizes) else None


def _trips(node: ir.Node, constants: Constants) -> int | None:
    trips, first = (*node.inputs, None, None)[:2]
    body = node.attributes["body"].as_graph()
    if trips is None or (first is not None and _constant(first, constants) != 1):
        return None
    going_on: ir.Value | None = body.outputs[0]
    while going_on is not None and (producer := going_on.producer()) is not None and producer.op_type == "Identity":
        going_on = producer.inputs[0]
    if going_on is not body.inputs[1] and _constant(going_on, constants) != 1:
        return None
    count = _constant(trips, constants)
    return None if count is None else max(count, 0)


def _constant(value: ir.Value | None, constants: Constants) -> int | None:
    """Return the number that a constant of one element holds."""
    if value is None or value not in constants:
        return None
    array = constants.array(value)
    return int(array.ravel()[0]) if array.size == 1 else None
