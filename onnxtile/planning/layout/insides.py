"""The bytes inside a meta-op: the peak of its own nodes, planned by themselves.

In a plan a meta-op is one kernel, and the tensors between its nodes take no bytes. Running it node by node needs these bytes; a kernel may
need fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import ModelError
from onnxtile.model.constants import Constants
from onnxtile.model.shapes import resolve
from onnxtile.model.unfold import is_kernel, unfold, written_out
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.bodies import BodyPlans, Terms, plan_bodies
from onnxtile.planning.layout.graph_layout import Layout, layouts
from onnxtile.planning.layout.ordering.order_search import OrderSearch
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.layout.workspaces import WorkspaceRules
from onnxtile.planning.offsets.effort import NORMAL
from onnxtile.planning.order import find_order
from onnxtile.planning.planner import find_planner
from onnxtile.planning.result import Inside

_SMALL = 64
"""The largest number of elements of a constant operand that may decide a shape inside."""


@dataclass(frozen=True)
class Insides:
    """The bytes inside the meta-ops of a model. Calls of one function with equal operands are planned once.

    `alignment` and `rules` are those of the plan of the model.
    """

    facts: LayoutFacts
    alignment: int
    rules: Collection[str]
    _known: dict[Hashable, int | None] = field(default_factory=dict)

    def of(self, node: ir.Node) -> int:
        """Return the bytes inside `node`. Raises LookupError for a node that is not a meta-op, or with an unknown shape inside."""
        if not self._is_kernel(node):
            raise LookupError("it is not a meta-op, and has no nodes inside")
        found = self.known(node)
        if found is None:
            raise LookupError("some shapes inside it are not known")
        return found

    def known(self, node: ir.Node) -> int | None:
        """Return the bytes inside the meta-op `node`; None where a shape inside is not known."""
        key = (node.op_identifier(), *(None if value is None else self._signature(value) for value in node.inputs))
        if key not in self._known:
            self._known[key] = self._planned(node)
        return self._known[key]

    def rows(self, layout: Layout, bodies: BodyPlans, path: str = "") -> tuple[Inside, ...]:
        """Return the meta-ops of `layout`, and of the `bodies` of its nodes, that need bytes inside.

        `path` is the path to a body, from node to node.
        """
        found = []
        counted = {
            node
            for workspace in layout.workspaces
            for node in workspace.nodes
            if not workspace.is_own or node not in bodies
        }
        for node, name in zip(layout.schedule.nodes, layout.schedule.ids, strict=True):
            if self._is_kernel(node) and not self._is_constant(node) and not self._is_island(node):
                size = self.known(node)
                if size != 0:
                    found.append(Inside(f"{path}{name}", keys.meta_op(node.op_type), size, node in counted))
            for body in bodies.get(node, ()):
                way = "/".join(part for part in (f"{path}{name}", body.attribute) if part is not None)
                found.extend(self.rows(body.layout, body.inside, f"{way}/"))
        return tuple(found)

    def _is_kernel(self, node: ir.Node) -> bool:
        function = self.facts.model.functions.get(node.op_identifier())
        return function is not None and is_kernel(function)

    def _is_island(self, node: ir.Node) -> bool:
        # A kernel on quantised operands has no float tensors, whatever the nodes between them say.
        return keys.ISLAND in self.facts.model.functions[node.op_identifier()].metadata_props

    def _is_constant(self, node: ir.Node) -> bool:
        return all(value in self.facts.constants for value in node.outputs)

    def _signature(self, value: ir.Value) -> Hashable:
        facts, sizes = self.facts, self.facts.shapes.sizes(value)
        known = (facts.shapes.dtype(value), facts.shapes.dims(value), facts.shapes.is_bound(value))
        if value not in facts.constants or sizes is None or np.prod(sizes) > _SMALL:
            return known
        return (*known, facts.constants.array(value).tobytes())

    def _planned(self, node: ir.Node) -> int | None:
        facts = self.facts
        alone = written_out(node, facts.model, facts.shapes, facts.constants)
        try:
            shapes = resolve(alone, run=True)
        except ModelError:
            return None  # shapes inside contradict each other, or onnxruntime refuses random operands
        model, shapes, constants = unfold(alone, shapes, Constants(alone))
        inner = LayoutFacts(model, shapes, constants)
        planner, order = find_planner("greedy-by-size"), find_order("model")
        nested = Insides(inner, self.alignment, self.rules, self._known)
        if any(nested._is_kernel(one) and nested.known(one) is None for one in model.graph.all_nodes()):
            return None
        terms = Terms(
            inner,
            order,
            self.alignment,
            self.rules,
            lambda problem: planner.plan(problem, NORMAL),
            WorkspaceRules(insides=True),
            nested.of,
        )
        bodies = plan_bodies(model.graph, terms)
        needs = terms.needs(model.graph, bodies)
        search = OrderSearch(inner, PlanScope(model.graph, "outside"), self.alignment)
        (layout,) = layouts(search, order, 1, self.rules, needs)
        return None if layout.roles.unplanned else layout.problem.peak[0]
