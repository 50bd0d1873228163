"""Runs the nodes of one graph twice in lockstep: with every tensor at its planned address, and with memory of its own for each.

An overwritten tensor is noticed at once, also where it would not change an output: a softmax of equal numbers hides differences.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.arena.kernel import (
    NOTHING,
    Controlled,
    Corruption,
    GrowingStates,
    Kernel,
    Kernels,
    PairedValues,
    PreparedNode,
    ValueTable,
    begun_in_place,
    is_appended,
    missing_ranges,
    other_values,
    placement,
    shares_bytes,
)
from onnxtile.arena.memory import ArenaMemory, TensorMemory, planned_sites, same, workspaces
from onnxtile.declare.plan_document import PlannedBody, PlannedGraph, PlannedState
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.kernel_graph import IN_PLACE, GraphKernel, KernelGraph, Share
from onnxtile.model.topology import dependencies, followers, nodes_inside
from onnxtile.planning.orders import in_order
from onnxtile.shapes.resolve import tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed, ModelError
from onnxtile.system.long_work import Clock
from onnxtile.system.runtime import Array
from onnxtile.verification.draws import drawn_outputs

# The common part of the runs of all graphs of a model.


@dataclass(frozen=True)
class RunContext:
    """The facts of a model, the arenas by name, and the kernels.

    Without `shows_views` every node runs, also one whose results the plan takes for views.
    """

    facts: LayoutFacts
    blocks: Mapping[str, ArenaMemory]
    kernels: Kernels
    shows_views: bool = True

    def held(self, result: Any, value: ir.Value) -> Any:
        """Return `result` as the copy of `value` outside the arena: a TensorMemory, unless `value` has no fixed bytes.

        It starts at a multiple of 64, like onnxruntime's own tensors; one that is a TensorMemory stays as it is.
        """
        if isinstance(result, TensorMemory):
            return result
        held = (
            result
            if value in self.kernels.containers
            else TensorMemory.from_array(result, self.facts.shapes.dtype(value))
        )
        return held.at(0) if isinstance(held, TensorMemory) else held


_IN_MEMORY = {TensorMemory}
"""The types of operands and results of a kernel that runs on given addresses."""
_UNWRITTEN = 0xA5
"""A byte that memory of a tensor alone, which is zero at first, does not have."""


class GraphRun:
    """The kernels of `graph`, prepared to run at the addresses of its `plan`, which keeps `states` in the arena.

    Raises CheckFailed where the plan leaves the arena or gives a tensor another size, ModelError where onnxruntime lacks a kernel.
    """

    def __init__(
        self, graph: KernelGraph, context: RunContext, plan: PlannedGraph, states: Iterable[PlannedState] = ()
    ) -> None:
        self.graph = graph
        self.inputs, self.outputs = ([self._value(number) for number in ends] for ends in (graph.inputs, graph.outputs))
        self._context = context
        self._facts = context.facts
        self._shapes = context.facts.shapes
        self.sites = planned_sites(graph, plan.buffers, context.blocks)
        self.growing = GrowingStates.from_states(graph, states, self.sites, context.blocks, self._shapes)
        self.sites.update({value: _new_like(self.sites[value]) for value in self.growing.rows})
        self._constants: dict[ir.Value, None] = {}
        self.steps: dict[int, PreparedNode | Controlled] = {}
        self.numbers = plan.steps
        self._repeated: set[Hashable] = set()
        self._lent: set[ir.Value] = set()
        of_node: dict[str, list[PlannedBody]] = {}
        for body in plan.bodies:
            of_node.setdefault(body.node, []).append(body)
        self._workspaces = workspaces(plan.schedule, plan.steps, plan.buffers, of_node, context.blocks)
        names = {number: kernel.name for number, kernel in enumerate(graph.kernels)}
        for position, number in enumerate(in_order(names, plan.schedule)):
            self._prepare(position, graph.kernels[number], of_node.get(names[number], []))
        self._hold(self.outputs)

    def _value(self, number: int) -> ir.Value:
        value: ir.Value = self.graph.tensors[number].value
        return value

    @cached_property
    def held(self) -> ValueTable:
        """The constants outside the arena, read at the first run; those that operators compute are computed together."""
        constants = self._facts.constants
        constants.prepare(self._constants)
        return {
            value: TensorMemory.from_array(constants.array(value), self._shapes.dtype(value))
            for value in self._constants
        }

    @property
    def views(self) -> int:
        """The number of nodes that do not run, because their results are in place."""
        steps = (step for step in self.steps.values() if isinstance(step, PreparedNode))
        return sum(step.is_needless(self.sites) for step in steps)

    @property
    def repeated(self) -> int:
        """The number of different kernels that have run on other values as well."""
        return len(self._repeated)

    def run(
        self, paired: PairedValues, positions: Iterable[int], dead_after: Mapping[int, list[ir.Value]] | None = None
    ) -> Corruption | None:
        """Run the steps at `positions`; return the first corruption. The reference run releases the values `dead_after` a step.

        Raises ModelError where a kernel refuses its inputs outside the arena, too.
        """
        for position in positions:
            corruption = self._run_step(position, paired)
            if corruption is not None:
                return corruption
            for value in (dead_after or {}).get(position, ()):
                paired.reference.pop(value, None)
        return None

    def _run_step(self, position: int, paired: PairedValues) -> Corruption | None:
        """Run the step at `position`, with canaries in its workspaces that only its bodies may overwrite."""
        number, step, used = self.numbers[position], self.steps[position], self._workspaces.get(position, [])
        for workspace in used:
            workspace.fill()
        self.growing.read(step.reads, paired)
        corruption = self._lockstep(number, step, paired) if isinstance(step, PreparedNode) else step.run(paired)
        return corruption or next(
            (Corruption(workspace.name, number) for workspace in used if not workspace.is_intact), None
        )

    def _lockstep(self, number: int, step: PreparedNode, paired: PairedValues) -> Corruption | None:
        kernel = step.kernel
        for _, value in kernel.inputs:
            if not paired.agree(value, step.spans.get(value)):
                return Corruption(value.name or "", number)
        self._link(step, paired.arena)
        if step.is_plain and not step.spans and self._is_repeated(kernel):
            corruption = self._repeat(number, kernel, paired)
            if corruption is not None:
                return corruption
        self._run(
            kernel,
            paired.reference,
            {value: self._reference_memory(step, value, paired.arena) for _, value in kernel.outputs},
        )
        try:
            self._run_inside(step, paired)
        except ModelError:
            # The kernel has just run on the same inputs outside the arena, so the addresses are at fault.
            return Corruption(kernel.outputs[0][1].name or "", number)
        self.growing.write((value for _, value in kernel.outputs), paired.arena)
        wrong = next((value for _, value in kernel.outputs if not paired.agree(value)), None)
        if wrong is None:
            return None
        self._require_written(kernel, wrong, paired.reference)
        return Corruption(wrong.name or "", number)

    def _require_written(self, kernel: Kernel, value: ir.Value, reference: ValueTable) -> None:
        """Raise CheckFailed where `kernel`, outside the arena, leaves bytes of its result `value` as they were before."""
        targets = {output: self.own_memory(output) for _, output in kernel.outputs}
        memory = targets[value]
        if memory is None:
            return
        memory.data[:] = _UNWRITTEN
        again = dict(reference)
        self._run(kernel, again, targets)
        if not same(again[value], reference[value]):
            maker = value.producer()
            raise CheckFailed(
                f"{value.name!r} has no fixed bits: with these sizes {'its node' if maker is None else maker.op_type} leaves some of its "
                "bytes unwritten",
                hint="bind sizes that fill it; --no-verify plans without a run",
            )

    def _is_repeated(self, kernel: Kernel) -> bool:
        """Return whether `kernel` runs on other values first; never one that reads a part of an operand: the rest may be another's."""
        if not shares_bytes(kernel, self.sites):
            return False
        return not self._shapes.has_bound((*kernel.reads, *(output for _, output in kernel.outputs)))

    def _repeat(self, number: int, kernel: Kernel, paired: PairedValues) -> Corruption | None:
        """Run `kernel` on other values of its operands, in the arena and outside, unless an equal one has run on such.

        The values in the arena are put back.
        """
        read = {value: paired.reference[value] for value in kernel.reads}
        key = placement(kernel, self.sites, read)
        if key in self._repeated:
            return None
        self._repeated.add(key)
        for fed in other_values(kernel, self.sites, read):
            trial = PairedValues({value: paired.arena[value] for value in read}, read | fed)
            for value, moved in fed.items():
                self.sites[value].data[:] = moved.data
            self._run(kernel, trial.reference, {value: self.own_memory(value) for _, value in kernel.outputs})
            self._run(kernel, trial.arena, {value: self.sites.get(value) for _, value in kernel.outputs})
            wrong = next((value for _, value in kernel.outputs if not trial.agree(value)), None)
            # Also operands that kept their values may have been written over.
            for value in (value for value in read if value in self.sites):
                self.sites[value].data[:] = read[value].data
            if wrong is not None:
                return Corruption(wrong.name or "", number)
        return None

    def _reference_memory(self, step: PreparedNode, value: ir.Value, arena: ValueTable) -> TensorMemory | None:
        """Return memory for `value` in the reference run, at the same distance from a multiple of 64 as in the arena."""
        return _new_like(arena[value]) if step.shown else self.own_memory(value)

    def _run_inside(self, step: PreparedNode, paired: PairedValues) -> None:
        if step.is_plain:
            self._run(step.kernel, paired.arena, {value: self.sites.get(value) for _, value in step.kernel.outputs})
        elif step.draws:
            self._copy(step.kernel, paired)
        elif step.there is not None:
            self._move(step, step.there, paired.arena)

    def _move(
        self, step: PreparedNode, there: Mapping[ir.Value, tuple[tuple[int, int], ...]], arena: ValueTable
    ) -> None:
        outputs = [value for _, value in step.kernel.outputs]
        elsewhere = dict(arena)
        self._run(step.kernel, elsewhere, {value: self.own_memory(value) for value in outputs})
        for value in outputs:
            site = self.sites.get(value)
            if site is None:
                arena[value] = elsewhere[value]
                continue
            for start, end in missing_ranges(there.get(value, ()), len(site.data)):
                site.data[start:end] = elsewhere[value].data[start:end]
            arena[value] = site

    def _copy(self, kernel: Kernel, paired: PairedValues) -> None:
        for _, value in kernel.outputs:
            drawn, site = paired.reference[value], self.sites.get(value)
            paired.arena[value] = drawn if site is None else site.filled(drawn.array())

    def _link(self, step: PreparedNode, arena: ValueTable) -> None:
        for value, (source, start) in step.shown.items():
            shape, size = self._shapes.sizes(value), tensor_bytes(value, self._shapes)
            assert shape is not None
            assert size is not None
            site = self.sites.get(value)
            arena[value] = arena[source].part(start, size, shape) if site is None else site

    def _run(self, kernel: Kernel, values: ValueTable, targets: Mapping[ir.Value, TensorMemory | None]) -> None:
        """Run `kernel` on `values`, and put its results into `targets` and `values`."""
        inputs = {name: values[value] for name, value in kernel.inputs}
        if kernel.is_fixed and {*map(type, inputs.values()), *map(type, targets.values())} <= _IN_MEMORY:
            outputs = {name: target.binding for name, value in kernel.outputs if (target := targets[value]) is not None}
            kernel.session.run_in_place({name: site.binding for name, site in inputs.items()}, outputs)
            values.update(targets)
            return
        feeds = {name: value.array() if isinstance(value, TensorMemory) else value for name, value in inputs.items()}
        results = kernel.session.run(feeds)
        for name, value in kernel.outputs:
            target, result = targets[value], results[name]
            values[value] = self.held_as(result, value) if target is None else self.filled(target, result, value)

    def filled(self, target: TensorMemory, result: Any, value: ir.Value) -> TensorMemory:
        """Put `result` into `target`, the place of `value`. Raises CheckFailed where it is larger."""
        try:
            return target.filled(result)
        except ValueError as error:
            raise CheckFailed(
                f"{value.name!r} is larger in a run than its bound: {error}",
                hint="give a larger upper bound, --dim NAME=:N",
            ) from error

    def held_as(self, result: Any, value: ir.Value) -> Any:
        """Return `result` as the copy of `value` outside the arena."""
        return self._context.held(result, value)

    def own_memory(self, value: ir.Value) -> TensorMemory | None:
        """Return new memory for `value`, if it has an address in the arena."""
        site = self.sites.get(value)
        return None if site is None else _new_like(site)

    def lend(self, value: ir.Value, start: int, number: int = 0) -> None:
        """Let `value` be made as far from a multiple of 64 as row `number` of a tensor at `start`, in a run without planned addresses.

        onnxruntime writes what a body hands out right into the results of the node that has the body.
        """
        dtype, shape, size = self._shapes.dtype(value), self._shapes.sizes(value), tensor_bytes(value, self._shapes)
        is_made = value.producer() is not None and value not in self._constants
        if self._context.shows_views or not is_made or (value in self.sites and value not in self._lent):
            return
        if dtype is None or shape is None or size is None or self._shapes.is_bound(value):
            return
        self._lent.add(value)
        self.sites[value] = TensorMemory.empty(dtype, shape, size, start + number * size)

    def _prepare(self, position: int, kernel: GraphKernel, bodies: Sequence[PlannedBody]) -> None:
        """Prepare the run of `kernel`, unless it is computed before the run."""
        node, outputs = kernel.node, [self._value(number) for number in kernel.makes]
        if all(value in self._facts.constants and value not in self.sites for value in outputs):
            return
        if bodies and all(_is_typed(body.graph) for body in kernel.bodies if body.attribute is not None):
            self.steps[position] = self._controlled(kernel, bodies)
            self._hold(self.steps[position].reads)
            return
        runs = self._context.kernels.kernel_of(node)
        spans = {self._value(read.tensor): read.spans for read in kernel.reads if read.spans is not None}
        prepared = partial(PreparedNode, runs, spans=spans or NOTHING)
        self._hold(runs.reads)
        # The bytes in place, and the shape of a bounded view, are known only in a run.
        is_bound = any(self._shapes.is_bound(value) for value in outputs)
        kept = [] if is_bound else [share for share in kernel.shares if share.kind != IN_PLACE and self._shares(share)]
        shown = {
            self._value(share.result): (self._value(share.operand), share.at)
            for share in kept
            if share.kind == "view" or (share.kind == "cut" and self._value(share.result) not in self.sites)
        }
        if self._context.shows_views and shown.keys() == set(outputs):
            self.steps[position] = prepared(shown=shown)
            return
        draws = node in self._facts.random
        there = None if draws else self._there(share for share in kept if share.kind != "view")
        if not draws and not there:
            is_begun = is_appended(node, runs.reads, self.sites, self._shapes)
            there = begun_in_place(node, self.sites) if is_begun else None
        self.steps[position] = prepared(draws=draws, there=there)

    def _controlled(self, kernel: GraphKernel, bodies: Sequence[PlannedBody]) -> Controlled:
        graphs = {body.attribute: body.graph for body in kernel.bodies}

        def prepared(body: PlannedBody) -> GraphRun:
            return GraphRun(graphs[body.attribute], self._context, body)

        return controlled(kernel.node, self, {body.attribute: body for body in bodies}, prepared)

    def _there(self, shares: Iterable[Share]) -> dict[ir.Value, tuple[tuple[int, int], ...]]:
        """Return the ranges of bytes, by output, that `shares` keep in place."""
        ranges: dict[ir.Value, tuple[tuple[int, int], ...]] = {}
        for share in shares:
            value, source = self._value(share.result), self._value(share.operand)
            if value in self.sites:
                start = max(0, -share.at)
                end = min(len(self.sites[value].data), len(self.sites[source].data) - share.at)
                ranges[value] = (*ranges.get(value, ()), (start, end))
        return ranges

    def _shares(self, share: Share) -> bool:
        """Return whether the plan keeps `share`: both at matching addresses in the arena, or both outside."""
        result, operand = (self.sites.get(self._value(number)) for number in (share.result, share.operand))
        if result is None or operand is None:
            return result is operand
        return result.address == operand.address + share.at

    def _hold(self, values: Iterable[ir.Value]) -> None:
        """Note the constants among `values`; they stay in memory for all runs."""
        constants = self._facts.constants
        self._constants.update((value, None) for value in values if value in constants and value not in self.sites)


