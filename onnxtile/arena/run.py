"""The proof of a plan by execution: inside the arena the model must give the same bits as outside.

It is evidence beside the check and the table of lawful aliases. A wrong plan can pass by luck, so kernels that share bytes run on
several values; a whole run is repeated, with other inputs and another pattern in the bytes of the arena, where runs may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.arena.graph_run import GraphRun, RunContext, Unsure
from onnxtile.arena.kernel import (
    Corruption,
    Kernels,
    PairedValues,
    PreparedNode,
    ValueTable,
    contradicts,
    rows_of_state,
)
from onnxtile.arena.memory import ArenaMemory, TensorMemory, same
from onnxtile.check.addresses import SizedBuffer
from onnxtile.check.ranges import DocumentAtSizes, SizeOfSymbols, WrongFormula, claimed_at, listed
from onnxtile.declare.plan_document import (
    UNSAID,
    MemoryCopy,
    PlanDocument,
    PlannedBuffer,
    PlannedGraph,
    PlannedMovement,
    PlannedState,
)
from onnxtile.declare.verb import JsonFields
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope, read_kernels
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import ANYTHING, Wanted
from onnxtile.model.known import types_kept
from onnxtile.model.save import MAX_IR_VERSION, proto_bytes, raise_ir_version
from onnxtile.model.session import may_split, session_of
from onnxtile.model.topology import dependencies, has_body
from onnxtile.planning.orders import find_order, named, shuffled, shuffled_steps
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.opened_calls import Unfolded, fold, inside_of, unfold
from onnxtile.shapes.resolve import Shapes, tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed
from onnxtile.system.long_work import Progress, counted, silent
from onnxtile.system.posix import return_free_memory
from onnxtile.system.runtime import Array

# Runs a model inside its arena node by node, together with a reference run in which every tensor has memory of its own.


class ArenaExecutor:
    """`model`, prepared to run inside the arena of `result`.

    `blocks` are the arenas by name. Tensors with a planned address are read and written only there; other graph inputs and constants have
    memory of their own; values without fixed bytes are Python values. Raises CheckFailed where the plan leaves the arena or gives a tensor
    another size, ModelError where onnxruntime has no kernel for a node. `blocks` are those of another run, whose states it goes on with.
    """

    def __init__(
        self,
        model: ir.Model,
        result: PlanDocument,
        shapes: Shapes,
        constants: Constants,
        *,
        facts: LayoutFacts | None = None,
        blocks: Mapping[str, ArenaMemory] | None = None,
    ) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        facts = facts or LayoutFacts(model, shapes, constants)
        self._graph, self._kernels = read_kernels(facts, PlanScope(model.graph)), Kernels(facts)
        self.blocks = blocks or {arena.name: ArenaMemory(arena.size, result.alignment) for arena in result.arenas}
        self._result = result
        self._context = RunContext(facts, self.blocks, self._kernels)
        self._run = GraphRun(self._graph, self._context, result, result.states)
        states = {state.input for state in result.states}
        inside = [value for value in model.graph.inputs if value in self._run.sites and value.name not in states]
        names = frozenset(result.keeps)
        results = (value for node in model.graph for value in node.outputs) if names else ()
        kept = (value for value in results if value.name in names and value in self._run.sites)
        self._kept = [*(() if result.overwrite_inputs else inside), *kept]

    @property
    def addresses(self) -> dict[str, int]:
        """The addresses of the model's inputs in the arena, by name."""
        sites = self._run.sites
        return {value.name or "": sites[value].address for value in self._model.graph.inputs if value in sites}

    @property
    def may_differ(self) -> bool:
        """Whether one run may differ from another: in the order of its nodes, in the bodies that run, or in the size of a tensor."""
        result = self._result
        is_free = find_order(result.order).every or len(set(result.steps)) < len(result.steps)
        return is_free or bool(result.bodies or result.bounds) or any(has_body(node) for node in self._model.graph)

    @property
    def repeated(self) -> int:
        """The number of different kernels of the main graph that share bytes, and have run on other values as well."""
        return self._run.repeated

    @property
    def kernels(self) -> int:
        """The number of nodes of the main graph that run."""
        return len(self._run.steps) - self.views

    @property
    def views(self) -> int:
        """The number of nodes that do not run, because their results are in place."""
        return self._run.views

    @property
    def sessions(self) -> int:
        """The number of different kernels."""
        return self._kernels.kinds

    def run(
        self, feeds: Mapping[str, Array], order: Iterable[int] | None = None, carried: Collection[str] = ()
    ) -> dict[str, Any] | Corruption:
        """Run once; return each graph output by name (a TensorMemory, or an ordinary value), or the first corruption.

        `order` has the nodes in another order than the plan's, by their places in it. Inputs that are `carried` lie in the arena since
        the run before; of these, `feeds` has the values of the reference run.

        Raises ModelError where a kernel refuses its inputs outside the arena, too.
        """
        run, graph = self._run, self._model.graph
        reference: ValueTable = {**self._fed(feeds), **run.held}
        paired = PairedValues({**reference, **run.sites}, reference)
        for value in graph.inputs:
            if value in run.sites and value.name not in carried:
                run.sites[value].data[:] = reference[value].data
                run.growing.write([value], paired.arena)
        positions = [position for position in order if position in run.steps] if order is not None else list(run.steps)
        corruption = run.run(paired, positions, self._last_reads(positions))
        if corruption is not None:
            return corruption
        run.growing.read(graph.outputs, paired)
        wrong = next((value for value in (*graph.outputs, *self._kept) if not paired.agree(value)), None)
        if wrong is not None:
            return Corruption(wrong.name or "", None)
        return {output.name or "": paired.arena[output] for output in graph.outputs}

    def elsewhere(self, feeds: Mapping[str, Array]) -> dict[str, Any] | Corruption:
        """Run the nodes one by one outside the arena; return each graph output by name, or the first difference of two such runs."""
        graph, context = self._model.graph, replace(self._context, shows_views=False)
        run = GraphRun(self._graph, context, _nowhere(self._result))
        values: ValueTable = {**self._fed(feeds), **run.held}
        corruption = run.run(PairedValues(dict(values), values), run.steps)
        return corruption or {output.name or "": values[output] for output in graph.outputs}

    def _fed(self, feeds: Mapping[str, Array]) -> ValueTable:
        values: ValueTable = {}
        for value in self._model.graph.inputs:
            if value not in self._constants:
                default = value.const_value.numpy() if value.const_value is not None else None
                values[value] = self._fed_value(value, feeds.get(value.name or "", default))
        return values

    def _fed_value(self, value: ir.Value, fed: Any) -> Any:
        """Return the input `fed` outside the arena, at the same distance from a multiple of 64 as inside."""
        operand, site = self._context.held(fed, value), self._run.sites.get(value)
        return operand.at(site.address if site is not None else 0) if isinstance(operand, TensorMemory) else operand

    def _last_reads(self, places: Iterable[int]) -> dict[int, list[ir.Value]]:
        """Return by place the values read there for the last time, which the reference run can release."""
        last: dict[ir.Value, int] = {}
        for number in places:
            step = self._run.steps[number]
            last.update(dict.fromkeys(step.reads, number))
            if isinstance(step, PreparedNode):
                last.update({value: number for _, value in step.kernel.outputs})
        last_values: dict[int, list[ir.Value]] = {}
        for value, number in last.items():
            if value not in self._run.held and not value.is_graph_output() and value not in self._kept:
                last_values.setdefault(number, []).append(value)
        return last_values


