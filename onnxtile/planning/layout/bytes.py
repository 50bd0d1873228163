"""How many bytes a tensor takes, and where it may begin."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.bytes import tensor_bytes

__all__ = ["granule", "tensor_bytes"]


def granule(dtype: ir.DataType) -> int:
    """Return what the address of an element of `dtype` must be a multiple of, in bytes: its own size, at least 1."""
    return max(1, dtype.bitwidth // 8)
