"""A model of bfloat16 in float: what onnxruntime has kernels for, to say what the narrow one should compute."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.walk import all_nodes, all_values

_NARROW = ir.DataType.BFLOAT16
_WIDE = ir.DataType.FLOAT
_TYPED = {"Cast": "to", "ConstantOfShape": "value", "Constant": "value"}


def is_narrow(model: ir.Model) -> bool:
    """Tell whether a value of `model` is of bfloat16, as far as the file says."""
    return any(value.dtype == _NARROW for value in all_values(model)) or any(
        value.const_value is not None and value.const_value.dtype == _NARROW
        for value in model.graph.initializers.values()
    )


def widened(model: ir.Model) -> ir.Model:
    """Return a copy of `model` in which every bfloat16 is a float: inputs, constants, and what is cast to it."""
    copy = model.clone()
    for value in all_values(copy):
        if value.dtype == _NARROW:
            value.type = ir.TensorType(_WIDE)
        if value.const_value is not None and value.const_value.dtype == _NARROW:
            value.const_value = _tensor(value.const_value)
    for node in all_nodes(copy):
        _widen_node(node)
    return copy


def _widen_node(node: ir.Node) -> None:
    name = _TYPED.get(node.op_type, "")
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _NARROW:
        node.attributes[name] = ir.AttrTensor(name, _tensor(attribute.as_tensor()))
    elif attribute.type == ir.AttributeType.INT and attribute.as_int() == _NARROW.value:
        node.attributes[name] = ir.AttrInt64(name, _WIDE.value)


def _tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def resolved(model: ir.Model, *, proved: bool = False) -> Shapes:
    """Return the shapes of `model`, `proved` where the caller runs what it makes of them; no run helps where onnxruntime lacks kernels."""
    return resolve(model, run=not is_narrow(model), proved=proved)
