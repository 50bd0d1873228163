"""A model of narrow floats in float: what onnxruntime has kernels for, to say what the narrow one should compute."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from onnxtile.model.walk import all_nodes, all_values
from onnxtile.shapes.resolve import Shapes, resolve

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_NARROW = ir.DataType.BFLOAT16
_WIDE = ir.DataType.FLOAT
_TYPED = {"Cast": "to", "ConstantOfShape": "value", "Constant": "value"}


def is_narrow(model: ir.Model) -> bool:
    """Tell whether a value of `model` is of bfloat16, as far as the file says."""
    return any(value.dtype == _NARROW for value in all_values(model)) or any(
        value.const_value is not None and value.const_value.dtype == _NARROW
        for value in model.graph.initializers.values()
    )


def halves(model: ir.Model) -> set[ir.DataType]:
    """Return which floats of 16 bits `model` has, as far as the file says."""
    found = {value.dtype for value in all_values(model)}
    found |= {value.const_value.dtype for value in all_values(model) if value.const_value is not None}
    found |= {dtype for node in all_nodes(model) for dtype in _named(node)}
    return {dtype for dtype in found if dtype in HALVES}


def widened(model: ir.Model, narrow: Collection[ir.DataType] = (_NARROW,)) -> ir.Model:
    """Return a copy of `model` in which everything `narrow` is a float: inputs, constants, and what is cast to it."""
    copy = model.clone()
    for value in all_values(copy):
        if value.dtype in narrow:
            value.type = ir.TensorType(_WIDE)
        if value.const_value is not None and value.const_value.dtype in narrow:
            value.const_value = _tensor(value.const_value)
    for node in all_nodes(copy):
        if any(dtype in narrow for dtype in _named(node)):
            _widen_node(node)
    return copy


def _named(node: ir.Node) -> Iterator[ir.DataType]:
    """Yield the element type that an attribute of `node` names, where one does."""
    attribute = node.attributes.get(_TYPED.get(node.op_type, ""))
    if attribute is None or attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        yield attribute.as_tensor().dtype
    elif attribute.type == ir.AttributeType.INT:
        yield ir.DataType(attribute.as_int())


def _widen_node(node: ir.Node) -> None:
    name = _TYPED[node.op_type]
    attribute = node.attributes[name]
    if attribute.type == ir.AttributeType.TENSOR:
        node.attributes[name] = ir.AttrTensor(name, _tensor(attribute.as_tensor()))
    else:
        node.attributes[name] = ir.AttrInt64(name, _WIDE.value)


def _tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def resolved(model: ir.Model, *, proved: bool = False) -> Shapes:
    """Return the shapes of `model`, `proved` where the caller runs what it makes of them; no run helps where onnxruntime lacks kernels."""
    return resolve(model, run=not is_narrow(model), proved=proved)
