"""Plans of the bodies of If, Loop and Scan, and of called functions, inside the arena of the graph around them.

While its node runs, a body has a workspace in that arena. The branches of an If share one; each call of a function has its own. The inputs
of a body (carried values, slices of a Scan) are live from its first step, its outputs to its last. A carried value has one address as
input and output where that is possible. Others are moved from the outputs to the inputs, and no output may be overwritten before all
are moved. A function reads its operands in place.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope, read_kernels
from onnxtile.kernels.kernel_graph import UNKNOWN, KernelBody, KernelGraph
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.planning.layout import NO_FIXED, Allocator, Layout, RulesInMemories, layouts, smallest
from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.memories import allocate, memories
from onnxtile.planning.offsets.problem import Bound, OptimalityProof, Problem
from onnxtile.planning.order_search import OrderSearch
from onnxtile.planning.orders import Order, find_order
from onnxtile.planning.peak_search import BUDGET
from onnxtile.planning.planners import Planner, find_planner
from onnxtile.planning.result import Inside
from onnxtile.planning.workspaces import Needs, WorkspaceBuffer, WorkspaceRules
from onnxtile.shapes.opened_calls import is_kernel, unfold, written_out
from onnxtile.shapes.resolve import resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError


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


BodyPlans = Mapping[int, tuple[BodyPlan, ...]]
"""The plans of the bodies, by kernel."""


def in_one_memory(planner: Planner, effort: Effort) -> Allocator:
    """Return what plans a body: `planner`, with this `effort`."""
    return partial(allocate, memories=memories(None), planner=planner, effort=effort)


@dataclass(frozen=True)
class Terms:
    """The terms on which bodies are planned, those of the graph around them.

    `kernels` knows the bytes inside meta-ops. Parts of a buffer have live ranges of their own if `in_parts`. `peak_first` is
    that of the search of orders, which takes `order_steps` steps, about.
    """

    facts: LayoutFacts
    order: Order
    alignment: int
    allocate: Allocator
    workspaces: WorkspaceRules
    kernels: Insides
    in_parts: bool = True
    peak_first: bool = True
    order_steps: int = BUDGET

    def needs(self, graph: KernelGraph, inside: BodyPlans) -> Needs:
        """Return the workspace bytes of the kernels of `graph`; `inside` are the plans of their bodies."""
        bodies = {kernel: size for kernel, plans in inside.items() if (size := max(body.size for body in plans))}
        units = {kernel: max(body.alignment for body in plans) for kernel, plans in inside.items()}
        larger_units = {kernel: unit for kernel, unit in units.items() if unit > self.alignment}
        kernels = self.workspaces.needs(graph, self.facts, self.kernels.bytes_of)
        return replace(kernels, bodies=bodies, alignments=larger_units)

    def set_up(self, graph: KernelGraph) -> GraphSetup:
        """Return what the layouts of `graph` depend on, its bodies planned. Raises ModelError."""
        inside = plan_bodies(graph, self)
        return GraphSetup(
            OrderSearch(graph, self.alignment, self.peak_first, self.order_steps),
            self,
            inside,
            self.needs(graph, inside),
        )


@dataclass(frozen=True)
class GraphSetup:
    """A graph before it is laid out: the search of its orders, the plans of its bodies, and the workspaces that its nodes need."""

    search: OrderSearch
    terms: Terms
    inside: BodyPlans
    needs: Needs

    @property
    def bound(self) -> int:
        """The bytes that every arena needs, over all orders of the nodes, all lawful aliases and all plans of bodies."""
        return self.search.bound(with_least_bodies(self.needs, self.inside))

    def layouts(self, streams: int = 1, fixed: RulesInMemories = NO_FIXED) -> Iterator[Layout]:
        """Return a layout for each candidate schedule of the order, made one by one; see `layout.layouts`."""
        terms = self.terms
        return layouts(self.search, terms.order, streams, self.needs, in_parts=terms.in_parts, fixed=fixed)


def plan_bodies(graph: KernelGraph, terms: Terms) -> BodyPlans:
    """Return the plans of all bodies of the kernels of `graph`. Raises ModelError."""
    return {
        number: tuple(_body(body, terms) for body in kernel.bodies)
        for number, kernel in enumerate(graph.kernels)
        if kernel.bodies
    }


def _body(body: KernelBody, terms: Terms) -> BodyPlan:
    setup = terms.set_up(body.graph)
    if setup.needs.unique:
        user = body.graph.kernels[next(iter(setup.needs.unique))].name
        raise UsageError(f"the workspace of {user!r} cannot be unique: its body has bytes only while its node runs")
    least, inside = setup.bound, setup.inside
    layout, placed = smallest(setup.layouts(), (terms.allocate,), least)
    problem = layout.problem
    proof = with_bodies(problem, placed.proof, layout.workspaces, inside)
    alignment = max(problem.alignments, default=terms.alignment)
    return BodyPlan(body.attribute, layout, placed.offsets, placed.size, alignment, proof, least, inside)


def with_least_bodies(needs: Needs, inside: BodyPlans) -> Needs:
    """Return `needs` with the least size of each body in `inside` over all orders."""
    return replace(needs, bodies={kernel: max(body.least for body in inside[kernel]) for kernel in needs.bodies})


def with_bodies(
    problem: Problem, proof: OptimalityProof, workspaces: Iterable[WorkspaceBuffer], inside: BodyPlans
) -> OptimalityProof:
    """Return the bound of `problem` where the bodies in its `workspaces` may have smaller plans, too.

    `proof` is the bound for workspaces of their present size.
    """
    spare: dict[str, int] = {}
    ended = proof.ended
    for workspace in workspaces:
        bodies = inside.get(workspace.users[0], ()) if workspace.is_own else ()
        least = max((body.proof.lower_bound for body in bodies), default=0)
        largest = max(bodies, key=lambda body: body.size, default=None)
        if largest is not None and least < largest.size:
            spare[workspace.buffer.name] = largest.size - least
            ended = largest.proof.ended if ended == "lower bound reached" else ended
    smaller = tuple(replace(b, size=b.size - spare.get(b.name, 0)) for b in problem.buffers) if spare else ()
    bound = replace(problem, buffers=smaller).lower_bound if spare else proof.lower_bound
    if spare and proof.bound == "parts":
        # The bound is that of other buffers, which live in parts: smaller bodies lower it by the most that they spare in one step.
        bound = min(bound, proof.lower_bound - _most_spared(problem, spare))
    if bound >= proof.lower_bound:
        return proof
    peak, pinned = problem.peak[0], problem.pinned_end
    kind: Bound = "bodies" if bound < max(peak, pinned) else "every order"
    if bound in {peak, pinned} - {0}:
        kind = "peak" if bound == peak else "pin"
    return OptimalityProof(bound, kind, ended)


def _most_spared(problem: Problem, spare: Mapping[str, int]) -> int:
    """Return the largest sum of the bytes in `spare`, by the name of the buffer, of buffers that are live in one step."""
    held = [(buffer.lower, buffer.upper, spare[buffer.name]) for buffer in problem.buffers if buffer.name in spare]
    return max(sum(size for lower, upper, size in held if lower <= step < upper) for step, _, _ in held)


# The bytes inside a meta-op: the peak of its own nodes, planned by themselves.
#
# In a plan a meta-op is one kernel, and the tensors between its nodes take no bytes. Running it node by node needs these bytes; a kernel
# may need fewer.

_SMALL = 64
"""The largest number of elements of a constant operand that may decide a shape inside."""


@dataclass(frozen=True)
class Insides:
    """The bytes inside the meta-ops of a model. Calls of one function with equal operands are planned once.

    `alignment` is that of the plan of the model.
    """

    facts: LayoutFacts
    alignment: int
    _known: dict[Hashable, int | None] = field(default_factory=dict)

    def bytes_of(self, node: ir.Node) -> int:
        """Return the bytes inside `node`. Raises LookupError for a node that is not a meta-op, or with an unknown shape inside."""
        if not self._is_kernel(node):
            raise LookupError("it is not a meta-op, and has no nodes inside")
        size = self.known(node)
        if size is None:
            raise LookupError("some shapes inside it are not known")
        return size

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
        rows = []
        counted = {
            kernel
            for workspace in layout.workspaces
            for kernel in workspace.users
            if not workspace.is_own or kernel not in bodies
        }
        for number in layout.schedule.order:
            kernel = layout.graph.kernels[number]
            node, name = kernel.node, kernel.name
            if self._is_kernel(node) and not kernel.is_constant and not self._is_island(node):
                size = self.known(node)
                if size != 0:
                    rows.append(Inside(f"{path}{name}", keys.meta_op(node.op_type), size, number in counted))
            for body in bodies.get(number, ()):
                way = "/".join(part for part in (f"{path}{name}", body.attribute) if part is not None)
                rows.extend(self.rows(body.layout, body.inside, f"{way}/"))
        return tuple(rows)

    def _is_kernel(self, node: ir.Node) -> bool:
        function = self.facts.model.functions.get(node.op_identifier())
        return function is not None and is_kernel(function)

    def _is_island(self, node: ir.Node) -> bool:
        # A kernel on quantised operands has no float tensors, whatever the nodes between them say.
        return keys.ISLAND in self.facts.model.functions[node.op_identifier()].metadata_props

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
        inner = replace(self.facts, model=model, shapes=shapes, constants=constants, states={}, spread=())
        nested = Insides(inner, self.alignment, self._known)
        if any(
            nested._is_kernel(inner_node) and nested.known(inner_node) is None for inner_node in model.graph.all_nodes()
        ):
            return None
        allocator, rules = in_one_memory(find_planner("greedy-by-size"), NORMAL), WorkspaceRules(insides=True)
        terms = Terms(inner, find_order("model"), self.alignment, allocator, rules, nested)
        graph = read_kernels(inner, PlanScope(model.graph, "outside"))
        if any(tensor.role == UNKNOWN for tensor in graph.tensors):
            return None
        (layout,) = terms.set_up(graph).layouts()
        return layout.problem.peak[0]
