"""Runs the nodes of one graph, twice in lockstep: with every tensor at its planned address, and with memory of its own for each.

A clash is noticed when it happens, also where it would not reach an output: a softmax of equal numbers hides much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import onnx_ir as ir

from onnxtile.errors import CheckFailed, ModelError
from onnxtile.graph import dependencies
from onnxtile.model.unfold import inside_of
from onnxtile.planning.layout.aliases.find import Alias, ModelFacts, parts, views
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.ordering.schedule import named
from onnxtile.planning.proof.draws import draws
from onnxtile.planning.proof.kernel import Kernel, Kernels
from onnxtile.planning.proof.memory import ArenaMemory, TensorMemory, same
from onnxtile.planning.proof.places import planned_sites, workspaces
from onnxtile.planning.result import PlannedBody, PlannedBuffer

ValueTable: TypeAlias = dict[ir.Value, Any]
"""Of each value a TensorMemory, or an ordinary Python value where it has no fixed bytes."""


@dataclass(frozen=True)
class Corruption:
    """A tensor that does not hold what was written to it, or not what its node computes.

    `step` is that of the node that was to read it, or that has just written it; None after the last one.
    """

    name: str
    step: int | None


@dataclass(frozen=True)
class PairedValues:
    """What both runs know of the values: in the `arena`, and beside it."""

    arena: ValueTable
    reference: ValueTable

    def agree(self, value: ir.Value) -> bool:
        """Return whether `value` has in the arena the bits it should."""
        found, expected = self.arena[value], self.reference[value]
        return found is expected or same(found, expected)


@dataclass(frozen=True)
class RunContext:
    """What the runs of all graphs of a model share: what is known of it, the arenas by name, and the kernels.

    Without `shows_views` every node is run, whatever the plan says.
    """

    facts: ModelFacts
    blocks: Mapping[str, ArenaMemory]
    kernels: Kernels
    shows_views: bool = True

    def held(self, found: Any, value: ir.Value) -> Any:
        """Return `found` as the copy of `value` outside of the arena: a TensorMemory, unless it has no fixed bytes or is no tensor.

        It begins at a multiple of 64, as onnxruntime's own tensors do.
        """
        held = found if value in self.kernels.containers else TensorMemory.of(found, self.facts.shapes.dtype(value))
        return held.at(0) if isinstance(held, TensorMemory) else held


class Controlled(Protocol):
    """A node whose bodies are run node by node."""

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it and its bodies read of the graph around them."""
        ...

    def run(self, paired: PairedValues) -> Corruption | None:
        """Run once; return the first corruption in a body."""
        ...


@dataclass(frozen=True)
class View:
    """A node that is not run in the arena: each output is the input beside it under another shape, or a part of it.

    Beside the arena its kernel is run: that shows whether it is one.
    """

    kernel: Kernel
    aliases: tuple[Alias, ...]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it reads."""
        return self.kernel.reads


@dataclass(frozen=True)
class Moves:
    """A node that moves bytes, of which some are there already: in the arena only the others are copied.

    `there` are those, by output the ranges of its bytes, from start to end.
    """

    kernel: Kernel
    there: Mapping[ir.Value, tuple[tuple[int, int], ...]]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it reads."""
        return self.kernel.reads

    def is_needless(self, sites: Mapping[ir.Value, TensorMemory]) -> bool:
        """Return whether every byte is there already."""
        return all(not _rest(self.there.get(v, ()), len(sites[v].data)) for _, v in self.kernel.outputs if v in sites)


