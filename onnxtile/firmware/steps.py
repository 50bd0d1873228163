"""What a planned model does, as plain calls: which kernel runs when, on which bytes. The only module here that reads a plan.

Views, and parts that are in place, are no call. Contiguous parts that are not in place are copies. A meta-op is the calls of its nodes,
whose temporaries lie in a workspace with a plan of its own. A quantised island is first made the operator on integers that
`fuse --lower ort` proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from onnxtile.declare.plan_document import PlannedBody, PlannedBuffer
from onnxtile.firmware.four_bits import PackedWeights, packed_weights
from onnxtile.firmware.own_kernels import WORKING, OwnCall, OwnKernels, own_call
from onnxtile.firmware.rows import row_model
from onnxtile.firmware.transfers import TransferSchedule
from onnxtile.fusion.lower.driver import lower
from onnxtile.fusion.lower.lowering import Target
from onnxtile.fusion.pattern import select
from onnxtile.kernels.aliases import Alias, LayoutFacts, overwritable, parts, views
from onnxtile.kernels.from_onnx import no_fixed_bytes
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import is_quantised
from onnxtile.model.save import MAX_IR_VERSION
from onnxtile.model.submodel import bare_node
from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.row import CONTROL_FLOW
from onnxtile.operators.table import operator_of, work_of
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.result import PlanResult
from onnxtile.planning.schedule import named
from onnxtile.shapes.opened_calls import Unfolded, inside_of, unfold, written_out
from onnxtile.shapes.resolve import resolve, tensor_bytes
from onnxtile.system.errors import ModelError, UsageError, about_options
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import makes_quantised

ARENA, INPUT, OUTPUT, CONSTANT, WORKSPACE = "arena", "input", "output", "constant", "workspace"
"""Where bytes may lie: in an arena, with the caller, in flash, or in the workspace of a kernel."""
END = "end"
"""The place of an operand or result of a meta-op, by its number, until a call of it says where that is."""


@dataclass(frozen=True)
class BytePlace:
    """`offset` bytes from the start of the block `number` of a kind of memory."""

    kind: str
    number: int
    offset: int = 0

    def at(self, offset: int) -> BytePlace:
        """Return the place `offset` bytes further on."""
        return replace(self, offset=self.offset + offset)


@dataclass(frozen=True)
class TensorForm:
    """The element type of a tensor, by its number in onnx, and its sizes."""

    dtype: int
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        return int(np.prod(self.sizes, dtype=np.int64)) * ir.DataType(self.dtype).bitwidth // 8


@dataclass(frozen=True)
class DistinctKernel:
    """One different kernel: a node whose operands are called i0, i1 ... and its results o0, o1 ...

    `tensors` has the types by these names. `fixed` has the constants, as serialised tensors, whose numbers decide what the kernel is.
    `opsets` are the versions of operators. `label` is the first node that runs it, for messages, and `macs` are its multiply-accumulates
    (0 where no rule counts them). `own` is the call of the user's function that runs it, where there is one.
    """

    node: bytes
    tensors: tuple[tuple[str, TensorForm], ...]
    fixed: tuple[tuple[str, bytes], ...]
    opsets: tuple[tuple[str, int], ...]
    label: str = field(compare=False)
    op_type: str = field(compare=False)
    own: OwnCall | None = None
    macs: int = field(default=0, compare=False)


@dataclass(frozen=True)
class KernelCall:
    """A run of `kernel` on operands and results at `places`, by their names in it."""

    kernel: DistinctKernel
    places: Mapping[str, BytePlace]


@dataclass(frozen=True)
class CopyCall:
    """A copy of `size` bytes; both may overlap. Target and source advance by `steps` bytes in each turn of the repeat around."""

    target: BytePlace
    source: BytePlace
    size: int
    steps: tuple[int, int] = (0, 0)

    @property
    def turned(self) -> CopyCall:
        """The copy the other way round."""
        return CopyCall(self.source, self.target, self.size, self.steps[::-1])


@dataclass(frozen=True)
class StartCall:
    """The start of the copy `number` between two memories, which runs beside the calls after it."""

    number: int
    copy: CopyCall


@dataclass(frozen=True)
class WaitCall:
    """The end of the copy `number`: the calls after it read or write its bytes."""

    number: int


@dataclass(frozen=True)
class Branch:
    """The calls `then` where the byte at `condition` is not zero, else the calls `otherwise`."""

    condition: BytePlace
    then: tuple[ProgramCall, ...]
    otherwise: tuple[ProgramCall, ...]


@dataclass(frozen=True)
class CheckCall:
    """A look at a result of `size` bytes that is complete now; only programs that a proof runs have it."""

    place: BytePlace
    size: int


@dataclass(frozen=True)
class RepeatedCalls:
    """The calls `turn`, again and again: while the byte at `goes_on` is not zero, and at most as often as the int64 at `most` says.

    None stands for no such limit. `number` is where the calls read the number of the turn, an int64.
    """

    most: BytePlace | None
    goes_on: BytePlace
    number: BytePlace | None
    turn: tuple[ProgramCall, ...]


PlainCall: TypeAlias = KernelCall | CopyCall | StartCall | WaitCall | CheckCall
ProgramCall: TypeAlias = PlainCall | Branch | RepeatedCalls


def flat(calls: Iterable[ProgramCall]) -> Iterator[PlainCall]:
    """Yield `calls`, those of branches and of turns in their places."""
    for call in calls:
        if isinstance(call, Branch):
            yield from flat((*call.then, *call.otherwise))
        elif isinstance(call, RepeatedCalls):
            yield from flat(call.turn)
        else:
            yield call


@dataclass(frozen=True)
class Carried:
    """A value that a Loop or Scan carries: what it begins with, the input and the output of the body, and the result of the node."""

    operand: ir.Value
    before: ir.Value
    after: ir.Value
    result: ir.Value


@dataclass(frozen=True)
class Row:
    """A tensor of which a Loop or Scan has a row in each turn, along `axis`, from the last on where it `is_backwards`."""

    whole: ir.Value
    row: ir.Value
    axis: int = 0
    is_backwards: bool = False


@dataclass(frozen=True)
class Turns:
    """The turns of a Loop or Scan with the body `graph`: `read` rows are operands, `made` rows are results.

    Of a Loop, `most` is the number of turns, `first` says whether there is one, `again` whether there is a further one. The body reads the
    number of the turn as `number`, and that there is one as `go`.
    """

    graph: ir.Graph
    carried: tuple[Carried, ...]
    read: tuple[Row, ...] = ()
    made: tuple[Row, ...] = ()
    most: ir.Value | None = None
    first: ir.Value | None = None
    number: ir.Value | None = None
    go: ir.Value | None = None
    again: ir.Value | None = None


def turns_of(node: ir.Node) -> Turns:
    """Return the turns of a Loop or Scan."""
    graph = node.attributes["body"].as_graph()
    if node.op_type == "Loop":
        most, first, *operands = (*node.inputs, None)[: max(2, len(node.inputs))]
        number, go, *inputs = graph.inputs
        again, *outputs = graph.outputs
        carried = tuple(map(Carried, [value for value in operands if value is not None], inputs, outputs, node.outputs))
        made = tuple(map(Row, node.outputs[len(carried) :], outputs[len(carried) :]))
        return Turns(graph, carried, (), made, most, first, number, go, again)
    states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    given = [value for value in node.inputs if value is not None]
    carried = tuple(map(Carried, given[:states], graph.inputs, graph.outputs, node.outputs))
    read = _rows(node, "input", given[states:], graph.inputs[states:])
    return Turns(graph, carried, read, _rows(node, "output", node.outputs[states:], graph.outputs[states:]))


def _rows(node: ir.Node, kind: str, wholes: Sequence[ir.Value], rows: Sequence[ir.Value]) -> tuple[Row, ...]:
    axes, directions = (
        node.attributes.get_ints(f"scan_{kind}_{what}", [0] * len(wholes)) for what in ("axes", "directions")
    )
    places = zip(wholes, rows, axes, directions, strict=True)
    return tuple(
        Row(whole, row, axis if axis >= 0 else axis + len(row.shape or ()) + 1, bool(back))
        for whole, row, axis, back in places
        if whole.name
    )


@dataclass(frozen=True)
class Port:
    """An input or output of the graph: an argument of the run (`place` is the caller's), or bytes of an arena."""

    name: str
    tensor: TensorForm
    place: BytePlace

    @property
    def is_argument(self) -> bool:
        """Whether the caller gives its memory."""
        return self.place.kind != ARENA


@dataclass(frozen=True)
class NodeResult:
    """A result of a node of the main graph: after the first `calls` calls it lies at `place`.

    `is_rounded` says whether the node rounds it to steps of quantisation.
    """

    calls: int
    name: str
    operator: str
    tensor: TensorForm
    place: BytePlace
    is_rounded: bool


@dataclass(frozen=True)
class CProgram:
    """The calls of one run in order, and what they run on.

    `arenas` has the name and bytes of each arena, `workspace` the bytes of the workspace. `resets` are the bytes of states, as places and
    sizes, which are zero before the first run. `results` are those of the main graph that calls make, in the order of the calls.
    """

    calls: tuple[ProgramCall, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[Array, ...]
    arenas: tuple[tuple[str, int], ...]
    alignment: int
    workspace: int
    resets: tuple[tuple[BytePlace, int], ...] = ()
    results: tuple[NodeResult, ...] = ()

    @property
    def is_rounded(self) -> bool:
        """Whether a node rounds its result to steps of quantisation."""
        return any(result.is_rounded for result in self.results)

    def with_checks(self) -> CProgram:
        """Return the program with a look at each of its results, in their order."""
        calls, done = list[ProgramCall](), 0
        for result in self.results:
            calls += self.calls[done : result.calls]
            calls.append(CheckCall(result.place, result.tensor.bytes))
            done = result.calls
        return replace(self, calls=(*calls, *self.calls[done:]))


def program_of(opened: Unfolded, plan: PlanResult, own: OwnKernels | None = None) -> CProgram:
    """Return the calls of `plan`, a plan of `opened`, with the user's `own` kernels.

    Raises UsageError for what has no fixed bytes, or no such arguments, and ModelError.
    """
    _require_fixed(plan)
    return _Planned(opened, plan, _ProgramParts(own)).program()


def _require_fixed(plan: PlanResult) -> None:
    """Raise UsageError for plans that C without allocation cannot run."""
    if plan.ranges:
        ends = ", ".join(f"{name} from {low} to {high}" for name, (low, high) in plan.ranges.items())
        raise UsageError(
            f"C is written for one size of each dimension, and the plan is for {ends}",
            hint="bind each to one size: "
            + " ".join(f"--dim {name}={high}" for name, (_, high) in plan.ranges.items()),
        )
    if plan.unplanned or plan.bounds:
        bounds = ", ".join(f"{name}={most}" for name, most in plan.bounds.items())
        left = (
            f"{plan.unplanned[0].name!r}: {plan.unplanned[0].reason}" if plan.unplanned else f"{bounds} is only a bound"
        )
        raise UsageError(f"C needs the size of every tensor, and does not have that of {left}")
    for state in plan.states:
        if state.axis is not None:
            raise about_options(
                f"C is not written for a state that grows: {state.input!r}",
                hint="export a cache of a fixed size, into which ScatterElements or TensorScatter writes, or leave {state} out",
            )


@dataclass
class _ProgramParts:
    """What all graphs of a program have in common: the user's kernels, constants by value, and different islands."""

    own: OwnKernels | None = None
    constants: dict[tuple[int, tuple[int, ...], bytes], int] = field(default_factory=dict)
    arrays: list[Array] = field(default_factory=list)
    islands: dict[object, PlannedIsland] = field(default_factory=dict)
    workspace: int = 0

    def constant(self, array: Array, tensor: TensorForm) -> BytePlace:
        """Return the place of a constant; equal ones are one."""
        plain = np.ascontiguousarray(array)
        key = (tensor.dtype, tensor.sizes, blake2b(plain.data).digest())
        if key not in self.constants:
            self.constants[key] = len(self.arrays)
            self.arrays.append(plain)
        return BytePlace(CONSTANT, self.constants[key])


_WRITABLE = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})
"""The element types, by their numbers in onnx, that compilers have: integers, booleans, floats of 16, 32 and 64 bits."""
_QUANTISED = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
"""The element types of quantised tensors."""
_MOST_RUNS = 256
"""Runs of bytes of a row of a Scan along an inner axis."""
_MOST_SIZE = (1 << 31) - 1
"""The largest size that kernels count to."""
_MOST_FIXED = 1024
"""Elements of a constant that decides what a kernel is."""


