"""The check of a published plan against its model: every value, every row, every body and every figure.

It uses the graph, read from its protobuf, and the document of the plan. It shares no code with the planner: what shape inference knows
comes to it as plain data. It takes about as many steps as the graph has nodes and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar

from onnxtile.check.addresses import (
    CheckTerms,
    FixedPlaces,
    Placing,
    SizedBuffer,
    aligned_to_bodies,
    overlaps,
    placing,
    timeline,
)
from onnxtile.check.figures import ExpectedLists, compare, figures, mislabelled, note, wrong_ends, wrong_types
from onnxtile.check.graph import STREAM, Graph, GraphModel, GraphNode, Value
from onnxtile.check.operators import UnusableTable
from onnxtile.check.ranges import (
    DocumentAtSizes,
    SizeOfSymbols,
    WrongFormula,
    claimed_at,
    listed,
    proved_sizes,
    wrong_between,
)
from onnxtile.check.reading import RangedValue, plain_model
from onnxtile.check.replay import Shared, disorders, replay
from onnxtile.check.sharing import RunOrder, SharedStates, any_open, carried, held, root_of, slice_corner
from onnxtile.declare.plan_document import (
    NO_SHAPE,
    UNSAID,
    PlanDocument,
    PlanFailure,
    PlannedBody,
    PlannedBuffer,
    PlannedGraph,
    PlannedState,
    PlannedStream,
)
from onnxtile.declare.verb import VerbResult
from onnxtile.model.constants import Constants
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed, OnnxtileError
from onnxtile.system.interpreter import collector_paused, cycles_freed

if TYPE_CHECKING:
    import onnx_ir as ir

# The check of states, and of inputs that come row by row.
#
# A state is an input and an output that are one tensor, whose bytes nothing else may have in the whole run. The rows of the plan say where
# both are. An output at another address than its input is copied there after the run.


@dataclass(frozen=True)
class CheckedStates:
    """The states that a plan keeps: the `inputs` and `outputs` in order, and those of them that hold bytes `throughout` the run."""

    claims: tuple[PlannedState, ...] = ()
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    throughout: frozenset[Value] = frozenset()

    @property
    def next_of(self) -> Mapping[Value, Value]:
        """The output by the input of each state."""
        return dict(zip(self.inputs, self.outputs, strict=True))


def found_states(
    claims: Iterable[PlannedState], rows: Iterable[PlannedBuffer], graph: Graph
) -> tuple[CheckedStates, list[PlanFailure]]:
    """Return the states of `claims` that `graph` has, by the names of its inputs and outputs, and the faults of the others."""
    at = {row.name: (row.arena, row.offset) for row in rows}
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    kept: list[PlannedState] = []
    failures: list[PlanFailure] = []
    seen: set[str] = set()
    for claim in claims:
        names = (claim.input, claim.output)
        if claim.input not in inputs or claim.output not in outputs:
            failures.append(
                PlanFailure(
                    f"the state {claim.input!r} and {claim.output!r} is no input and output of the model", names
                )
            )
        elif not seen.isdisjoint((f"< {claim.input}", f"> {claim.output}")):
            failures.append(PlanFailure(f"{claim.input!r} or {claim.output!r} is in two states", names))
        else:
            seen.update((f"< {claim.input}", f"> {claim.output}"))
            kept.append(claim)
    before = tuple(inputs[claim.input] for claim in kept)
    after = tuple(outputs[claim.output] for claim in kept)
    same = [claim.output for claim in kept if at.get(claim.input, "") == at.get(claim.output)]
    throughout = frozenset((*before, *(outputs[name] for name in same)))
    return CheckedStates(tuple(kept), before, after, throughout), failures


def carried_states(node: GraphNode, body: Graph, rows: Iterable[PlannedBuffer]) -> CheckedStates:
    """Return the carried values of `node`, a Loop or Scan, that have one address as input and output of its `body`."""
    at = {row.name: (row.arena, row.offset) for row in rows if row.size}
    same = [
        (before, after)
        for before, after in carried(node, body)
        if before.name in at and at[before.name] == at.get(after.name) and body.outputs.count(after) == 1
    ]
    before, after = (tuple(pair[side] for pair in same) for side in (0, 1))
    return CheckedStates((), before, after, frozenset((*before, *after)))


def wrong_states(
    states: CheckedStates, rows: Mapping[Value, PlannedBuffer], kept: Iterable[Value], shared: SharedStates
) -> Iterator[PlanFailure]:
    """Yield the faults of states: another address, type or shape than the rows and the graph have, or wrong figures.

    `kept` values outlive the run. None may have bytes that a state is copied into after it.
    """
    kept = [value for value in kept if value in rows]
    for claim, before, after in zip(states.claims, states.inputs, states.outputs, strict=True):
        names = (claim.input, claim.output)
        row, other = rows.get(before), rows.get(after)
        if row is None or other is None:
            yield PlanFailure(f"the state {claim.input!r} and {claim.output!r} has no address", names)
            continue
        if (claim.arena, claim.offset) != (row.arena, row.offset):
            yield PlanFailure(
                f"the state {claim.input!r} lies at {row.offset} of {row.arena!r}, not at {claim.offset} of {claim.arena!r}",
                names,
            )
        axes = _longer_axes(before, after)
        if before.dtype != after.dtype or axes is None or len(axes) > 1:
            yield PlanFailure(f"{claim.input!r} and {claim.output!r} have types or shapes that are no state", names)
            continue
        yield from _wrong_axis(claim, axes)
        is_same = (row.arena, row.offset) == (other.arena, other.offset)
        yield from _wrong_strides(claim, before, after, is_appended=is_same and bool(axes), shared=shared)
        if not is_same:
            yield from _lost(row, [rows[value] for value in kept if value is not before])
        right = {
            "size": max(row.size, other.size) if is_same else row.size,
            "copied": 0 if is_same else row.size,
        }
        for name, number in right.items():
            if getattr(claim, name) not in {UNSAID, number}:
                yield PlanFailure(f"{name} of the state {claim.input!r} is {getattr(claim, name)}, not {number}", names)


def _wrong_axis(claim: PlannedState, axes: Sequence[int]) -> Iterator[PlanFailure]:
    """Yield that a state grows along another axis; at sizes below the largest nothing is claimed."""
    right = axes[0] if axes else None
    if claim.size != UNSAID and claim.axis not in {UNSAID, right}:
        reason = f"axis of the state {claim.input!r} is {claim.axis}, not {right}"
        yield PlanFailure(reason, (claim.input, claim.output))


def _lost(state: PlannedBuffer, kept: Iterable[PlannedBuffer]) -> Iterator[PlanFailure]:
    for row in kept:
        if row.arena == state.arena and row.offset < state.end and state.offset < row.end and row.size and state.size:
            reason = f"{row.place} is overwritten after the run, when the state {state.place} is copied there"
            yield PlanFailure(reason, (row.name, state.name))


def _longer_axes(before: Value, after: Value) -> list[int] | None:
    """Return the axes on which `after` is longer; None where both have other ranks, or `after` is shorter."""
    inner, outer = before.shape, after.shape
    if inner is None or outer is None or len(inner) != len(outer):
        return None
    if any(size > longer for size, longer in zip(inner, outer, strict=True)):
        return None
    return [axis for axis in range(len(inner)) if inner[axis] < outer[axis]]


def _wrong_strides(
    claim: PlannedState, before: Value, after: Value, *, is_appended: bool, shared: SharedStates
) -> Iterator[PlanFailure]:
    """Yield the fault of strides other than those of the largest size, or of strides that the output has not. None is contiguous."""
    if claim.strides is None:
        return
    names = (claim.input, claim.output)
    right = _strides(after) if is_appended else None
    is_largest = claim.size != UNSAID
    if is_largest and claim.strides != right:
        yield PlanFailure(f"strides of the state {claim.input!r} are {claim.strides}, not {right}", names)
    elif (before in shared.spread) > (after in shared.spread) and (any_open((after,)) or claim.strides != right):
        yield PlanFailure(
            f"{claim.output!r} is contiguous, and has not the strides of the state {claim.input!r}", names
        )


def _strides(value: Value) -> tuple[int, ...] | None:
    """Return the bytes from one element of the contiguous `value` to the next on each axis; None where an element is no whole bytes."""
    shape, bits = value.shape, value.bits
    if shape is None or bits is None or bits % 8:
        return None
    return tuple(math.prod(shape[axis + 1 :]) * bits // 8 for axis in range(len(shape)))


def spread_tensors(states: CheckedStates, shared: SharedStates) -> dict[Value, tuple[int, int]]:
    """Return the tensors of growing states whose rows are further apart than they are long, and their views that have these rows.

    Each has the number of its rows, and the bytes from one to the next.
    """
    rows_of: dict[Value, tuple[int, int]] = {}
    for claim, before, after in zip(states.claims, states.inputs, states.outputs, strict=True):
        shape = before.shape
        if claim.strides is None or shape is None or not 0 <= (claim.axis or 0) < len(shape):
            continue
        axes = _longer_axes(before, after)
        rows = math.prod(shape[: axes[0]]) if axes else 1
        todo = [before] if rows > 1 else []
        # At the largest sizes the graph has them; they are the same at all others.
        strides = _strides(after) if claim.size != UNSAID else claim.strides
        pitch = strides[axes[0] - 1] if axes and strides is not None and len(strides) == len(shape) else 0
        if todo and (strides != _strides(after) or any_open((after,))):
            todo.append(root_of(after, shared))
        while todo:
            value = todo.pop()
            rows_of[value] = (rows, pitch)
            shown = (link for node in value.readers for link in held(node, shared) if link.rule == "view")
            todo += (link.result for link in shown if link.operand is value and _has_rows(link.result, rows))
    return rows_of


def wrong_row_strides(
    states: CheckedStates, rows: Mapping[Value, PlannedBuffer], shared: SharedStates, *, over_ranges: bool
) -> Iterator[PlanFailure]:
    """Yield the `rows` with other strides than the graph and the states give them. A contiguous tensor has none.

    Over ranges, it may have them where it is contiguous at some sizes only. A stride of an axis of one element, which nothing uses, is
    compared at the largest sizes.
    """
    owners = {rows[before].alias or rows[before].name for before in states.inputs if before in rows}
    for value, row in rows.items():
        if row.strides == NO_SHAPE:
            continue
        shape, right = value.shape, None
        if value in shared.spread and (row.alias or row.name) in owners and shape is not None and value.bits:
            right = _strides_of_rows(shape, value.bits, *shared.spread[value])
        elif over_ranges and row.strides is not None:
            right = _strides(value)
        both = row.strides, right
        if isinstance(row, SizedBuffer) and None not in both and shape is not None:
            both = tuple(_of_long_axes(strides or (), shape) for strides in both)  # type: ignore[assignment]
        if both[0] != both[1]:
            reason = f"strides of {row.name!r} are {row.strides and list(row.strides)}, not {right and list(right)}"
            yield PlanFailure(reason, (row.name,))


def _of_long_axes(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return those of `strides` that are of axes of several elements; all where they are not those of `shape`."""
    if len(strides) != len(shape):
        return tuple(strides)
    return tuple(stride for stride, size in zip(strides, shape, strict=True) if size > 1)


