"""Plans a model with a fast and a slow memory: every operand of a kernel is in the fast one while it runs.

Of several orders, the one is taken in which the fewest bytes are copied. The copies are nodes of the model. Where the offsets of its
tensors exceed the fast memory, more tensors leave it at the steps at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.declare.plan_document import MemoryCopy, TransferTime
from onnxtile.inspection.work import works
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope
from onnxtile.kernels.kernel_graph import NONE, UNKNOWN
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.topology import dependencies, node_ids
from onnxtile.planning.layout import Layout, RulesInMemories
from onnxtile.planning.model_plan import PlanSettings, facts_of, plan_model, set_up
from onnxtile.planning.movement.choice import (
    CopyEngine,
    Eviction,
    MovementProblem,
    Timetable,
    WantedCopy,
    choose_evictions,
    least_bytes,
    proved_evictions,
)
from onnxtile.planning.movement.uses import (
    RULES,
    CopyToWrite,
    CopyWriter,
    GapOfTensor,
    Residence,
    TensorUses,
    WrittenCopies,
    any_order_bound,
    parts_bound,
    without_marks,
)
from onnxtile.planning.offsets.memories import Memory, SlowTensors, memories
from onnxtile.planning.offsets.problem import OverCapacity, align
from onnxtile.planning.orders import find_order, named
from onnxtile.planning.result import CONSTANTS, OUTSIDE, MovementResult, PlanResult
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible, UsageError

# The choice of copies for one order of the kernels: which values are copied, and between which kernels that is possible.


class ChosenCopy(NamedTuple):
    """A copy of `tensor` between the memories; `part` is the Slice that copies it as a part of an input, by the number of its kernel."""

    tensor: int
    wanted: WantedCopy
    part: int | None = None


@dataclass(frozen=True)
class MovementChoice:
    """An order of the kernels with the gaps in which tensors leave the fast memory of `capacity` bytes."""

    uses: TensorUses
    problem: MovementProblem
    eviction: Eviction
    capacity: int

    @property
    def bytes(self) -> int:
        """The bytes of all copies."""
        return self.uses.forced + self.uses.placed + self.eviction.cost

    @cached_property
    def _left(self) -> tuple[GapOfTensor, ...]:
        """The gaps in which tensors leave the fast memory."""
        return (*(self.uses.gaps[number] for number in sorted(self.eviction.evicted)), *self.uses.absences)

    @cached_property
    def room(self) -> tuple[int, ...]:
        """The bytes of the fast memory at each place that neither its kernel nor tensors which stay take."""
        kept = set(range(len(self.problem.gaps))) - self.eviction.evicted
        return tuple(free - held for free, held in zip(self.problem.free, self.problem.held(kept), strict=True))

    @cached_property
    def copies(self) -> tuple[ChosenCopy, ...]:
        """All copies: those to the slow memory, each value once, then those to the fast one, by the place of their kernel."""
        stores = list(self._stores())
        number_of = {copy.tensor: number for number, copy in enumerate(stores)}
        return (*stores, *self._loads(number_of))

    def _stores(self) -> Iterator[ChosenCopy]:
        """Yield the copies to the slow memory; outputs are copied anyway."""
        uses, stores = self.uses, dict[int, int]()
        for number, position in self._places.items():
            stores.update((tensor, position) for tensor in uses.graph.kernels[number].makes if tensor in uses.outputs)
        stores.update((tensor, position) for tensor, position in uses.stored.items() if tensor not in stores)
        for gap in sorted(self._left, key=lambda gap: gap.before):
            stores.update((t, gap.before) for t in gap.tensors if not uses.is_backed(t) and t not in stores)
        for tensor, position in sorted(stores.items(), key=lambda item: item[1]):
            after = None if (tensor, position) in self._left_after else uses.next_use(tensor, position)
            is_constant = uses.graph.tensors[tensor].is_constant and uses.name(tensor) not in uses.residence.stay
            # A tensor that is used later takes its bytes anyway, and may be overwritten then.
            size = 0 if is_constant or after is not None else self._size(tensor)
            yield ChosenCopy(tensor, WantedCopy(False, size, uses.bytes(tensor), position, after))

    def _loads(self, number_of: Mapping[int, int]) -> Iterator[ChosenCopy]:
        """Yield the copies to the fast memory. Those of tensors that are copied out before read what the store in `number_of` wrote."""
        uses = self.uses
        for position, loaded in sorted(self._loaded.items()):
            for tensor in loaded:
                after = max(self._left_before.get((tensor, position), -1), self._made_at(tensor))
                source = None if tensor in uses.inputs or tensor in uses.weights else number_of.get(tensor)
                wanted = WantedCopy(True, self._size(tensor), uses.bytes(tensor), after, position, source)
                yield ChosenCopy(tensor, wanted)
        for number in uses.part_copies:
            kernel, position = uses.graph.kernels[number], self._places[number]
            given = [operand for operand in kernel.operands[1:] if operand != NONE]
            is_early = all(uses.graph.tensors[operand].is_constant for operand in given)
            after = max(map(self._made_at, given), default=-1) if is_early else position - 1
            tensor = kernel.makes[0]
            wanted = WantedCopy(True, self._size(tensor), uses.bytes(tensor), after, position)
            yield ChosenCopy(tensor, wanted, number)

    @cached_property
    def _loaded(self) -> dict[int, tuple[int, ...]]:
        """The tensors that are copied to the fast memory for a kernel, by its place."""
        uses = self.uses
        loads: dict[int, dict[int, None]] = {}
        for tensor in (*uses.graph.inputs, *uses.weights):
            if tensor in uses.reads and (tensor in uses.inputs or tensor in uses.weights):
                loads.setdefault(uses.reads[tensor][0], {})[tensor] = None
        for gap in self._left:
            loads.setdefault(gap.after, {}).update(dict.fromkeys(gap.tensors))
        return {position: tuple(tensors) for position, tensors in loads.items()}

    @cached_property
    def _left_before(self) -> dict[tuple[int, int], int]:
        """The place of the last kernel that uses a tensor before it leaves, by the tensor and the place of its next use."""
        return {(tensor, gap.after): gap.before for gap in self._left for tensor in gap.tensors}

    @cached_property
    def _left_after(self) -> frozenset[tuple[int, int]]:
        """The tensors that leave the fast memory, with the place of the last kernel that uses them before."""
        return frozenset((tensor, gap.before) for gap in self._left for tensor in gap.tensors)

    @cached_property
    def _places(self) -> dict[int, int]:
        """The place of each kernel in the schedule, also of those that make constants."""
        return {number: position for position, number in enumerate(self.uses.layout.schedule.order)}

    def _made_at(self, tensor: int) -> int:
        """Return the place of the kernel that makes `tensor`, which may be a constant; -1 where none does."""
        return self._places.get(self.uses.graph.makers[tensor], -1)

    def _size(self, tensor: int) -> int:
        return align(self.uses.bytes(tensor), self.uses.layout.alignment)


# The time of a plan with copies, from a given bandwidth and speed of the kernels, and the steps between which copies may run.
#
# Kernels run one after the other, and so do copies; both run side by side. A kernel or copy starts when it has come to its turn, and all
# earlier ones are done that write bytes which it reads, or touch bytes which it writes.


@dataclass(frozen=True)
class Speeds:
    """Bytes per second of the slow memory, and MACs per second of the kernels (None: not given)."""

    bandwidth: int
    macs_per_second: int | None = None


class ByteAccess(NamedTuple):
    """The bytes from `start` to `end` of `memory` are read, or written."""

    memory: str
    start: int
    end: int
    is_write: bool


@dataclass(frozen=True)
class TimedStep:
    """A step: the bytes that it copies (None for a kernel), its MACs, and the bytes in arenas that it touches."""

    copied: int | None
    macs: int
    accesses: tuple[ByteAccess, ...]


def transfer_time(steps: Sequence[TimedStep], speeds: Speeds, *, knows_macs: bool = True) -> TransferTime:
    """Return the times of `steps` in their order. Without `knows_macs`, the MACs of a kernel are not known, nor times that need them."""
    copying = sum(step.copied or 0 for step in steps) / speeds.bandwidth
    if speeds.macs_per_second is None or not knows_macs:
        return TransferTime(speeds.bandwidth, copying, speeds.macs_per_second)
    computing = sum(step.macs for step in steps) / speeds.macs_per_second
    starts, ends = _side_by_side(steps, speeds.bandwidth, speeds.macs_per_second)
    given = (speeds.bandwidth, copying, speeds.macs_per_second)
    return TransferTime(*given, computing, copying + computing, max(ends, default=0.0), starts, ends)


def _side_by_side(
    steps: Iterable[TimedStep], bandwidth: int, macs_per_second: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds at which each step starts, and those at which it ends."""
    clocks = {True: 0.0, False: 0.0}
    open_: list[tuple[float, ByteAccess]] = []
    starts, ends = [], []
    for step in steps:
        is_copy = step.copied is not None
        seconds = step.copied / bandwidth if step.copied is not None else step.macs / macs_per_second
        waits = (end for end, other in open_ if any(_conflict(access, other) for access in step.accesses))
        starts.append(max(clocks[is_copy], *waits, 0.0))
        clocks[is_copy] = starts[-1] + seconds
        ends.append(clocks[is_copy])
        # Nothing that starts later waits for what was done before both come to their turn.
        done = min(clocks.values())
        open_ = [known for known in open_ if known[0] > done]
        open_ += ((clocks[is_copy], access) for access in step.accesses)
    return tuple(starts), tuple(ends)


