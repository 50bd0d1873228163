"""Plans of the bodies of If, Loop and Scan, and of called functions, inside the arena of the graph around them.

While its node runs, a body has a workspace in that arena. The branches of an If share one; each call of a function has its own. The inputs
of a body (carried values, slices of a Scan) are live from its first step, its outputs to its last. A carried value has one address as
input and output where that is possible. Others are moved from the outputs to the inputs, and no output may be overwritten before all
are moved. A function reads its operands in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxtile.errors import UsageError
from onnxtile.graph import node_id
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.graph_layout import Layout, layouts
from onnxtile.planning.layout.inner import bodies
from onnxtile.planning.layout.ordering.order_search import OrderSearch
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.layout.smallest import smallest
from onnxtile.planning.layout.workspaces import Needs, WorkspaceBuffer, WorkspaceRules
from onnxtile.planning.offsets.problem import OffsetPlan, OptimalityProof, Problem
from onnxtile.planning.order import Order
from onnxtile.planning.states.carried import carried


@dataclass(frozen=True)
class BodyPlan:
    """The plan of the body in the `attribute` of a node (None: of the function that it calls): its layout, and the offsets of its buffers.

    Offsets count from the start of a workspace of `size` bytes, which starts at a multiple of `alignment`. `proof` bounds the smallest size
    in this order, `least` the smallest in every order, in bytes. `inside` are the bodies of its own nodes.
    """

    attribute: str | None
    layout: Layout
    offsets: Mapping[str, int]
    size: int
    alignment: int
    proof: OptimalityProof
    least: int
    inside: BodyPlans


BodyPlans = Mapping[ir.Node, tuple[BodyPlan, ...]]
"""The plans of the bodies, by node."""


@dataclass(frozen=True)
class Terms:
    """The terms on which bodies are planned, those of the graph around them.

    `inside_kernel` returns the bytes inside a meta-op. Parts of a buffer have live ranges of their own if `in_parts`.
    """

    facts: LayoutFacts
    order: Order
    alignment: int
    rules: Collection[str]
    solve: Callable[[Problem], OffsetPlan]
    workspaces: WorkspaceRules
    inside_kernel: Callable[[ir.Node], int]
    in_parts: bool = True

    def needs(self, graph: ir.Graph, inside: BodyPlans) -> Needs:
        """Return the workspace bytes of the nodes of `graph`; `inside` are the plans of their bodies."""
        bodies = {node: size for node, planned in inside.items() if (size := max(body.size for body in planned))}
        units = {node: max(body.alignment for body in planned) for node, planned in inside.items()}
        own = {node: unit for node, unit in units.items() if unit > self.alignment}
        kernels = self.workspaces.needs(graph, self.facts, self.inside_kernel)
        return replace(kernels, bodies=bodies, alignments=own)


def plan_bodies(graph: ir.Graph, terms: Terms) -> BodyPlans:
    """Return the plans of all bodies of the nodes of `graph`. Raises ModelError."""
    found = {node: tuple(_body(node, name, body, terms) for name, body in bodies(node, terms.facts)) for node in graph}
    return {node: planned for node, planned in found.items() if planned}


def _body(node: ir.Node, name: str | None, graph: ir.Graph, terms: Terms) -> BodyPlan:
    inside = plan_bodies(graph, terms)
    scope = PlanScope(graph, "inside", borrows=name is None, states=carried(node, graph, terms.facts), repeats=True)
    needs = terms.needs(graph, inside)
    if needs.unique:
        user = node_id(next(iter(needs.unique)))
        raise UsageError(f"the workspace of {user!r} cannot be unique: its body has bytes only while its node runs")
    search = OrderSearch(terms.facts, scope, terms.alignment)
    least = search.bound(with_least_bodies(needs, inside))
    layout, plan = smallest(
        layouts(search, terms.order, 1, terms.rules, needs, in_parts=terms.in_parts), (terms.solve,), least
    )
    problem = layout.problem
    assert plan.proof is not None
    proof = with_bodies(problem, plan.proof, layout.workspaces, inside)
    alignment = max(problem.alignments, default=terms.alignment)
    return BodyPlan(name, layout, plan.offsets, plan.size, alignment, proof, least, inside)


def with_least_bodies(needs: Needs, inside: BodyPlans) -> Needs:
    """Return `needs` with the least size of each body in `inside` over all orders."""
    return replace(needs, bodies={node: max(body.least for body in inside[node]) for node in needs.bodies})


def with_bodies(
    problem: Problem, proof: OptimalityProof, workspaces: Iterable[WorkspaceBuffer], inside: BodyPlans
) -> OptimalityProof:
    """Return the bound of `problem` where the bodies in its `workspaces` may have smaller plans, too.

    `proof` is the bound for workspaces of their present size.
    """
    spare: dict[str, int] = {}
    ended = proof.ended
    for workspace in workspaces:
        bodies = inside.get(workspace.nodes[0], ()) if workspace.is_own else ()
        least = max((body.proof.lower_bound for body in bodies), default=0)
        largest = max(bodies, key=lambda body: body.size, default=None)
        if largest is not None and least < largest.size:
            spare[workspace.buffer.name] = largest.size - least
            ended = largest.proof.ended if ended == "lower bound reached" else ended
    smaller = tuple(replace(b, size=b.size - spare.get(b.name, 0)) for b in problem.buffers) if spare else ()
    bound = replace(problem, buffers=smaller).lower_bound if spare else proof.lower_bound
    return proof if bound >= proof.lower_bound else OptimalityProof(bound, problem.bound, ended)