class _Planned:
    """A graph with its plan, and the calls that it becomes."""

    def __init__(
        self,
        opened: Unfolded,
        plan: PlanResult,
        shared: _ProgramParts,
        ends: tuple[Sequence[BytePlace], Sequence[BytePlace]] | None = None,
        workspace: tuple[int, int] = (0, 0),
    ) -> None:
        self._model, self._shapes, self._constants = opened
        self._plan = plan
        self._shared = shared
        self._facts = LayoutFacts(*opened)
        self._calls: list[ProgramCall] = []
        self._results: list[NodeResult] = []
        self._places: dict[ir.Value, BytePlace] = {}
        self._arenas = {arena.name: number for number, arena in enumerate(plan.arenas)}
        self._in_workspace = ends is not None
        self._base, self._end = workspace
        self._own = {} if shared.own is None else shared.own.of(self._model, self._constants, lambda: self._shapes)
        graph = self._model.graph
        self._inputs = [value for value in graph.inputs if value not in self._constants]
        self._place_buffers(graph, plan.buffers)
        given = ends[0] if ends else [BytePlace(INPUT, number) for number in range(len(self._inputs))]
        taken = ends[1] if ends else [BytePlace(OUTPUT, number) for number in range(len(graph.outputs))]
        for value, place in zip(self._inputs, given, strict=True):
            self._places.setdefault(value, place)
        for value, place in zip(graph.outputs, taken, strict=True):
            if value not in self._constants and value.producer() is not None:
                self._places.setdefault(value, place)
        self._taken = taken

    def _place_buffers(self, graph: ir.Graph, buffers: Iterable[PlannedBuffer]) -> None:
        by_name = {row.name: row for row in buffers if row.kind != "workspace"}
        values = (*graph.inputs, *(value for node in graph for value in node.outputs), *graph.initializers.values())
        for value in values:
            row = by_name.get(value.name or "")
            if row is not None:
                inside, outside = BytePlace(WORKSPACE, 0, self._base), BytePlace(ARENA, self._arenas[row.arena])
                self._places[value] = (inside if self._in_workspace else outside).at(row.offset)

    def program(self) -> CProgram:
        """Return the whole program of the main graph."""
        ports = self._ports(self._inputs)
        outputs = self.write()
        states = {state.input: state for state in self._plan.states}
        resets = [(port.place, port.tensor.bytes) for port in ports if port.name in states]
        for port in ports:
            state = states.get(port.name)
            if state is not None and state.copied:
                after = next(one for one in outputs if one.name == state.output)
                self._calls.append(CopyCall(port.place, after.place, port.tensor.bytes))
        return CProgram(
            tuple(self._calls),
            tuple(port for port in ports if port.name not in states),
            tuple(outputs),
            tuple(self._shared.arrays),
            tuple((arena.name, arena.size) for arena in self._plan.arenas),
            self._plan.alignment,
            self._shared.workspace,
            tuple(resets),
            tuple(self._results),
        )

    def write(self) -> list[Port]:
        """Make the calls of all nodes, and return the outputs."""
        plan, graph = self._plan, self._model.graph
        self._graph(graph, plan.schedule, plan.bodies)
        ports = []
        for number, value in enumerate(graph.outputs):
            place = self._place(value)
            if place.kind != ARENA and place != self._taken[number]:
                self._calls.append(CopyCall(self._taken[number], place, self._tensor(value).bytes))
                place = self._taken[number]
            ports.append(Port(value.name or "", self._tensor(value), place))
        return ports

    @property
    def calls(self) -> list[ProgramCall]:
        """The calls so far."""
        return self._calls

    def _ports(self, values: Iterable[ir.Value]) -> list[Port]:
        return [Port(value.name or "", self._tensor(value), self._place(value)) for value in values]

    def _graph(self, graph: ir.Graph, schedule: Sequence[str], bodies: Iterable[PlannedBody]) -> None:
        inside: dict[str, list[PlannedBody]] = {}
        for body in bodies:
            inside.setdefault(body.node, []).append(body)
        nodes = named(graph, schedule)
        movement = self._plan.movement if graph is self._model.graph else None
        transfers = TransferSchedule(() if movement is None else movement.copies, nodes)
        for step, (name, node) in enumerate(zip(schedule, nodes, strict=True)):
            self._make_transfers(transfers, nodes, step)
            if step in transfers.steps:
                continue
            outputs = [value for value in node.outputs if value.name]
            if not all(value in self._constants for value in outputs):
                before = len(self._calls)
                self._node(name, node, inside.get(name, []))
                if graph is self._model.graph and len(self._calls) > before:
                    self._results += self._made(node, outputs)
                continue
            for value in outputs:
                if value in self._places:
                    tensor = self._tensor(value)
                    source = self._shared.constant(self._constants.array(value), tensor)
                    self._calls.append(CopyCall(self._places[value], source, tensor.bytes))

        self._make_transfers(transfers, nodes, len(nodes))

    def _make_transfers(self, transfers: TransferSchedule, nodes: Sequence[ir.Node], step: int) -> None:
        """Start the copies that may run beside the kernel of `step`, and wait for those that it needs."""
        for one in transfers.starting(step):
            source, copied = nodes[one.step].inputs[0], nodes[one.step].outputs[0]
            assert source is not None
            copy = CopyCall(self._place(copied), self._place(source), self._tensor(copied).bytes)
            self._calls.append(StartCall(one.number, copy))
        self._calls += [WaitCall(one.number) for one in transfers.ending(step)]

    def _made(self, node: ir.Node, outputs: Iterable[ir.Value]) -> Iterator[NodeResult]:
        """Yield the `outputs` of `node`, whose calls are the last."""
        is_graph = node.op_identifier() in self._model.functions or node.op_type in CONTROL_FLOW
        for value in outputs:
            if value in self._places:
                tensor = self._tensor(value)
                is_narrow = ir.DataType(tensor.dtype) in _QUANTISED
                is_rounded = is_narrow and (is_graph or makes_quantised(value))
                place = self._places[value]
                yield NodeResult(len(self._calls), value.name or "", node.op_type, tensor, place, is_rounded)

    def _node(self, name: str, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        graph = inside_of(node)
        if graph is not None:
            self._open_call(node, graph, bodies)
            return
        if node.op_type == "If" and self._facts.is_standard(node) and node.inputs[0] is not None:
            self._branch(node, bodies)
            return
        if node.op_type in CONTROL_FLOW and self._facts.is_standard(node):
            self._repeat(name, node, bodies)
            return
        if node in self._facts.random:
            raise UsageError(f"{name!r} ({node.op_type}) draws random numbers, for which no C is written")
        if self._is_moved(node):
            return
        if node.op_identifier() in self._model.functions:
            self._meta_op(node)
        else:
            self._kernel(name, node)

    def _open_call(self, node: ir.Node, graph: ir.Graph, bodies: Sequence[PlannedBody]) -> None:
        """Run the graph of a function that the plan opens, in the workspace of the call."""
        self._body(node, graph, next((one for one in bodies if one.attribute is None), None))

    def _branch(self, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        """Run one of the branches of an If; results without an address in the plan have one in the workspace."""
        condition = node.inputs[0]
        assert condition is not None
        self._require_placed(node)
        found = {body.attribute: body for body in bodies}
        if condition in self._constants:
            attribute = "then_branch" if self._constants.array(condition).all() else "else_branch"
            taken = next((body for body in bodies if body.attribute == attribute), None)
            self._body(node, node.attributes[attribute].as_graph(), taken)
            return
        before, sides = self._calls, []
        for attribute in ("then_branch", "else_branch"):
            self._calls = []
            self._body(node, node.attributes[attribute].as_graph(), found.get(attribute))
            sides.append(tuple(self._calls))
        self._calls = [*before, Branch(self._place(condition), *sides)]

    def _body(self, node: ir.Node, graph: ir.Graph, body: PlannedBody | None) -> None:
        """Run `graph` of `node` as its plan says, and hand out its results."""
        if body is None:
            raise ModelError(f"the plan has no body of {node.name!r}")
        self._place_buffers(graph, body.buffers)
        self._graph(graph, body.schedule, body.bodies)
        copies = []
        for inner, outer in zip(graph.outputs, node.outputs, strict=False):
            source = self._place(inner)
            if outer.name and self._places.setdefault(outer, source) != source:
                copies.append(CopyCall(self._places[outer], source, self._tensor(outer).bytes))
        self._copy_at_once(copies)

    def _require_placed(self, node: ir.Node) -> None:
        for value in node.outputs:
            if value.name and value not in self._places:
                raise UsageError(f"C needs fixed bytes, and {value.name!r} has no address in the plan")

    def _repeat(self, name: str, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        """Run the body of a Loop or Scan turn after turn, and hand out what it carries.

        Rows are copied to the inputs of the body, and from its outputs.
        """
        if not bodies:
            raise UsageError(f"{name!r} is a {node.op_type} of an old version, for which no C is written")
        self._require_placed(node)
        turns, body = turns_of(node), bodies[0]
        self._place_buffers(turns.graph, body.buffers)
        carried = [self._places.get(one.before) or self._cell(self._tensor(one.before).bytes) for one in turns.carried]
        sizes = [self._tensor(one.before).bytes for one in turns.carried]
        self._places.update((one.before, place) for one, place in zip(turns.carried, carried, strict=True))
        most, goes_on = self._limit(turns), self._cell(1)
        always = self._shared.constant(np.asarray(1, np.uint8), TensorForm(onnx.TensorProto.UINT8, ()))
        self._calls.append(CopyCall(goes_on, always if turns.first is None else self._place(turns.first), 1))
        starts = (self._place(one.operand) for one in turns.carried)
        self._copy_at_once(map(CopyCall, carried, starts, sizes))
        before, self._calls = self._calls, []
        if turns.go in self._places:
            self._calls.append(CopyCall(self._places[turns.go], always, 1))
        self._calls += [copy for one in turns.read for copy in self._row_copies(one)]
        self._graph(turns.graph, body.schedule, body.bodies)
        self._calls += [copy.turned for one in turns.made for copy in self._row_copies(one)]
        moved = [*map(CopyCall, carried, (self._place(one.after) for one in turns.carried), sizes)]
        moved += [] if turns.again is None else [CopyCall(goes_on, self._place(turns.again), 1)]
        self._copy_at_once(moved)
        number = None if turns.number is None else self._places.get(turns.number)
        self._calls = [*before, RepeatedCalls(most, goes_on, number, tuple(self._calls))]
        self._copy_at_once(
            CopyCall(self._places[one.result], place, size)
            for one, place, size in zip(turns.carried, carried, sizes, strict=True)
            if one.result is not None and one.result.name
        )

    def _limit(self, turns: Turns) -> BytePlace | None:
        """Return where the number of turns is, copied to a place of its own; None without a limit."""
        if turns.most is None and not turns.read:
            return None
        if turns.most is not None:
            source = self._place(turns.most)
        else:
            first = turns.read[0]
            length = self._tensor(first.whole).sizes[first.axis]
            source = self._shared.constant(np.asarray(length, np.int64), TensorForm(onnx.TensorProto.INT64, ()))
        cell = self._cell(8)
        self._calls.append(CopyCall(cell, source, 8))
        return cell

    def _row_copies(self, row: Row) -> Iterator[CopyCall]:
        """Yield the copies of the row of a whole to a place of its own: one for each run of bytes."""
        whole = self._tensor(row.whole)
        length = whole.sizes[row.axis]
        outer = int(np.prod(whole.sizes[: row.axis], dtype=np.int64))
        if outer > _MOST_RUNS:
            raise UsageError(f"no C is written for {row.whole.name!r}: each row of it is {outer:,} runs of bytes")
        run = whole.bytes // max(1, outer * length)
        first, step = ((length - 1) * run, -run) if row.is_backwards else (0, run)
        for number in range(outer):
            source = self._place(row.whole).at(number * length * run + first)
            yield CopyCall(self._row_place(row.row).at(number * run), source, run, (0, step))

    def _row_place(self, row: ir.Value) -> BytePlace:
        if row not in self._places and row not in self._constants:
            self._places[row] = self._cell(self._tensor(row).bytes)  # no node reads it
        return self._place(row)

    def _cell(self, size: int) -> BytePlace:
        """Return bytes of the workspace that nothing else has."""
        at = align(self._end, 8)
        self._end = at + size
        self._shared.workspace = max(self._shared.workspace, self._end)
        return BytePlace(WORKSPACE, 0, at)

    def _copy_at_once(self, copies: Iterable[CopyCall]) -> None:
        """Make `copies` in an order in which none reads what another has written; bytes that are in the way are saved before."""
        pending = [copy for copy in copies if copy.target != copy.source]
        while pending:
            free = next(
                (one for one in pending if not any(_overlap(one, other) for other in pending if other is not one)), None
            )
            if free is not None:
                pending.remove(free)
                self._calls.append(free)
                continue
            blocked = pending[0]
            pending[0] = replace(blocked, source=self._cell(blocked.size))
            self._calls.append(CopyCall(pending[0].source, blocked.source, blocked.size))

    def _is_moved(self, node: ir.Node) -> bool:
        """Make no call, or copies alone, for a node whose results are operands, or parts or joins of them; return whether it is one."""
        shared = {alias.value: alias for alias in views(node, self._facts)}
        moved = [alias for alias in parts(node, self._facts) if alias.value not in shared]
        outputs = [value for value in node.outputs if value.name]
        cuts = {alias.value: alias for alias in moved if alias.rule == "cut"}
        wholes = shared | cuts
        if outputs and wholes.keys() >= set(outputs):
            for value in outputs:
                self._show(wholes[value])
            return True
        joins = [alias for alias in moved if alias.rule == "join"]
        return bool(joins) and self._is_joined(node, joins)

    def _show(self, alias: Alias) -> None:
        source = self._place(alias.source).at(alias.at)
        place = self._places.setdefault(alias.value, source)
        if place != source:
            self._calls.append(CopyCall(place, source, self._tensor(alias.value).bytes))

    def _is_joined(self, node: ir.Node, joins: Sequence[Alias]) -> bool:
        """Copy the operands of a join that are not in place; return whether all of its bytes are those of contiguous operands."""
        value = node.outputs[0]
        sizes = [self._tensor(alias.source).bytes for alias in joins]
        if sum(sizes) != self._tensor(value).bytes or value not in self._places:
            return False
        copies = []
        for alias, size in zip(joins, sizes, strict=True):
            target, source = self._places[value].at(-alias.at), self._place(alias.source)
            if target != source:
                copies.append(CopyCall(target, source, size))
        if any(_overlap(one, other) for one in copies for other in copies if one is not other):
            return False
        self._calls += copies
        return True

    def _meta_op(self, call: ir.Node) -> None:
        """Run the nodes of a meta-op, with temporaries in the workspace."""
        key = (call.op_identifier(), tuple(None if v is None else self._operand_key(v) for v in call.inputs))
        if key not in self._shared.islands:
            flat = written_out(call, self._model, self._shapes, self._constants)
            self._shared.islands[key] = _island(flat, self._plan.alignment)
        island = self._shared.islands[key]
        operands = [value for value in dict.fromkeys(call.inputs) if value is not None]
        given = [value for value in operands if not _is_written_as_constant(value, self._constants)]
        sources, targets = [self._place(value) for value in given], [self._place(value) for value in call.outputs]
        moved: list[CopyCall] = []
        # The workspace of a meta-op in another begins where that of the other ends.
        base = align(self._end, self._plan.alignment)
        end = base + island.plan.arena_size
        for number, (value, target) in enumerate(zip(call.outputs, targets, strict=True)):
            copy = CopyCall(target, target, self._tensor(value).bytes)
            reads = [CopyCall(place, place, self._tensor(one).bytes) for one, place in zip(given, sources, strict=True)]
            if any(
                _overlap(copy, read) and not (read == copy and place in island.over) for place, read in enumerate(reads)
            ):
                # The plan takes the meta-op for one kernel that may write over its operand. Its nodes may not.
                end = align(end, self._plan.alignment)
                moved.append(CopyCall(target, BytePlace(WORKSPACE, 0, end), copy.size))
                targets[number] = moved[-1].source
                end += copy.size
        self._shared.workspace = max(self._shared.workspace, end)
        ends = [BytePlace(END, number) for number in range(len(sources) + len(targets))]
        inner = _Planned(
            island.opened, island.plan, self._shared, (ends[: len(sources)], ends[len(sources) :]), (base, end)
        )
        inner.write()
        for offsets in island.offsets or [(0,) * len(ends)]:
            places = [place.at(offset) for place, offset in zip((*sources, *targets), offsets, strict=True)]
            self._calls += [_between(one, places) for one in inner.calls]
        self._calls += moved

    def _operand_key(self, value: ir.Value) -> object:
        if not _is_written_as_constant(value, self._constants):
            return self._tensor(value)
        array = self._constants.array(value)
        return array.dtype, array.shape, array.tobytes()

    def _kernel(self, name: str, node: ir.Node) -> None:
        """Call the kernel of a node."""
        if node in self._own:
            self._own_kernel(name, node)
            return
        packed = packed_weights(node, self._constants)
        if packed is not None:
            self._packed_product(name, node, packed)
            return
        names: dict[ir.Value, str] = {}
        for value in node.inputs:
            if value is not None:
                names.setdefault(value, f"i{len(names)}")
        made = {value: f"o{place}" for place, value in enumerate(node.outputs) if value.name}
        proto = bare_node(node, {**names, **made})
        fixed = {value: own for value, own in names.items() if self._is_fixed(node, value)}
        opsets = self._model.graph.opset_imports
        kernel = DistinctKernel(
            proto.SerializeToString(deterministic=True),
            tuple((own, self._tensor(value)) for value, own in (*names.items(), *made.items())),
            tuple((own, self._serialised(value)) for value, own in fixed.items()),
            tuple(sorted(opsets.items())),
            name,
            node.op_type,
            macs=self._macs(node),
        )
        places = {own: self._place(value) for value, own in (*names.items(), *made.items())}
        set_by = {
            own: self._shared.constant(self._fixed_array(value), self._tensor(value)) for value, own in fixed.items()
        }
        self._calls.append(KernelCall(kernel, places | set_by))

    def _macs(self, node: ir.Node) -> int:
        try:
            return work_of(node, self._shapes).macs
        except NotApplicable:
            return 0

    def _own_kernel(self, name: str, node: ir.Node) -> None:
        """Call the user's function for a node, with a workspace after those of the meta-ops around it."""
        own, facts = self._own[node]
        assert self._shared.own is not None
        names: dict[ir.Value, str] = {}
        places, tensors = dict[str, BytePlace](), list[tuple[str, TensorForm]]()
        for place, value in enumerate((*node.inputs, *node.outputs)):
            if value is None or not value.name or value in names:
                continue
            names[value] = f"i{len(names)}" if place < len(node.inputs) else f"o{place - len(node.inputs)}"
            tensor, order = self._tensor(value), own.axes.get(place)
            if order is not None and place < len(node.inputs):
                if value not in self._constants or len(order) != len(tensor.sizes):
                    raise UsageError(f"the axes of inputs[{place}] of {name!r} are not those of a constant")
                tensor = replace(tensor, sizes=tuple(tensor.sizes[axis] for axis in order))
                places[names[value]] = self._shared.constant(self._constants.array(value).transpose(order), tensor)
            else:
                places[names[value]] = self._place(value)
            tensors.append((names[value], tensor))
        size = own.workspace.bytes(node, self._shapes)
        if size:
            at = align(self._end, self._plan.alignment)
            places[WORKING] = BytePlace(WORKSPACE, 0, at)
            self._shared.workspace = max(self._shared.workspace, at + size)
        call = own_call(own, self._shared.own.include, node, facts, names)
        used = {argument for argument in call.arguments if isinstance(argument, str)}
        if WORKING in used and not size:
            raise UsageError(f"the call of {own.function!r} has a workspace of no bytes", hint='add workspace = "..."')
        kernel = DistinctKernel(b"", tuple(tensors), (), (), name, node.op_type, call)
        self._calls.append(KernelCall(kernel, {one: place for one, place in places.items() if one in used}))

    def _packed_product(self, name: str, node: ir.Node, packed: PackedWeights) -> None:
        """Call the kernel of a product with weights of 4 bits, which it unpacks."""
        operand, result = node.inputs[0], node.outputs[0]
        assert operand is not None
        arrays = {"i1": packed.weights, "i2": packed.scales}
        if packed.zero_points is not None:
            arrays["i3"] = packed.zero_points
        forms = {own: TensorForm(int(ir.DataType.from_numpy(one.dtype)), one.shape) for own, one in arrays.items()}
        proto = helper.make_node("MatMulNBits", ["i0", *arrays], ["o0"], domain="com.microsoft")
        sizes = {"K": packed.rows, "N": packed.columns, "bits": 4, "block_size": packed.block}
        proto.attribute.extend(helper.make_attribute(key, size) for key, size in sizes.items())
        opsets = {**self._model.graph.opset_imports, "com.microsoft": 1}
        tensors = {"i0": self._tensor(operand), **forms, "o0": self._tensor(result)}
        kernel = DistinctKernel(
            proto.SerializeToString(deterministic=True),
            tuple(tensors.items()),
            (),
            tuple(sorted(opsets.items())),
            name,
            proto.op_type,
            macs=self._macs(node),
        )
        places = {own: self._shared.constant(one, forms[own]) for own, one in arrays.items()}
        self._calls.append(KernelCall(kernel, {"i0": self._place(operand), **places, "o0": self._place(result)}))

    def _is_fixed(self, node: ir.Node, value: ir.Value) -> bool:
        """Return whether the numbers of an operand decide what the kernel is: sizes, axes, bounds, scales of a Resize."""
        row = operator_of(node)
        if (
            row is None
            or value not in self._constants
            or np.prod(self._tensor(value).sizes, dtype=np.int64) > _MOST_FIXED
        ):
            return False
        places = (place for place, operand in enumerate(node.inputs) if operand is value)
        return any(place in row.shaped_by or place in row.set_by for place in places)

    def _fixed_array(self, value: ir.Value) -> Array:
        """Return the numbers of a constant that says what is computed: a Slice up to 2^63 - 1 is one up to the end, which is 32 bits."""
        array = self._constants.array(value)
        return array.clip(-_MOST_SIZE, _MOST_SIZE) if array.dtype == np.int64 else array

    def _serialised(self, value: ir.Value) -> bytes:
        tensor = self._tensor(value)
        array = np.ascontiguousarray(self._fixed_array(value))
        made = helper.make_tensor("", tensor.dtype, tensor.sizes, array.tobytes(), raw=True)
        found: bytes = made.SerializeToString(deterministic=True)
        return found

    def _tensor(self, value: ir.Value) -> TensorForm:
        """Return the type of `value`. Raises UsageError where it has no fixed bytes, or elements of less than a byte."""
        never = no_fixed_bytes(value, self._facts)
        if never is not None:
            raise UsageError(f"no C is written for {value.name!r}: {never}")
        dtype, sizes = self._shapes.dtype(value), self._shapes.sizes(value)
        if dtype is None or sizes is None or tensor_bytes(value, self._shapes) is None or self._shapes.is_bound(value):
            raise UsageError(f"C needs fixed bytes, and {value.name!r} has none: {self._shapes.reason(value)}")
        if dtype.bitwidth < 8 or int(dtype) not in _WRITABLE:
            raise UsageError(f"no C is written for {value.name!r}, which has elements of {dtype.name}")
        return TensorForm(int(dtype), sizes)

    def _place(self, value: ir.Value) -> BytePlace:
        if value in self._places:
            return self._places[value]
        if value in self._constants:
            return self._shared.constant(self._constants.array(value), self._tensor(value))
        raise UsageError(f"C needs fixed bytes, and {value.name!r} has no address in the plan")


def _between(call: ProgramCall, ends: Sequence[BytePlace]) -> ProgramCall:
    """Return `call` of a meta-op with `ends`, the places of its operands and results."""

    def placed(place: BytePlace) -> BytePlace:
        return ends[place.number].at(place.offset) if place.kind == END else place

    if isinstance(call, KernelCall):
        return replace(call, places={name: placed(place) for name, place in call.places.items()})
    if isinstance(call, CopyCall):
        return replace(call, target=placed(call.target), source=placed(call.source))
    raise ModelError("a meta-op with control flow inside has no C")


def _overlap(one: CopyCall, other: CopyCall) -> bool:
    """Return whether a copy writes what another reads."""
    target, source = one.target, other.source
    if (target.kind, target.number) != (source.kind, source.number):
        return False
    return target.offset < source.offset + other.size and source.offset < target.offset + one.size


_SMALL = 4096
"""Elements of a computed constant that is written out with a meta-op, as `written_out` does."""


def _is_written_as_constant(value: ir.Value, constants: Constants) -> bool:
    """Return whether `written_out` makes an operand a constant of the model inside."""
    if value not in constants:
        return False
    return value.const_value is not None or constants.array(value).size <= _SMALL


@dataclass(frozen=True)
class PlannedIsland:
    """A meta-op that is written out, with its plan, whose inputs and outputs are outside.

    Where it runs row by row, it is that of one row, and `offsets` are those of `RowModel`. `over` are the inputs, by number, that the
    result may be written over.
    """

    opened: Unfolded
    plan: PlanResult
    over: frozenset[int]
    offsets: tuple[tuple[int, ...], ...] = ()


_LITTLE = 1024
"""Bytes of temporaries for which a meta-op is not cut into rows; rows are not cut finer than these need."""


def _island(flat: ir.Model, alignment: int) -> PlannedIsland:
    """Return a meta-op that is written out, row by row where that takes less workspace."""
    opened = _lowered(flat)
    whole = _planned_alone(opened, alignment)
    sizes = opened.shapes.sizes(opened.model.graph.outputs[0]) or ()
    best = whole
    for axes in range(1, len(sizes)):
        if best.plan.arena_size <= _LITTLE:
            break
        row = row_model(opened, axes)
        if row is not None:
            planned = _planned_alone(row.opened, alignment)
            best = min(best, replace(planned, offsets=row.offsets), key=lambda one: one.plan.arena_size)
    if best.offsets and any(len({row[place] - row[-1] for row in best.offsets}) > 1 for place in best.over):
        return replace(best, over=frozenset())
    return best


def _lowered(flat: ir.Model) -> Unfolded:
    """Return a meta-op that is written out, on integers where that is proved."""
    model = flat
    if is_quantised(flat):
        lowered = lower(flat, select(["quantised"]), Target("ort")).model
        if not any(node.op_identifier() in lowered.functions for node in lowered.graph):
            model = lowered
    known = resolve(model, run=True)
    return unfold(model, known, Constants(model))


def _planned_alone(opened: Unfolded, alignment: int) -> PlannedIsland:
    plan = plan_model(*opened, PlanSettings(alignment=alignment, io="outside"))
    return PlannedIsland(opened, plan, _over(opened, plan))


def _over(opened: Unfolded, plan: PlanResult) -> frozenset[int]:
    """Return the inputs, by number, that the output may be written over: no kernel reads them later than the last, which makes it."""
    graph, facts = opened.model.graph, LayoutFacts(*opened)
    roots = {alias.value: alias.source for node in graph for alias in views(node, facts)}

    def root(value: ir.Value | None) -> ir.Value | None:
        while value in roots:
            value = roots[value]
        return value

    output = graph.outputs[0]
    last = output.producer()
    order = named(graph, plan.schedule)
    is_last = last is not None and order[-1] is last
    if last is None or not is_last or len(graph.outputs) > 1 or output in roots or any(parts(last, facts)):
        return frozenset()  # kernels before the last write the output, or there are several
    allowed = overwritable(last, facts)
    read = {root(value) for place, value in enumerate(last.inputs) if place not in allowed}
    inputs = [value for value in graph.inputs if value not in opened.constants]
    return frozenset(number for number, value in enumerate(inputs) if value not in read)


IR_VERSION = min(MAX_IR_VERSION, 10)


def kernels_of(calls: Iterable[ProgramCall]) -> Iterator[DistinctKernel]:
    """Yield the different kernels of `calls`, in the order in which they first run."""
    yield from dict.fromkeys(call.kernel for call in flat(calls) if isinstance(call, KernelCall))