class CopyWindow(NamedTuple):
    """The steps between which a copy may run: see MemoryCopy."""

    target_free: int
    source_ready: int
    source_until: int | None


def copy_windows(steps: Sequence[TimedStep]) -> dict[int, CopyWindow]:
    """Return the window of each copy of `steps`, by its step. Copies are made in their order, one at a time."""
    numbers = {memory: n for n, memory in enumerate(dict.fromkeys(a.memory for step in steps for a in step.accesses))}
    rows = [
        (number, numbers[access.memory], access.start, access.end, access.is_write)
        for number, step in enumerate(steps)
        if step.copied is None
        for access in step.accesses
    ]
    step, memory, start, end, is_write = np.array(rows, np.int64).reshape(-1, 5).T
    windows = {}
    for number, copy in enumerate(steps):
        if copy.copied is None:
            continue
        touched, written, following = -1, -1, None
        for access in copy.accesses:
            shares = (memory == numbers[access.memory]) & (start < access.end) & (access.start < end)
            if access.is_write:
                touched = max(touched, int(step[shares & (step < number)].max(initial=-1)))
                continue
            writes = step[shares & (is_write == 1)]
            written = max(written, int(writes[writes < number].max(initial=-1)))
            following = min((int(later) for later in writes[writes > number][:1]), default=following)
        windows[number] = CopyWindow(touched + 1, written + 1, None if following is None else following - 1)
    return windows


