"""Plans a model with a fast and a slow memory: every operand of a kernel is in the fast one while it runs.

Of several orders, the one is taken in which the fewest bytes are copied. The copies are nodes of the model. Where the offsets of its
tensors exceed the fast memory, more tensors leave it at the steps at fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import Infeasible, UsageError
from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.model.unfold import Unfolded, unfold
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.bodies import Terms, plan_bodies
from onnxtile.planning.layout.graph_layout import Layout, layouts
from onnxtile.planning.layout.insides import Insides
from onnxtile.planning.layout.ordering.order_search import OrderSearch
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.model_plan import PlanSettings
from onnxtile.planning.movement.choice import MovementChoice
from onnxtile.planning.movement.eviction import choose_evictions, proved_evictions
from onnxtile.planning.movement.placed import MovedPlan, MovementBound, PlacedCopies, PlanWriter
from onnxtile.planning.movement.relaxation import least_bytes
from onnxtile.planning.movement.residence import Residence, require_residence
from onnxtile.planning.movement.times import Speeds
from onnxtile.planning.movement.uses import RULES, TensorUses
from onnxtile.planning.movement.wide_bounds import WideBounds
from onnxtile.planning.offsets.memories import Memory, memories
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.order import find_order
from onnxtile.planning.planner import find_planner
from onnxtile.planning.states.find_states import states_of

_ORDERS = 16
"""The most orders of the nodes that are tried."""
_RESERVES = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""The parts of the fast memory that stay free of early copies; the next one is tried where the offsets do not fit."""
_LITTLE = 10
"""Each of these tries has one in so many steps of the effort."""
_ROUNDS = 40
"""The most times that a movement is chosen anew because its offsets exceeded the fast memory."""


def plan_with_movement(
    model: ir.Model,
    shapes: Shapes,
    constants: Constants,
    settings: PlanSettings,
    *,
    weights: bool = False,
    speeds: Speeds | None = None,
) -> MovedPlan:
    """Plan `model`, which stays unchanged, with the two memories of `settings`, and return a copy of it that has the copies.

    With `weights`, constants are copied into the fast memory before a kernel reads them. Raises what `plan_model` raises, and Infeasible
    for an operator that needs more bytes than the fast memory has, UsageError for other than two memories, several streams, an order for
    any order, or a model with copies.
    """
    fast, slow = _two_memories(settings)
    _require_plain(model, settings)
    pins = replace(settings.pins.with_marks(model), capacities={one.name: one.capacity for one in (fast, slow)})
    pins.require_memories()
    settings = replace(settings, pins=pins)
    opened = unfold(model, shapes, constants)
    lasting = () if settings.overwrite_inputs else (value.name or "" for value in model.graph.inputs)
    residence = Residence.of(pins, fast.name, slow.name, lasting)
    choice = _fewest(_all_uses(opened, settings, weights, residence), fast)
    choice = replace(choice, eviction=proved_evictions(choice.problem, choice.eviction))
    assert fast.capacity is not None
    bound = _bound(choice, fast.capacity)
    states = states_of(LayoutFacts(*opened), settings.states).taken
    kept = frozenset(pair.input.name or "" for pair in states)
    writer = PlanWriter(model, shapes, settings, (fast.name, slow.name), kept)
    choice, placed = _placed(writer, choice)
    moved = placed.result(bound, speeds)
    early = _early(writer, choice, speeds)
    return moved if early is None else _quicker(moved, early.result(bound, speeds))


def _bound(choice: MovementChoice, capacity: int) -> MovementBound:
    """Return the bytes that every choice for the order of `choice` copies."""
    wide = WideBounds(choice.uses, capacity)
    if choice.eviction.exact:
        return MovementBound(choice.bytes, "search", wide.parts, wide.any_order)
    relaxed = choice.uses.forced + choice.uses.placed + (least_bytes(choice.problem) or 0)
    return MovementBound(relaxed, "relaxation", wide.parts, wide.any_order)


def _placed(writer: PlanWriter, choice: MovementChoice) -> tuple[MovementChoice, PlacedCopies]:
    """Return `choice`, with more tensors that leave the fast memory where its offsets need that, and its plan.

    Raises OverCapacity where no choice is found whose offsets fit.
    """
    free, window = list(choice.problem.free), 0
    for left in reversed(range(_ROUNDS)):
        found = writer.write(choice, writer.timetable(choice, None, None))
        if isinstance(found, PlacedCopies):
            return choice, found
        tighter = _tightened(free, found.place, window, align(found.error.shortfall, writer.settings.alignment))
        if not left or tighter == free or found.error.arena != writer.names[0]:
            raise found.error
        eviction = choose_evictions(replace(choice.problem, free=tuple(tighter)))
        window = 0 if eviction.evicted != choice.eviction.evicted else 2 * window + 1
        free, choice = tighter, replace(choice, eviction=eviction)
    raise AssertionError("the last round returns or raises")


