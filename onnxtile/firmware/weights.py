"""The constants of a program in flash: each once, those that are a slice of another as an offset into it.

Words of one size are one array, so that a compiler places and aligns them, whatever the order of bytes of the target is. In a file the
arrays follow each other, those of the largest words first, so that each is aligned where the file is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxtile.firmware.program import SCALES, ZEROS, StoredForm
from onnxtile.firmware.templates import UNPACKING
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import dequantises
from onnxtile.operators.node_view import STANDARD
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

_LEAST_SLICES = 16
"""Bytes of a constant that is looked for in others."""


@dataclass(frozen=True)
class FlashWeights:
    """The bytes of constants by the size of their elements, and for each constant, by number, that size and its offset in these."""

    blocks: dict[int, bytes]
    addresses: Mapping[int, tuple[int, int]]

    @property
    def size(self) -> int:
        """The bytes of all blocks."""
        return sum(map(len, self.blocks.values()))

    @property
    def file(self) -> bytes:
        """All blocks one after the other, those of the largest elements first."""
        return b"".join(block for _, block in sorted(self.blocks.items(), reverse=True))

    def start(self, size: int) -> int:
        """Return the offset in `file` of the block of elements of `size` bytes."""
        return sum(len(block) for other, block in self.blocks.items() if other > size)


def placed(arrays: Mapping[int, Array]) -> FlashWeights:
    """Return the bytes of `arrays`, and where each is: the largest first, those that are in these already where they are."""
    blocks: dict[int, bytearray] = {}
    addresses: dict[int, tuple[int, int]] = {}
    by_size: dict[int, list[int]] = {}
    for number, array in arrays.items():
        by_size.setdefault(array.dtype.itemsize, []).append(number)
    for size, numbers in sorted(by_size.items()):
        block = blocks[size] = bytearray()
        order = sorted(numbers, key=lambda number: (-arrays[number].nbytes, number))
        for level in _levels(order, arrays):
            offsets = _inside(block, [arrays[number].tobytes() for number in level], size)
            for number, offset in zip(level, offsets, strict=True):
                addresses[number] = size, len(block) if offset is None else offset
                if offset is None:
                    block += arrays[number].tobytes()
    return FlashWeights({size: bytes(block) for size, block in blocks.items()}, addresses)


def _levels(order: Sequence[int], arrays: Mapping[int, Array]) -> Iterator[list[int]]:
    """Yield constants of one length together: none of them is a slice of another."""
    level: list[int] = []
    for number in order:
        if level and arrays[number].nbytes != arrays[level[0]].nbytes:
            yield level
            level = []
        level.append(number)
    if level:
        yield level


def _inside(block: bytearray, wanted: Sequence[bytes], size: int) -> list[int | None]:
    """Return where each of `wanted`, which have one length, is in `block`, at a multiple of `size`; None where it is not."""
    if not block or len(wanted[0]) < _LEAST_SLICES:
        return [_found(block, data, size) if len(block) < 1 << 16 else None for data in wanted]
    heads = np.asarray([np.frombuffer(data[:8], np.uint64)[0] for data in wanted])
    words = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block, np.uint8), 8)[::size]
    values = np.ascontiguousarray(words).view(np.uint64).ravel()
    hits = np.flatnonzero(np.isin(values, heads))
    by_head: dict[int, list[int]] = {}
    for hit in hits:
        by_head.setdefault(int(values[hit]), []).append(int(hit) * size)
    return [
        next((at for at in by_head.get(int(head), ()) if block.startswith(data, at)), None)
        for head, data in zip(heads, wanted, strict=True)
    ]


def _found(block: bytearray, data: bytes, size: int) -> int | None:
    at = block.find(data) if data else -1
    while at >= 0 and at % size:
        at = block.find(data, at + 1)
    return at if at >= 0 else None


# Weights of few bits that kernels in C unpack: the constant of a DequantizeLinear, as it is stored, with its scales and zero points.
#
# https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html: an element is (stored - zero point) · scale. There is one scale, one for each
# index of an axis, or one for each block along it. Two numbers of 4 bits are in a byte, the first in the low bits.


_FOUR_BITS = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
_STORED = _FOUR_BITS | {ir.DataType.INT8, ir.DataType.UINT8}
_FLOATS = (np.float32, np.float16)
"""The element types of scales."""
_LEAST_NUMBERS = 64
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
    if dtype not in _STORED or scales.dtype not in _FLOATS or not is_read or numbers.size < _LEAST_NUMBERS:
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
