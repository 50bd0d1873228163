"""Runs the nodes of one graph twice in lockstep: with every tensor at its planned address, and with memory of its own for each.

An overwritten tensor is noticed at once, also where it would not change an output: a softmax of equal numbers hides differences.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import onnx_ir as ir

from onnxtile.errors import CheckFailed, ModelError
from onnxtile.graph import dependencies
from onnxtile.model.unfold import inside_of
from onnxtile.planning.layout.aliases.byte_reads import spans_read
from onnxtile.planning.layout.aliases.find import Alias, parts, views
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.ordering.schedule import named
from onnxtile.planning.proof.growing_states import GrowingStates, begun_in_place, is_appended
from onnxtile.planning.proof.kernel import Kernel
from onnxtile.planning.proof.memory import TensorMemory, same
from onnxtile.planning.proof.places import planned_sites, workspaces
from onnxtile.planning.proof.prepared import (
    Controlled,
    Corruption,
    Draws,
    Moves,
    PairedValues,
    PreparedNode,
    SpansRead,
    ValueTable,
    View,
    missing_ranges,
)
from onnxtile.planning.proof.repeat import other_values, placement, shares_bytes
from onnxtile.planning.proof.run_context import RunContext
from onnxtile.planning.result import PlannedBody, PlannedBuffer, PlannedState

_UNWRITTEN = 0xA5
"""A byte that memory of a tensor alone, which is zero at first, does not have."""


class GraphRun:
    """The nodes of `graph`, prepared to run at the addresses of the plan.

    `buffers` are its tensors, `schedule` and `numbers` its nodes and their steps, `bodies` the plans of their bodies, `states` those kept
    in the arena. Raises CheckFailed
    where the plan leaves the arena or gives a tensor another size, ModelError where onnxruntime has no kernel for a node.
    """

    def __init__(
        self,
        graph: ir.Graph,
        context: RunContext,
        buffers: Iterable[PlannedBuffer],
        schedule: Sequence[str],
        numbers: Sequence[int],
        bodies: Iterable[PlannedBody],
        states: Iterable[PlannedState] = (),
    ) -> None:
        self.graph = graph
        self._context = context
        self._facts = context.facts
        self._shapes = context.facts.shapes
        buffers = tuple(buffers)
        self.sites = planned_sites(graph, buffers, context.blocks, self._shapes)
        self.growing = GrowingStates.of(graph, states, self.sites, context.blocks, self._facts)
        self.sites.update({value: _new_like(self.sites[value]) for value in self.growing.rows})
        self._constants: dict[ir.Value, None] = {}
        self.steps: dict[int, PreparedNode] = {}
        self.numbers = numbers
        self._spans: dict[int, SpansRead] = {}
        self._repeated: set[Hashable] = set()
        self._lent: set[ir.Value] = set()
        of_node: dict[str, list[PlannedBody]] = {}
        for body in bodies:
            of_node.setdefault(body.node, []).append(body)
        self._workspaces = workspaces(schedule, numbers, buffers, of_node, context.blocks)
        for place, node in enumerate(named(graph, schedule, numbers).nodes):
            self._prepare(place, node, of_node.get(schedule[place], []))
        self._hold(graph.outputs)

    @cached_property
    def held(self) -> ValueTable:
        """The constants outside the arena, read at the first run; those that operators compute are computed together."""
        constants = self._facts.constants
        constants.prepare(self._constants)
        return {value: TensorMemory.of(constants.array(value), self._shapes.dtype(value)) for value in self._constants}

    @property
    def views(self) -> int:
        """The number of nodes that do not run, because their results are in place."""
        moves = (step for step in self.steps.values() if isinstance(step, Moves))
        return sum(isinstance(s, View) for s in self.steps.values()) + sum(m.is_needless(self.sites) for m in moves)

    @property
    def repeated(self) -> int:
        """The number of different kernels that have run on other values as well."""
        return len(self._repeated)

    def run(
        self, paired: PairedValues, places: Iterable[int], dead_after: Mapping[int, list[ir.Value]] | None = None
    ) -> Corruption | None:
        """Run the steps at `places`; return the first corruption. The reference run releases the values `dead_after` a step.

        Raises ModelError where a kernel refuses its inputs outside the arena, too.
        """
        for place in places:
            corruption = self._run_step(place, paired)
            if corruption is not None:
                return corruption
            for value in (dead_after or {}).get(place, ()):
                paired.reference.pop(value, None)
        return None

    def _run_step(self, place: int, paired: PairedValues) -> Corruption | None:
        """Run the step at `place`, with canaries in its workspaces that only its bodies may overwrite."""
        number, step, used = self.numbers[place], self.steps[place], self._workspaces.get(place, [])
        for workspace in used:
            workspace.fill()
        corruption = (
            self._lockstep(number, step, paired, self._spans.get(place, {}))
            if isinstance(step, Kernel | Moves | Draws | View)
            else self._control(step, paired)
        )
        return corruption or next(
            (Corruption(workspace.name, number) for workspace in used if not workspace.is_intact), None
        )

    def _control(self, step: Controlled, paired: PairedValues) -> Corruption | None:
        self.growing.read(step.reads, paired)
        return step.run(paired)

    def _lockstep(
        self, number: int, step: Kernel | Moves | Draws | View, paired: PairedValues, spans: SpansRead
    ) -> Corruption | None:
        kernel = step if isinstance(step, Kernel) else step.kernel
        self.growing.read(kernel.reads, paired)
        for _, value in kernel.inputs:
            if not paired.agree(value, spans.get(value)):
                return Corruption(value.name or "", number)
        if isinstance(step, View):
            self._link(step, paired.arena)
        if isinstance(step, Kernel) and not spans and self._is_repeated(step):
            corruption = self._repeat(number, step, paired)
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
        targets = {made: self.own_memory(made) for _, made in kernel.outputs}
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
                hint="bind sizes that fill it, or add --no-verify",
            )

    def _is_repeated(self, kernel: Kernel) -> bool:
        """Return whether `kernel` runs on other values first; never one that reads a part of an operand: the rest may be another's."""
        if not self._context.repeats or not shares_bytes(kernel, self.sites):
            return False
        return not any(self._shapes.is_bound(value) for value in (*kernel.reads, *(made for _, made in kernel.outputs)))

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

    def _reference_memory(
        self, step: Kernel | Moves | Draws | View, value: ir.Value, arena: ValueTable
    ) -> TensorMemory | None:
        """Return memory for `value` in the reference run, at the same distance from a multiple of 64 as in the arena."""
        if not isinstance(step, View):
            return self.own_memory(value)
        shown = arena[value]
        return TensorMemory.empty(shown.dtype, shown.shape, len(shown.data), shown.address)

    def _run_inside(self, step: Kernel | Moves | Draws | View, paired: PairedValues) -> None:
        if isinstance(step, Kernel):
            self._run(step, paired.arena, {value: self.sites.get(value) for _, value in step.outputs})
        elif isinstance(step, Moves):
            self._move(step, paired.arena)
        elif isinstance(step, Draws):
            self._copy(step.kernel, paired)

    def _move(self, step: Moves, arena: ValueTable) -> None:
        outputs = [value for _, value in step.kernel.outputs]
        elsewhere = dict(arena)
        self._run(step.kernel, elsewhere, {value: self.own_memory(value) for value in outputs})
        for value in outputs:
            site = self.sites.get(value)
            if site is None:
                arena[value] = elsewhere[value]
                continue
            for start, end in missing_ranges(step.there.get(value, ()), len(site.data)):
                site.data[start:end] = elsewhere[value].data[start:end]
            arena[value] = site

    def _copy(self, kernel: Kernel, paired: PairedValues) -> None:
        for _, value in kernel.outputs:
            drawn, site = paired.reference[value], self.sites.get(value)
            paired.arena[value] = drawn if site is None else site.filled(drawn.array())

    def _link(self, view: View, arena: ValueTable) -> None:
        for alias in view.aliases:
            value = alias.value
            shape, size = self._shapes.sizes(value), tensor_bytes(value, self._shapes)
            assert shape is not None
            assert size is not None
            site = self.sites.get(value)
            arena[value] = arena[alias.source].part(alias.at, size, shape) if site is None else site

    def _run(self, kernel: Kernel, values: ValueTable, targets: Mapping[ir.Value, TensorMemory | None]) -> None:
        """Run `kernel` on `values`, and put its results into `targets` and `values`."""
        inputs = {name: values[value] for name, value in kernel.inputs}
        is_fixed = not any(self._shapes.is_bound(value) for _, value in kernel.outputs)
        if is_fixed and all(isinstance(site, TensorMemory) for site in (*inputs.values(), *targets.values())):
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
                f"{value.name!r} is larger in a run than its bound: {error}", hint="give a larger --bound"
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

    def _prepare(self, place: int, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        """Prepare the run of `node`, unless it is computed before the run."""
        outputs = [value for value in node.outputs if value.name]
        if all(value in self._facts.constants and value not in self.sites for value in outputs):
            return
        if bodies and self._is_typed(node, bodies):
            self.steps[place] = self._controlled(node, bodies)
            self._hold(dependencies(node))
            return
        cuts = (a for a in parts(node, self._facts) if a.rule == "cut" and a.value not in self.sites)
        shared = {a.value: a for a in (*views(node, self._facts), *cuts) if self._shares(a)}
        if not self._context.shows_views or any(self._shapes.is_bound(value) for value in outputs):
            shared = {}  # the shape of a bounded view is known only in a run
        kernel = self._context.kernels.of(node)
        self._hold(kernel.reads)
        spans = {value: spans_read(node, value, self._facts) for value in kernel.reads}
        self._spans[place] = {value: found for value, found in spans.items() if found is not None}
        if shared.keys() == set(outputs):
            self.steps[place] = View(kernel, tuple(shared.values()))
        elif node in self._facts.random:
            self.steps[place] = Draws(kernel)
        else:
            there = self._there(node)
            is_apart = is_appended(node, self.sites, self._shapes)
            self.steps[place] = (
                Moves(kernel, there or begun_in_place(node, self.sites)) if there or is_apart else kernel
            )

    def _is_typed(self, node: ir.Node, bodies: Sequence[PlannedBody]) -> bool:
        """Return whether all values in the bodies of `node` are tensors; otherwise it runs as one kernel."""
        graphs = [body_of(node, body.attribute) for body in bodies if body.attribute is not None]
        made = (value for graph in graphs for inner in graph.all_nodes() for value in inner.outputs if value.name)
        return all(self._shapes.dtype(value) is not None for value in made)

    def _controlled(self, node: ir.Node, bodies: Sequence[PlannedBody]) -> Controlled:
        from onnxtile.planning.proof.control_run import controlled  # it runs graphs, so it imports this module

        def prepared(body: PlannedBody) -> GraphRun:
            graph = body_of(node, body.attribute)
            return GraphRun(graph, self._context, body.buffers, body.schedule, body.steps, body.bodies)

        return controlled(node, self, {body.attribute: body for body in bodies}, prepared)

    def _there(self, node: ir.Node) -> dict[ir.Value, tuple[tuple[int, int], ...]]:
        """Return the ranges of bytes, by output, that `node` need not move."""
        found: dict[ir.Value, tuple[tuple[int, int], ...]] = {}
        if any(self._shapes.is_bound(value) for value in node.outputs):
            return found  # the bytes in place are known only in a run
        for alias in parts(node, self._facts):
            if alias.value in self.sites and alias.source in self.sites and self._shares(alias):
                start = max(0, -alias.at)
                end = min(len(self.sites[alias.value].data), len(self.sites[alias.source].data) - alias.at)
                found[alias.value] = (*found.get(alias.value, ()), (start, end))
        return found

    def _shares(self, alias: Alias) -> bool:
        """Return whether the plan keeps the alias: both at matching addresses in the arena, or both outside."""
        sites = self.sites
        if alias.value not in sites:
            return alias.source not in sites
        return alias.source in sites and sites[alias.value].address == sites[alias.source].address + alias.at

    def _hold(self, values: Iterable[ir.Value]) -> None:
        """Note the constants among `values`; they stay in memory for all runs."""
        constants = self._facts.constants
        self._constants.update((value, None) for value in values if value in constants and value not in self.sites)


def body_of(node: ir.Node, attribute: str | None) -> ir.Graph:
    """Return the body in `attribute` of `node`; for None, the body of the function that it calls."""
    graph = inside_of(node) if attribute is None else node.attributes[attribute].as_graph()
    assert graph is not None
    return graph


def _new_like(site: TensorMemory) -> TensorMemory:
    """Return new memory for the tensor of `site`, outside the arena."""
    return TensorMemory.empty(site.dtype, site.shape, len(site.data), site.address)
