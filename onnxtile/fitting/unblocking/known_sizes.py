"""Sizes that are known are constants: exporters compute bounds of slices, and sizes of reshapes, from the shapes of tensors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.unblocking.editing import ModelEdit


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
