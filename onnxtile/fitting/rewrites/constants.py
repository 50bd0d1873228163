"""Sizes that are known are constants: exporters compute bounds of slices, and sizes of reshapes, from the shapes of tensors."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.fitting.rewrites.editing import ModelEdit


def write_known_sizes(edit: ModelEdit) -> list[ir.Node]:
    """Let readers of each Shape and Size read constants; return these nodes, which are gone. The constants are equal to their results."""
    found = []
    for node in list(edit.model.graph):
        made = node.outputs[0]
        if node.op_type not in {"Shape", "Size"} or node.domain not in {"", "ai.onnx"} or made.is_graph_output():
            continue
        sizes = None if node.inputs[0] is None else edit.sizes(node.inputs[0])
        if sizes is None or made in edit.constants:
            continue
        part = slice(node.attributes.get_int("start", 0), node.attributes.get_int("end", len(sizes)))
        array = np.asarray(np.prod(sizes, dtype=np.int64) if node.op_type == "Size" else sizes[part], np.int64)
        made.replace_all_uses_with(edit.constant(f"{made.name}/known", array))
        edit.model.graph.remove(node, safe=True)
        found.append(node)
    return found


# Optional results that nothing reads: the mask of Dropout, the indices of MaxPool. They take bytes while their kernel runs.

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
