"""The marks of a plan in its model: they are of these nodes in this order, and hold for no other."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile import keys
from onnxtile.model.walk import all_graphs, all_nodes, all_values, roots

_MARKS = {
    keys.ARENA,
    keys.OFFSET,
    keys.SIZE,
    keys.ALIAS_OF,
    keys.PARTS,
    keys.STEP,
    keys.WORKSPACE_AT,
    keys.PLAN,
    keys.UNIQUE_WORKSPACE_AT,
}


def clear_plan(model: ir.Model) -> None:
    """Take the marks of a plan off `model` (in place): off its graphs, nodes and values, in bodies and functions, too."""
    for holder in (*roots(model), *all_graphs(model), *all_nodes(model), *all_values(model)):
        for key in _MARKS & holder.metadata_props.keys():
            del holder.metadata_props[key]
