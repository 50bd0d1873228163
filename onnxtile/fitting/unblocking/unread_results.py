"""Optional results that nothing reads: the mask of Dropout, the indices of MaxPool. They take bytes while their kernel runs."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxtile.fitting.unblocking.editing import ModelEdit

_STANDARD = {"", "ai.onnx"}


def leave_out_unread(edit: ModelEdit) -> list[ir.Node]:
    """Leave out optional results that nothing reads; return the nodes that made them."""
    found: dict[ir.Node, None] = {}
    for node in edit.model.graph:
        for number, value in enumerate(node.outputs):
            is_read = not value.name or value.uses() or value.is_graph_output()
            if number and not is_read and _is_optional(node, number, edit.opset):
                value.name = ""
                found[node] = None
    return list(found)


def _is_optional(node: ir.Node, number: int, opset: int) -> bool:
    if node.domain not in _STANDARD or not onnx.defs.has(node.op_type):
        return False
    results = onnx.defs.get_schema(node.op_type, opset).outputs
    return number < len(results) and results[number].option == onnx.defs.OpSchema.FormalParameterOption.Optional
