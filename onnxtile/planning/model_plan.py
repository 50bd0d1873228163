"""Plans a model: schedule, live ranges and aliases, problem, planner. The check of plans is in `onnxtile.check`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

import onnx_ir as ir

from onnxtile.declare.layout_rules import FixedRules
from onnxtile.declare.plan_document import Constant, Excluded
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope, StateChoice, States, read_kernels, states_of
from onnxtile.kernels.kernel_graph import (
    ARENA,
    CONSTANT,
    IN_PLACE,
    OUTSIDE,
    UNKNOWN,
    GraphTensor,
    KernelGraph,
)
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeRanges
from onnxtile.planning.bodies import GraphSetup, Insides, Terms, in_one_memory, with_bodies
from onnxtile.planning.layout import NO_FIXED, RulesInMemories, smallest
from onnxtile.planning.offsets.effort import LEVELS, NORMAL, Effort
from onnxtile.planning.offsets.memories import (
    Allocation,
    Capacity,
    SlowTensors,
    allocate,
    allocate_apart,
    memories,
)
from onnxtile.planning.offsets.problem import DEFAULT_ALIGNMENT, align
from onnxtile.planning.orders import find_order
from onnxtile.planning.peak_search import BUDGET
from onnxtile.planning.planners import find_planner
from onnxtile.planning.ranges import scaled_arenas, with_scaled, with_scaled_bodies
from onnxtile.planning.result import PlanResult
from onnxtile.planning.rows import (
    Address,
    described,
    ends,
    listed_states,
    planned,
    planned_bodies,
    planned_states,
    planned_streams,
    tensors_outside,
    with_states,
    with_strides,
)
from onnxtile.planning.sharing import copies
from onnxtile.planning.workspaces import NO_RULES, Needs, WorkspaceRules
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible, UsageError

NO_STATES = StateChoice()
"""No input and output are one state."""


@dataclass(frozen=True)
class PlanSettings:
    """The settings of one plan.

    `alignment` and `capacity` (None: no limit) are in bytes; a mapping gives the capacities of several arenas, the fastest first.
    `effort` is the budget of `planner`. `order` names the order of nodes; up to `streams` independent nodes run in one step. `io`
    places graph inputs and outputs inside or outside the arena; `overwrite_inputs` allows inputs inside it to be overwritten. With
    `whole_buffers`, all bytes of a buffer are live in its whole live range. `workspaces` has the bytes that kernels need beside their
    operands and results. `fixed` has the rules for named tensors, beside those in the metadata of the model.
    `states` says which inputs and outputs are one state. `share` names the rules by which tensors of the main graph share bytes, beside
    views (None: all). `digest` and `name` (of the input file), `dims` (the bound dimensions), `ranges` and `bounds` (of the shapes) are
    copied into the result. `slow` has the tensors in the second of two memories, where a movement has chosen them.
    """

    alignment: int = DEFAULT_ALIGNMENT
    planner: str = "best"
    effort: Effort = NORMAL
    order: str = "model"
    streams: int = 1
    capacity: Capacity = None
    share: Collection[str] | None = None
    io: str = "outputs"
    overwrite_inputs: bool = False
    whole_buffers: bool = False
    workspaces: WorkspaceRules = NO_RULES
    fixed: FixedRules = NO_FIXED
    states: StateChoice = NO_STATES
    digest: str | None = None
    name: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    ranges: SizeRanges = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    slow: SlowTensors | None = None
    order_steps: int = BUDGET
    """The steps of the search for the order of least peak, and for a bound of all orders; 0: no such bound is looked for."""


_DEFAULT = PlanSettings()
_SEARCHED = frozenset({"auto", "min-peak"})
"""The orders whose candidates are the order of the file and those of least peak that the search finds."""
_LAYOUTS = 8
"""With pins, each layout has one in so many steps of the effort."""


def plan_model(
    model: ir.Model,
    shapes: Shapes,
    constants: Constants,
    settings: PlanSettings = _DEFAULT,
    facts: LayoutFacts | None = None,
) -> PlanResult:
    """Give every tensor of `model`, which stays unchanged, an address in an arena.

    `facts` are those of the opened model, where the caller has a further use for them.

    Raises UsageError for an alignment that is not a power of two, an unknown planner or order, or pins that no plan can have;
    OverCapacity (an Infeasible) where an arena exceeds its capacity; Infeasible where a tensor of unknown size makes that undecidable.
    """
    chosen = find_planner(settings.planner)
    opened = unfold(model, shapes, constants)
    model = opened.model
    bare, states = facts_of(opened, settings, facts)
    facts = with_states(bare, states.taken)
    fixed = RulesInMemories.from_rules(settings.fixed, model, memories(settings.capacity))
    scope = PlanScope(model.graph, settings.io, settings.overwrite_inputs, states=states.taken)
    if find_order(settings.order).every and facts.streams:
        raise UsageError(
            f"{next(iter(facts.streams)).name!r} comes row by row, and in some orders a later row comes first",
            hint="leave --order any out",
        )

    settings.workspaces.require_known(model)
    setup = set_up(facts, scope, settings, fixed)
    search, inside, needs = setup.search, setup.inside, setup.needs
    graph = search.graph
    _require_possible(fixed, model, graph, needs, settings)
    is_moved = settings.slow is not None
    has_bound = settings.order_steps > 0 and not is_moved
    bound = setup.bound if has_bound else 0
    least = max(bound, _pinned_end(fixed, graph, settings.alignment))
    # A wide graph has one layout, and most buffers: nothing is spared by placing them with little effort first.
    efforts = (settings.effort,) if search.is_wide else settings.effort.stages
    if fixed.pins:
        # Around pins, the lower bound is seldom reached, so that no layout is the last to be placed.
        efforts = tuple(replace(effort, steps=max(1, effort.steps // _LAYOUTS)) for effort in efforts)
    allocator = allocate if settings.slow is None else partial(allocate_apart, slow=settings.slow)
    # Neither the order of the file nor those that the search finds take fewer bytes than the latter's peak.
    is_searched = settings.order in _SEARCHED and settings.streams == 1 and not is_moved
    known = search.known_peak(needs) if is_searched else 0
    placings = [partial(allocator, memories=memories(settings.capacity), planner=chosen, effort=e) for e in efforts]
    layout, allocation = smallest(
        setup.layouts(settings.streams, fixed), placings, max(least, known, settings.effort.enough)
    )
    graph, problem, schedule, sharing = layout.graph, layout.problem, layout.schedule, layout.sharing
    places = {name: Address(allocation.places[name], offset) for name, offset in allocation.offsets.items()}
    outside = tensors_outside(layout, inside)
    unknown = tuple(tensor for tensor in outside if tensor.role == UNKNOWN)
    peak, peak_step = problem.peak
    if unknown and settings.capacity is not None:
        raise _unplanned(unknown, facts)
    proof = with_bodies(problem, allocation.proof, layout.workspaces, inside)
    if unknown:
        proof = replace(proof, ended="unplanned tensors")
    optimal = allocation.size == proof.lower_bound and not unknown
    scaled = scaled_arenas(layout, allocation, facts.shapes, settings.ranges)
    buffers = with_scaled(with_strides(planned(layout, facts, places), states, layout, facts), scaled)
    return PlanResult(
        digest=settings.digest,
        dims=dict(settings.dims),
        bounds=dict(settings.bounds),
        alignment=settings.alignment,
        planner=chosen.name,
        arenas=allocation.summary,
        peak=peak,
        peak_step=peak_step,
        lower_bound=proof.lower_bound,
        optimal=optimal,
        optimal_over=("any order" if allocation.size == least else "order") if optimal else None,
        any_order_bound=least if has_bound else None,
        bound=proof.bound,
        ended=proof.ended,
        activation_bytes=sum(align(size, settings.alignment) for size in graph.sizes(schedule).values()),
        in_place=sum(share.kind == IN_PLACE for used in sharing.shares.values() for share in used[:1]),
        copies=copies(graph, schedule, sharing),
        io=settings.io,
        overwrite_inputs=settings.overwrite_inputs,
        order=settings.order,
        buffers=buffers,
        bodies=with_scaled_bodies(planned_bodies(layout, inside, facts, places), buffers, scaled),
        insides=setup.terms.kernels.rows(layout, inside),
        model=settings.name,
        inputs=ends((n for n in graph.inputs if not graph.tensors[n].is_constant), graph, facts.shapes),
        outputs=ends(graph.outputs, graph, facts.shapes),
        constants=tuple(
            _placed_in_order((tensor for tensor in outside if tensor.role == CONSTANT), settings.alignment)
        ),
        outside=tuple(_excluded(tensor) for tensor in outside if tensor.role == OUTSIDE),
        unplanned=tuple(map(_excluded, unknown)),
        states=planned_states(states, layout, facts, places),
        listed=listed_states(states),
        streamed=planned_streams(facts.streams.values()),
        ranges=dict(settings.ranges),
        formulas=tuple(arena.formula for arena in scaled) or None,
        **fixed.fixed_fields,
        **described(layout),
    )


def facts_of(opened: Unfolded, settings: PlanSettings, known: LayoutFacts | None = None) -> tuple[LayoutFacts, States]:
    """Return what decides which tensors of an opened model may share bytes, for every plan with `settings`, and the states.

    Facts of states and of meta-ops are copies of these. Raises UsageError for states that the model does not have.
    """
    facts = known or LayoutFacts(*opened)
    return facts, states_of(facts, settings.states)


def set_up(facts: LayoutFacts, scope: PlanScope, settings: PlanSettings, rules: FixedRules = NO_FIXED) -> GraphSetup:
    """Return the graph of kernels that a plan with `settings` reads, under the `rules` of tensors, and all that its layouts depend on."""
    terms = Terms(
        facts,
        find_order(settings.order),
        settings.alignment,
        in_one_memory(find_planner(settings.planner), settings.effort),
        settings.workspaces,
        Insides(facts, settings.alignment),
        not settings.whole_buffers,
        order_steps=settings.order_steps or BUDGET,
        # The bytes away from the peak matter too at other sizes, and where a memory holds only a part of the tensors.
        peak_first=not settings.ranges and len(memories(settings.capacity)) == 1 and settings.slow is None,
    )
    return terms.set_up(read_kernels(facts, scope).sharing_by(settings.share).under(rules))


def _require_possible(
    fixed: RulesInMemories, model: ir.Model, graph: KernelGraph, needs: Needs, settings: PlanSettings
) -> None:
    """Raise UsageError for rules of tensors or memories that the plan does not have, or that contradict each other."""
    workspaces = needs.workspaces(graph, graph.own_order) if fixed.fixed_names else ()
    fixed.require_known(model, graph, {workspace.buffer.name for workspace in workspaces})
    fixed.require_memories()
    fixed.require_agreement(graph)
    fixed.require_addresses(_pinned_sizes(fixed, graph), settings.alignment)


def _pinned_end(fixed: FixedRules, graph: KernelGraph, alignment: int) -> int:
    """Return the end of the highest pinned tensor in bytes, which every arena of every order has; 0 without one."""
    sizes = _pinned_sizes(fixed, graph).items()
    return max((align(fixed.pins[name] + size, alignment) for name, size in sizes if size), default=0)


def _pinned_sizes(fixed: FixedRules, graph: KernelGraph) -> dict[str, int]:
    """Return the bytes of each pinned tensor, by name."""
    held = (tensor for tensor in (graph.tensors if fixed.pins else ()) if tensor.role == ARENA)
    return {tensor.name: tensor.bytes or 0 for tensor in held if tensor.name in fixed.pins}


def _unplanned(unknown: Sequence[GraphTensor], facts: LayoutFacts) -> Infeasible:
    """Return the error for tensors of unknown size, with which no arena is known to fit its capacity."""
    first = unknown[0]
    more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
    return Infeasible(
        f"cannot tell whether the arena fits its capacity: the size of {first.name!r}{more} is not known: {first.reason}",
        hint=None if facts.unbound.options else "give --dim NAME=:N, the upper bound of a data-dependent dimension",
    )


def _placed_in_order(constants: Iterable[GraphTensor], alignment: int) -> Iterator[Constant]:
    """Yield the constants with consecutive offsets outside the arena; constants without fixed bytes have no offset."""
    end = 0
    for tensor in constants:
        offset = None if tensor.bytes is None else align(end, max(alignment, tensor.granule))
        yield Constant(tensor.name, tensor.bytes, offset, tensor.dtype, tensor.dims)
        end = end if tensor.bytes is None or offset is None else offset + tensor.bytes


def _excluded(tensor: GraphTensor) -> Excluded:
    return Excluded(tensor.name, tensor.reason, tensor.dtype, tensor.dims)


# The arena of a model in the order of its file, planned with little effort: an upper bound of the arena of its plan.


def quick_allocation(opened: Unfolded, settings: PlanSettings) -> Allocation:
    """Return the offsets of an opened model in the order of its file, in one memory without a limit.

    `plan_model` tries this order with this effort, too, so its arena is no larger, unless the graph is too wide to search its orders.
    """
    facts, _ = facts_of(opened, settings)
    scope = PlanScope(opened.model.graph, settings.io, settings.overwrite_inputs)
    settings = replace(settings, order="model", effort=LEVELS["low"], share=None)
    layout = next(set_up(facts, scope, settings).layouts(settings.streams))
    return allocate(layout.problem, memories(None), find_planner(settings.planner), settings.effort)
