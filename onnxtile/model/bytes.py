"""The size of a tensor in bytes."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxtile.model.shapes import Shapes
from onnxtile.model.size_formula import SizeFormula, product_of

_NO_FIXED_SIZE = {None, ir.DataType.UNDEFINED, ir.DataType.STRING}


def tensor_bytes(value: ir.Value, shapes: Shapes) -> int | None:
    """Return the bytes of `value`; None where its shape is unknown or its elements have no fixed size.

    Elements of less than a byte are packed, as in TensorProto: two to a byte for int4, the last byte filled up.
    """
    sizes, dtype = shapes.sizes(value), shapes.dtype(value)
    if sizes is None or dtype is None or dtype in _NO_FIXED_SIZE:
        return None
    return -(-math.prod(sizes) * dtype.bitwidth // 8)


def bytes_formula(value: ir.Value, shapes: Shapes) -> SizeFormula | None:
    """Return the bytes of `value` as a formula of the dimensions that have a range; None where it has none."""
    sizes, dtype = shapes.formulas(value), shapes.dtype(value)
    if sizes is None or dtype is None or dtype in _NO_FIXED_SIZE:
        return None
    return (product_of(sizes) * dtype.bitwidth + 7) // 8