def _conflict(a: ByteAccess, b: ByteAccess) -> bool:
    shares = a.memory == b.memory and a.start < b.end and b.start < a.end
    return shares and (a.is_write or b.is_write)


# Plans the offsets of a model with a choice of copies, and describes its copies.


@dataclass(frozen=True)
class MovedPlan:
    """A model with copies between its memories, the same with its calls open, and its plan."""

    model: ir.Model
    opened: Unfolded
    result: PlanResult


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
        """Return when the copies of `choice` are made: see CopyEngine.

        Without speeds, all kernels take equally long, and together as long as the copies.
        """
        seconds, pace = self._pace(choice, speeds)
        return CopyEngine(seconds, choice.room, [copy.wanted for copy in choice.copies], pace, reserve).timetable()

    def _pace(self, choice: MovementChoice, speeds: Speeds | None) -> tuple[list[float], float]:
        """Return the seconds of the kernel at each place, and those to copy a byte."""
        ids = choice.uses.graph.ids(choice.uses.layout.schedule)
        if speeds is not None and speeds.macs_per_second is not None:
            macs = [self._macs.get(name) for name in ids]
            if None not in macs:
                return [(count or 0) / speeds.macs_per_second for count in macs], 1 / speeds.bandwidth
        kernels = set(choice.uses.kernels.values()) - {choice.uses.kernels[part] for part in choice.uses.part_copies}
        copied = sum(copy.wanted.copied for copy in choice.copies)
        return [float(position in kernels) for position in range(len(ids))], len(kernels) / max(copied, 1)

    @cached_property
    def _macs(self) -> dict[str, int | None]:
        return _macs_of(self.model, self.shapes)

    def write(self, choice: MovementChoice, table: Timetable) -> PlacedCopies | tuple[OverCapacity, int]:
        """Return the plan of a copy of the model with the copies of `choice`, which are made as `table` says.

        Where its offsets do not fit, return the error, and the position at fault in the schedule without copies.
        """
        model = self.model.clone()
        without_marks(model)
        known = self.shapes.of_copies(dict(zip(values(self.model), values(model), strict=True)))
        uses, nodes, value_of = choice.uses, list(model.graph), {v.name or "": v for v in values(model)}

        def written_as(number: int) -> CopyToWrite:
            copy = choice.copies[number]
            part = None if copy.part is None else nodes[copy.part]
            return CopyToWrite(value_of[uses.name(copy.tensor)], copy.wanted.is_load, part, table.held.get(number))

        written = CopyWriter(
            model,
            known,
            self.names,
            tuple(nodes[number] for number in uses.layout.schedule.order),
            {position: list(map(written_as, numbers)) for position, numbers in table.copies.items()},
            frozenset(value_of[uses.name(tensor)] for tensor in uses.outputs),
            frozenset(nodes[number] for number in uses.part_copies),
            frozenset(node for node, kernel in zip(nodes, uses.graph.kernels, strict=True) if kernel.is_constant),
        ).write()
        of_copies: dict[ir.Value, list[ir.Value]] = {}
        for value, origin in written.origin.items():
            of_copies.setdefault(origin, []).append(value)
        known = known.with_those_of(known.of_copies(of_copies))
        opened = unfold(model, known, Constants(model))
        inputs = {value.name or "" for value in model.graph.inputs} if self.settings.io == "inside" else set()
        residence = uses.residence
        slow = SlowTensors(frozenset((written.slow | inputs | self.states) - residence.stay), written.held)
        apart = replace(self.settings, order="model", slow=slow, fixed=residence.moved(written))
        try:
            result = replace(plan_model(*opened, apart), order=self.settings.order)
        except OverCapacity as error:
            return error, written.places[min(error.step, len(written.places) - 1)]
        return PlacedCopies(MovedPlan(model, opened, result), known, written, choice, self.names)


