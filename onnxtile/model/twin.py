"""Tensors like others."""

from __future__ import annotations

import onnx
import onnx_ir as ir


def twin(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """Return a tensor like `tensor`, called `name`, that will be written in the same form; where that is raw bytes, of the same memory."""
    form = tensor.raw
    if isinstance(form, onnx.TensorProto) and not form.HasField("raw_data"):
        copy = onnx.TensorProto()
        copy.CopyFrom(form)
        copy.name = name or ""
        return ir.serde.TensorProtoTensor(copy)
    return ir.LazyTensor(
        lambda: tensor,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=tensor.doc_string,
    )
