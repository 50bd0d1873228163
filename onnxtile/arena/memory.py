"""Tensors as bytes: in a block of memory with red zones around it, and in arrays of their own."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxtile.declare.plan_document import PlannedBody, PlannedBuffer
from onnxtile.kernels.kernel_graph import KernelGraph
from onnxtile.shapes.resolve import granule
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed
from onnxtile.system.runtime import Array, Binding

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
    def from_array(cls, value: Any, dtype: ir.DataType | None) -> Any:
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
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory.data))  # NumPy's own way takes four times as long
        start = (like - address) % VECTOR
        return cls(memory[start : start + size], address + start, dtype, shape)

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

    @cached_property
    def binding(self) -> Binding:
        """The binding of the tensor for onnxruntime."""
        return Binding(self.address, self.shape, self.dtype.value)

    def equals(self, other: TensorMemory) -> bool:
        """Return whether both hold the same bits in the same shape; the unused bits of the last byte do not count."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        used = math.prod(self.shape) * self.dtype.bitwidth % 8
        if not used:
            return equal_bytes(self.data, other.data)
        last = int(self.data[-1] ^ other.data[-1]) & ((1 << used) - 1)
        return not last and equal_bytes(self.data[:-1], other.data[:-1])

    def array(self) -> Array:
        """Return a copy of the tensor."""
        return to_array(self.data, self.dtype, self.shape)


_FEW_BYTES = 1 << 16
"""Bytes of a tensor, at most, that are copied to be compared: for so few, NumPy takes longer to begin than to compare."""


def equal_bytes(first: ByteArray, second: ByteArray) -> bool:
    """Return whether both have the same bytes."""
    if len(first) != len(second):
        return False
    whole = 0 if len(first) <= _FEW_BYTES else len(first) // 8 * 8
    are_equal = not whole or np.array_equal(first[:whole].view(np.uint64), second[:whole].view(np.uint64))
    return are_equal and first[whole:].tobytes() == second[whole:].tobytes()


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


def same(value: Any, expected: Any) -> bool:
    """Return whether two values, tensors in memory or ordinary ones, have the same bits."""
    if isinstance(value, TensorMemory) and isinstance(expected, TensorMemory):
        return value.equals(expected)
    if isinstance(expected, TensorMemory):
        expected = expected.array()
    if isinstance(value, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, np.ndarray) and isinstance(expected, np.ndarray) and value.dtype != object:
        return (value.dtype, value.shape) == (expected.dtype, expected.shape) and value.tobytes() == expected.tobytes()
    return bool(np.array_equal(value, expected))


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


# The memory of the tensors and workspaces of one graph in a run, at the addresses in the rows of a plan.

_CANARY = 0xC3
"""The byte that fills a workspace while its node runs."""
_UNIQUE = "(unique workspace)"
"""The end of the name of a workspace that is kept for the whole run: no node at all writes in it."""


def planned_sites(
    graph: KernelGraph, buffers: Iterable[PlannedBuffer], blocks: Mapping[str, ArenaMemory]
) -> dict[ir.Value, TensorMemory]:
    """Return the memory of the values of `graph`, at the addresses in `buffers`.

    Raises CheckFailed for a buffer outside its arena, with another size than the tensor, or of a value that is not in the graph.
    """
    results = (number for kernel in graph.kernels for number in kernel.makes)
    by_name = {graph.tensors[number].name: graph.tensors[number] for number in (*graph.inputs, *results)}
    sites: dict[ir.Value, TensorMemory] = {}
    for buffer in buffers:
        if buffer.kind == "workspace":
            continue
        tensor = by_name.get(buffer.name)
        if tensor is None:
            raise CheckFailed(f"the plan has a place for {buffer.name!r}, which is not a tensor of its graph")
        if tensor.dtype is None or tensor.dims is None or tensor.bytes != buffer.size:
            raise CheckFailed(f"the plan gives {buffer.name!r} {buffer.size} bytes, but the tensor has another size")
        dtype = ir.DataType[tensor.dtype]
        if not buffer.size:
            sites[tensor.value] = TensorMemory.empty(dtype, tensor.dims, 0)
            continue
        data = _bytes(buffer, blocks)
        sites[tensor.value] = TensorMemory(data, blocks[buffer.arena].address + buffer.offset, dtype, tensor.dims)
    return sites