_Claims = TypeVar("_Claims", bound=PlannedGraph)


def _nowhere(claims: _Claims) -> _Claims:
    """Return `claims` without any address."""
    return replace(claims, buffers=(), bodies=tuple(map(_nowhere, claims.bodies)))


_LISTED = 4
"""The first IR version in which an initializer need not be an input, which a caller may override."""

# The plain run of the whole model in onnxruntime's own memory, to compare a run inside the arena with.


class PlainRun:
    """`model`, which stays unchanged, loaded as a whole. Raises ModelError where onnxruntime refuses it.

    Some kernels round differently at another distance from a multiple of 64 bytes. `addresses` are those of inputs in the arena, by name:
    such an input has the same distance here, all others are at a multiple. `content` are the bytes of the file of `model`, where these are
    known.
    """

    def __init__(
        self,
        model: ir.Model,
        shapes: Shapes,
        addresses: Mapping[str, int] | None = None,
        content: bytes | None = None,
    ) -> None:
        copy = model
        if model.functions or not _LISTED <= model.ir_version <= MAX_IR_VERSION:
            copy, content = model.clone(), None
            fold(copy)
            raise_ir_version(copy)
        with types_kept((*copy.graph.inputs, *copy.graph.outputs)):
            for value in copy.graph.outputs:
                # A shape may be declared wrongly: onnxruntime warns of that, but does not write in place.
                value.shape = None
            self._session = session_of(
                copy, None if content is None or may_split(copy) else _with_open_outputs(content)
            )
            if contradicts(self._session, {value.name or "": value for value in model.graph.outputs}, shapes):
                for value in copy.graph.inputs:
                    value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
                self._session = session_of(copy)
        self._inputs = {value.name or "": shapes.dtype(value) for value in model.graph.inputs}
        self._outputs = dict.fromkeys(model.graph.outputs)
        self._shapes = shapes
        self._addresses = addresses or {}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Run once; return each graph output by name: a TensorMemory, or an ordinary value where it has no fixed bytes.

        Where a node makes each output and all bytes are known they are written in place: elements of less than a byte have no
        other way out of onnxruntime.
        """
        inputs = {
            name: self._placed(name, TensorMemory.from_array(array, self._inputs[name]))
            for name, array in feeds.items()
        }
        outputs = {value.name or "": self._workspace_row(value) for value in self._outputs}
        if all(isinstance(site, TensorMemory) for site in (*inputs.values(), *outputs.values())):
            self._session.run_in_place(
                {name: site.binding for name, site in inputs.items()},
                {name: site.binding for name, site in outputs.items() if site is not None},
            )
            return dict(outputs)
        dtypes = {value.name or "": self._shapes.dtype(value) for value in self._outputs}
        return {name: TensorMemory.from_array(value, dtypes[name]) for name, value in self._session.run(feeds).items()}

    def _placed(self, name: str, value: Any) -> Any:
        """Return the input `value` at the distance from a multiple of 64 that it has in the arena, if it lies there."""
        return value.at(self._addresses.get(name, 0)) if isinstance(value, TensorMemory) else value

    def _workspace_row(self, value: ir.Value) -> TensorMemory | None:
        """Return memory for the output `value`; None where its bytes are not known, or no node writes them."""
        dtype, shape, size = self._shapes.dtype(value), self._shapes.sizes(value), tensor_bytes(value, self._shapes)
        if dtype is None or shape is None or size is None or value.producer() is None or self._shapes.is_bound(value):
            return None
        return TensorMemory.empty(dtype, shape, size)


def _with_open_outputs(content: bytes) -> bytes:
    """Return the bytes of a model file without the declared shapes of its outputs."""
    proto = onnx.ModelProto.FromString(content)
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return proto_bytes(proto)


# The orders in which the copies of a plan are made as early, and as late, as the plan allows.
#
# A runtime whose copies run beside its kernels makes each somewhere between the two. Copies stay in their own order: one engine makes them.


def copy_spans(copies: Sequence[MemoryCopy], nodes: int, by_kernels: Collection[int] = ()) -> list[tuple[int, int]]:
    """Return the steps before which each of `copies` starts at its earliest, and has ended at its latest, in a schedule of `nodes`.

    A kernel makes the copies in the steps `by_kernels`: all copies before it have ended then, and none after it has started.
    """
    starts, ends, at = list[int](), list[int](), 0
    for copy in copies:
        at = max(at, copy.step if copy.step in by_kernels else max(copy.target_free, copy.source_ready))
        starts.append(at)
    at = nodes
    for copy in reversed(copies):
        limits = [copy.before, None if copy.source_until is None else copy.source_until + 1]
        limits += [copy.step] if copy.step in by_kernels else []
        at = min([at, *(limit for limit in limits if limit is not None)])
        ends.append(at)
    return list(zip(starts, reversed(ends), strict=True))


def copy_orders(movement: PlannedMovement, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the `nodes` of a schedule with the copies of `movement` at their earliest and at their latest."""
    copies = movement.copies or ()
    steps, spans = [copy.step for copy in copies], copy_spans(copies, nodes)
    early, late = (dict(zip(steps, (span[end] for span in spans), strict=True)) for end in (0, 1))
    return _ordered(early, nodes), _ordered(late, nodes)