def _is_typed(graph: KernelGraph) -> bool:
    """Return whether all values that a body makes are tensors; otherwise its node runs as one kernel."""
    results = (number for kernel in graph.kernels for number in (*kernel.makes, *kernel.inside))
    bodies = (body for kernel in graph.kernels for body in kernel.bodies)
    return all(graph.tensors[number].dtype is not None for number in results) and all(
        _is_typed(b.graph) for b in bodies
    )


def _new_like(site: TensorMemory) -> TensorMemory:
    """Return new memory for the tensor of `site`, outside the arena."""
    return TensorMemory.empty(site.dtype, site.shape, len(site.data), site.address)


# Runs If, Loop, Scan and calls of functions body by body, each tensor of a body at its planned address.
#
# Values that enter and leave a body are moved, in both runs. The semantics are those of the ONNX specification. The plain run of the whole
# model, in which onnxruntime runs the bodies, verifies them.

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
        for value, pair in zip(body.inputs, given, strict=True):
            _put(value, pair, body, paired)
        corruption = body.run(paired, body.steps)
        if corruption is not None:
            return corruption
        return next((Corruption(v.name or "", None) for v in body.outputs if not paired.agree(v)), None)

    def _lend(self, body: GraphRun) -> None:
        """Let `body` make its outputs where those of the node are."""
        for inner, outer in zip(body.outputs, self.node.outputs, strict=False):
            body.lend(inner, _address(self.around.sites.get(outer)))

    def _hand_out(self, results: Sequence[_ArrayPair], paired: PairedValues) -> Corruption | None:
        for value, pair in zip(self.node.outputs, results, strict=False):
            if value.name:
                _put(value, pair, self.around, paired)
        outputs = (value for value in self.node.outputs if value.name)
        return next((Corruption(value.name or "", None) for value in outputs if not paired.agree(value)), None)


