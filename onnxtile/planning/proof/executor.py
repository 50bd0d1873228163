"""Runs a model inside its arena node by node, together with a reference run in which every tensor has memory of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.model.walk import has_body
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.order import find_order
from onnxtile.planning.proof.graph_run import GraphRun
from onnxtile.planning.proof.kernel import Kernel, Kernels
from onnxtile.planning.proof.memory import ArenaMemory, TensorMemory
from onnxtile.planning.proof.prepared import Corruption, Draws, Moves, PairedValues, ValueTable, View
from onnxtile.planning.proof.run_context import RunContext
from onnxtile.planning.result import PlannedBody, PlanResult
from onnxtile.runtime import Array

__all__ = ["ArenaExecutor", "Corruption"]


class ArenaExecutor:
    """`model`, prepared to run inside the arena of `result`.

    `blocks` are the arenas by name. Tensors with a planned address are read and written only there; other graph inputs and constants have
    memory of their own; values without fixed bytes are Python values. Raises CheckFailed where the plan leaves the arena or gives a tensor
    another size, ModelError where onnxruntime has no kernel for a node. `blocks` are those of another run, whose states it goes on with.
    """

    def __init__(
        self,
        model: ir.Model,
        result: PlanResult,
        shapes: Shapes,
        constants: Constants,
        *,
        repeats: bool = False,
        blocks: Mapping[str, ArenaMemory] | None = None,
    ) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        self._kernels = Kernels(model, shapes)
        self.blocks = blocks or {arena.name: ArenaMemory(arena.size, result.alignment) for arena in result.arenas}
        self._result = result
        self._context = RunContext(LayoutFacts(model, shapes, constants), self.blocks, self._kernels, repeats=repeats)
        parts = (result.buffers, result.schedule, result.steps, result.bodies, result.kept_states)
        self._run = GraphRun(model.graph, self._context, *parts)
        states = {state.input for state in result.kept_states}
        inside = [value for value in model.graph.inputs if value in self._run.sites and value.name not in states]
        names = frozenset(result.keeps)
        made = (value for node in model.graph for value in node.outputs) if names else ()
        kept = (value for value in made if value.name in names and value in self._run.sites)
        self._kept = [*(() if result.overwrite_inputs else inside), *kept]

    @property
    def addresses(self) -> dict[str, int]:
        """The addresses of the model's inputs in the arena, by name."""
        sites = self._run.sites
        return {value.name or "": sites[value].address for value in self._model.graph.inputs if value in sites}

    @property
    def may_differ(self) -> bool:
        """Whether one run may differ from another: in the order of its nodes, in the bodies that run, or in the size of a tensor."""
        result = self._result
        is_free = find_order(result.order).every or len(set(result.steps)) < len(result.steps)
        return is_free or bool(result.bodies or result.bounds) or any(has_body(node) for node in self._model.graph)

    @property
    def repeated(self) -> int:
        """The number of different kernels of the main graph that share bytes, and have run on other values as well."""
        return self._run.repeated

    @property
    def kernels(self) -> int:
        """The number of nodes of the main graph that run."""
        return len(self._run.steps) - self.views

    @property
    def views(self) -> int:
        """The number of nodes that do not run, because their results are in place."""
        return self._run.views

    @property
    def sessions(self) -> int:
        """The number of different kernels."""
        return self._kernels.sessions

    def run(
        self, feeds: Mapping[str, Array], order: Iterable[int] | None = None, carried: Collection[str] = ()
    ) -> dict[str, Any] | Corruption:
        """Run once; return each graph output by name (a TensorMemory, or an ordinary value), or the first corruption.

        `order` has the nodes in another order than the plan's, by their places in it. Inputs that are `carried` lie in the arena since
        the run before; of these, `feeds` has the values of the reference run.

        Raises ModelError where a kernel refuses its inputs outside the arena, too.
        """
        run, graph = self._run, self._model.graph
        reference: ValueTable = {**self._fed(feeds), **run.held}
        paired = PairedValues({**reference, **run.sites}, reference)
        for value in graph.inputs:
            if value in run.sites and value.name not in carried:
                run.sites[value].data[:] = reference[value].data
                run.growing.write([value], paired.arena)
        places = [place for place in order if place in run.steps] if order is not None else list(run.steps)
        corruption = run.run(paired, places, self._last_reads(places))
        if corruption is not None:
            return corruption
        run.growing.read(graph.outputs, paired)
        wrong = next((value for value in (*graph.outputs, *self._kept) if not paired.agree(value)), None)
        if wrong is not None:
            return Corruption(wrong.name or "", None)
        return {output.name or "": paired.arena[output] for output in graph.outputs}

    def elsewhere(self, feeds: Mapping[str, Array]) -> dict[str, Any] | Corruption:
        """Run the nodes one by one outside the arena; return each graph output by name, or the first difference of two such runs."""
        graph, result = self._model.graph, self._result
        bodies = [_nowhere(body) for body in result.bodies]
        context = replace(self._context, shows_views=False, repeats=False)
        run = GraphRun(graph, context, (), result.schedule, result.steps, bodies)
        values: ValueTable = {**self._fed(feeds), **run.held}
        corruption = run.run(PairedValues(dict(values), values), run.steps)
        return corruption or {output.name or "": values[output] for output in graph.outputs}

    def _fed(self, feeds: Mapping[str, Array]) -> ValueTable:
        values: ValueTable = {}
        for value in self._model.graph.inputs:
            if value not in self._constants:
                default = value.const_value.numpy() if value.const_value is not None else None
                values[value] = self._fed_value(value, feeds.get(value.name or "", default))
        return values

    def _fed_value(self, value: ir.Value, fed: Any) -> Any:
        """Return the input `fed` outside the arena, at the same distance from a multiple of 64 as inside."""
        found, site = self._context.held(fed, value), self._run.sites.get(value)
        return found.at(site.address if site is not None else 0) if isinstance(found, TensorMemory) else found

    def _last_reads(self, places: Iterable[int]) -> dict[int, list[ir.Value]]:
        """Return by place the values read there for the last time, which the reference run can release."""
        last: dict[ir.Value, int] = {}
        for number in places:
            step = self._run.steps[number]
            last.update(dict.fromkeys(step.reads, number))
            kernel = step.kernel if isinstance(step, Moves | Draws | View) else step
            if isinstance(kernel, Kernel):
                last.update({value: number for _, value in kernel.outputs})
        found: dict[int, list[ir.Value]] = {}
        for value, number in last.items():
            if value not in self._run.held and not value.is_graph_output() and value not in self._kept:
                found.setdefault(number, []).append(value)
        return found


def _nowhere(body: PlannedBody) -> PlannedBody:
    """Return `body` without any address."""
    return replace(body, buffers=(), bodies=tuple(map(_nowhere, body.bodies)))
