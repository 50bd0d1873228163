"""A model of bfloat16 in float: what onnxruntime has kernels for, to say what the narrow one should compute."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_NARROW = ir.DataType.BFLOAT16
_WIDE = ir.DataType.FLOAT
_TYPED = {"Cast": "to", "ConstantOfShape": "value", "Constant": "value"}


def is_narrow(model: ir.Model) -> bool:
    """Tell whether an input of `model` is of bfloat16."""
    return any(value.dtype == _NARROW for value in model.graph.inputs)


def widened(model: ir.Model) -> ir.Model:
    """Return a copy of `model` in which every bfloat16 is a float: inputs, constants, and what is cast to it."""
    copy = model.clone()
    for value in (*copy.graph.inputs, *copy.graph.initializers.values(), *copy.graph.outputs):
        if value.dtype == _NARROW:
            value.type = ir.TensorType(_WIDE)
        if value.const_value is not None and value.const_value.dtype == _NARROW:
            value.const_value = _tensor(value.const_value)
    for node in (*copy.graph.all_nodes(), *(n for f in copy.functions.values() for n in f.all_nodes())):
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