def _ordered(before: Mapping[int, int], nodes: int) -> tuple[int, ...]:
    """Return the places of all nodes; the copies that are keys of `before` come before the kernel at the place there."""
    return tuple(
        sorted(range(nodes), key=lambda position: (before.get(position, position), position not in before, position))
    )


def _other_order(nodes: Sequence[ir.Node], steps: Sequence[int], number: int, *, every: bool) -> tuple[int, ...]:
    """Return the places of `nodes` in another order: those of one step change places, or with `every`, whatever the graph allows."""
    if not every:
        return shuffled_steps(steps, number + 1)
    places = {node: position for position, node in enumerate(nodes)}
    makers = ({value.producer() for value in dependencies(node)} for node in nodes)
    return shuffled([[places[maker] for maker in before if maker in places] for before in makers], number + 1)


SEVERAL = 3
"""The whole runs where one run may differ from another."""

_PATTERNS = (0xFF, 0xA5, 0x5A)
"""The bytes of the arena before a run. As floats: NaN, a small negative number, a large positive one."""


_SMALL = 2**20
"""Bytes of a file, at most, of whose session no memory is given back: with less, that takes longer than a small model's run."""

_ROUNDED = "kernels round differently for a tensor not at a multiple of 64 bytes; at such addresses the nodes give the same bits"


