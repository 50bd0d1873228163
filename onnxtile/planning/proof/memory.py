"""Tensors as bytes: in a block of memory with red zones around it, and in arrays of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxtile.planning.layout.bytes import granule
from onnxtile.runtime import Array, Binding

ByteArray = npt.NDArray[np.uint8]

_NO_FIXED_SIZE = {ir.DataType.UNDEFINED, ir.DataType.STRING}

VECTOR = 64
"""Bytes of the widest vector register in use, and the alignment of onnxruntime's own tensors."""

_RED_ZONE = 4096
"""Bytes before and after the arena that nothing may write: a page, so that a stray vector or row still hits it."""


@dataclass(frozen=True)
class TensorMemory:
    """A tensor in memory: its bytes, the address of the first, its element type and its shape."""

    data: ByteArray
    address: int
    dtype: ir.DataType
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: Any, dtype: ir.DataType | None) -> Any:
        """Return the array `value` as a tensor in memory; a value without fixed bytes (a list, strings) unchanged."""
        if dtype is None or dtype in _NO_FIXED_SIZE or not isinstance(value, np.ndarray | np.generic):
            return value
        array = np.asarray(value)
        data = tensor_to_bytes(array, dtype)
        return cls(data, int(data.ctypes.data), dtype, array.shape)

    @classmethod
    def empty(cls, dtype: ir.DataType, shape: tuple[int, ...], size: int, like: int = 0) -> TensorMemory:
        """Return new memory for a tensor of `size` bytes, at the same distance from a multiple of 64 as the address `like`.

        Some kernels compute the elements before the first whole vector in another way, and round them differently.
        """
        memory = np.zeros(size + VECTOR, np.uint8)
        start = (like - memory.ctypes.data) % VECTOR
        data = memory[start : start + size]
        return cls(data, int(memory.ctypes.data) + start, dtype, shape)

    def at(self, like: int) -> TensorMemory:
        """Return the tensor at the same distance from a multiple of 64 as the address `like`: itself, or a copy."""
        if (self.address - like) % VECTOR == 0:
            return self
        copy = TensorMemory.empty(self.dtype, self.shape, len(self.data), like)
        copy.data[:] = self.data
        return copy

    def part(self, start: int, size: int, shape: tuple[int, ...]) -> TensorMemory:
        """Return `size` of its bytes from `start` on as a tensor of another shape."""
        return TensorMemory(self.data[start : start + size], self.address + start, self.dtype, shape)

    def filled(self, array: Any) -> TensorMemory:
        """Copy `array` into the first bytes, and return these as a tensor. Raises ValueError where `array` is larger."""
        data = tensor_to_bytes(np.asarray(array), self.dtype)
        if len(data) > len(self.data):
            raise ValueError(f"{len(data)} bytes do not fit into {len(self.data)}")
        self.data[: len(data)] = data
        return TensorMemory(self.data[: len(data)], self.address, self.dtype, np.shape(array))

    @property
    def binding(self) -> Binding:
        """The binding of the tensor for onnxruntime."""
        return Binding(self.address, self.shape, self.dtype.value)

    def equals(self, other: TensorMemory) -> bool:
        """Return whether both hold the same bits in the same shape; the unused bits of the last byte do not count."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        used = math.prod(self.shape) * self.dtype.bitwidth % 8
        if not used:
            return np.array_equal(self.data, other.data)
        last = int(self.data[-1] ^ other.data[-1]) & ((1 << used) - 1)
        return not last and np.array_equal(self.data[:-1], other.data[:-1])

    def array(self) -> Array:
        """Return a copy of the tensor."""
        return to_array(self.data, self.dtype, self.shape)


@dataclass(frozen=True)
class StateRows:
    """The bytes of a state that grows, in an arena: `rows` rows that begin `pitch` bytes apart, at every length."""

    data: ByteArray
    rows: int
    pitch: int

    def read(self, memory: TensorMemory) -> None:
        """Fill `memory`, which is contiguous, with the rows."""
        length = len(memory.data) // self.rows
        memory.data[:] = self.data.reshape(self.rows, self.pitch)[:, :length].reshape(-1)

    def write(self, memory: TensorMemory, begin: int = 0) -> None:
        """Write each row of the contiguous `memory`, from its byte `begin` on."""
        length = len(memory.data) // self.rows
        rows = self.data.reshape(self.rows, self.pitch)
        rows[:, begin:length] = memory.data.reshape(self.rows, length)[:, begin:]


def same(found: Any, expected: Any) -> bool:
    """Return whether two values, tensors in memory or ordinary ones, have the same bits."""
    if isinstance(found, TensorMemory) and isinstance(expected, TensorMemory):
        return found.equals(expected)
    if isinstance(expected, TensorMemory):
        expected = expected.array()
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, np.ndarray) and isinstance(expected, np.ndarray) and found.dtype != object:
        return (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.tobytes() == expected.tobytes()
    return bool(np.array_equal(found, expected))


class ArenaMemory:
    """`size` bytes of memory whose first lies at a multiple of `alignment`, with a red zone before and after."""

    def __init__(self, size: int, alignment: int) -> None:
        unit = max(alignment, 64)
        zone = max(_RED_ZONE, unit)
        memory = np.empty(size + 2 * zone + unit, np.uint8)
        start = -memory.ctypes.data % unit + zone
        self._before = memory[start - zone : start]
        self.bytes: ByteArray = memory[start : start + size]
        self._after = memory[start + size : start + size + zone]
        self.address = int(memory.ctypes.data) + start

    def part(self, start: int, size: int) -> ByteArray | None:
        """Return `size` of its bytes from `start` on; None where it has not so many."""
        return self.bytes[start : start + size] if 0 <= start <= len(self.bytes) - size else None

    def fill(self, pattern: int) -> None:
        """Set every byte, also of the red zones, to `pattern`."""
        for part in (self._before, self.bytes, self._after):
            part[:] = pattern

    def is_intact(self, pattern: int) -> bool:
        """Return whether the red zones still hold `pattern`."""
        return bool((self._before == pattern).all() and (self._after == pattern).all())


def tensor_to_bytes(array: Array, dtype: ir.DataType) -> ByteArray:
    """Return the elements of `array` as a tensor in memory has them, aligned to an element; a view of them where that is possible."""
    if dtype.bitwidth < 8:
        return np.frombuffer(ir.Tensor(array, dtype=dtype).tobytes(), np.uint8)
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.ctypes.data % granule(dtype):
        flat = flat.copy()
    return flat.view(np.uint8)


def to_array(data: ByteArray, dtype: ir.DataType, shape: Sequence[int]) -> Array:
    """Return the tensor whose bytes are `data`, as an array of its own."""
    if dtype.bitwidth < 8:
        proto = onnx.TensorProto(dims=shape, data_type=dtype.value, raw_data=data.tobytes())
        return ir.TensorProtoTensor(proto).numpy()
    return np.frombuffer(data.tobytes(), dtype.numpy()).reshape(shape)