def _early(writer: PlanWriter, choice: MovementChoice, speeds: Speeds | None) -> PlacedCopies | None:
    """Return the plan of `choice` in which copies are made as early as the engine and the fast memory allow; None where none fits.

    Where the offsets do not fit, a part of the memory is left free of early copies.
    """
    before = writer.timetable(choice, speeds, None)
    effort = writer.settings.effort
    writer = replace(writer, settings=replace(writer.settings, effort=replace(effort, steps=effort.steps // _LITTLE)))
    for share in _RESERVES:
        table = writer.timetable(choice, speeds, int(share * choice.capacity))
        if table == before:
            continue
        before, found = table, writer.write(choice, table)
        if isinstance(found, PlacedCopies):
            return found
    return None


def _quicker(plain: MovedPlan, early: MovedPlan) -> MovedPlan:
    """Return the plan that takes less time; the one with early copies where the time is not known."""
    times = [moved.result.movement and moved.result.movement.time for moved in (plain, early)]
    before, after = (time.with_overlap if time else None for time in times)
    return plain if before is not None and after is not None and before <= after else early


def _two_memories(settings: PlanSettings) -> tuple[Memory, Memory]:
    found = memories(settings.capacity)
    if settings.capacity is None or len(found) != 2:
        raise UsageError(
            "movement needs the capacities of two memories, the fast one first",
            hint="give --capacity sram=256KiB --capacity dram=8MiB",
        )
    return found[0], found[1]


def _require_plain(model: ir.Model, settings: PlanSettings) -> None:
    if settings.streams > 1:
        raise UsageError("copies between memories are planned for one stream", hint="leave --streams out")
    if find_order(settings.order).every:
        raise UsageError(
            f"copies between memories have one order, not {settings.order!r}",
            hint="choose --order auto, model or min-peak",
        )
    if any(keys.COPY in function.metadata_props for function in model.functions.values()):
        raise UsageError(
            "the model has copies between memories from an earlier plan", hint="plan the model that it was made from"
        )


def _fewest(all_uses: Iterator[tuple[TensorUses, ...]], fast: Memory) -> MovementChoice:
    """Return the choice with the fewest copied bytes of several orders."""
    best: MovementChoice | None = None
    error: Infeasible | None = None
    assert fast.capacity is not None
    for of_one_order in islice(all_uses, _ORDERS):
        for uses in of_one_order:
            try:
                problem = uses.problem(fast.capacity)
            except Infeasible as one:
                error = error or one
                continue
            choice = MovementChoice(uses, problem, choose_evictions(problem), fast.capacity)
            best = choice if best is None or choice.bytes < best.bytes else best
        if best is not None and best.bytes == min(uses.forced + uses.placed for uses in of_one_order):
            break
    if best is None:
        assert error is not None
        raise error
    return best


def _all_uses(
    opened: Unfolded, settings: PlanSettings, weights: bool, residence: Residence
) -> Iterator[tuple[TensorUses, ...]]:
    """Yield the uses of tensors in several orders, each with inputs as a whole and, where Slices read them, in parts."""
    for layout, facts in _layouts(opened, settings, residence):
        uses = TensorUses(layout, facts, weights, residence=residence)
        in_parts = replace(uses, cuts_inputs=True)
        yield (uses, in_parts) if in_parts.part_copies else (uses,)


def _layouts(opened: Unfolded, settings: PlanSettings, residence: Residence) -> Iterator[tuple[Layout, LayoutFacts]]:
    """Yield layouts of the graph, each of another order, with all inputs and outputs in memory."""
    facts = LayoutFacts(*opened)
    chosen, order = find_planner(settings.planner), find_order(settings.order)
    settings.workspaces.require_known(opened.model)
    kernels = Insides(facts, settings.alignment, settings.share)
    common = (settings.alignment, settings.share, lambda problem: chosen.plan(problem, settings.effort))
    terms = Terms(facts, order, *common, settings.workspaces, kernels.of, not settings.whole_buffers)
    graph = opened.model.graph
    needs = terms.needs(graph, plan_bodies(graph, terms))
    scope = PlanScope(graph, "inside", overwrite_inputs=True, alone=settings.pins.kept & residence.stay)
    search = OrderSearch(facts, scope, settings.alignment)
    workspaces = {workspace.buffer.name for workspace in needs.workspaces(search.own)} if settings.pins.names else set()
    settings.pins.require_known(opened.model, search.roles(search.own), workspaces)
    slow = list(settings.pins.capacities)[-1]
    states = {pair.input for pair in states_of(facts, settings.states).taken}
    given = [value.name or "" for value in graph.inputs if value not in states]
    require_residence(settings.pins, slow, given, workspaces, settings.io)
    rules = RULES & frozenset(settings.share)
    for layout in layouts(search, order, 1, rules, needs, in_parts=not settings.whole_buffers):
        if layout.roles.unplanned:
            value, reason = next(iter(layout.roles.unplanned.items()))
            raise Infeasible(f"cannot tell which copies are needed: the size of {value.name!r} is not known: {reason}")
        yield layout, facts


def _tightened(free: Sequence[int], place: int, window: int, missing: int) -> list[int]:
    """Return `free` with `missing` bytes fewer at the steps around `place`."""
    steps = range(max(0, place - window), min(len(free), place + window + 1))
    return [max(0, room - missing) if step in steps else room for step, room in enumerate(free)]