def _bytes(buffer: PlannedBuffer, blocks: Mapping[str, ArenaMemory]) -> ByteArray:
    block = blocks.get(buffer.arena)
    data = None if block is None else block.part(buffer.offset, buffer.size)
    if data is None:
        raise CheckFailed(f"the plan places {buffer.name!r} outside of the arena")
    return data


@dataclass(frozen=True)
class Workspace:
    """The workspace of a node while it runs; its bodies write in the ranges `used_by_bodies`."""

    name: str
    data: ByteArray
    used_by_bodies: tuple[tuple[int, int], ...] = ()

    def fill(self) -> None:
        """Fill the workspace with canaries."""
        self.data[:] = _CANARY

    @property
    def is_intact(self) -> bool:
        """Whether all canaries outside the ranges of bodies are intact."""
        intact = self.data == _CANARY
        for start, end in self.used_by_bodies:
            intact[start:end] = True
        return bool(np.all(intact))


def workspaces(
    schedule: Sequence[str],
    steps: Sequence[int],
    buffers: Iterable[PlannedBuffer],
    bodies: Mapping[str, Sequence[PlannedBody]],
    blocks: Mapping[str, ArenaMemory],
) -> dict[int, list[Workspace]]:
    """Return the workspaces in use at each place of `schedule`, whose nodes run in `steps`; a shared one in all steps of its live range.

    Raises CheckFailed for a workspace outside its arena, or a tensor of `bodies` outside the workspace of its node.
    """
    rows = [buffer for buffer in buffers if buffer.kind == "workspace"]
    row_of = {row.node: row for row in rows if row.node is not None and not row.name.endswith(_UNIQUE)}
    for node, inside in bodies.items():
        _require_inside_workspace(node, row_of.get(node), inside)
    in_use: dict[int, list[Workspace]] = {}
    for row in rows:
        used_by_bodies = (
            tuple(_ranges(row, bodies.get(row.node or "", ()))) if row_of.get(row.node or "") is row else ()
        )
        workspace = Workspace(row.name, _bytes(row, blocks), used_by_bodies)
        for position, step in enumerate(steps):
            is_held = row.node is None or row.name.endswith(_UNIQUE)
            if schedule[position] == row.node or (is_held and row.first <= step <= row.last):
                in_use.setdefault(position, []).append(workspace)
    return in_use


def _require_inside_workspace(node: str, workspace: PlannedBuffer | None, bodies: Iterable[PlannedBody]) -> None:
    for body in bodies:
        for row in _tensors(body):
            # At one size of a range, the size of a body is not said.
            size = 0 if workspace is None else min(workspace.size, body.size) if body.size >= 0 else workspace.size
            end = 0 if workspace is None else workspace.offset + size
            if (
                workspace is None
                or row.arena != workspace.arena
                or not workspace.offset <= row.offset <= end - row.size
            ):
                raise CheckFailed(f"the plan places {row.name!r} outside of the workspace of {node!r}")


def _ranges(workspace: PlannedBuffer, bodies: Iterable[PlannedBody]) -> Iterator[tuple[int, int]]:
    for body in bodies:
        yield from ((row.offset - workspace.offset, row.offset - workspace.offset + row.size) for row in _tensors(body))


def _tensors(body: PlannedBody) -> Iterator[PlannedBuffer]:
    """Yield the tensors with bytes of `body` and of the bodies in it."""
    yield from (row for row in body.tensors if row.size)
    for inner in body.bodies:
        yield from _tensors(inner)
