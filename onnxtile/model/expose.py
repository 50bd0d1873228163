"""A model cut down to inner values that are to be seen."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxtile.model.save import external_folder, raise_ir_version, to_bytes
from onnxtile.runtime import Session


def exposing(model: ir.Model, names: Collection[str]) -> Session:
    """Return a session of `model`, which stays as it is, whose outputs are the values `names` of its main graph alone.

    Nodes that none of them depends on are left out. Raises ModelError where onnxruntime refuses the model.
    """
    copy = model.clone()
    raise_ir_version(copy)
    made = (value for node in copy.graph for value in node.outputs)
    by_name = {value.name: value for value in (*copy.graph.inputs, *copy.graph.initializers.values(), *made)}
    copy.graph.outputs[:] = [by_name[name] for name in dict.fromkeys(names)]
    RemoveUnusedNodesPass()(copy)
    return Session(to_bytes(copy), external=external_folder(model))
