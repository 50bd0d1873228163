"""Runs If, Loop, Scan and calls of functions body by body, each tensor of a body at its planned address.

What they hand in and out is moved, in both runs. The semantics are those of the ONNX specification; the plain run of the whole model, in
which onnxruntime runs the bodies itself, shows whether they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.proof.graph_run import Clash, Controlled, GraphRun, Lanes, Values
from onnxtile.planning.proof.memory import Site
from onnxtile.planning.result import PlannedBody
from onnxtile.run_limits import Clock
from onnxtile.runtime import Array

Bodies: TypeAlias = Mapping[str | None, PlannedBody]
"""Those of one node, by the attribute that holds them; None stands for the function that it calls."""
Prepare: TypeAlias = Callable[[PlannedBody], GraphRun]
_Pair: TypeAlias = tuple[Any, Any]
"""A value in the arena, and beside it."""


def controlled(node: ir.Node, around: GraphRun, bodies: Bodies, prepare: Prepare) -> Controlled:
    """Return `node`, an If, Loop, Scan or call of the graph of `around`, ready to be run; bodies are prepared when they are first run."""
    kinds: dict[str, type[_Control]] = {"If": _If, "Loop": _Loop, "Scan": _Scan}
    kind = _Call if None in bodies else kinds[node.op_type]
    return kind(node, around, bodies, prepare)


@dataclass
class _Control:
    node: ir.Node
    around: GraphRun
    bodies: Bodies
    prepare: Prepare
    _prepared: dict[str | None, GraphRun] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        return tuple(dict.fromkeys(dependencies(self.node)))

    def run(self, lanes: Lanes) -> Clash | None:
        raise NotImplementedError

    def _body(self, attribute: str | None) -> GraphRun:
        if attribute not in self._prepared:
            self._prepared[attribute] = self.prepare(self.bodies[attribute])
        return self._prepared[attribute]

    def _once(self, body: GraphRun, given: Sequence[_Pair], lanes: Lanes) -> Clash | None:
        """Run `body` once on what it is given."""
        for values in (lanes.arena, lanes.beside):
            values.update(body.held)
        for value, pair in zip(body.graph.inputs, given, strict=True):
            _put(value, pair, body, lanes)
        clash = body.run(lanes, body.steps)
        if clash is not None:
            return clash
        return next((Clash(v.name or "", None) for v in body.graph.outputs if not lanes.agree(v)), None)

    def _hand_out(self, results: Sequence[_Pair], lanes: Lanes) -> Clash | None:
        for value, pair in zip(self.node.outputs, results, strict=False):
            if value.name:
                _put(value, pair, self.around, lanes)
        made = (value for value in self.node.outputs if value.name)
        return next((Clash(value.name or "", None) for value in made if not lanes.agree(value)), None)


class _Call(_Control):
    def run(self, lanes: Lanes) -> Clash | None:
        body = self._body(None)
        clash = self._once(body, (), lanes)
        return clash or self._hand_out([_taken(value, lanes) for value in body.graph.outputs], lanes)


class _If(_Control):
    def run(self, lanes: Lanes) -> Clash | None:
        condition = self.node.inputs[0]
        assert condition is not None
        body = self._body("then_branch" if _array(lanes.beside[condition]).all() else "else_branch")
        clash = self._once(body, (), lanes)
        return clash or self._hand_out([_taken(value, lanes) for value in body.graph.outputs], lanes)


class _Loop(_Control):
    def run(self, lanes: Lanes) -> Clash | None:
        body = self._body("body")
        most, condition = (None if v is None else _array(lanes.beside[v]) for v in self.node.inputs[:2])
        limit = None if most is None else int(most.reshape(()))
        goes_on = condition is None or bool(condition.all())
        carried = [_taken(value, lanes) for value in self.node.inputs[2:] if value is not None]
        collected: list[list[_Pair]] = [[] for _ in body.graph.outputs[1 + len(carried) :]]
        turn, clock = 0, Clock()
        while goes_on and (limit is None or turn < limit):
            clock.check()
            number, go = np.asarray(turn, np.int64), np.asarray(True)
            clash = self._once(body, [(number, number), (go, go), *carried], lanes)
            if clash is not None:
                return clash
            first, *others = (_taken(value, lanes) for value in body.graph.outputs)
            goes_on, carried = bool(_array(first[1]).all()), others[: len(carried)]
            for rows, pair in zip(collected, others[len(carried) :], strict=True):
                rows.append(pair)
            turn += 1
        inner = body.graph.outputs[1 + len(carried) :]
        return self._hand_out([*carried, *map(_stacked, collected, inner, self.node.outputs[len(carried) :])], lanes)


class _Scan(_Control):
    def run(self, lanes: Lanes) -> Clash | None:
        body, count = self._body("body"), self.node.attributes.get_int("num_scan_inputs", 0)
        given = [_taken(value, lanes) for value in self.node.inputs if value is not None]
        states, scanned = (
            given[: len(given) - count],
            [tuple(map(_array, pair)) for pair in given[len(given) - count :]],
        )
        axes = self._ints("scan_input_axes", count)
        backwards = self._ints("scan_input_directions", count)
        length = scanned[0][0].shape[axes[0]]
        handed_out = body.graph.outputs[len(states) :]
        collected: list[list[_Pair]] = [[] for _ in handed_out]
        clock = Clock()
        for turn in range(length):
            clock.check()
            slices = [
                (a.take(length - 1 - turn if back else turn, axis), b.take(length - 1 - turn if back else turn, axis))
                for (a, b), axis, back in zip(scanned, axes, backwards, strict=True)
            ]
            clash = self._once(body, [*states, *slices], lanes)
            if clash is not None:
                return clash
            pairs = [_taken(value, lanes) for value in body.graph.outputs]
            states = pairs[: len(states)]
            for rows, pair in zip(collected, pairs[len(states) :], strict=True):
                rows.append(pair)
        axes = self._ints("scan_output_axes", len(handed_out))
        backwards = self._ints("scan_output_directions", len(handed_out))
        stacks = [
            tuple(np.stack([_array(pair[lane]) for pair in (rows[::-1] if back else rows)], axis) for lane in (0, 1))
            for rows, axis, back in zip(collected, axes, backwards, strict=True)
        ]
        return self._hand_out([*states, *((a, b) for a, b in stacks)], lanes)

    def _ints(self, name: str, count: int) -> list[int]:
        return list(self.node.attributes.get_ints(name, [0] * count))


def _stacked(rows: Sequence[_Pair], inner: ir.Value, outer: ir.Value) -> _Pair:
    """Return what a Loop collected, one behind the other."""
    if rows:
        return np.stack([_array(pair[0]) for pair in rows]), np.stack([_array(pair[1]) for pair in rows])
    dtype = next((v.dtype for v in (inner, outer) if v.dtype is not None), ir.DataType.FLOAT)
    shape = [d if isinstance(d, int) else 0 for d in inner.shape or ()]
    empty = np.empty((0, *shape), dtype.numpy())
    return empty, empty


def _array(value: Any) -> Array:
    return value.array() if isinstance(value, Site) else np.asarray(value)


def _taken(value: ir.Value, lanes: Lanes) -> _Pair:
    """Return what `value` is now, in memory of its own: nothing that is moved is lost to another that is."""
    return _copied(lanes.arena[value]), _copied(lanes.beside[value])


def _copied(value: Any) -> Any:
    if not isinstance(value, Site):
        return value
    copy = Site.empty(value.dtype, value.shape, len(value.data))
    copy.data[:] = value.data
    return copy


def _put(value: ir.Value, pair: _Pair, run: GraphRun, lanes: Lanes) -> None:
    """Let `value`, of the graph of `run`, be what `pair` says: at its address in the arena, if it has one."""
    rooms = (run.sites.get(value), run.room(value))
    for values, found, room in zip((lanes.arena, lanes.beside), pair, rooms, strict=True):
        _write(values, value, found, room, run)


def _write(values: Values, value: ir.Value, found: Any, room: Site | None, run: GraphRun) -> None:
    if room is None:
        values[value] = run.held_as(found, value)
    elif isinstance(found, Site) and len(found.data) == len(room.data):
        room.data[:] = found.data
        values[value] = Site(room.data, room.address, room.dtype, found.shape)
    else:
        values[value] = run.filled(room, found.array() if isinstance(found, Site) else found, value)
