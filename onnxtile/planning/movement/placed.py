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
from onnxtile.planning.movement.choice import MovementChoice
from onnxtile.planning.movement.copies import CONSTANTS, OUTSIDE, MemoryCopy, PlannedMovement, TransferTime
from onnxtile.planning.movement.placement import SlowTensors
from onnxtile.planning.movement.residence import moved_pins, without_marks
from onnxtile.planning.movement.times import ByteAccess, Speeds, TimedStep, copy_windows, transfer_time
from onnxtile.planning.movement.timetable import KernelPlace, Timetable, timetable
from onnxtile.planning.movement.write import CopyToWrite, MovementOrder, WrittenCopies, write_copies
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

    def timetable(self, choice: MovementChoice, speeds: Speeds | None, reserve: int | None) -> Timetable:
        """Return when the copies of `choice` are made: see movement.timetable.

        Without speeds, all kernels take equally long, and together as long as the copies.
        """
        seconds, pace = self._pace(choice, speeds)
        kernels = [KernelPlace(*one) for one in zip(seconds, choice.room, strict=True)]
        return timetable(kernels, [copy.wanted for copy in choice.copies], pace, reserve)

    def _pace(self, choice: MovementChoice, speeds: Speeds | None) -> tuple[list[float], float]:
        """Return the seconds of the kernel at each place, and those to copy a byte."""
        schedule = choice.uses.layout.schedule
        if speeds is not None and speeds.macs_per_second is not None:
            macs = [self._macs.get(name) for name in schedule.ids]
            if None not in macs:
                return [(count or 0) / speeds.macs_per_second for count in macs], 1 / speeds.bandwidth
        kernels = set(choice.uses.kernels.values()) - {choice.uses.kernels[node] for node in choice.uses.part_copies}
        copied = sum(copy.wanted.copied for copy in choice.copies)
        return [float(place in kernels) for place in range(len(schedule.nodes))], len(kernels) / max(copied, 1)

    @cached_property
    def _macs(self) -> dict[str, int | None]:
        """The MACs of each node of the model, by name; None where they are not known."""
        names = node_ids(self.model.graph)
        found = works(self.model, self.shapes, Constants(self.model))
        return {names[node]: work.total for node, work in found.items() if node in names}

    def write(self, choice: MovementChoice, table: Timetable) -> PlacedCopies | FullMemory:
        """Return the plan of a copy of the model with the copies of `choice`, which are made as `table` says."""
        model = self.model.clone()
        without_marks(model)
        known = self.shapes.of_copies(dict(zip(values(self.model), values(model), strict=True)))
        graph = choice.uses.layout.scope.graph
        node_of, value_of = dict(zip(graph, model.graph, strict=True)), {v.name or "": v for v in values(model)}

        def written_as(number: int) -> CopyToWrite:
            copy = choice.copies[number]
            part = None if copy.part is None else node_of[copy.part]
            return CopyToWrite(value_of[copy.value.name or ""], copy.wanted.is_load, part, table.held.get(number))

        order = MovementOrder(
            tuple(node_of[node] for node in choice.uses.layout.schedule.nodes),
            {place: list(map(written_as, numbers)) for place, numbers in table.copies.items()},
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
        slow = SlowTensors(frozenset((written.slow | inputs | self.states) - residence.stay), written.held)
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
            time=None if speeds is None else self._time(speeds),
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
        windows = copy_windows(self._timed)
        readers: dict[str, int] = {}
        makers: dict[str, int] = {}
        for step, (reads, results) in enumerate(zip(self._reads, result.results, strict=True)):
            if results[0] not in tensor:
                readers.update((name, step) for name in reads if name not in readers)
                makers.update(dict.fromkeys(results, step))
        for step, (node, operands, results) in enumerate(
            zip(result.schedule, result.operands, result.results, strict=True)
        ):
            name = results[0]
            if name not in tensor:
                continue
            source = operands[0]
            places = [sites.get(one, (OUTSIDE, None)) for one in (source, name)]
            copied = (node, tensor[name], source, *places[0], name, *places[1], self._copied(step), step)
            window = windows[step]
            ready = max(window.source_ready, makers.get(source, -1) + 1)
            yield MemoryCopy(*copied, readers.get(name), window.target_free, ready, window.source_until)

    @cached_property
    def _timed(self) -> list[TimedStep]:
        """The steps with the bytes that they touch, yet without MACs. A kernel touches its operands, results and workspaces."""
        result, tensor = self.plan.result, self.written.tensor
        rows = {row.name: row for row in result.buffers}
        workspaces = [row for row in result.buffers if row.kind == "workspace" and row.size]
        found = []
        for step, (reads, results) in enumerate(zip(self._reads, result.results, strict=True)):
            is_copy = results[0] in tensor
            touched = [(rows[name], False) for name in (reads[:1] if is_copy else reads) if name in rows]
            touched += [(rows[name], True) for name in results if name in rows]
            if not is_copy:
                touched += [(row, True) for row in workspaces if row.first <= step <= row.last]
            accesses = (
                ByteAccess(row.arena, row.offset, row.offset + row.size, write) for row, write in touched if row.size
            )
            found.append(TimedStep(self._copied(step) if is_copy else None, 0, tuple(accesses)))
        return found

    def _copied(self, step: int) -> int:
        """Return the bytes that the copy of `step` copies."""
        result, (name, *_) = self.plan.result, self.plan.result.results[step]
        sizes = self._sizes
        return sizes[name] if name in sizes else sizes[result.operands[step][0]]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {row.name: row.size for row in self.plan.result.buffers}

    def _time(self, speeds: Speeds) -> TransferTime:
        """Return the time of the plan."""
        model, result = self.plan.model, self.plan.result
        names = node_ids(model.graph)
        found = works(model, self.plan.opened.shapes, self.plan.opened.constants) if speeds.macs_per_second else {}
        macs = {names[node]: work.total for node, work in found.items() if node in names}
        steps = [
            replace(step, macs=macs.get(node) or 0) for node, step in zip(result.schedule, self._timed, strict=True)
        ]
        return transfer_time(steps, speeds, knows_macs=all(macs.get(node) is not None for node in result.schedule))
