"""Weights that are stored in blocks of 4 or 8 bits, as DequantizeLinear and as onnxruntime's MatMulNBits have them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.island_lowering import IslandOperand, IslandSite, StoredTensor
from onnxtile.fusion.lowering import (
    FLOATS,
    ORT_DOMAIN,
    Argument,
    Literal,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    known_dtype,
)
from onnxtile.fusion.proofs.quantised import require_alone
from onnxtile.runtime import Array

_WIDTHS = {ir.DataType.INT4: 4, ir.DataType.UINT4: 4, ir.DataType.INT8: 8, ir.DataType.UINT8: 8}
_LEAST_BLOCK = 16


def product_by_blocks(island: IslandSite, x: IslandOperand, weight: StoredTensor, bias: IslandOperand) -> Replacement:
    """Return MatMulNBits of the floats `x` and a `weight` of K x N elements in blocks along K. Raises NotLowered.

    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
    """
    require_alone(island)
    if island.only_result is not None:
        raise NotLowered("its result is quantised, and its first operand is not")
    if not isinstance(x, Argument) or x.value is None or known_dtype(x) not in FLOATS:
        raise NotLowered("its first operand is no float")
    bits = _WIDTHS.get(weight.rule.dtype)
    if bits is None:
        raise NotLowered(f"MatMulNBits takes no weight of {weight.rule.dtype.name.lower()}")
    scales, zeros = _in_blocks(weight)
    if scales.dtype != known_dtype(x).numpy():
        raise NotLowered("the scales of its weight are of another type than its operand")
    middle = 1 << (bits - 1)
    offset = middle if weight.rule.dtype.is_signed() else 0
    packed = packed_weight(weight.elements().astype(np.int16) + offset, weight.rule.block, bits)
    inputs: list[Operand] = [
        x.value,
        Literal(packed, ir.DataType.UINT8, "weight"),
        Literal(np.ascontiguousarray(scales.T), ir.DataType.from_numpy(scales.dtype), "scales"),
    ]
    shifted = np.broadcast_to(zeros.astype(np.int16) + offset, scales.shape)
    rows, columns = weight.elements().shape
    if (shifted != middle).any():
        inputs.append(Literal(packed_zeros(shifted, bits), ir.DataType.UINT8, "zero_points"))
    if bias is not None:
        if not isinstance(bias, Argument) or bias.value is None or bias.dims != (columns,):
            raise NotLowered("its bias must be a vector of floats")
        inputs += [None] * (5 - len(inputs)) + [bias.value]
    given = {"K": rows, "N": columns, "bits": bits, "block_size": weight.rule.block}
    return Replacement((NewNode("MatMulNBits", tuple(inputs), given, ORT_DOMAIN),), (Made(0),))


def _in_blocks(weight: StoredTensor) -> tuple[Array, Array]:
    """Return scales and zero points of a constant matrix in blocks along its rows, blocks x N. Raises NotLowered."""
    rule = weight.rule
    if not rule.block:
        raise NotLowered("its weight alone is quantised, and not in blocks")
    if rule.block < _LEAST_BLOCK or rule.block & (rule.block - 1):
        raise NotLowered(f"MatMulNBits takes no blocks of {rule.block} elements")
    if weight.elements().ndim != 2 or rule.axis % 2 != 0 or rule.scales is None or rule.zeros is None:
        raise NotLowered("the blocks of its weight do not lie along the rows of a constant matrix")
    return rule.scales, rule.zeros


def packed_weight(weight: Array, block: int, bits: int) -> Array:
    """Return a weight of K x N unsigned elements as MatMulNBits has it: N x blocks x bytes, of two elements the first in the low bits."""
    rows, columns = weight.shape
    count = -(-rows // block)
    padded = np.zeros((columns, count * block), np.uint8)
    padded[:, :rows] = weight.T
    return _in_bytes(padded.reshape(columns, count, block), bits)


def packed_zeros(zeros: Array, bits: int) -> Array:
    """Return zero points of blocks x N unsigned elements as MatMulNBits has them: N x bytes, of two elements the first in the low bits."""
    count, columns = zeros.shape
    # Padding holds the zero point of symmetric weights, as onnxruntime's quantiser has it.
    padded = np.full((columns, count + count % 2 if bits < 8 else count), 1 << (bits - 1), np.uint8)
    padded[:, :count] = zeros.T
    return _in_bytes(padded, bits)


def unpacked_weight(packed: Array, rows: int, bits: int) -> Array:
    """Return the K x N unsigned elements of a weight as MatMulNBits has it, the inverse of `packed_weight`."""
    elements = _from_bytes(packed, bits)
    return np.ascontiguousarray(elements.reshape(len(packed), -1)[:, :rows].T)


def unpacked_zeros(packed: Array, count: int, columns: int, bits: int) -> Array:
    """Return the blocks x N unsigned zero points of a weight as MatMulNBits has it, the inverse of `packed_zeros`."""
    elements = _from_bytes(packed.reshape(columns, -1), bits)
    return np.ascontiguousarray(elements[:, :count].T)


def _in_bytes(elements: Array, bits: int) -> Array:
    if bits == 8:
        return elements
    low, high = elements[..., 0::2], elements[..., 1::2]
    return np.asarray(low | (high << 4), np.uint8)


def _from_bytes(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed
    pairs = np.stack([packed & 15, packed >> 4], -1)
    return pairs.reshape(*packed.shape[:-1], -1)