def _strides_of_rows(shape: Sequence[int], bits: int, rows: int, pitch: int) -> tuple[int, ...]:
    """Return the bytes from one element to the next on each axis of a tensor whose first axes number `rows`, `pitch` bytes apart."""
    axes = next(count for count in range(1, len(shape) + 1) if math.prod(shape[:count]) == rows)
    inner = [math.prod(shape[axis + 1 :]) * bits // 8 for axis in range(axes, len(shape))]
    return (*(math.prod(shape[axis + 1 : axes]) * pitch for axis in range(axes)), *inner)


def _has_rows(value: Value, rows: int) -> bool:
    """Return whether the sizes of the first axes of `value` multiply to the number of `rows`."""
    shape = value.shape or ()
    return any(math.prod(shape[:count]) == rows for count in range(1, len(shape) + 1))


# Inputs that come row by row: each is read by Slices alone, in the order of its rows, and no row is read twice.


def wrong_streams(claims: PlanDocument, line: RunOrder) -> Iterator[PlanFailure]:
    """Yield a failure for each input that comes row by row and is read otherwise, or of which the plan says something else.

    A plan in metadata says nothing of them.
    """
    expected: dict[str, PlannedStream] = {}
    for value in (value for value in line.graph.inputs if value.is_streamed):
        stream = _stream(value, line)
        if isinstance(stream, PlanFailure):
            yield stream
        else:
            expected[value.name] = stream
    claimed = {stream.input: stream for stream in claims.streamed}
    for name in expected.keys() | claimed.keys() if claims.outside is not None else ():
        if claimed.get(name) != expected.get(name):
            yield PlanFailure(f"the rows of {name!r} are not read as the plan says", (name,))


def _stream(value: Value, line: RunOrder) -> PlannedStream | PlanFailure:
    """Return the reads of an input in the order in which nodes run; a failure where they are none of consecutive rows."""
    shape, axis, bits = value.shape, value.marks[STREAM], value.bits
    if shape is None or bits is None or bits < 8 or not axis.isdecimal() or int(axis) >= len(shape):
        return PlanFailure(f"{value.name!r} has no rows along the axis {axis!r}", (value.name,))
    if value.is_output or value.is_constant:
        return PlanFailure(f"{value.name!r} cannot come row by row", (value.name,))
    reads: list[tuple[int, int]] = []
    for number, node in enumerate(line.nodes):
        if value not in line.reads[node]:
            continue
        rows = _rows_read(value, node, int(axis))
        if rows is None or rows[0] < (sum(reads[-1]) if reads else 0):
            reason = f"{node.name!r} reads {value.name!r}, which comes row by row, not in the order of its rows"
            return PlanFailure(reason, (value.name,), line.steps[number])
        reads.append(rows)
    count = shape[int(axis)]
    return PlannedStream(value.name, int(axis), count, math.prod(shape) // max(count, 1) * bits // 8, tuple(reads))


def _rows_read(value: Value, node: GraphNode, axis: int) -> tuple[int, int] | None:
    """Return the first row of an input that a Slice reads, and how many; None for any other node, or other parts of the input."""
    if node.op_type != "Slice" or not node.is_standard or node.inputs[0] is not value or value in node.inputs[1:]:
        return None
    whole, part = value.shape, node.outputs[0].shape
    corner = None if whole is None else slice_corner(node, whole)
    if whole is None or part is None or corner is None or len(part) != len(whole):
        return None
    rest = [(start, length) for at, (start, length) in enumerate(zip(corner, part, strict=True)) if at != axis]
    if rest != [(0, length) for at, length in enumerate(whole) if at != axis]:
        return None
    return (corner[axis], part[axis]) if 0 < part[axis] <= whole[axis] - corner[axis] else None


# The check of a whole plan.


@dataclass(frozen=True, repr=False)
class Audit(VerbResult):
    """The result of the check: the `failures`, none for a sound plan, and the numbers of things checked.

    `values` have an address or are listed, `tensors` have an address, `aliases` lie in the bytes of another tensor. `unchecked` has the
    claims that could not be checked, each with the reason.

    `workspaces`, `bodies` and `arenas` are the numbers of workspaces, bodies of If, Loop and Scan, and arenas that were checked.
    """

    verb: ClassVar[str] = "check"
    JSON = "sound failures values tensors aliases workspaces bodies arenas unchecked"

    failures: tuple[PlanFailure, ...]
    values: int
    tensors: int
    aliases: int
    workspaces: int
    bodies: int
    arenas: int
    unchecked: tuple[str, ...] = ()

    @classmethod
    def refused(cls, *failures: PlanFailure) -> Audit:
        """Return the result for a plan of which nothing else is checked."""
        return cls(failures, 0, 0, 0, 0, 0, 0)

    def with_failures(self, failures: Sequence[PlanFailure]) -> Audit:
        """Return the result with more failures, which come last."""
        return replace(self, failures=(*self.failures, *failures))

    @property
    def sound(self) -> bool:
        """Whether the plan has no fault."""
        return not self.failures

    @property
    def summary(self) -> str:
        """Whether the plan is sound, and how many tensors were looked at."""
        state = "sound" if self.sound else f"{len(self.failures):,} failures"
        return f"{state}, {self.tensors:,} tensors, {self.aliases:,} aliases"


@collector_paused()
@cycles_freed()
def check(
    model: ir.Model,
    claims: PlanDocument,
    shapes: Shapes,
    constants: Constants,
    digest: str | None = None,
    content: bytes | None = None,
) -> Audit:
    """Return the faults of `claims`, the published plan of `model` with these `shapes` and `constants`: see `judged`.

    `content` are the bytes of the file of `model`, where these are known.
    """
    return judged(GraphModel(*plain_model(model, shapes, constants, content)), claims, digest)


def judged(model: GraphModel, claims: PlanDocument, digest: str | None = None) -> Audit:
    """Return the faults of `claims`, the published plan of `model`.

    `digest` is the digest of the model's file, compared where the plan has one, too. Raises OnnxtileError for an entry point that cannot be
    used.
    """
    if claims.alignment < 1 or claims.alignment & (claims.alignment - 1):
        return Audit.refused(PlanFailure(f"the alignment must be a power of two, not {claims.alignment}"))
    if claims.overwrite_inputs and claims.io != "inside":
        return Audit.refused(PlanFailure(f"inputs cannot be overwritten with io {claims.io!r}"))
    states, unfound = found_states(claims.states, claims.buffers, model.graph)
    shared = SharedStates(dict(states.next_of))
    shared = replace(shared, spread=spread_tensors(states, shared))
    arenas = {arena.name: arena for arena in claims.arenas}
    terms = CheckTerms(shared, claims.alignment, arenas, every_order=claims.order == "any")
    fixed = FixedPlaces.from_marks(claims, model.graph)
    walk = _Walk(terms, states, fixed, is_whole=claims.outside is not None)
    walk.over_ranges = isinstance(claims, DocumentAtSizes) or bool(claims.ranges)
    try:
        seen = walk.graph(model.graph, claims, claims.io, claims.overwrite_inputs, "")
    except UnusableTable as error:
        raise OnnxtileError(str(error), hint="update it, or uninstall it") from error
    failures = walk.failures
    failures += fixed.failures(claims)
    failures += unfound
    if seen is not None:
        failures += wrong_streams(claims, seen.placing.line)
        failures += wrong_states(states, seen.placing.rows, seen.placing.line.kept, shared)
    if None not in (digest, claims.digest) and digest != claims.digest:
        failures.insert(
            0, PlanFailure(f"the plan belongs to another file: its digest is {claims.digest}, not {digest}")
        )
    walk.listing.settle()
    unchecked = list[str]()
    if seen is not None and not walk.is_partial:
        failures += [*compare(walk.listing, claims), *wrong_ends(claims, model.graph)]
        failures += wrong_types(walk.listing, claims)
        used = None if seen.shared is None else seen.shared.links
        failures += figures(claims, seen.placing, used)
        if claims.movement is not None:
            from onnxtile.check.movement import wrong_movement  # few plans have copies

            failures += wrong_movement(claims, seen.placing, unchecked)
    listed = len(walk.listing.constants) + len(walk.listing.outside) + len(walk.listing.unplanned)
    counts = (walk.tensors + listed, walk.tensors, walk.aliases, walk.workspaces, walk.bodies, len(claims.arenas))
    return Audit(tuple(failures), *counts, tuple(unchecked))


def check_ranges(
    claims: PlanDocument,
    at: Callable[[SizeOfSymbols], GraphModel],
    over: Callable[[], Mapping[str, RangedValue]],
    digest: str | None = None,
) -> Audit:
    """Return the faults of `claims`, a plan over ranges, at the sizes at which it is proved, and then those between.

    `at` returns the model at sizes, `over` its values over the ranges.

    Faults are those of the first sizes that have some. At the largest sizes, all figures are checked.
    """
    audit: Audit | None = None
    for sizes in proved_sizes(claims.ranges):
        model = at(sizes)
        if audit is None:
            audit = judged(model, claims, digest)
            if not audit.sound:
                return audit
        for scaled in (False, True):
            try:
                document = claimed_at(claims, sizes, scaled=scaled)
            except WrongFormula as error:
                return replace(audit, failures=(PlanFailure(str(error)),))
            failures = judged(model, document).failures
            if failures:
                where = f"at {listed(sizes)}{' with scaled offsets' if scaled else ''}: "
                return replace(
                    audit, failures=tuple(replace(failure, reason=where + failure.reason) for failure in failures)
                )
    assert audit is not None
    try:
        return audit.with_failures([*wrong_between(claims, over())])
    except WrongFormula as error:
        return replace(audit, failures=(PlanFailure(str(error)),))


def require(
    model: ir.Model,
    claims: PlanDocument,
    shapes: Shapes,
    constants: Constants,
    digest: str | None = None,
    content: bytes | None = None,
) -> Audit:
    """Return the result of the check. Raises CheckFailed with the first fault of `claims`, if it has one."""
    audit = check(model, claims, shapes, constants, digest, content)
    if audit.failures:
        more = f", and {len(audit.failures) - 1} more" if len(audit.failures) > 1 else ""
        hint = audit.failures[0].hint or "please report it with the model"
        raise CheckFailed(f"the plan is not sound: {audit.failures[0]}{more}", hint=hint)
    return audit


@dataclass(frozen=True)
class _Seen:
    placing: Placing
    shared: Shared | None


@dataclass
class _Walk:
    """Checks the graphs of a model one by one; `is_partial` says that one has an invalid schedule, and was left out.

    A plan that is not `is_whole`, as in metadata, has no plans of called functions. `fixed` has the rules for tensors of the main graph.
    """

    terms: CheckTerms
    states: CheckedStates
    fixed: FixedPlaces
    is_whole: bool
    failures: list[PlanFailure] = field(default_factory=list)
    listing: ExpectedLists = field(default_factory=ExpectedLists)
    is_partial: bool = False
    over_ranges: bool = False
    tensors: int = 0
    aliases: int = 0
    workspaces: int = 0
    bodies: int = 0
    units: dict[GraphNode, int] = field(default_factory=dict)
    """The alignment of the bodies of each node, in bytes."""

    def graph(
        self,
        graph: Graph,
        claim: PlannedGraph,
        io: str,
        overwrite: bool,
        path: str,
        states: CheckedStates | None = None,
    ) -> _Seen | None:
        """Check one graph and its bodies; return the values and addresses found, None for an invalid schedule.

        `states` are those of a body; those of the main graph by default.
        """
        states = self.states if states is None else states
        outputs = states.outputs if io == "outside" else graph.outputs
        given = tuple(graph.inputs) if io == "inside" else states.inputs
        given = tuple(value for value in given if not value.is_streamed)
        left = () if overwrite else (value for value in given if value not in states.inputs)
        kept = frozenset((*outputs, *left))
        fixed = None if path else self.fixed
        line = timeline(graph, claim.schedule, claim.steps, kept, given, fixed, states.throughout)
        if not isinstance(line, RunOrder):
            self.is_partial = True
            self._note(line, path)
            return None
        placed, wrong = placing(claim.buffers, line, self.terms)
        self._note(wrong, path)
        self._note(overlaps(placed.holders), path)
        if self.is_whole:
            self._note(
                wrong_row_strides(self.states, placed.rows, self.terms.states, over_ranges=self.over_ranges), path
            )
        shared = None
        if not wrong:
            shared = replay(placed)
            self._note(shared.failures, path)
            if self.terms.every_order and not shared.failures:
                self._note(disorders(placed, shared), path)
        self._count(placed)
        claimed = self._bodies(placed, claim, path)
        placed = aligned_to_bodies(placed, self.units)
        self._note(note(placed, io, claimed, self.listing), path)
        self._note(mislabelled(placed, claim), path)
        return _Seen(placed, shared)

    def _note(self, failures: Sequence[PlanFailure] | Iterator[PlanFailure], path: str) -> None:
        self.failures += (replace(failure, body=path) if path else failure for failure in failures)

    def _count(self, placing: Placing) -> None:
        self.tensors += len(placing.rows)
        self.aliases += sum(row.alias is not None for row in placing.rows.values())
        self.workspaces += sum(not holder.members for holder in placing.holders)

    def _bodies(self, placing: Placing, claim: PlannedGraph, path: str) -> set[GraphNode]:
        """Check the bodies of the nodes of a graph; return the nodes with bodies in the plan."""
        open_: dict[tuple[str, str | None], list[PlannedBody]] = {}
        for body in claim.bodies:
            open_.setdefault((body.node, body.attribute), []).append(body)
        planned = set()
        for node, name in placing.line.name_of.items():
            for attribute, graph in node.entered().items():
                at = f"{path}/" * bool(path) + name + (f"/{attribute}" if attribute is not None else "")
                if not open_.get((name, attribute)):
                    if attribute is not None or self.is_whole:
                        self._note([PlanFailure(f"the plan of {at!r} is missing", (name,))], path)
                    self._align(node, self._unit_of(graph))
                    continue
                planned.add(node)
                self.bodies += 1
                inner = open_[name, attribute].pop(0)
                states = carried_states(node, graph, inner.buffers)
                self.terms.states.next_states.update(states.next_of)
                seen = self.graph(graph, inner, "inside", overwrite=False, path=at, states=states)
                rows = inner.buffers if seen is None else seen.placing.all_rows
                self._note(_outside_workspace(inner, rows, placing.workspaces.get(node), self.terms.alignment), at)
                if seen is not None:
                    self._align(node, max((holder.unit for holder in seen.placing.holders), default=1))
        for body in (body for left in open_.values() for body in left):
            reason = (
                f"there is a plan of {body.attribute or 'the body'!r} of {body.node!r}, which has none, or only one"
            )
            self._note([PlanFailure(reason, (body.node,))], path)
        return planned

    def _align(self, node: GraphNode, unit: int) -> None:
        self.units[node] = max(unit, self.units.get(node, 1))

    def _unit_of(self, graph: Graph) -> int:
        """Return the alignment of the tensors in `graph` and in its bodies, of which the plan says nothing."""
        results = (value for node in graph.nodes for value in node.outputs if not value.is_constant)
        inner = (self._unit_of(body) for node in graph.nodes for body in node.entered().values())
        return max((*(value.alignment for value in results), *inner), default=1)


def _outside_workspace(
    body: PlannedBody, rows: Sequence[PlannedBuffer], workspace: PlannedBuffer | None, alignment: int
) -> Iterator[PlanFailure]:
    """Yield each of the `rows` of `body` outside the workspace of its node, and a size of the body larger than that."""
    rows = [row for row in rows if row.size]
    if not rows:
        if body.size not in {UNSAID, 0}:
            yield PlanFailure(f"the body has no bytes, and a size of {body.size}")
        return
    if workspace is None:
        yield PlanFailure(f"{body.node!r} has no workspace for this body", (body.node,))
        return
    size = workspace.size if body.size == UNSAID else body.size
    for row in rows:
        if row.arena != workspace.arena or not workspace.offset <= row.offset <= row.end <= workspace.offset + size:
            what = f"the {size} bytes of the body at {workspace.offset} of {workspace.arena!r}"
            yield PlanFailure(f"{row.place} of {row.arena!r} is not inside of {what}", (row.name, workspace.name))
    if size > workspace.size:
        yield PlanFailure(f"{workspace.place} is too small for the {size} bytes of the body", (workspace.name,))
    units = {alignment, *(unit for unit in _ELEMENTS if unit > alignment)}
    owners = [row for row in rows if row.alias is None] or rows
    ends = {max(row.offset - workspace.offset - -row.size // unit * unit for row in owners) for unit in units}
    if body.size != UNSAID and size not in ends:
        yield PlanFailure(f"the body is said to take {size} bytes, and takes {min(ends)}")


_ELEMENTS = (2, 4, 8, 16)
"""Element sizes in bytes, to which buffers may be rounded up where the alignment of the plan is smaller."""
