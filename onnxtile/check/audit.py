"""The check of a published plan against its model: every value, every row, every body and every figure.

It uses the graph, read from its protobuf, and the document of the plan. It shares no code with the planner: what shape inference knows
comes to it as plain data. It takes about as many steps as the graph has nodes and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar

from onnxtile.check.addresses import (
    CheckTerms,
    FixedPlaces,
    Placing,
    aligned_to_bodies,
    overlaps,
    placing,
    timeline,
)
from onnxtile.check.figures import ExpectedLists, compare, figures, mislabelled, note, wrong_ends, wrong_types
from onnxtile.check.graph import Graph, GraphModel, GraphNode
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
from onnxtile.check.sharing import RunOrder, SharedStates
from onnxtile.check.states import (
    CheckedStates,
    carried_states,
    found_states,
    spread_tensors,
    wrong_row_strides,
    wrong_states,
    wrong_streams,
)
from onnxtile.declare.plan_document import UNSAID, PlanDocument, PlanFailure, PlannedBody, PlannedBuffer, PlannedGraph
from onnxtile.declare.verb import VerbResult
from onnxtile.model.constants import Constants
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed, OnnxtileError
from onnxtile.system.interpreter import collector_paused

if TYPE_CHECKING:
    import onnx_ir as ir


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