@dataclass(frozen=True, kw_only=True)
class BitVerdict(JsonFields):
    """Whether runs in arenas give the same bits as plain runs.

    `runs` runs compared all `outputs`, and every tensor of the arena whenever it was written or read; they end with the first difference.
    `differing` is the first tensor with another bit, noticed at `step` (None: at the end). `red_zones` is true if nothing was written
    around the arena. `repeated` different kernels, which share bytes, ran on other values as well. Every tensor is compared with a run of
    the nodes one by one in memory of their own. `excused` outputs need not have the bits of the run of the whole model: by name, with the
    reason.
    """

    runs: int
    outputs: tuple[str, ...]
    differing: str | None
    step: int | None
    red_zones: bool
    repeated: int = 0
    excused: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether every bit was as in the plain runs, and nothing was written around the arena."""
        return self.differing is None and self.red_zones


@dataclass(frozen=True, kw_only=True)
class ArenaVerdict(BitVerdict):
    """Whether a model gives the same bits in its arena as in a plain run, on different inputs.

    `kernels` nodes ran in the arena, `sessions` of them with another operator or sizes; `views` did not run, because their bytes are in
    place. `copy_runs` more runs made the copies between memories as early as the plan allows, and as late.
    """

    JSON = "equal runs outputs differing step red_zones kernels repeated sessions views excused copy_runs"

    kernels: int
    sessions: int
    views: int
    copy_runs: int = 0


def arena_run(
    model: ir.Model,
    result: PlanDocument,
    shapes: Shapes,
    constants: Constants,
    *,
    wanted: Wanted = ANYTHING,
    progress: Progress = silent,
    facts: LayoutFacts | None = None,
    content: bytes | None = None,
) -> ArenaVerdict:
    """Run `model` in the arena of `result` and outside it, on the same inputs, and compare all outputs bit for bit.

    All inputs are as `wanted`. `facts` are those of the opened model, `content` the bytes of its file, where these are known. There is
    one run in which kernels that share bytes are repeated on other values; several where the plan allows another order of the nodes, or
    data decide which nodes run or how large a tensor is. All use unoptimised kernels on one thread. Raises ModelError where onnxruntime
    cannot run the model or one of its nodes, CheckFailed where the plan leaves the arena.
    """
    model, shapes, constants = unfold(model, shapes, constants)
    facts = facts or LayoutFacts(model, shapes, constants)
    executor = ArenaExecutor(model, result, shapes, constants, facts=facts)
    count = SEVERAL if executor.may_differ else 1
    prepared = [_arrays(fed) for fed in wanted.feeds(model, shapes.sizes, count)]
    # The session of the whole model is gone before the nodes run, which read the weights once more.
    expected = _plain_runs(PlainRun(model, shapes, executor.addresses, content), prepared, progress)
    if content is None or len(content) > _SMALL:
        return_free_memory()
    nodes = named(model.graph, result.schedule)
    every = find_order(result.order).every
    corruption, intact, runs = None, True, 0
    unsure = Unsure.from_facts(facts)
    excused = dict(unsure.drawn)
    trials: list[tuple[int, Iterable[int] | None]] = [
        (number, _other_order(nodes, result.steps, number, every=every) if number else None)
        for number in range(len(prepared))
    ]
    trials += [(0, order) for order in copy_orders(result.movement, len(result.schedule))] if result.movement else []
    for runs, (number, order) in enumerate(counted(trials, "running inside the arena", progress), start=1):
        fed, pattern = prepared[number], _PATTERNS[(runs - 1) % len(_PATTERNS)]
        for block in executor.blocks.values():
            block.fill(pattern)
        outputs = executor.run(fed, order)
        if isinstance(outputs, Corruption):
            corruption = outputs
        else:
            excuses = differences(outputs, expected[number], unsure, partial(executor.elsewhere, fed))
            corruption = next((Corruption(name, None) for name, reason in excuses.items() if reason is None), None)
            excused |= {name: reason for name, reason in excuses.items() if reason is not None}
        intact = all(block.is_intact(pattern) for block in executor.blocks.values())
        if corruption is not None or not intact:
            break
    return ArenaVerdict(
        runs=min(runs, len(prepared)),
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        differing=corruption.name if corruption is not None else None,
        step=corruption.step if corruption is not None else None,
        red_zones=intact,
        kernels=executor.kernels,
        repeated=executor.repeated,
        sessions=executor.sessions,
        views=executor.views,
        excused=excused,
        copy_runs=max(0, runs - len(prepared)),
    )


def _plain_runs(plain: PlainRun, inputs: Sequence[Mapping[str, Array]], progress: Progress) -> list[dict[str, Any]]:
    """Return the outputs of a plain run on each of the inputs."""
    return [plain.run(fed) for fed in counted(inputs, "running the model", progress)]


def _arrays(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return `feeds` with numpy scalars, which onnxruntime does not accept, as arrays of rank 0."""
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in feeds.items()}


