"""Plans the offsets of a model with a choice of copies, and describes its copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.graph import dependencies, node_ids
from onnxtile.inspection.inlined import works
from onnxtile.model.constants import Constants
from onnxtile.model.infer import values
from onnxtile.model.shapes import Shapes
from onnxtile.model.unfold import Unfolded, unfold
from onnxtile.planning.layout.ordering.schedule import named
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.movement.choice import CopiesByPlace, MovementChoice
from onnxtile.planning.movement.copies import CONSTANTS, OUTSIDE, MemoryCopy, PlannedMovement, TransferTime
from onnxtile.planning.movement.residence import moved_pins, without_marks
from onnxtile.planning.movement.times import ByteAccess, Speeds, TimedStep, transfer_time
from onnxtile.planning.movement.write import MovementOrder, WrittenCopies, write_copies
from onnxtile.planning.offsets.problem import OverCapacity
from onnxtile.planning.result import PlanResult


class MovementBound(NamedTuple):
    """A lower bound on the copied bytes of whole tensors, and its proof: "search" or "relaxation".

    `parts` is the bound where any bytes of a tensor may stay, `any_order` that of every order.
    """

    bytes: int
    proof: str
    parts: int
    any_order: int


@dataclass(frozen=True)
class MovedPlan:
    """A model with copies between its memories, the same with its calls open, and its plan."""

    model: ir.Model
    opened: Unfolded
    result: PlanResult


@dataclass(frozen=True)
class FullMemory:
    """A choice whose offsets do not fit: the error, and the place at fault in the schedule without copies."""

    error: OverCapacity
    place: int


@dataclass(frozen=True)
class PlanWriter:
    """Plans copies of `model`, of which `shapes` are known, with the memories called `names`, the fast one first.

    `states` are the names of inputs that hold a state from run to run.
    """

    model: ir.Model
    shapes: Shapes
    settings: PlanSettings
    names: tuple[str, str]
    states: frozenset[str] = frozenset()

    def write(self, choice: MovementChoice, loads: CopiesByPlace) -> PlacedCopies | FullMemory:
        """Return the plan of a copy of the model with the copies of `choice`, whose `loads` may be made earlier."""
        model = self.model.clone()
        without_marks(model)
        known = self.shapes.of_copies(dict(zip(values(self.model), values(model), strict=True)))
        graph = choice.uses.layout.scope.graph
        node_of, value_of = dict(zip(graph, model.graph, strict=True)), {v.name or "": v for v in values(model)}

        def moved(copies: CopiesByPlace) -> CopiesByPlace:
            return {place: [value_of[value.name or ""] for value in found] for place, found in copies.items()}

        order = MovementOrder(
            tuple(node_of[node] for node in choice.uses.layout.schedule.nodes),
            moved(loads),
            moved(choice.stores),
            frozenset(value_of[value.name or ""] for value in choice.uses.outputs),
            frozenset(node_of[node] for node in choice.uses.part_copies),
            frozenset(node_of[node] for node in graph if choice.uses.makes_constants(node)),
        )
        written = write_copies(model, known, order, *self.names)
        of_copies: dict[ir.Value, list[ir.Value]] = {}
        for value, origin in written.origin.items():
            of_copies.setdefault(origin, []).append(value)
        opened = unfold(model, known.with_those_of(known.of_copies(of_copies)), Constants(model))
        inputs = {value.name or "" for value in model.graph.inputs} if self.settings.io == "inside" else set()
        residence = choice.uses.residence
        pins = moved_pins(self.settings.pins, residence, written)
        slow = frozenset((written.slow | inputs | self.states) - residence.stay)
        apart = replace(self.settings, order="model", slow=slow, pins=pins)
        try:
            result = replace(plan_model(*opened, apart), order=self.settings.order)
        except OverCapacity as error:
            return FullMemory(error, written.places[min(error.step, len(written.places) - 1)])
        return PlacedCopies(MovedPlan(model, opened, result), written, choice, self.names)


@dataclass(frozen=True)
class PlacedCopies:
    """The plan of a model with the copies `written` for `choice` between the memories `names`."""

    plan: MovedPlan
    written: WrittenCopies
    choice: MovementChoice
    names: tuple[str, str]

    def result(self, bound: MovementBound, speeds: Speeds | None) -> MovedPlan:
        """Return the plan with its movement."""
        uses, found = self.choice.uses, tuple(self._copies())
        movement = PlannedMovement(
            *self.names,
            weights=uses.streams_weights,
            bytes=sum(copy.bytes for copy in found),
            forced=uses.forced,
            lower_bound=bound.bytes,
            bound=bound.proof,
            parts_bound=bound.parts,
            any_order_bound=bound.any_order,
            copies=found,
            time=None if speeds is None else self._time(found, speeds),
        )
        return replace(self.plan, result=replace(self.plan.result, movement=movement))

    @cached_property
    def _reads(self) -> list[list[str]]:
        """The names of the values that each node of the schedule reads, also in its bodies."""
        nodes = named(self.plan.model.graph, self.plan.result.schedule, self.plan.result.steps).nodes
        return [[value.name or "" for value in dependencies(node)] for node in nodes]

    def _copies(self) -> Iterator[MemoryCopy]:
        """Yield the copies in the order of the schedule."""
        result, tensor = self.plan.result, self.written.tensor
        # The constants of the graph stand before those of its bodies, which may have equal names.
        constants = reversed(result.constants)
        sites: dict[str, tuple[str, int | None]] = {row.name: (CONSTANTS, row.offset) for row in constants}
        sites.update((row.name, (row.arena, row.offset)) for row in result.buffers)
        sizes = {row.name: row.size for row in result.buffers}
        readers: dict[str, int] = {}
        for step, (reads, results) in enumerate(zip(self._reads, result.results, strict=True)):
            if results[0] not in tensor:
                readers.update((name, step) for name in reads if name not in readers)
        for step, (node, operands, results) in enumerate(
            zip(result.schedule, result.operands, result.results, strict=True)
        ):
            name = results[0]
            if name not in tensor:
                continue
            source = operands[0]
            size = sizes[name] if name in sizes else sizes[source]
            places = [sites.get(one, (OUTSIDE, None)) for one in (source, name)]
            copied = (node, tensor[name], source, *places[0], name, *places[1])
            yield MemoryCopy(*copied, size, step, readers.get(name))

    def _time(self, copies: tuple[MemoryCopy, ...], speeds: Speeds) -> TransferTime:
        """Return the time of the plan. A kernel touches its operands, results and workspaces."""
        model, result = self.plan.model, self.plan.result
        rows = {row.name: row for row in result.buffers}
        copied = {copy.node: copy.bytes for copy in copies}
        names = node_ids(model.graph)
        found = works(model, self.plan.opened.shapes, self.plan.opened.constants) if speeds.macs_per_second else {}
        macs = {names[node]: work.total for node, work in found.items() if node in names}
        steps = []
        for node, reads, results in zip(result.schedule, self._reads, result.results, strict=True):
            writes = list(results)
            writes += [row.name for row in result.buffers if row.kind == "workspace" and row.node == node]
            touched = [(name, False) for name in reads] + [(name, True) for name in writes]
            accesses = tuple(
                ByteAccess(row.arena, row.offset, row.offset + row.size, is_write)
                for name, is_write in touched
                if (row := rows.get(name)) is not None and row.size
            )
            steps.append(TimedStep(copied.get(node), macs.get(node) or 0, accesses))
        return transfer_time(steps, speeds, knows_macs=all(macs.get(node) is not None for node in result.schedule))
