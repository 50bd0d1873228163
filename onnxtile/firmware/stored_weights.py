"""Weights of few bits that kernels in C unpack: the constant of a DequantizeLinear, as it is stored, with its scales and zero points.

https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html: an element is (stored - zero point) · scale. There is one scale, one for each
index of an axis, or one for each block along it. Two numbers of 4 bits are in a byte, the first in the low bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxtile.firmware.program import SCALES, ZEROS, StoredForm
from onnxtile.firmware.templates import UNPACKING
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import dequantises
from onnxtile.operators.node_view import STANDARD
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

_FOUR_BITS = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
_STORED = _FOUR_BITS | {ir.DataType.INT8, ir.DataType.UINT8}
_FLOATS = (np.float32, np.float16)
"""The element types of scales."""
_LEAST = 64
"""Elements of weights that are worth a kernel of their own."""


@dataclass(frozen=True)
class StoredWeights:
    """The weights of a node: how they are stored, and the constants that its kernel reads, by their names in it.

    There are no zero points where all are 0.
    """

    form: StoredForm
    arrays: Mapping[str, Array]


def stored_weights(node: ir.Node, constants: Constants) -> StoredWeights | None:
    """Return the weights that the kernel of `node` unpacks; None for any other node."""
    unpacking = UNPACKING.get(node.op_type) if node.domain in STANDARD else None
    value = node.inputs[unpacking.index] if unpacking is not None and unpacking.index < len(node.inputs) else None
    if unpacking is None or value is None:
        return None
    maker, order = value.producer(), None
    if maker is not None and maker.op_type == "Transpose" and maker.inputs[0] is not None:
        order = maker.attributes.get_ints("perm")
        maker = maker.inputs[0].producer()
        if order is None:
            return None
    if (
        maker is None
        or not dequantises(maker)
        or not all(operand is None or operand in constants for operand in maker.inputs)
    ):
        return None
    stored, scale, zero = (*maker.inputs, None)[:3]
    if stored is None or scale is None:
        return None
    numbers, scales = constants.array(stored), constants.array(scale)
    dtype, is_read = ir.DataType.from_numpy(numbers.dtype), numbers.ndim in unpacking.axes
    if dtype not in _STORED or scales.dtype not in _FLOATS or not is_read or numbers.size < _LEAST:
        return None
    operands = [operand for operand in dict.fromkeys(node.inputs) if operand is not None]
    form = StoredForm(
        f"i{operands.index(value)}",
        numbers.shape,
        tuple(order or range(numbers.ndim)),
        maker.attributes.get_int("axis", 1) % numbers.ndim if scales.size > 1 else None,
        maker.attributes.get_int("block_size", 0) or 1,
        4 if dtype in _FOUR_BITS else 8,
        dtype in {ir.DataType.INT4, ir.DataType.INT8},
    )
    arrays = {form.operand: _packed(numbers, form.bits), SCALES: np.ascontiguousarray(scales)}
    if zero is not None and constants.array(zero).astype(np.int16).any():
        arrays[ZEROS] = _packed(constants.array(zero), form.bits)
    return StoredWeights(form, arrays)


def _packed(numbers: Array, bits: int) -> Array:
    """Return whole numbers as they are, those of 4 bits as pairs of neighbours in a byte."""
    if bits == 8:
        return np.ascontiguousarray(numbers)
    nibbles = numbers.astype(np.int16).ravel() & 15
    nibbles = np.pad(nibbles, (0, nibbles.size % 2))
    return (nibbles[::2] | nibbles[1::2] << 4).astype(np.uint8)