def differences(
    outputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    unsure: Unsure,
    elsewhere: Callable[[], Mapping[str, Any] | Corruption],
) -> dict[str, str | None]:
    """Return the outputs that differ from `expected`, the run of the whole model, each with its excuse or None.

    Outputs that depend on random numbers are not compared. Floats of 16 bits may have more bits in the whole run. The others must have the
    bits of `expected` in a run of the nodes `elsewhere`, outside the arena.
    """
    differing = [
        name for name, value in outputs.items() if name not in unsure.drawn and not same(value, expected[name])
    ]
    if all(name in unsure.wider for name in differing):
        return {name: unsure.wider[name] for name in differing}
    nodes = elsewhere()
    if isinstance(nodes, Corruption):
        return dict.fromkeys(differing)
    rounded = {name: _ROUNDED for name in differing if same(nodes[name], expected[name])}
    return {name: unsure.wider.get(name) or rounded.get(name) for name in differing}


# A plan over ranges of dimensions at one size of each: what is published for it, to be checked and run like any plan.


class PlanAtSizes(NamedTuple):
    """A plan at one size of each dimension: `result` for the run, which has the size of each tensor, `claims` for the check."""

    result: PlanDocument
    claims: DocumentAtSizes


def at_sizes(plan: PlanResult, sizes: SizeOfSymbols, model: ir.Model, shapes: Shapes, *, scaled: bool) -> PlanAtSizes:
    """Return `plan` at `sizes`, with its fixed or its scaled offsets.

    `model` has these sizes and `shapes`. They give the sizes of tensors that have no formula, which the plan has at their largest. Raises
    CheckFailed where one is larger than that.
    """
    try:
        claims = claimed_at(plan, sizes, scaled=scaled)
    except WrongFormula as error:
        raise CheckFailed(f"the plan is not sound: {error}", hint="please report it with the model") from None
    return PlanAtSizes(replace(_sized(claims, model.graph, shapes, listed(sizes)), states=plan.states), claims)


