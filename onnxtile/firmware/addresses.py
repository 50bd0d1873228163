"""Where each value of a planned graph is: at its address in the plan, with the caller, in the workspace, or a constant in flash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from onnxtile.declare.plan_document import PlannedBuffer
from onnxtile.firmware.program import (
    ARENA,
    CONSTANT,
    SCALES,
    WORKSPACE,
    ZEROS,
    ByteAddress,
    CopyCall,
    StoredForm,
    TensorForm,
    overlaps,
)
from onnxtile.firmware.templates import UNPACKING
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import no_fixed_bytes
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import dequantises
from onnxtile.operators.node_view import STANDARD
from onnxtile.planning.offsets.problem import align
from onnxtile.shapes.opened_calls import Unfolded
from onnxtile.shapes.resolve import tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.runtime import Array

_WRITABLE = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})
"""The element types, by their numbers in onnx, that compilers have: integers, booleans, floats of 16, 32 and 64 bits."""


_Decided = TypeVar("_Decided")


@dataclass
class ProgramMemory:
    """The bytes that all graphs of a program have in common: constants, each once, and the end of the workspace.

    Over ranges, the program is written at the largest sizes first. `decisions` are where it has put bytes and in which order it copies them
    there. At other sizes it is the same, and `taken` counts the decisions so far.
    """

    arrays: list[Array] = field(default_factory=list)
    workspace: int = 0
    decisions: list[Any] = field(default_factory=list)
    taken: int = 0
    _numbers: dict[tuple[int, tuple[int, ...], bytes], int] = field(default_factory=dict)

    def constant(self, array: Array, tensor: TensorForm) -> ByteAddress:
        """Return the address of a constant; equal ones are one."""
        plain = np.ascontiguousarray(array)
        key = (tensor.dtype, tensor.sizes, blake2b(plain.data).digest())
        if key not in self._numbers:
            self._numbers[key] = len(self.arrays)
            self.arrays.append(plain)
        return ByteAddress(CONSTANT, self._numbers[key])

    def decided(self, make: Callable[[], _Decided]) -> _Decided:
        """Return what `make` returns; at the sizes after the largest what it returned there."""
        if self.taken == len(self.decisions):
            self.decisions.append(make())
        self.taken += 1
        decision: _Decided = self.decisions[self.taken - 1]
        return decision


class ValueAddresses(dict[ir.Value | None, ByteAddress]):
    """The addresses of the values of one graph and its bodies.

    Where it is a meta-op, its buffers are in the workspace from `base` on; `end` is the end of the workspace that is in use around it.
    `strides` are those of growing states, by name.
    """

    def __init__(
        self,
        opened: Unfolded,
        memory: ProgramMemory,
        arenas: Mapping[str, int],
        base: int | None,
        end: int,
        strides: Mapping[str, tuple[int, ...]],
    ) -> None:
        super().__init__()
        model, self._shapes, self.constants = opened
        self.memory = memory
        ends = (*model.graph.inputs, *(value for node in model.graph for value in node.outputs))
        self._strides = {value: strides[value.name] for value in ends if value.name and value.name in strides}
        self.facts = LayoutFacts(*opened, spread=frozenset(self._strides))
        self.end = end
        self._arenas, self._base = arenas, base

    def add_buffers(self, graph: ir.Graph, buffers: Iterable[PlannedBuffer]) -> None:
        """Give the values of `graph` the addresses of their `buffers`."""
        by_name = {row.name: row for row in buffers if row.kind != "workspace"}
        values = (*graph.inputs, *(value for node in graph for value in node.outputs), *graph.initializers.values())
        for value in values:
            row = by_name.get(value.name or "")
            if row is None:
                continue
            if self._base is None:
                self[value] = ByteAddress(ARENA, self._arenas[row.arena], row.offset)
            else:
                self[value] = ByteAddress(WORKSPACE, 0, self._base + row.offset)

    def address_of(self, value: ir.Value) -> ByteAddress:
        """Return the address of `value`, that of a constant in flash. Raises UsageError where it has none."""
        if value in self:
            return self[value]
        if value in self.constants:
            return self.memory.constant(self.constants.array(value), self.tensor(value))
        raise UsageError(f"C needs fixed bytes, and {value.name!r} has no address in the plan")

    def tensor(self, value: ir.Value) -> TensorForm:
        """Return the type of `value`. Raises UsageError where it has no fixed bytes, or elements of less than a byte."""
        never = no_fixed_bytes(value, self.facts)
        if never is not None:
            raise UsageError(f"no C is written for {value.name!r}: {never}")
        dtype, sizes = self._shapes.dtype(value), self._shapes.sizes(value)
        is_bound = self._shapes.is_bound(value) and self._shapes.formulas(value) is None
        if dtype is None or sizes is None or tensor_bytes(value, self._shapes) is None or is_bound:
            raise UsageError(f"C needs fixed bytes, and {value.name!r} has none: {self._shapes.reason(value)}")
        if dtype.bitwidth < 8 or int(dtype) not in _WRITABLE:
            raise UsageError(f"no C is written for {value.name!r}, which has elements of {dtype.name}")
        return TensorForm(int(dtype), sizes, self._strides.get(value, ()))

    def cell(self, size: int) -> ByteAddress:
        """Return bytes of the workspace that nothing else has until this graph ends."""
        return self._decided(lambda: self._new_cell(size))

    def _new_cell(self, size: int) -> ByteAddress:
        at = align(self.end, 8)
        self.end = at + size
        self.memory.workspace = max(self.memory.workspace, self.end)
        return ByteAddress(WORKSPACE, 0, at)

    def _decided(self, make: Callable[[], _Decided]) -> _Decided:
        """Return what `make` decides at the largest sizes; the end of the workspace is that of then."""
        decided, self.end = self.memory.decided(lambda: (make(), self.end))
        return decided

    def copied_at_once(self, copies: Iterable[CopyCall]) -> Iterator[CopyCall]:
        """Yield `copies` in an order in which none reads what another has written; bytes in the way are saved in the workspace before."""
        listed = list(copies)
        for number, target, source in self._decided(lambda: list(self._ordered(listed))):
            yield CopyCall(target, source, listed[number].size)

    def _ordered(self, copies: Sequence[CopyCall]) -> Iterator[tuple[int, ByteAddress, ByteAddress]]:
        pending = {number: copy for number, copy in enumerate(copies) if copy.target != copy.source}
        while pending:
            free = (
                number
                for number, copy in pending.items()
                if not any(overlaps(copy, other) for other in pending.values() if other is not copy)
            )
            number = next(free, None)
            if number is not None:
                copy = pending.pop(number)
                yield number, copy.target, copy.source
                continue
            number, blocked = next(iter(pending.items()))
            pending[number] = replace(blocked, source=self._new_cell(blocked.size))
            yield number, pending[number].source, blocked.source


# The constants of a program in flash: each once, those that are a slice of another as an offset into it.
#
# Words of one size are one array, so that a compiler places and aligns them, whatever the order of bytes of the target is. In a file the
# arrays follow each other, those of the largest words first, so that each is aligned where the file is.


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


def stored_weights(node: ir.Node, constants: Constants) -> tuple[StoredForm, Mapping[str, Array]] | None:
    """Return how the weights are stored that the kernel of `node` unpacks, and its constants by their names in it; None for any other node.

    There are no zero points where all are 0.
    """
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
    return form, arrays


def _packed(numbers: Array, bits: int) -> Array:
    """Return whole numbers as they are, those of 4 bits as pairs of neighbours in a byte."""
    if bits == 8:
        return np.ascontiguousarray(numbers)
    nibbles = numbers.astype(np.int16).ravel() & 15
    nibbles = np.pad(nibbles, (0, nibbles.size % 2))
    return (nibbles[::2] | nibbles[1::2] << 4).astype(np.uint8)
