"""The bytes of a tensor, and the alignment of its elements."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.bytes import tensor_bytes

__all__ = ["granule", "tensor_bytes"]


def granule(dtype: ir.DataType) -> int:
    """Return the alignment of an element of `dtype` in bytes: its own size, at least 1."""
    return max(1, dtype.bitwidth // 8)
