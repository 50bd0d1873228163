"""Check of an offline memory plan in a TensorFlow Lite file: the operators are replayed on a map of the arena.

The map says for each 16 bytes which tensor was last written there. It shares nothing with the planning but the reader of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from onnxtile.deployment.tflite_model import MicroGraph, MicroOperator, offsets_in, read_tflite
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed

_UNIT = 16
_NOBODY = -1

_LEAVES_ELEMENTS = {"EXPAND_DIMS", "RESHAPE"}
_ONE_OPERAND = {
    *("ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LEAKY_RELU", "LOG", "LOGICAL_NOT", "LOGISTIC"),
    *("NEG", "RELU", "RELU6", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "TANH"),
}
_TWO_OPERANDS = {"ADD", "DIV", "MAXIMUM", "MINIMUM", "MUL", "SQUARED_DIFFERENCE", "SUB"}
"""Operators that may write over an operand of the same shape, from TensorFlow Lite Micro's kernels, for this check alone."""


def require_sound(data: bytes, arena: int) -> None:
    """Raise CheckFailed unless the offline memory plan of the file `data` is right for its graph, in `arena` bytes."""
    graphs = read_tflite(data, "the planned model")
    fault = next(_faults(graphs, offsets_in(data), arena), None)
    if fault is not None:
        raise CheckFailed(f"the plan is not sound: {fault}", hint="please report it with the model")


def _faults(graphs: Sequence[MicroGraph], offsets: Sequence[int] | None, arena: int) -> Iterator[str]:
    starts = [0]
    for graph in graphs:
        starts.append(starts[-1] + len(graph.tensors))
    if offsets is None or len(offsets) != starts[-1]:
        yield f"it has offsets for {len(offsets or ())} of {starts[-1]} tensors"
        return
    replay = _MicroReplay(graphs, starts, offsets, np.full(-(-arena // _UNIT), _NOBODY, np.int32))
    yield from replay.misplaced(arena)
    if not replay.names:
        yield from replay.run(0)


@dataclass
class _MicroReplay:
    """The map `written` of the arena while the subgraphs run. A tensor is a number: the start of its subgraph and its index.

    `names` are the tensors that are misplaced. `same` has the tensor of which a view has the elements.
    """

    graphs: Sequence[MicroGraph]
    starts: Sequence[int]
    offsets: Sequence[int]
    written: npt.NDArray[np.int32]
    names: list[str] = field(default_factory=list)
    same: dict[int, int] = field(default_factory=dict)

    def misplaced(self, arena: int) -> Iterator[str]:
        """Yield the tensors that are outside of the arena or not aligned; constants and variables have no offset."""
        for number, graph in enumerate(self.graphs):
            used = {i for op in graph.operators for i in (*op.inputs, *op.outputs)} | {*graph.inputs, *graph.outputs}
            for index, tensor in enumerate(graph.tensors):
                offset = self.offsets[self.starts[number] + index]
                needs = not tensor.is_constant and not tensor.is_variable and tensor.size > 0 and index in used
                if needs != (offset >= 0) or (needs and (offset % _UNIT or offset + tensor.size > arena)):
                    self.names.append(tensor.name)
                    yield f"{tensor.name!r} of {tensor.size} bytes lies at {offset}"

    def run(self, number: int) -> Iterator[str]:
        """Write the inputs of a subgraph, run its operators, and read its outputs."""
        graph = self.graphs[number]
        self._write(number, graph.inputs)
        yield from self._unread(number, graph.inputs, "the start")
        for operator in graph.operators:
            yield from self._operator(number, operator)
        yield from self._unread(number, graph.outputs, "the end")

    def _operator(self, number: int, operator: MicroOperator) -> Iterator[str]:
        where = operator.name
        yield from self._unread(number, operator.inputs, where)
        # A loop runs its condition and its body again; its outputs hold the values in between.
        if operator.name == "WHILE":
            self._write(number, operator.outputs)
        for body in operator.bodies * (2 if operator.name == "WHILE" else 1):
            yield from self.run(body)
            yield from self._unread(number, operator.inputs, where)
            if operator.name == "WHILE":
                yield from self._unread(number, operator.outputs, where)
        for result in operator.outputs:
            for operand in operator.inputs:
                if self._share(number, result, operand) and not self._may_share(number, operator, result, operand):
                    name = self.graphs[number].tensors[result].name
                    yield f"{where} writes {name!r} over an operand that it still reads"
        keeps = self._kept(number, operator)
        self._write(number, operator.outputs)
        yield from self._unread(number, operator.outputs, where)
        for span, before in keeps:  # a view leaves what was there readable by both names
            self.same[self.written[span][0]] = before

    def _kept(self, number: int, operator: MicroOperator) -> list[tuple[slice, int]]:
        """Return the bytes that `operator` leaves as they are, with the tensor that wrote them."""
        if operator.name not in _LEAVES_ELEMENTS or not operator.outputs or not operator.inputs:
            return []
        source, result = (self._span(number, i) for i in (operator.inputs[0], operator.outputs[0]))
        if source is None or result is None or source != result:
            return []
        return [(source, self._first(int(self.written[source][0])))]

    def _first(self, key: int) -> int:
        while key in self.same:
            key = self.same[key]
        return key

    def _span(self, number: int, index: int) -> slice | None:
        """Return the place of a tensor in the map; None where it has no bytes in the arena."""
        if index < 0 or self.offsets[self.starts[number] + index] < 0:
            return None
        offset, size = self.offsets[self.starts[number] + index], self.graphs[number].tensors[index].size
        return slice(offset // _UNIT, -(-(offset + size) // _UNIT))

    def _write(self, number: int, indices: Iterable[int]) -> None:
        for index in indices:
            span = self._span(number, index)
            if span is not None:
                self.same.pop(self.starts[number] + index, None)
                self.written[span] = self.starts[number] + index

    def _unread(self, number: int, indices: Iterable[int], where: str) -> Iterator[str]:
        """Yield the tensors whose bytes have changed since they were written."""
        for index in indices:
            span = self._span(number, index)
            if span is None:
                continue
            wanted = self._first(self.starts[number] + index)
            for key in np.unique(self.written[span]).tolist():
                if self._first(key) != wanted:
                    yield f"{self.graphs[number].tensors[index].name!r} has changed before {where} reads it"
                    break

    def _share(self, number: int, result: int, operand: int) -> bool:
        span, other = self._span(number, result), self._span(number, operand)
        return span is not None and other is not None and span.start < other.stop and other.start < span.stop

    def _may_share(self, number: int, operator: MicroOperator, result: int, operand: int) -> bool:
        tensors = self.graphs[number].tensors
        written, read = tensors[result], tensors[operand]
        if self._span(number, result) != self._span(number, operand) or written.dtype != read.dtype:
            return False
        if operator.name in _LEAVES_ELEMENTS:
            return operand == operator.inputs[0] and written.size == read.size
        is_elementwise = operator.name in _ONE_OPERAND | _TWO_OPERANDS
        return is_elementwise and written.shape == read.shape and operator.inputs.count(operand) == 1