@dataclass(frozen=True)
class Draws:
    """A node that gives something else each time it is run: it is run once, beside the arena, and what it gives is copied there."""

    kernel: Kernel

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it reads."""
        return self.kernel.reads


PreparedNode: TypeAlias = Kernel | View | Moves | Draws | Controlled


class GraphRun:
    """The nodes of `graph`, ready to be run where the plan says.

    `buffers` are its tensors, `schedule` and `numbers` its nodes and their steps, `bodies` the plans of their bodies. Raises CheckFailed
    where the plan leaves the arena or does not give a tensor the bytes it has, ModelError where onnxruntime has no kernel for a node.
    """

    def __init__(
        self,
        graph: ir.Graph,
        context: RunContext,
        buffers: Iterable[PlannedBuffer],
        schedule: Sequence[str],
        numbers: Sequence[int],
        bodies: Iterable[PlannedBody],
    ) -> None:
        self.graph = graph
        self._context = context
        self._facts = context.facts
        self._shapes = context.facts.shapes
        buffers = tuple(buffers)
        self.sites = planned_sites(graph, buffers, context.blocks, self._shapes)
        self.held: ValueTable = {}
        self._constants: dict[ir.Value, None] = {}
        self.steps: dict[int, PreparedNode] = {}
        self.numbers = numbers
        of_node: dict[str, list[PlannedBody]] = {}
        for body in bodies:
            of_node.setdefault(body.node, []).append(body)
        self._workspaces = workspaces(schedule, numbers, buffers, of_node, context.blocks)
        for place, node in enumerate(named(graph, schedule, numbers).nodes):
            self._prepare(place, node, of_node.get(schedule[place], []))
        self._hold(graph.outputs)
        self._fetch()

    @property
    def views(self) -> int:
        """How many nodes are not run, since what they give is there already."""
        moves = (step for step in self.steps.values() if isinstance(step, Moves))
        return sum(isinstance(s, View) for s in self.steps.values()) + sum(m.is_needless(self.sites) for m in moves)

    def run(
        self, paired: PairedValues, places: Iterable[int], dead_after: Mapping[int, list[ir.Value]] | None = None
    ) -> Corruption | None:
        """Run the steps at `places`; return the first corruption. What is `dead_after` one is forgotten beside the arena.

        Raises ModelError where a kernel refuses what it is given outside of the arena, too.
        """
        for place in places:
            corruption = self._run_step(place, paired)
            if corruption is not None:
                return corruption
            for value in (dead_after or {}).get(place, ()):
                paired.reference.pop(value, None)
        return None

    def _run_step(self, place: int, paired: PairedValues) -> Corruption | None:
        """Run the step at `place`, with canaries in its workspaces, which none but its bodies may overwrite."""
        number, step, used = self.numbers[place], self.steps[place], self._workspaces.get(place, [])
        for workspace in used:
            workspace.fill()
        corruption = (
            self._lockstep(number, step, paired)
            if isinstance(step, Kernel | Moves | Draws | View)
            else step.run(paired)
        )
        return corruption or next(
            (Corruption(workspace.name, number) for workspace in used if not workspace.is_intact), None
        )

    def _lockstep(self, number: int, step: Kernel | Moves | Draws | View, paired: PairedValues) -> Corruption | None:
        kernel = step if isinstance(step, Kernel) else step.kernel
        for _, value in kernel.inputs:
            if not paired.agree(value):
                return Corruption(value.name or "", number)
        if isinstance(step, View):
            self._link(step, paired.arena)
        self._run(
            kernel,
            paired.reference,
            {value: self._reference_memory(step, value, paired.arena) for _, value in kernel.outputs},
        )
        try:
            self._run_inside(step, paired)
        except ModelError:
            # It has just run on the same inputs elsewhere: where it writes is at fault.
            return Corruption(kernel.outputs[0][1].name or "", number)
        wrong = next((value for _, value in kernel.outputs if not paired.agree(value)), None)
        return None if wrong is None else Corruption(wrong.name or "", number)

    def _reference_memory(
        self, step: Kernel | Moves | Draws | View, value: ir.Value, arena: ValueTable
    ) -> TensorMemory | None:
        """Return memory of its own for `value`, as far from a multiple of 64 as it lies in the arena, or the view of what lies outside."""
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
            for start, end in _rest(step.there.get(value, ()), len(site.data)):
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
        """Run `kernel` on `values`, and put what it gives into `targets` and `values`."""
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
        """Return `result` as the copy of `value` outside of the arena."""
        return self._context.held(result, value)

    def own_memory(self, value: ir.Value) -> TensorMemory | None:
        """Return memory of its own for what the arena has a place for."""
        site = self.sites.get(value)
        return TensorMemory.empty(site.dtype, site.shape, len(site.data), site.address) if site is not None else None

    def _prepare(self, place: int, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        """Note how `node` is run, unless it is computed before the run."""
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
            shared = {}  # of bounds, how it is seen only a run tells
        kernel = self._context.kernels.of(node)
        self._hold(kernel.reads)
        if shared.keys() == set(outputs):
            self.steps[place] = View(kernel, tuple(shared.values()))
        elif draws(node, self._facts):
            self.steps[place] = Draws(kernel)
        else:
            there = self._there(node)
            self.steps[place] = Moves(kernel, there) if there else kernel

    def _is_typed(self, node: ir.Node, bodies: Sequence[PlannedBody]) -> bool:
        """Return whether all that is made in the bodies of `node`, or moved into them, is a tensor: else it is run as one kernel."""
        graphs = [body_of(node, body.attribute) for body in bodies if body.attribute is not None]
        made = (value for graph in graphs for inner in graph.all_nodes() for value in inner.outputs if value.name)
        return all(self._shapes.dtype(value) is not None for value in made)

    def _controlled(self, node: ir.Node, bodies: Sequence[PlannedBody]) -> Controlled:
        from onnxtile.planning.proof.control_run import controlled  # it runs graphs in its turn

        def prepared(body: PlannedBody) -> GraphRun:
            graph = body_of(node, body.attribute)
            return GraphRun(graph, self._context, body.buffers, body.schedule, body.steps, body.bodies)

        return controlled(node, self, {body.attribute: body for body in bodies}, prepared)

    def _there(self, node: ir.Node) -> dict[ir.Value, tuple[tuple[int, int], ...]]:
        """Return which bytes of its outputs `node` need not move."""
        found: dict[ir.Value, tuple[tuple[int, int], ...]] = {}
        for alias in parts(node, self._facts):
            if alias.value in self.sites and alias.source in self.sites and self._shares(alias):
                start = max(0, -alias.at)
                end = min(len(self.sites[alias.value].data), len(self.sites[alias.source].data) - alias.at)
                found[alias.value] = (*found.get(alias.value, ()), (start, end))
        return found

    def _shares(self, alias: Alias) -> bool:
        """Return whether the plan leaves both where they may share bytes: in their places in the arena, or both outside of it."""
        sites = self.sites
        if alias.value not in sites:
            return alias.source not in sites
        return alias.source in sites and sites[alias.value].address == sites[alias.source].address + alias.at

    def _hold(self, values: Iterable[ir.Value]) -> None:
        """Note the constants among `values`, which are to be in memory for all runs."""
        constants = self._facts.constants
        self._constants.update((value, None) for value in values if value in constants and value not in self.sites)

    def _fetch(self) -> None:
        """Get the constants that were noted; what operators make of constants is computed in one go."""
        constants = self._facts.constants
        constants.prepare(self._constants)
        self.held.update(
            (value, TensorMemory.of(constants.array(value), self._shapes.dtype(value))) for value in self._constants
        )


def body_of(node: ir.Node, attribute: str | None) -> ir.Graph:
    """Return the body that `attribute` of `node` holds; that of the function that `node` calls for None."""
    graph = inside_of(node) if attribute is None else node.attributes[attribute].as_graph()
    assert graph is not None
    return graph


def _rest(there: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the ranges of `size` bytes that are not in `there`."""
    found, at = [], 0
    for start, end in (*sorted(there), (size, size)):
        if at < start:
            found.append((at, start))
        at = max(at, end)
    return found
