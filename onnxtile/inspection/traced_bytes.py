"""The bytes of traced values, known before the run: they are in memory at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.errors import OverLimit
from onnxtile.model.validity import skeleton
from onnxtile.run_limits import memory_of_runs

_MOST = 2**30
"""Bytes of all traced values of a run, unless limits say otherwise."""


def require_room(model: ir.Model, names: Iterable[str], feeds: Mapping[str, Any]) -> None:
    """Raise OverLimit where the values `names` of `model` take more bytes on the inputs `feeds` than a run may.

    Strings, and values whose shape onnx cannot infer, count nothing.
    """
    sizes, allowed = dict(_sizes(model, feeds)), memory_of_runs() or _MOST
    needed = sum(sizes.get(name, 0) for name in names)
    if needed > allowed:
        raise OverLimit(
            f"the traced values take {needed:,} bytes of memory, and {allowed:,} are allowed",
            hint="choose fewer nodes or smaller sizes (--dim, --shape), or allow more by --run-memory",
        )


def _sizes(model: ir.Model, feeds: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the name and the bytes of each value of the main graph whose shape onnx infers for these inputs."""
    proto = skeleton(model)
    for value in proto.graph.input:
        if isinstance(feeds.get(value.name), np.ndarray):
            tensor = value.type.tensor_type
            tensor.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.elem_type, feeds[value.name].shape).tensor_type)
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return  # onnxruntime says what is wrong with the model
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        has_bytes = tensor.elem_type not in {onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING}
        if tensor.HasField("shape") and has_bytes and all(dim.HasField("dim_value") for dim in dims):
            yield value.name, math.prod(dim.dim_value for dim in dims) * ir.DataType(tensor.elem_type).bitwidth // 8
