"""Products with weights of 4 bits: those of a DequantizeLinear become the operands of MatMulNBits, whose kernel unpacks them.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits: B has for each column the blocks of
its elements, two in a byte, the first in the low bits; an element is (b - zero point) · scale, where b is from 0 to 15.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import dequantises
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

_LOWEST = {ir.DataType.INT4: -8, ir.DataType.UINT4: 0}
"""The element types of 4 bits, and their smallest number."""
_ZERO = 8
"""The zero point where the operator is given none."""
_LEAST_BLOCK = 16
"""Elements of a block, at least: it is a power of 2."""


@dataclass(frozen=True)
class PackedWeights:
    """The constant operands of a MatMulNBits of `rows` × `columns` weights in blocks of `block` rows.

    There are no zero points where all of them are that of the operator.
    """

    rows: int
    columns: int
    block: int
    weights: Array
    scales: Array
    zero_points: Array | None


def packed_weights(node: ir.Node, constants: Constants) -> PackedWeights | None:
    """Return the weights of a MatMul by constants of 4 bits, packed; None for any other node, and for blocks that the operator lacks."""
    maker = node.inputs[1].producer() if node.op_type == "MatMul" and node.inputs[1] is not None else None
    if maker is None or not dequantises(maker) or not all(v is None or v in constants for v in maker.inputs):
        return None
    stored, scale, *others = maker.inputs
    if stored is None or scale is None or stored.const_value is None or stored.const_value.dtype not in _LOWEST:
        return None
    array, scales = constants.array(stored), constants.array(scale)
    if array.ndim != 2 or scales.dtype != np.float32:
        return None
    axis, block = maker.attributes.get_int("axis", 1) % 2, maker.attributes.get_int("block_size", 0)
    rows = array.shape[0]
    if not block:  # a scale for each column, or one for all: in blocks with equal scales
        block = rows & -rows
        if scales.size > 1 and axis == 0:
            return None
    elif axis:
        return None
    if block < _LEAST_BLOCK or block & (block - 1) or rows % block:
        return None
    lowest = _LOWEST[stored.const_value.dtype]
    shape = (rows // block, array.shape[1])
    zeros = constants.array(others[0]).astype(np.int16) if others and others[0] is not None else np.int16(0)
    return _packed(
        array.astype(np.int16) - lowest, np.broadcast_to(scales, shape), np.broadcast_to(zeros - lowest, shape), block
    )


def _packed(weights: Array, scales: Array, zeros: Array, block: int) -> PackedWeights:
    """Return `weights` of rows × columns, from 0 to 15, packed; `scales` and `zeros` are of blocks × columns."""
    rows, columns = weights.shape
    by_column = weights.T.reshape(columns, rows // block, block)
    pairs = np.pad(zeros.T, ((0, 0), (0, zeros.shape[0] % 2)), constant_values=_ZERO)
    packed = None if (zeros == _ZERO).all() else _two_in_a_byte(pairs)
    return PackedWeights(rows, columns, block, _two_in_a_byte(by_column), np.ascontiguousarray(scales.T), packed)


def _two_in_a_byte(numbers: Array) -> Array:
    """Return pairs of neighbours along the last axis in one byte, the first in the low bits."""
    found: Array = (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)
    return found
