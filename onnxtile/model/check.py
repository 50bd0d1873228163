"""The onnx checker, run on the graph without its weights."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxtile.errors import ModelError

INLINE_BYTES = 1024
"""Constants above this size are left out of what the checker and shape inference see; shape operands are always below it."""


def check(model: ir.Model) -> None:
    """Raise ModelError with the checker's reason unless `model` keeps to the ONNX specification.

    An operator that no schema and no function of the model defines is an error in the standard domains; other domains are
    for the runtime to know.
    """
    try:
        onnx.checker.check_model(skeleton(model.clone()))
    except onnx.checker.ValidationError as error:
        reason = str(error).split("==> Context")[0]
        raise ModelError(f"the model is not valid ONNX: {' '.join(reason.split())}") from None


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return `model`, which is used up, as a ModelProto in which large initializers are typed inputs without their bytes."""
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes <= INLINE_BYTES:
            continue
        value.shape = ir.Shape(tensor.shape)
        value.dtype = tensor.dtype
        del graph.initializers[name]
        if not value.is_graph_input():
            graph.inputs.append(value)
        value.const_value = None
    return ir.to_proto(model)