class _Call(_Control):
    def run(self, paired: PairedValues) -> Corruption | None:
        body = self._body(None)
        self._lend(body)
        corruption = self._once(body, (), paired)
        return corruption or self._hand_out([_copy_of(value, paired) for value in body.outputs], paired)


class _If(_Control):
    def run(self, paired: PairedValues) -> Corruption | None:
        condition = self.node.inputs[0]
        assert condition is not None
        body = self._body("then_branch" if _array(paired.reference[condition]).all() else "else_branch")
        self._lend(body)
        corruption = self._once(body, (), paired)
        return corruption or self._hand_out([_copy_of(value, paired) for value in body.outputs], paired)


class _Loop(_Control):
    def run(self, paired: PairedValues) -> Corruption | None:
        body = self._body("body")
        most, condition = (None if v is None else _array(paired.reference[v]) for v in self.node.inputs[:2])
        limit = None if most is None else int(most.reshape(()))
        goes_on = condition is None or bool(condition.all())
        carried = [_copy_of(value, paired) for value in self.node.inputs[2:] if value is not None]
        collected: list[list[_ArrayPair]] = [[] for _ in body.outputs[1 + len(carried) :]]
        turn, clock = 0, Clock()
        while goes_on and (limit is None or turn < limit):
            clock.check()
            number, go = np.asarray(turn, np.int64), np.asarray(True)
            corruption = self._once(body, [(number, number), (go, go), *carried], paired)
            if corruption is not None:
                return corruption
            first, *others = (_copy_of(value, paired) for value in body.outputs)
            goes_on, carried = bool(_array(first[1]).all()), others[: len(carried)]
            for rows, pair in zip(collected, others[len(carried) :], strict=True):
                rows.append(pair)
            turn += 1
        inner = body.outputs[1 + len(carried) :]
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
        rows_in = body.inputs[len(states) :]
        axes = self._ints("scan_input_axes", count)
        backwards = self._ints("scan_input_directions", count)
        length = scanned[0][0].shape[axes[0]]
        handed_out = body.outputs[len(states) :]
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
            pairs = [_copy_of(value, paired) for value in body.outputs]
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
        rows, wholes = body.outputs[states:], self.node.outputs[states:]
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
    for values, result, target in zip((paired.arena, paired.reference), pair, targets, strict=True):
        _write(values, value, result, target, run)