@dataclass(frozen=True)
class PlacedCopies:
    """The plan of a model, of which `shapes` are known, with the copies `written` for `choice` between the memories `names`."""

    plan: MovedPlan
    shapes: Shapes
    written: WrittenCopies
    choice: MovementChoice
    names: tuple[str, str]

    def result(self, bounds: Mapping[str, Any], speeds: Speeds | None) -> MovedPlan:
        """Return the plan with its movement, of which the `bounds` are known."""
        uses, copies = self.choice.uses, tuple(self._copies())
        movement = MovementResult(
            *self.names,
            weights=uses.streams_weights,
            bytes=sum(copy.bytes for copy in copies),
            forced=uses.forced,
            **bounds,
            copies=copies,
            time=None if speeds is None else self._time(speeds),
        )
        return replace(self.plan, result=replace(self.plan.result, movement=movement))

    @cached_property
    def _reads(self) -> list[list[str]]:
        """The names of the values that each node of the schedule reads, also in its bodies."""
        nodes = named(self.plan.model.graph, self.plan.result.schedule)
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
            places = [sites.get(end, (OUTSIDE, None)) for end in (source, name)]
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
        steps = []
        for step, (reads, results) in enumerate(zip(self._reads, result.results, strict=True)):
            is_copy = results[0] in tensor
            touched = [(rows[name], False) for name in (reads[:1] if is_copy else reads) if name in rows]
            touched += [(rows[name], True) for name in results if name in rows]
            if not is_copy:
                touched += [(row, True) for row in workspaces if row.first <= step <= row.last]
            accesses = (
                ByteAccess(row.arena, row.offset, row.offset + row.size, write) for row, write in touched if row.size
            )
            steps.append(TimedStep(self._copied(step) if is_copy else None, 0, tuple(accesses)))
        return steps

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
        result = self.plan.result
        macs = _macs_of(self.plan.model, self.shapes) if speeds.macs_per_second else {}
        steps = [
            replace(step, macs=macs.get(node) or 0) for node, step in zip(result.schedule, self._timed, strict=True)
        ]
        return transfer_time(steps, speeds, knows_macs=all(macs.get(node) is not None for node in result.schedule))


