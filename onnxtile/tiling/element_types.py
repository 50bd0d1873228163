"""Element types of factors and sums, and the numbers that they hold."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxtile.runtime import Array

FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
"""Floats of 16 bits, whose partial sums may leave their range."""
INTEGERS = {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
"""With `FLOATS`, the element types that MatMul takes (https://onnx.ai/onnx/operators/onnx__MatMul.html)."""
BYTES = {ir.DataType.INT8, ir.DataType.UINT8}
"""The element types of quantized factors."""


def normal_range(dtype: ir.DataType) -> tuple[float, float]:
    """Return the least and the largest positive number that `dtype`, a float, holds to its full precision."""
    info = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    return float(info.smallest_normal), float(info.max)


def epsilon(dtype: ir.DataType) -> float:
    """Return the distance from 1 to the next larger number of `dtype`, a float."""
    return float(ml_dtypes.finfo(dtype.numpy()).eps)  # type: ignore[no-untyped-call]


def as_scalar(factor: float, dtype: ir.DataType) -> Array:
    """Return `factor` in `dtype`, without dimensions."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.asarray(factor, np.float32).astype(dtype.numpy()))
