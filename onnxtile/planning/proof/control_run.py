"""Runs If, Loop, Scan and calls of functions body by body, each tensor of a body at its planned address.

Values that enter and leave a body are moved, in both runs. The semantics are those of the ONNX specification. The plain run of the whole
model, in which onnxruntime runs the bodies, verifies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.proof.graph_run import GraphRun
from onnxtile.planning.proof.memory import TensorMemory
from onnxtile.planning.proof.prepared import Controlled, Corruption, PairedValues, ValueTable
from onnxtile.planning.result import PlannedBody
from onnxtile.run_limits import Clock
from onnxtile.runtime import Array

PlannedBodies: TypeAlias = Mapping[str | None, PlannedBody]
"""The planned bodies of one node, by attribute; None is the function that it calls."""
Prepare: TypeAlias = Callable[[PlannedBody], GraphRun]
_ArrayPair: TypeAlias = tuple[Any, Any]
"""A value in the arena, and in the reference run."""


def controlled(node: ir.Node, around: GraphRun, bodies: PlannedBodies, prepare: Prepare) -> Controlled:
    """Return the runner of `node`, an If, Loop, Scan or call in the graph of `around`; bodies are prepared at their first run."""
    kinds: dict[str, type[_Control]] = {"If": _If, "Loop": _Loop, "Scan": _ScanRun}
    kind = _Call if None in bodies else kinds[node.op_type]
    return kind(node, around, bodies, prepare)


@dataclass
class _Control:
    node: ir.Node
    around: GraphRun
    bodies: PlannedBodies
    prepare: Prepare
    _prepared: dict[str | None, GraphRun] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        return tuple(dict.fromkeys(dependencies(self.node)))

    def run(self, paired: PairedValues) -> Corruption | None:
        raise NotImplementedError

    def _body(self, attribute: str | None) -> GraphRun:
        if attribute not in self._prepared:
            self._prepared[attribute] = self.prepare(self.bodies[attribute])
        return self._prepared[attribute]

    def _once(self, body: GraphRun, given: Sequence[_ArrayPair], paired: PairedValues) -> Corruption | None:
        """Run `body` once on the values `given`."""
        for values in (paired.arena, paired.reference):
            values.update(body.held)
        for value, pair in zip(body.graph.inputs, given, strict=True):
            _put(value, pair, body, paired)
        corruption = body.run(paired, body.steps)
        if corruption is not None:
            return corruption
        return next((Corruption(v.name or "", None) for v in body.graph.outputs if not paired.agree(v)), None)

    def _lend(self, body: GraphRun) -> None:
        """Let `body` make its outputs where those of the node are."""
        for inner, outer in zip(body.graph.outputs, self.node.outputs, strict=False):
            body.lend(inner, _address(self.around.sites.get(outer)))

    def _hand_out(self, results: Sequence[_ArrayPair], paired: PairedValues) -> Corruption | None:
        for value, pair in zip(self.node.outputs, results, strict=False):
            if value.name:
                _put(value, pair, self.around, paired)
        made = (value for value in self.node.outputs if value.name)
        return next((Corruption(value.name or "", None) for value in made if not paired.agree(value)), None)


class _Call(_Control):
    def run(self, paired: PairedValues) -> Corruption | None:
        body = self._body(None)
        self._lend(body)
        corruption = self._once(body, (), paired)
        return corruption or self._hand_out([_copy_of(value, paired) for value in body.graph.outputs], paired)


class _If(_Control):
    def run(self, paired: PairedValues) -> Corruption | None:
        condition = self.node.inputs[0]
        assert condition is not None
        body = self._body("then_branch" if _array(paired.reference[condition]).all() else "else_branch")
        self._lend(body)
        corruption = self._once(body, (), paired)
        return corruption or self._hand_out([_copy_of(value, paired) for value in body.graph.outputs], paired)


class _Loop(_Control):
    def run(self, paired: PairedValues) -> Corruption | None:
        body = self._body("body")
        most, condition = (None if v is None else _array(paired.reference[v]) for v in self.node.inputs[:2])
        limit = None if most is None else int(most.reshape(()))
        goes_on = condition is None or bool(condition.all())
        carried = [_copy_of(value, paired) for value in self.node.inputs[2:] if value is not None]
        collected: list[list[_ArrayPair]] = [[] for _ in body.graph.outputs[1 + len(carried) :]]
        turn, clock = 0, Clock()
        while goes_on and (limit is None or turn < limit):
            clock.check()
            number, go = np.asarray(turn, np.int64), np.asarray(True)
            corruption = self._once(body, [(number, number), (go, go), *carried], paired)
            if corruption is not None:
                return corruption
            first, *others = (_copy_of(value, paired) for value in body.graph.outputs)
            goes_on, carried = bool(_array(first[1]).all()), others[: len(carried)]
            for rows, pair in zip(collected, others[len(carried) :], strict=True):
                rows.append(pair)
            turn += 1
        inner = body.graph.outputs[1 + len(carried) :]
        return self._hand_out([*carried, *map(_stacked, collected, inner, self.node.outputs[len(carried) :])], paired)


class _ScanRun(_Control):
    def run(self, paired: PairedValues) -> Corruption | None:
        body, count = self._body("body"), self.node.attributes.get_int("num_scan_inputs", 0)
        given = [_copy_of(value, paired) for value in self.node.inputs if value is not None]
        states, scanned = (
            given[: len(given) - count],
            [tuple(map(_array, pair)) for pair in given[len(given) - count :]],
        )
        starts = [_address(paired.reference[v]) for v in self.node.inputs[len(states) :] if v is not None]
        rows_in = body.graph.inputs[len(states) :]
        axes = self._ints("scan_input_axes", count)
        backwards = self._ints("scan_input_directions", count)
        length = scanned[0][0].shape[axes[0]]
        handed_out = body.graph.outputs[len(states) :]
        collected: list[list[_ArrayPair]] = [[] for _ in handed_out]
        clock = Clock()
        for turn in range(length):
            clock.check()
            numbers = [length - 1 - turn if back else turn for back in backwards]
            slices = [
                (_row(a, inner, number, axis, start, body), _row(b, inner, number, axis, start, body))
                for (a, b), inner, number, axis, start in zip(scanned, rows_in, numbers, axes, starts, strict=True)
            ]
            self._lend_rows(body, len(states), turn, length)
            corruption = self._once(body, [*states, *slices], paired)
            if corruption is not None:
                return corruption
            pairs = [_copy_of(value, paired) for value in body.graph.outputs]
            states = pairs[: len(states)]
            for rows, pair in zip(collected, pairs[len(states) :], strict=True):
                rows.append(pair)
        axes = self._ints("scan_output_axes", len(handed_out))
        backwards = self._ints("scan_output_directions", len(handed_out))
        stacks = [
            tuple(np.stack([_array(pair[side]) for pair in (rows[::-1] if back else rows)], axis) for side in (0, 1))
            for rows, axis, back in zip(collected, axes, backwards, strict=True)
        ]
        return self._hand_out([*states, *((a, b) for a, b in stacks)], paired)

    def _lend_rows(self, body: GraphRun, states: int, turn: int, length: int) -> None:
        """Let `body` make the rows that it hands out where they are in the wholes."""
        rows, wholes = body.graph.outputs[states:], self.node.outputs[states:]
        backwards = self._ints("scan_output_directions", len(rows))
        for row, whole, axis, back in zip(
            rows, wholes, self._ints("scan_output_axes", len(rows)), backwards, strict=True
        ):
            start = 0 if axis else _address(self.around.sites.get(whole))
            body.lend(row, start, length - 1 - turn if back else turn)

    def _ints(self, name: str, count: int) -> list[int]:
        return list(self.node.attributes.get_ints(name, [0] * count))


def _row(array: Array, value: ir.Value, number: int, axis: int, start: int, body: GraphRun) -> Any:
    """Return a row of a whole as the input `value` of `body`: where it is in the whole at `start`, which onnxruntime copies for an `axis`.

    A kernel may round it differently at another distance from a multiple of 64 bytes.
    """
    row = body.held_as(array.take(number, axis), value)
    return row.at((0 if axis else start) + number * len(row.data)) if isinstance(row, TensorMemory) else row


def _stacked(rows: Sequence[_ArrayPair], inner: ir.Value, outer: ir.Value) -> _ArrayPair:
    """Return the values that a Loop collected, stacked."""
    if rows:
        return np.stack([_array(pair[0]) for pair in rows]), np.stack([_array(pair[1]) for pair in rows])
    dtype = next((v.dtype for v in (inner, outer) if v.dtype is not None), ir.DataType.FLOAT)
    shape = [d if isinstance(d, int) else 0 for d in inner.shape or ()]
    empty = np.empty((0, *shape), dtype.numpy())
    return empty, empty


def _array(value: Any) -> Array:
    return value.array() if isinstance(value, TensorMemory) else np.asarray(value)


def _address(value: Any) -> int:
    return value.address if isinstance(value, TensorMemory) else 0


def _copy_of(value: ir.Value, paired: PairedValues) -> _ArrayPair:
    """Return a copy of `value`, so that moving one value cannot overwrite another that is still to be moved."""
    return _copied(paired.arena[value]), _copied(paired.reference[value])


def _copied(value: Any) -> Any:
    if not isinstance(value, TensorMemory):
        return value
    copy = TensorMemory.empty(value.dtype, value.shape, len(value.data))
    copy.data[:] = value.data
    return copy


def _put(value: ir.Value, pair: _ArrayPair, run: GraphRun, paired: PairedValues) -> None:
    """Set `value` of the graph of `run` to `pair`: at its address in the arena, if it has one."""
    targets = (run.sites.get(value), run.own_memory(value))
    for values, found, target in zip((paired.arena, paired.reference), pair, targets, strict=True):
        _write(values, value, found, target, run)


def _write(values: ValueTable, value: ir.Value, found: Any, target: TensorMemory | None, run: GraphRun) -> None:
    if target is None:
        values[value] = run.held_as(found, value)
    elif isinstance(found, TensorMemory) and len(found.data) == len(target.data):
        target.data[:] = found.data
        values[value] = TensorMemory(target.data, target.address, target.dtype, found.shape)
    else:
        values[value] = run.filled(target, found.array() if isinstance(found, TensorMemory) else found, value)