def _sized(claims: _Claims, graph: ir.Graph, shapes: Shapes, where: str) -> _Claims:
    """Return `claims` of `graph` with the sizes of tensors that have no formula. Names of values return in sibling bodies."""
    values = {value.name: value for value in (*graph.inputs, *(value for node in graph for value in node.outputs))}
    nodes = dict(zip(claims.schedule, named(graph, claims.schedule), strict=True))
    rows = tuple(_sized_row(row, values.get(row.name), shapes, where) for row in claims.buffers)
    bodies = (_sized(body, _body_of(nodes[body.node], body.attribute), shapes, where) for body in claims.bodies)
    return replace(claims, buffers=rows, bodies=tuple(bodies))


def _body_of(node: ir.Node, attribute: str | None) -> ir.Graph:
    """Return the body in `attribute` of `node`; for None, that of the function that it calls."""
    graph = inside_of(node) if attribute is None else node.attributes[attribute].as_graph()
    assert graph is not None
    return graph


def _sized_row(row: PlannedBuffer, value: ir.Value | None, shapes: Shapes, where: str) -> PlannedBuffer:
    if row.size != UNSAID or not isinstance(row, SizedBuffer):
        return row
    size = None if value is None else tensor_bytes(value, shapes)
    if size is not None and size > row.most:
        raise CheckFailed(f"{row.name!r} has {size} bytes at {where}, more than the {row.most} of the plan")
    return replace(row, size=row.most if size is None else size)


# The proof of states by execution: runs one after the other in one arena, each going on with the state that the last one left there.
#
# Between two runs, all bytes of the arena but those of states are overwritten. Beside it, onnxruntime runs the whole model as often, and
# gets its own outputs as the state of the next run. The bits of all outputs and states must be equal after every run.


_FROM_DRAWN = 2
"""Further runs from a random first state: zeros may be a state that no run changes."""
"""The bytes of the arena before a run, apart from states."""


@dataclass(frozen=True)
class SizedPlan:
    """A model at one size of each of its dimensions, and its plan there; `sizes` names these where a dimension has a range."""

    opened: Unfolded
    result: PlanDocument
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StateVerdict(BitVerdict):
    """Whether runs in one arena, with the state kept in place, give the same bits as as many plain runs.

    The runs followed each other. After them, `drawn_runs` followed from a random first state. `states` are the names of the inputs and
    outputs that are one state. `copied` bytes of states were copied after all runs together. A difference was in run number `at` (from 0).
    `sizes` are the sizes of dimensions with a range at which the runs were made, by name.
    """

    JSON = "equal runs states outputs copied differing step at red_zones excused sizes repeated drawn_runs"

    states: tuple[tuple[str, str], ...]
    copied: int
    at: int | None
    sizes: tuple[Mapping[str, int], ...] = ()
    drawn_runs: int = 0


def state_run(plans: Iterator[SizedPlan], wanted: Wanted, *, progress: Progress = silent) -> StateVerdict:
    """Run each of `plans` once, all in the arena of the first; return whether all bits are those of plain runs.

    All inputs are as `wanted`, with another seed for each run. The first state is given, or zeros for one that does not grow. Raises
    ModelError where onnxruntime cannot run the model, CheckFailed where a plan leaves the arena.
    """
    chain = _StateRuns(wanted)
    sizes: list[Mapping[str, int]] = []
    for number, plan in enumerate(plans):
        progress(f"running with the state in place: run {number + 1}")
        if plan.sizes and plan.sizes not in sizes:
            sizes.append(plan.sizes)
        if not chain.run(plan):
            break
    chain.run_from_drawn()
    return chain.verdict(tuple(sizes))


