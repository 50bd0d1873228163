"""What a written model may not say as the file that was read: training information, which onnx_ir does not read, and listed constants."""

from __future__ import annotations

import warnings

import onnx
import onnx_ir as ir

from onnxtile.errors import ModelWarning

_KEY = "onnxtile.training_info"
"""In the notes of the main graph, which its clones keep and no file has."""
_LISTED = "onnxtile.listed_constants"
"""There, the names of constants that were also inputs."""


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


def unlist_constants(model: ir.Model) -> None:
    """Take the initializers of `model` out of its inputs, as IR version 3 alone asks for them, and note that on it."""
    inputs = model.graph.inputs
    listed = tuple(value.name or "" for value in inputs if value.is_initializer())
    if listed:
        inputs[:] = [value for value in inputs if not value.is_initializer()]
        model.graph.meta[_LISTED] = listed


def warn_of_unlisted(model: ir.Model) -> None:
    """Warn that inputs of the file that was read are constants alone in `model`, which is to be written."""
    inputs = {value.name for value in model.graph.inputs}
    listed = [name for name in model.graph.meta.get(_LISTED, ()) if name not in inputs]
    if listed:
        rest = f" and {len(listed) - 1} more inputs" if len(listed) > 1 else ""
        warnings.warn(
            f"{listed[0]!r}{rest} with a value in the file are constants alone in the new model: only IR version 3 lists all constants",
            ModelWarning,
            stacklevel=2,
        )
