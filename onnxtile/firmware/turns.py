"""The turns of a Loop or Scan: what it carries from one to the next, the rows that each reads and makes, and the calls for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.firmware.addresses import ValueAddresses
from onnxtile.firmware.program import ByteAddress, CopyCall, ProgramCall, RepeatedCalls, TensorForm, copied_at_once
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError

_MOST_RUNS = 256
"""Runs of bytes of a row of a Scan along an inner axis."""


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
        self._always = values.constant(np.asarray(1, np.uint8), TensorForm(onnx.TensorProto.UINT8, ()))
        self._limit = self._counted()
        self._most = None if self._limit is None else values.cell(8)
        self._goes_on = values.cell(1)

    def _counted(self) -> ByteAddress | None:
        """Return where the number of turns is; None without a limit."""
        values, turns = self._values, self._turns
        if turns.most is not None:
            return values.of(turns.most)
        if not turns.read:
            return None
        first = turns.read[0]
        length = values.tensor(first.whole).sizes[first.axis]
        return values.constant(np.asarray(length, np.int64), TensorForm(onnx.TensorProto.INT64, ()))

    def before(self) -> Iterator[CopyCall]:
        """Yield the copies before the first turn: the number of turns, whether there is one, and what is carried into it."""
        turns, values = self._turns, self._values
        if self._most is not None and self._limit is not None:
            yield CopyCall(self._most, self._limit, 8)
        yield CopyCall(self._goes_on, self._always if turns.first is None else values.of(turns.first), 1)
        starts = (values.of(value.operand) for value in turns.carried)
        yield from copied_at_once(map(CopyCall, self._carried, starts, self._sizes), values.cell)

    def begin(self) -> Iterator[CopyCall]:
        """Yield the copies at the start of a turn: the rows that it reads."""
        go = self._values.get(self._turns.go)
        if go is not None:
            yield CopyCall(go, self._always, 1)
        for row in self._turns.read:
            yield from self._row_copies(row)

    def end(self) -> Iterator[CopyCall]:
        """Yield the copies at the end of a turn: the rows that it made, what is carried on, and whether there is a further turn."""
        turns, values = self._turns, self._values
        for row in turns.made:
            yield from (copy.turned for copy in self._row_copies(row))
        moved = [*map(CopyCall, self._carried, (values.of(value.after) for value in turns.carried), self._sizes)]
        moved += [] if turns.again is None else [CopyCall(self._goes_on, values.of(turns.again), 1)]
        yield from copied_at_once(moved, values.cell)

    def repeated(self, turn: Sequence[ProgramCall]) -> RepeatedCalls:
        """Return the calls of a `turn`, repeated."""
        return RepeatedCalls(self._most, self._goes_on, self._values.get(self._turns.number), tuple(turn))

    def after(self) -> Iterator[CopyCall]:
        """Yield the copies after the last turn: what was carried out of it."""
        copies = (
            CopyCall(self._values[value.result], address, size)
            for value, address, size in zip(self._turns.carried, self._carried, self._sizes, strict=True)
            if value.result is not None and value.result.name
        )
        return copied_at_once(copies, self._values.cell)

    def _row_copies(self, row: Row) -> Iterator[CopyCall]:
        """Yield the copies of the row of a whole to an address of its own: one for each run of bytes."""
        whole = self._values.tensor(row.whole)
        length = whole.sizes[row.axis]
        outer = int(np.prod(whole.sizes[: row.axis], dtype=np.int64))
        if outer > _MOST_RUNS:
            raise UsageError(f"no C is written for {row.whole.name!r}: each row of it is {outer:,} runs of bytes")
        run = whole.bytes // max(1, outer * length)
        first, step = ((length - 1) * run, -run) if row.is_backwards else (0, run)
        for number in range(outer):
            source = self._values.of(row.whole).at(number * length * run + first)
            yield CopyCall(self._row_place(row.row).at(number * run), source, run, (0, step))

    def _row_place(self, row: ir.Value) -> ByteAddress:
        if row not in self._values and row not in self._values.constants:
            self._values[row] = self._values.cell(self._values.tensor(row).bytes)  # no node reads it
        return self._values.of(row)