@dataclass
class _StateRuns:
    """Runs that follow each other: the memory that they share, and the state after the last one of each kind of run."""

    wanted: Wanted
    runs: int = 0
    copied: int = 0
    blocks: Mapping[str, ArenaMemory] | None = None
    corruption: Corruption | None = None
    is_intact: bool = True
    excused: dict[str, str] = field(default_factory=dict)
    drawn_runs: int = 0
    _begin: int = 0
    _plain: dict[str, Any] = field(default_factory=dict)
    _reference: dict[str, Any] = field(default_factory=dict)
    _last: tuple[SizedPlan, ArenaExecutor, PlainRun, Unsure] | None = None

    def run_from_drawn(self) -> None:
        """Run the last plan again, from a random first state, unless the runs began with another than zeros, or were not equal."""
        plan = self._last[0] if self._last is not None else None
        if plan is None or self.corruption is not None or not self.is_intact or self.wanted.given is not None:
            return
        states = plan.result.states
        if self.runs < 2 or any(state.axis is not None for state in states):
            return
        if all(_is_contributed(state, plan) for state in states):
            return
        self._begin = self.runs
        self._plain, self._reference = {}, {}
        while self.drawn_runs < _FROM_DRAWN:
            self.drawn_runs += 1
            if not self.run(plan):
                return

    def run(self, plan: SizedPlan) -> bool:
        """Run `plan` once in the arena and beside it; return whether all bits are equal."""
        executor, plain, unsure = self._prepared(plan)
        states, number = plan.result.states, self.runs
        feeds = dict(self.wanted.feeds(plan.opened.model, plan.opened.shapes.sizes, 1, seed=number)[0])
        is_first = number == self._begin
        carried = set() if is_first else {state.input for state in states}
        for state in states if is_first else ():
            feeds[state.input] = self._first(state, plan, feeds[state.input])
        expected = plain.run({**feeds, **{name: _array(value) for name, value in self._plain.items()}})
        return_free_memory()
        pattern = _PATTERNS[number % len(_PATTERNS)]
        self._overwrite(() if is_first else states, pattern)
        fed = {**feeds, **{name: _array(value) for name, value in self._reference.items()}}
        outputs = executor.run(fed, _order(plan.result, number), carried=carried)
        self.runs += 1
        if isinstance(outputs, Corruption):
            self.corruption = outputs
            return False
        after = {state: replace(outputs[state.output], data=outputs[state.output].data.copy()) for state in states}
        self._compare(outputs, expected, unsure, partial(executor.elsewhere, fed))
        lost = self._copy(states, after, outputs)
        self.corruption = self.corruption or lost
        self._carry(after, expected)
        self.is_intact = all(block.is_intact(pattern) for block in (self.blocks or {}).values())
        return self.corruption is None and self.is_intact

    def verdict(self, sizes: tuple[Mapping[str, int], ...]) -> StateVerdict:
        """Return the verdict of all runs."""
        assert self._last is not None
        plan, executor = self._last[:2]
        wrong = self.corruption
        return StateVerdict(
            runs=self.runs - self.drawn_runs,
            drawn_runs=self.drawn_runs,
            states=tuple((state.input, state.output) for state in plan.result.states),
            outputs=tuple(value.name or "" for value in plan.opened.model.graph.outputs),
            copied=self.copied,
            differing=None if wrong is None else wrong.name,
            step=None if wrong is None else wrong.step,
            at=None if wrong is None and self.is_intact else self.runs - 1,
            red_zones=self.is_intact,
            excused=self.excused,
            sizes=sizes,
            repeated=executor.repeated,
        )

    def _prepared(self, plan: SizedPlan) -> tuple[ArenaExecutor, PlainRun, Unsure]:
        """Return the runs of `plan`, those of the run before where that was of the same plan."""
        if self._last is not None and self._last[0] is plan:
            return self._last[1:]
        opened = Unfolded(*unfold(*plan.opened))
        executor = ArenaExecutor(opened.model, plan.result, opened.shapes, opened.constants, blocks=self.blocks)
        self.blocks = executor.blocks
        plain = PlainRun(opened.model, opened.shapes, executor.addresses)
        unsure = Unsure.from_facts(LayoutFacts(opened.model, opened.shapes, opened.constants))
        self._last = (plan, executor, plain, unsure)
        return self._last[1:]

    def _first(self, state: PlannedState, plan: SizedPlan, drawn: Array) -> Array:
        """Return the value of `state` before the first run: given, or zeros, from which a deployment starts.

        Of a state that grows, the elements that are there are `drawn`; all are in runs from a random state. An operator of onnxruntime
        always begins with zeros: it leaves bytes of a cache unwritten.
        """
        is_zero = _is_contributed(state, plan) or (state.axis is None and not self.drawn_runs)
        return np.zeros_like(drawn) if is_zero and self.wanted.given is None else drawn

    def _overwrite(self, states: tuple[PlannedState, ...], pattern: int) -> None:
        """Fill the arenas with `pattern`, apart from states that an earlier run left there."""
        for name, block in (self.blocks or {}).items():
            kept = [state for state in states if state.arena == name]
            held = [(_bytes(block, state), _bytes(block, state).copy()) for state in kept]
            block.fill(pattern)
            for data, saved in held:
                data[:] = saved

    def _compare(
        self, outputs: Mapping[str, Any], expected: Mapping[str, Any], unsure: Unsure, elsewhere: Callable[[], Any]
    ) -> None:
        self.excused |= unsure.drawn
        excuses = differences(outputs, expected, unsure, elsewhere)
        self.excused |= {name: reason for name, reason in excuses.items() if reason is not None}
        wrong = next((name for name, reason in excuses.items() if reason is None), None)
        self.corruption = None if wrong is None else Corruption(wrong, None)

    def _carry(self, after: Mapping[PlannedState, TensorMemory], expected: Mapping[str, Any]) -> None:
        """Make the outputs `after` the run the states of the next ones; in the arena they must be there by now."""
        for state, memory in after.items():
            if not self._is_there(state, memory):
                raise CheckFailed(f"the state {state.output!r} is not at the address of {state.input!r} after a run")
            # A state whose bits may differ from those of a plain run goes on as it is in the arena.
            value, output = memory.array(), expected[state.output]
            self._reference[state.input] = value
            self._plain[state.input] = _array(output) if same(memory, output) else value

    def _is_there(self, state: PlannedState, memory: TensorMemory) -> bool:
        """Return whether the bytes of `state` hold `memory`, its output."""
        assert self.blocks is not None
        rows = rows_of_state(state, self.blocks, memory.shape)
        if rows is not None:
            held = replace(memory, data=np.empty_like(memory.data))
            rows.read(held)
            return np.array_equal(held.data, memory.data)
        data = _bytes(self.blocks[state.arena or ""], state)
        size = min(len(data), len(memory.data))
        return np.array_equal(data[:size], memory.data[:size])

    def _copy(
        self, states: Iterable[PlannedState], after: Mapping[PlannedState, TensorMemory], results: Mapping[str, Any]
    ) -> Corruption | None:
        """Copy states to their inputs as the plan says; return an output that this overwrites, which the caller reads afterwards."""
        outputs = {name: value for name, value in results.items() if isinstance(value, TensorMemory)}
        before = {name: value.data.copy() for name, value in outputs.items()}
        for state in (state for state in states if state.copied):
            assert self.blocks is not None
            data, output = _bytes(self.blocks[state.arena or ""], state), after[state].data
            size = min(len(data), len(output))
            data[:size] = output[:size]
            self.copied += size
        changed = (name for name, value in outputs.items() if not np.array_equal(value.data, before[name]))
        return next((Corruption(name, None) for name in changed), None)


def _bytes(block: ArenaMemory, state: PlannedState) -> Any:
    data = block.part(state.offset or 0, state.size or 0)
    if data is None:
        raise CheckFailed(f"the plan places the state {state.input!r} outside of the arena")
    return data


def _is_contributed(state: PlannedState, plan: SizedPlan) -> bool:
    outputs = {value.name: value.producer() for value in plan.opened.model.graph.outputs}
    maker = outputs[state.output]
    return maker is not None and maker.domain == "com.microsoft"


def _array(value: Any) -> Any:
    return value.array() if isinstance(value, TensorMemory) else value


def same_plan(opened: Unfolded, result: PlanDocument, runs: int) -> Iterator[SizedPlan]:
    """Yield one plan for each of `runs` runs."""
    plan = SizedPlan(opened, result)
    yield from (plan for _ in range(runs))


def _order(result: PlanDocument, number: int) -> tuple[int, ...] | None:
    """Return the order of run `number`: with copies between memories as they are planned, as early, and as late as that is allowed."""
    if result.movement is None or number % 3 == 0:
        return None
    return copy_orders(result.movement, len(result.schedule))[number % 3 - 1]
