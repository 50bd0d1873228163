"""Optional results that nothing reads: the mask of Dropout, the indices of MaxPool. They take bytes while their kernel runs."""

from __future__ import annotations

import onnx
import onnx_ir as ir

_STANDARD = {"", "ai.onnx"}


def leave_out_unread(model: ir.Model) -> bool:
    """Leave out optional results that nothing reads (in place); return whether there are any."""
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
    found = False
    for node in model.graph:
        for number, value in enumerate(node.outputs):
            if (
                number
                and value.name
                and not value.uses()
                and not value.is_graph_output()
                and _is_optional(node, number, opset)
            ):
                value.name = ""
                found = True
    return found


def _is_optional(node: ir.Node, number: int, opset: int) -> bool:
    if node.domain not in _STANDARD or not onnx.defs.has(node.op_type):
        return False
    results = onnx.defs.get_schema(node.op_type, opset).outputs
    return number < len(results) and results[number].option == onnx.defs.OpSchema.FormalParameterOption.Optional
