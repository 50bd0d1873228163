"""Where each value of a planned graph is: at its address in the plan, with the caller, in flash, or in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from onnxtile.declare.plan_document import PlannedBuffer
from onnxtile.firmware.program import ARENA, CONSTANT, WORKSPACE, ByteAddress, CopyCall, TensorForm, overlaps
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import no_fixed_bytes
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

    def of(self, value: ir.Value) -> ByteAddress:
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
        made, self.end = self.memory.decided(lambda: (make(), self.end))
        return made

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
