"""The turns of a Loop or Scan: what it carries from one to the next, the rows that each reads and makes, and the calls for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.firmware.addresses import ValueAddresses
from onnxtile.firmware.program import ByteAddress, CopyCall, HelperCall, ProgramCall, RepeatedCalls, TensorForm
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError


@dataclass(frozen=True)
class Carried:
    """A value that a Loop or Scan carries: what it begins with, the input and the output of the body, and the result of the node."""

    operand: ir.Value
    before: ir.Value
    after: ir.Value
    result: ir.Value


@dataclass(frozen=True)
class Row:
    """A tensor of which a Loop or Scan has a row in each turn, along `axis`, from the last on where it `is_backwards`."""

    whole: ir.Value
    row: ir.Value
    axis: int = 0
    is_backwards: bool = False


@dataclass(frozen=True)
class Turns:
    """The turns of a Loop or Scan with the body `graph`: `read` rows are operands, `made` rows are results.

    Of a Loop, `most` is the number of turns, `first` says whether there is one, `again` whether there is a further one. The body reads the
    number of the turn as `number`, and that there is one as `go`.
    """

    graph: ir.Graph
    carried: tuple[Carried, ...]
    read: tuple[Row, ...] = ()
    made: tuple[Row, ...] = ()
    most: ir.Value | None = None
    first: ir.Value | None = None
    number: ir.Value | None = None
    go: ir.Value | None = None
    again: ir.Value | None = None


def turns_of(node: ir.Node) -> Turns:
    """Return the turns of a Loop or Scan."""
    graph = node.attributes["body"].as_graph()
    if node.op_type == "Loop":
        most, first, *operands = (*node.inputs, None)[: max(2, len(node.inputs))]
        number, go, *inputs = graph.inputs
        again, *outputs = graph.outputs
        carried = tuple(map(Carried, [value for value in operands if value is not None], inputs, outputs, node.outputs))
        rows = tuple(map(Row, node.outputs[len(carried) :], outputs[len(carried) :]))
        return Turns(graph, carried, (), rows, most, first, number, go, again)
    states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    given = [value for value in node.inputs if value is not None]
    carried = tuple(map(Carried, given[:states], graph.inputs, graph.outputs, node.outputs))
    read = _rows(node, "input", given[states:], graph.inputs[states:])
    return Turns(graph, carried, read, _rows(node, "output", node.outputs[states:], graph.outputs[states:]))


def _rows(node: ir.Node, kind: str, wholes: Sequence[ir.Value], rows: Sequence[ir.Value]) -> tuple[Row, ...]:
    axes, directions = (
        node.attributes.get_ints(f"scan_{kind}_{what}", [0] * len(wholes)) for what in ("axes", "directions")
    )
    addresses = zip(wholes, rows, axes, directions, strict=True)
    return tuple(
        Row(whole, row, axis if axis >= 0 else axis + len(row.shape or ()) + 1, bool(back))
        for whole, row, axis, back in addresses
        if whole.name
    )


class TurnCalls:
    """The calls around the body of a Loop or Scan. What it carries has one address in all turns; rows are copied in and out."""

    def __init__(self, turns: Turns, values: ValueAddresses) -> None:
        self._turns, self._values = turns, values
        self._sizes = [values.tensor(value.before).bytes for value in turns.carried]
        self._carried = [
            values.get(value.before) or values.cell(size)
            for value, size in zip(turns.carried, self._sizes, strict=True)
        ]
        for value, address in zip(turns.carried, self._carried, strict=True):
            values[value.before] = address
        self._always = values.memory.constant(np.asarray(1, np.uint8), TensorForm(onnx.TensorProto.UINT8, ()))
        self._most = None if turns.most is None and not turns.read else values.cell(8)
        self._goes_on = values.cell(1)
        self._number = values.cell(8) if turns.read or turns.made else values.get(turns.number)

    def before(self) -> Iterator[CopyCall | HelperCall]:
        """Yield the calls before the first turn: the number of turns, whether there is one, and what is carried into it."""
        turns, values = self._turns, self._values
        if self._most is not None and turns.most is not None:
            yield CopyCall(self._most, values.of(turns.most), 8)
        elif self._most is not None:
            first = turns.read[0]
            yield HelperCall("number", (self._most,), (values.tensor(first.whole).sizes[first.axis],))
        yield CopyCall(self._goes_on, self._always if turns.first is None else values.of(turns.first), 1)
        starts = (values.of(value.operand) for value in turns.carried)
        yield from values.copied_at_once(map(CopyCall, self._carried, starts, self._sizes))

    def begin(self) -> Iterator[CopyCall | HelperCall]:
        """Yield the calls at the start of a turn: its number, that there is one, and the rows that it reads."""
        number, go = (self._values.get(value) for value in (self._turns.number, self._turns.go))
        if number is not None and self._number is not None and number != self._number:
            yield CopyCall(number, self._number, 8)
        if go is not None:
            yield CopyCall(go, self._always, 1)
        yield from (self._row_call(row, is_made=False) for row in self._turns.read)

    def end(self) -> Iterator[CopyCall | HelperCall]:
        """Yield the calls at the end of a turn: the rows that it made, what is carried on, and whether there is a further turn."""
        turns, values = self._turns, self._values
        yield from (self._row_call(row, is_made=True) for row in turns.made)
        moved = [*map(CopyCall, self._carried, (values.of(value.after) for value in turns.carried), self._sizes)]
        moved += [] if turns.again is None else [CopyCall(self._goes_on, values.of(turns.again), 1)]
        yield from values.copied_at_once(moved)

    def repeated(self, turn: Sequence[ProgramCall]) -> RepeatedCalls:
        """Return the calls of a `turn`, repeated."""
        return RepeatedCalls(self._most, self._goes_on, self._number, tuple(turn))

    def after(self) -> Iterator[CopyCall]:
        """Yield the copies after the last turn: what was carried out of it."""
        copies = (
            CopyCall(self._values[value.result], address, size)
            for value, address, size in zip(self._turns.carried, self._carried, self._sizes, strict=True)
            if value.result is not None and value.result.name
        )
        return self._values.copied_at_once(copies)

    def _row_call(self, row: Row, *, is_made: bool) -> HelperCall:
        """Return the copy of the row of a whole, which is runs of bytes in this, to or from an address of its own."""
        whole = self._values.tensor(row.whole)
        if whole.strides:
            raise UsageError(
                f"no C is written for {row.whole.name!r}: a Loop or Scan has rows of it, and it is a growing state"
            )
        assert self._number is not None
        length, runs = whole.sizes[row.axis], prod(whole.sizes[: row.axis])
        size = prod(whole.sizes[row.axis + 1 :]) * whole.element
        addresses = (self._row_place(row.row), self._values.of(row.whole), self._number)
        return HelperCall("row", addresses, (runs, length, size, int(row.is_backwards), int(is_made)))

    def _row_place(self, row: ir.Value) -> ByteAddress:
        if row not in self._values and row not in self._values.constants:
            self._values[row] = self._values.cell(self._values.tensor(row).bytes)  # no node reads it
        return self._values.of(row)