def _write(values: ValueTable, value: ir.Value, result: Any, target: TensorMemory | None, run: GraphRun) -> None:
    if target is None:
        values[value] = run.held_as(result, value)
    elif isinstance(result, TensorMemory) and len(result.data) == len(target.data):
        target.data[:] = result.data
        values[value] = TensorMemory(target.data, target.address, target.dtype, result.shape)
    else:
        values[value] = run.filled(target, result.array() if isinstance(result, TensorMemory) else result, value)


# Outputs of a model that may have other bits in a second run, with the reason.

_HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}

WIDER = "onnxruntime keeps more than 16 bits of a float between two nodes"


@dataclass(frozen=True)
class Unsure:
    """Outputs that may differ between a run of the whole model and a run of its nodes, by name with the reason.

    `drawn` outputs depend on a random operator, `wider` outputs on a float of 16 bits.
    """

    drawn: Mapping[str, str]
    wider: Mapping[str, str]

    @classmethod
    def from_facts(cls, facts: LayoutFacts) -> Unsure:
        """Return the unsure outputs of the model of `facts`."""
        graph = facts.model.graph
        sources = set(_with_halves(facts)) if facts.shapes.has_dtype(_HALVES) else set[ir.Node]()
        halves = followers(graph, sources, 1) if sources else {}
        wider = {value.name: WIDER for value in graph.outputs if value.name and value in halves}
        return cls(drawn_outputs(facts.model, facts.constants), wider)


def _with_halves(facts: LayoutFacts) -> Iterator[ir.Node]:
    for node in facts.model.graph:
        inner = (value for nested in nodes_inside(node) for value in nested.outputs)
        if any(facts.shapes.dtype(value) in _HALVES for value in (*dependencies(node), *node.outputs, *inner)):
            yield node