def _macs_of(model: ir.Model, shapes: Shapes) -> dict[str, int | None]:
    """Return the MACs of each node of the graph of `model`, by name; None where they are not known."""
    names = node_ids(model.graph)
    work_of = works(model, shapes, Constants(model))
    return {names[node]: work.total for node, work in work_of.items() if node in names}


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

    With `weights`, constants are copied into the fast memory before a kernel reads them. Raises what `plan_model` raises. Raises
    Infeasible for an operator that needs more bytes than the fast memory has. Raises UsageError for several streams, the
    order "any", or a model with copies.
    """
    fast, slow = memories(settings.capacity)
    _require_plain(model, settings)
    fixed = RulesInMemories.from_rules(settings.fixed, model, (fast, slow))
    fixed.require_memories()
    opened = unfold(model, shapes, constants)
    lasting = () if settings.overwrite_inputs else (value.name or "" for value in model.graph.inputs)
    residence = Residence.from_rules(fixed, lasting)
    choice = _fewest(_all_uses(opened, settings, weights, residence), fast)
    choice = replace(choice, eviction=proved_evictions(choice.problem, choice.eviction))
    bounds = _bounds(choice)
    states = facts_of(opened, settings)[1].taken
    kept = frozenset(pair.input.name or "" for pair in states)
    writer = PlanWriter(model, shapes, settings, (fast.name, slow.name), kept)
    choice, placed = _placed(writer, choice)
    moved = placed.result(bounds, speeds)
    early = _early(writer, choice, speeds)
    return moved if early is None else _quicker(moved, early.result(bounds, speeds))


def _bounds(choice: MovementChoice) -> dict[str, Any]:
    """Return the fewest bytes that any choice for the order of `choice` copies, as fields of a MovementResult."""
    uses, is_exact = choice.uses, choice.eviction.exact
    least = choice.bytes if is_exact else uses.forced + uses.placed + (least_bytes(choice.problem) or 0)
    proof = "search" if is_exact else "relaxation"
    parts, any_order = parts_bound(uses, choice.capacity), any_order_bound(uses)
    return {"lower_bound": least, "bound": proof, "parts_bound": parts, "any_order_bound": any_order}


def _placed(writer: PlanWriter, choice: MovementChoice) -> tuple[MovementChoice, PlacedCopies]:
    """Return `choice`, with more tensors that leave the fast memory where its offsets need that, and its plan.

    Raises OverCapacity where no choice is found whose offsets fit.
    """
    free, window = list(choice.problem.free), 0
    for left in reversed(range(_ROUNDS)):
        written = writer.write(choice, writer.timetable(choice, None, None))
        if isinstance(written, PlacedCopies):
            return choice, written
        error, position = written
        tighter = _tightened(free, position, window, align(error.shortfall, writer.settings.alignment))
        if not left or tighter == free or error.arena != writer.names[0]:
            raise error
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
        before, placed = table, writer.write(choice, table)
        if isinstance(placed, PlacedCopies):
            return placed
    return None


def _quicker(plain: MovedPlan, early: MovedPlan) -> MovedPlan:
    """Return the plan that takes less time; the one with early copies where the time is not known."""
    times = [moved.result.movement and moved.result.movement.time for moved in (plain, early)]
    before, after = (time.with_overlap if time else None for time in times)
    return plain if before is not None and after is not None and before <= after else early


def _require_plain(model: ir.Model, settings: PlanSettings) -> None:
    if settings.streams > 1:
        raise UsageError("copies between memories are planned for one stream", hint="leave --streams out")
    if find_order(settings.order).every:
        raise UsageError(
            f"copies between memories have one order, not {settings.order!r}",
            hint="choose --order auto, model or min-peak",
        )
    if any(keys.STREAM in value.metadata_props for value in model.graph.inputs):
        raise UsageError("an input that comes row by row is planned for one memory", hint="leave --movement out")
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
    facts, known_states = facts_of(opened, settings)
    settings.workspaces.require_known(opened.model)
    graph = opened.model.graph
    scope = PlanScope(graph, "inside", overwrite_inputs=True)
    setup = set_up(facts, scope, replace(settings, share=RULES), residence.apart)
    kernels = setup.search.graph
    held = setup.needs.workspaces(kernels, kernels.own_order) if residence.fixed.fixed_names else ()
    workspaces = {workspace.buffer.name for workspace in held}
    residence.fixed.require_known(opened.model, kernels, workspaces)
    states = {pair.input for pair in known_states.taken}
    given = [value.name or "" for value in graph.inputs if value not in states]
    residence.require_possible(given, workspaces, settings.io)
    for layout in setup.layouts():
        unknown = next((tensor for tensor in kernels.tensors if tensor.role == UNKNOWN), None)
        if unknown is not None:
            reason = f"the size of {unknown.name!r} is not known: {unknown.reason}"
            raise Infeasible(f"cannot tell which copies are needed: {reason}")
        yield layout, facts


def _tightened(free: Sequence[int], position: int, window: int, missing: int) -> list[int]:
    """Return `free` with `missing` bytes fewer at the steps around `position`."""
    steps = range(max(0, position - window), min(len(free), position + window + 1))
    return [max(0, room - missing) if step in steps else room for step, room in enumerate(free)]
