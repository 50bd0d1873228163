"""Plans of the bodies of If, Loop and Scan, and of functions that are called, inside the arena of the graph around them.

While its node runs, a body has a workspace in that arena; the branches of an If have the same one, each call of a function its own. A
body's inputs (what a loop carries, the slices of a Scan) lie there from its first step on, its outputs to its last, so that what is
carried is moved from the outputs to the inputs, and no output is lost before all are moved. A function reads its operands where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import ModelFacts
from onnxtile.planning.layout.graph_layout import Layout, layouts
from onnxtile.planning.layout.inner import bodies
from onnxtile.planning.layout.joint_bound import any_order_bound
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.layout.smallest import smallest
from onnxtile.planning.layout.workspaces import SHARED, Needs, WorkspaceBuffer, WorkspaceRules
from onnxtile.planning.offsets.problem import OffsetPlan, OptimalityProof, Problem
from onnxtile.planning.order import Order


@dataclass(frozen=True)
class BodyPlan:
    """The plan of one body, that of the `attribute` of its node (None: of its function): its layout, and the offsets of its buffers.

    They count from the start of its workspace of `size` bytes, which is a multiple of `alignment`; `proof` says how far that is from the
    best, `least` which bytes it takes in every order of its nodes. `inside` are the bodies of its own nodes.
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
"""The bodies of each node that has some."""


@dataclass(frozen=True)
class Terms:
    """How bodies are planned: as the graph around them is. `inside_kernel` tells the bytes that the nodes of a meta-op need."""

    facts: ModelFacts
    order: Order
    alignment: int
    rules: Collection[str]
    solve: Callable[[Problem], OffsetPlan]
    workspaces: WorkspaceRules
    inside_kernel: Callable[[ir.Node], int]

    def needs(self, graph: ir.Graph, inside: BodyPlans) -> Needs:
        """Return what the nodes of `graph` need beside their operands and results, of which `inside` are the bodies."""
        bodies = {node: size for node, planned in inside.items() if (size := max(body.size for body in planned))}
        units = {node: max(body.alignment for body in planned) for node, planned in inside.items()}
        own = {node: unit for node, unit in units.items() if unit > self.alignment}
        return Needs(
            bodies, self.workspaces.of_nodes(graph, self.facts, self.inside_kernel), self.workspaces.shared, own
        )


def plan_bodies(graph: ir.Graph, terms: Terms) -> BodyPlans:
    """Return the plans of all bodies of the nodes of `graph`. Raises ModelError."""
    found = {node: tuple(_body(name, body, terms) for name, body in bodies(node, terms.facts)) for node in graph}
    return {node: planned for node, planned in found.items() if planned}


def _body(name: str | None, graph: ir.Graph, terms: Terms) -> BodyPlan:
    inside = plan_bodies(graph, terms)
    scope = PlanScope(graph, "inside", borrows=name is None)
    needs = terms.needs(graph, inside)
    found = layouts(terms.facts, scope, terms.order, 1, terms.alignment, terms.rules, needs)
    layout, plan = smallest(found, terms.solve)
    problem = layout.problem
    assert plan.proof is not None
    proof = with_bodies(problem, plan.proof, layout.workspaces, inside)
    alignment = max(problem.alignments, default=terms.alignment)
    least = any_order_bound(layout, terms.facts, with_least_bodies(needs, inside))
    return BodyPlan(name, layout, plan.offsets, plan.size, alignment, proof, least, inside)


def with_least_bodies(needs: Needs, inside: BodyPlans) -> Needs:
    """Return `needs` with the bodies `inside` as small as they are in the best of all orders."""
    return replace(needs, bodies={node: max(body.least for body in inside[node]) for node in needs.bodies})


def with_bodies(
    problem: Problem, proof: OptimalityProof, workspaces: Iterable[WorkspaceBuffer], inside: BodyPlans
) -> OptimalityProof:
    """Return what is known of plans that take fewer bytes than that of `problem`, if the bodies in its `rooms` might, too.

    `proof` is what is known if they do not.
    """
    spare: dict[str, int] = {}
    ended = proof.ended
    for workspace in workspaces:
        bodies = inside.get(workspace.nodes[0], ()) if workspace.buffer.name != SHARED else ()
        least = max((body.proof.lower_bound for body in bodies), default=0)
        largest = max(bodies, key=lambda body: body.size, default=None)
        if largest is not None and least < largest.size:
            spare[workspace.buffer.name] = largest.size - least
            ended = largest.proof.ended if ended == "lower bound reached" else ended
    smaller = tuple(replace(b, size=b.size - spare.get(b.name, 0)) for b in problem.buffers) if spare else ()
    bound = replace(problem, buffers=smaller).lower_bound if spare else proof.lower_bound
    return proof if bound >= proof.lower_bound else OptimalityProof(bound, problem.bound, ended)
