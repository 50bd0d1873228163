"""Copies of tensors under another name, written in the same form as the original."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

_STATED_INLINE = "onnxtile.stated_inline"


def copied_tensor(
    tensor: ir.TensorProtocol, name: str | None, doc: str | None = None, metadata: Mapping[str, str] | None = None
) -> ir.TensorProtocol:
    """Return a tensor like `tensor`, called `name`, that will be written in the same form; where that is raw bytes, of the same memory.

    Its doc string and metadata are those of `tensor` where `doc` and `metadata` are None.
    """
    doc = tensor.doc_string if doc is None else doc
    props = dict(tensor.metadata_props if metadata is None else metadata)
    if isinstance(tensor, ir.StringTensor):
        shape = ir.Shape(tensor.shape.numpy())
        return ir.StringTensor(tensor.raw, shape=shape, name=name, doc_string=doc or None, metadata_props=props)
    form = tensor.raw
    if isinstance(form, onnx.TensorProto) and not form.HasField("raw_data"):
        copy = onnx.TensorProto()
        copy.CopyFrom(form)
        copy.name = name or ""
        copy.doc_string = doc or ""
        if not doc:
            copy.ClearField("doc_string")
        made = ir.serde.TensorProtoTensor(copy)
        made.metadata_props.clear()
        made.metadata_props.update(props)
        return without_second_props(made)
    return ir.LazyTensor(
        lambda: tensor,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=doc or None,
        metadata_props=props,
    )


def without_second_props(tensor: ir.serde.TensorProtoTensor) -> ir.serde.TensorProtoTensor:
    """Return `tensor`, whose message has its metadata no more: onnx_ir would write them from there, and once more from the tensor."""
    tensor.raw.ClearField("metadata_props")
    return tensor


def is_stated_inline(tensor: ir.TensorProtocol) -> bool:
    """Return whether the file of `tensor` says that its bytes are in the model, as it says where they were elsewhere once."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return bool(tensor.raw.HasField("data_location"))
    return isinstance(tensor, ir.LazyTensor) and bool(tensor.meta.get(_STATED_INLINE))


def note_inline(copy: ir.LazyTensor, tensor: ir.TensorProtocol) -> None:
    """Let `is_stated_inline` say of `copy` what it says of `tensor`."""
    copy.meta[_STATED_INLINE] = is_stated_inline(tensor)
