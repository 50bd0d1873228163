"""Training information of a model file, which onnx_ir does not read: copied from the file read to the file written."""

from __future__ import annotations

import warnings

import onnx
import onnx_ir as ir

from onnxtile.errors import ModelWarning

_KEY = "onnxtile.training_info"
"""In the notes of the main graph, which its clones keep and no file has."""


def note_training(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Note on `model`, which was made of `proto`, what that says of training."""
    if proto.training_info:
        model.graph.meta[_KEY] = tuple(info.SerializeToString(deterministic=True) for info in proto.training_info)


def add_training(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Add to `proto`, which is to be written, what is noted on `model`; warn of what binds a constant that is no longer there."""
    for data in model.graph.meta.get(_KEY, ()):
        info = onnx.TrainingInfoProto.FromString(data)
        inner = {tensor.name for tensor in (*info.algorithm.initializer, *info.initialization.initializer)}
        bound = [binding.key for binding in (*info.initialization_binding, *info.update_binding)]
        gone = [name for name in bound if name not in inner and name not in model.graph.initializers]
        if gone:
            warnings.warn(
                f"the training information is not written: it binds {gone[0]!r}, which the new model does not have",
                ModelWarning,
                stacklevel=2,
            )
        else:
            proto.training_info.append(info)
