"""What a planned model does, as plain calls: which kernel runs when, on which bytes. The only module here that reads a plan.

Views, and parts that are in place, are no call. Contiguous parts that are not in place are copies. A meta-op is the calls of its nodes,
whose temporaries lie in a workspace with a plan of its own. A quantised island is first made the operator on integers that
`fuse --lower ort` proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from onnxtile.declare.plan_document import PlannedBody
from onnxtile.firmware.addresses import ProgramMemory, ValueAddresses, stored_weights
from onnxtile.firmware.islands import (
    PlannedIsland,
    between,
    is_written_as_constant,
    island_over_ranges,
    on_integers,
    planned_island,
)
from onnxtile.firmware.own_kernels import WORKING, OwnKernels, own_call
from onnxtile.firmware.program import (
    ARENA,
    END,
    INPUT,
    OUTPUT,
    WORKSPACE,
    Branch,
    ByteAddress,
    CopyCall,
    CProgram,
    DistinctKernel,
    HelperCall,
    KernelCall,
    NodeResult,
    OpenSize,
    Port,
    ProgramCall,
    RepeatedCalls,
    SizePoints,
    StreamPort,
    TensorForm,
    TransferSchedule,
    over_sizes,
    overlaps,
)
from onnxtile.firmware.templates import template_of
from onnxtile.kernels.aliases import Alias, parts, views
from onnxtile.model.formula import product_of, read_size
from onnxtile.model.submodel import bare_node
from onnxtile.model.topology import node_id
from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.table import CONTROL_FLOW, operator_of, work_of
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.orders import named
from onnxtile.planning.ranges import growths_of_state
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import Unfolded, inside_of, written_out
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError, about_options
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import makes_quantised


def program_of(opened: Unfolded, plan: PlanResult, kernels: OwnKernels | None = None) -> CProgram:
    """Return the calls of `plan`, a plan of `opened`, with the user's own `kernels`.

    Raises UsageError for what has no fixed bytes, or no such arguments, and ModelError.
    """
    _require_fixed(plan)
    parts = _ProgramParts(kernels)
    if not plan.ranges:
        return _Planned(opened, plan, parts).program()
    growths = {name: step for state in plan.states for name, step in growths_of_state(plan, state, opened)}
    sizes = tuple(OpenSize(name, *ends, growths.get(name)) for name, ends in plan.ranges.items())
    formulas = (size for value in values(opened.model) for size in opened.shapes.formulas(value) or ())
    points = SizePoints.from_ranges(plan.ranges, formulas)
    programs = []
    for point in points.points:
        at_point = opened._replace(shapes=opened.shapes.at(point))
        memory = replace(parts.memory, workspace=0, taken=0)  # with the same constants and decisions
        programs.append(_Planned(at_point, plan, replace(parts, memory=memory), sizes=point).program())
    return over_sizes(programs, points, sizes)


def _require_fixed(plan: PlanResult) -> None:
    """Raise UsageError for plans that C without allocation cannot run."""
    if plan.unplanned or plan.bounds:
        bounds = ", ".join(f"{name}={most}" for name, most in plan.bounds.items())
        left = (
            f"{plan.unplanned[0].name!r}: {plan.unplanned[0].reason}" if plan.unplanned else f"{bounds} is only a bound"
        )
        raise UsageError(f"C needs the size of every tensor, and does not have that of {left}")
    for state in plan.states:
        if state.axis is not None and not plan.ranges:
            raise about_options(
                f"a state that grows has no one size: {state.input!r}",
                hint="give a range to its length, such as {dim} past=0:63, or leave {state} out",
            )


@dataclass
class _ProgramParts:
    """What all graphs of a program have in common: the user's kernels, constants by value, and different islands."""

    own: OwnKernels | None = None
    memory: ProgramMemory = field(default_factory=ProgramMemory)
    islands: dict[object, PlannedIsland] = field(default_factory=dict)


def _strides(plan: PlanResult, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the bytes from one element to the next on each axis, at `sizes`, of the tensors of growing states, by name."""
    strides = {}
    for row in plan.buffers:
        formulas = [read_size(text, plan.ranges) for text in row.strides_formula or ()]
        if row.strides:
            strides[row.name] = tuple(size.at(sizes) for size in formulas if size is not None) or row.strides
    return strides


def _is_overwritten(write: CopyCall, reads: Sequence[CopyCall], island: PlannedIsland) -> bool:
    """Return whether the bytes of a result, `write`, are some of those of an operand, other than one that it may be written over."""
    return any(
        overlaps(write, read) and not (read == write and number in island.over) for number, read in enumerate(reads)
    )


_QUANTISED = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
"""The element types of quantised tensors."""
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
        ends: tuple[Sequence[ByteAddress], Sequence[ByteAddress]] | None = None,
        workspace: tuple[int, int] = (0, 0),
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._model, self._shapes, self._constants = opened
        self._plan = plan
        self._shared = shared
        self._calls: list[ProgramCall] = []
        self._results: list[NodeResult] = []
        arenas = {arena.name: number for number, arena in enumerate(plan.arenas)}
        base, end = workspace
        self._sizes = sizes
        strides = _strides(plan, sizes or {})
        self._addresses = ValueAddresses(opened, shared.memory, arenas, None if ends is None else base, end, strides)
        self._facts = self._addresses.facts
        self._own = (
            {} if shared.own is None else shared.own.kernels_of(self._model, self._constants, lambda: self._shapes)
        )
        graph = self._model.graph
        streams = self._facts.streams
        self._inputs = [value for value in graph.inputs if value not in self._constants and value not in streams]
        self._addresses.add_buffers(graph, plan.buffers)
        given = ends[0] if ends else [ByteAddress(INPUT, number) for number in range(len(self._inputs))]
        taken = ends[1] if ends else [ByteAddress(OUTPUT, number) for number in range(len(graph.outputs))]
        for value, address in zip(self._inputs, given, strict=True):
            self._addresses.setdefault(value, address)
        for value, address in zip(graph.outputs, taken, strict=True):
            if value not in self._constants and value.producer() is not None:
                self._addresses.setdefault(value, address)
        self._taken = taken
        self._is_inside = ends is not None

    def program(self) -> CProgram:
        """Return the whole program of the main graph."""
        ports = [self._port(value, self._addresses.address_of(value)) for value in self._inputs]
        outputs = [self._with_rows(port) for port in self.write()]
        states = {state.input: state for state in self._plan.states}
        resets = [(port.address, states[port.name].size) for port in ports if port.name in states]
        for port in ports:
            state = states.get(port.name)
            if state is not None and state.copied:
                after = next(output for output in outputs if output.name == state.output)
                self._calls.append(CopyCall(port.address, after.address, after.tensor.bytes))
        return CProgram(
            tuple(self._calls),
            tuple(port for port in ports if port.name not in states),
            tuple(outputs),
            tuple(self._shared.memory.arrays),
            tuple((arena.name, arena.size) for arena in self._plan.arenas),
            self._plan.alignment,
            self._shared.memory.workspace,
            tuple(resets),
            tuple(self._results),
            tuple(
                StreamPort(value.name or "", self._addresses.tensor(value), stream.axis)
                for value, stream in self._facts.streams.items()
            ),
        )

    def write(self) -> list[Port]:
        """Make the calls of all nodes, and return the outputs."""
        plan, graph = self._plan, self._model.graph
        self._graph(graph, plan.schedule, plan.bodies)
        ports = []
        for number, value in enumerate(graph.outputs):
            address = self._addresses.address_of(value)
            if address.kind != ARENA and address != self._taken[number]:
                self._calls.append(CopyCall(self._taken[number], address, self._addresses.tensor(value).bytes))
                address = self._taken[number]
            ports.append(self._port(value, address))
        return ports

    def _port(self, value: ir.Value, address: ByteAddress) -> Port:
        formulas = tuple(map(str, self._shapes.formulas(value) or ()))
        return Port(value.name or "", self._addresses.tensor(value), address, formulas)

    def _with_rows(self, port: Port) -> Port:
        """Return an output with the rows that it is: those of a growing state are apart."""
        state = next((state for state in self._plan.states if state.output == port.name), None)
        if state is None or state.axis is None or not port.tensor.strides:
            return port
        rows = int(np.prod(port.tensor.sizes[: state.axis], dtype=np.int64))
        return replace(port, rows=rows, pitch=port.tensor.strides[state.axis - 1])

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
                if value in self._addresses:
                    tensor = self._addresses.tensor(value)
                    source = self._shared.memory.constant(self._constants.array(value), tensor)
                    self._calls.append(CopyCall(self._addresses[value], source, tensor.bytes))

        self._make_transfers(transfers, nodes, len(nodes))

    def _make_transfers(self, transfers: TransferSchedule, nodes: Sequence[ir.Node], step: int) -> None:
        """Start the copies that may run beside the kernel of `step`, and wait for those that it needs."""
        for transfer in transfers.starting.get(step, ()):
            source, copied = nodes[transfer.step].inputs[0], nodes[transfer.step].outputs[0]
            assert source is not None
            places = (self._addresses.address_of(copied), self._addresses.address_of(source))
            self._calls.append(HelperCall("start", places, (transfer.number, self._addresses.tensor(copied).bytes)))
        self._calls += [HelperCall("wait", (), (transfer.number,)) for transfer in transfers.ending.get(step, ())]

    def _made(self, node: ir.Node, outputs: Iterable[ir.Value]) -> Iterator[NodeResult]:
        """Yield the `outputs` of `node`, whose calls are the last."""
        is_graph = node.op_identifier() in self._model.functions or node.op_type in CONTROL_FLOW
        for value in outputs:
            if value in self._addresses and not self._addresses.tensor(value).strides:
                tensor = self._addresses.tensor(value)
                is_narrow = ir.DataType(tensor.dtype) in _QUANTISED
                is_rounded = is_narrow and (is_graph or makes_quantised(value))
                address = self._addresses[value]
                formulas, name = self._shapes.formulas(value), value.name or ""
                size = tensor.bytes if formulas is None else product_of((*formulas, tensor.element))
                yield NodeResult(len(self._calls), name, node.op_type, tensor, address, size, is_rounded)

    def _node(self, name: str, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        graph = inside_of(node)
        if graph is not None:
            self._body(node, graph, next((body for body in bodies if body.attribute is None), None))
            return
        if node.op_type == "If" and self._facts.is_standard(node) and node.inputs[0] is not None:
            self._branch(node, bodies)
            return
        if node.op_type in CONTROL_FLOW and self._facts.is_standard(node):
            self._repeat(name, node, bodies)
            return
        if node in self._facts.random:
            raise UsageError(f"{name!r} ({node.op_type}) draws random numbers, for which no C is written")
        if self._is_streamed(node) or self._is_moved(node) or self._is_appended(node):
            return
        if node.op_identifier() in self._model.functions:
            self._meta_op(node)
        else:
            self._kernel(name, node)

    def _branch(self, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        """Run one of the branches of an If; results without an address in the plan have one in the workspace."""
        condition = node.inputs[0]
        assert condition is not None
        self._require_placed(node)
        by_attribute = {body.attribute: body for body in bodies}
        if condition in self._constants:
            attribute = "then_branch" if self._constants.array(condition).all() else "else_branch"
            taken = next((body for body in bodies if body.attribute == attribute), None)
            self._body(node, node.attributes[attribute].as_graph(), taken)
            return
        before, sides = self._calls, []
        for attribute in ("then_branch", "else_branch"):
            self._calls = []
            self._body(node, node.attributes[attribute].as_graph(), by_attribute.get(attribute))
            sides.append(tuple(self._calls))
        self._calls = [*before, Branch(self._addresses.address_of(condition), *sides)]

    def _body(self, node: ir.Node, graph: ir.Graph, body: PlannedBody | None) -> None:
        """Run `graph` of `node` as its plan says, and hand out its results."""
        if body is None:
            raise ModelError(f"the plan has no body of {node_id(node)!r}")
        self._addresses.add_buffers(graph, body.buffers)
        self._graph(graph, body.schedule, body.bodies)
        copies = []
        for inner, outer in zip(graph.outputs, node.outputs, strict=False):
            source = self._addresses.address_of(inner)
            if outer.name and self._addresses.setdefault(outer, source) != source:
                copies.append(CopyCall(self._addresses[outer], source, self._addresses.tensor(outer).bytes))
        self._calls += self._addresses.copied_at_once(copies)

    def _require_placed(self, node: ir.Node) -> None:
        for value in node.outputs:
            if value.name:
                self._addresses.address_of(value)

    def _repeat(self, name: str, node: ir.Node, bodies: Sequence[PlannedBody]) -> None:
        """Run the body of a Loop or Scan turn after turn, and hand out what it carries.

        Rows are copied to the inputs of the body, and from its outputs.
        """
        if not bodies:
            raise UsageError(f"{name!r} is a {node.op_type} of an old version, for which no C is written")
        self._require_placed(node)
        turns, body = turns_of(node), bodies[0]
        self._addresses.add_buffers(turns.graph, body.buffers)
        repeat = TurnCalls(turns, self._addresses)
        before = [*self._calls, *repeat.before()]
        self._calls = [*repeat.begin()]
        self._graph(turns.graph, body.schedule, body.bodies)
        self._calls += repeat.end()
        self._calls = [*before, repeat.repeated(self._calls), *repeat.after()]

    def _is_streamed(self, node: ir.Node) -> bool:
        """Ask the user's function for the rows that a node reads of an input that comes row by row; return whether it is such a node."""
        for number, stream in enumerate(self._facts.streams.values()):
            read = next((read for read in stream.reads if read.node is node), None)
            if read is not None:
                target = self._addresses.address_of(node.outputs[0])
                self._calls.append(HelperCall(f"rows_{number}", (target,), (read.first, read.count)))
                return True
        return False

    def _is_moved(self, node: ir.Node) -> bool:
        """Make no call, or copies alone, for a node whose results are operands, or parts or joins of them; return whether it is one."""
        shared = {alias.value: alias for alias in views(node, self._facts)}
        # Over ranges, where a part begins depends on the sizes.
        moved = (
            [alias for alias in parts(node, self._facts) if alias.value not in shared] if self._sizes is None else []
        )
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
        source = self._addresses.address_of(alias.source).at(alias.at)
        address = self._addresses.setdefault(alias.value, source)
        if address != source:
            self._calls.append(CopyCall(address, source, self._addresses.tensor(alias.value).bytes))

    def _is_joined(self, node: ir.Node, joins: Sequence[Alias]) -> bool:
        """Copy the operands of a join that are not in place; return whether all of its bytes are those of contiguous operands."""
        value = node.outputs[0]
        sizes = [self._addresses.tensor(alias.source).bytes for alias in joins]
        if sum(sizes) != self._addresses.tensor(value).bytes or value not in self._addresses:
            return False
        copies = []
        for alias, size in zip(joins, sizes, strict=True):
            target, source = self._addresses[value].at(-alias.at), self._addresses.address_of(alias.source)
            if target != source:
                copies.append(CopyCall(target, source, size))
        if any(overlaps(copy, other) for copy in copies for other in copies if copy is not other):
            return False
        self._calls += copies
        return True

    def _is_appended(self, node: ir.Node) -> bool:
        """Copy what a Concat appends to a growing state into the rows of the state; return whether it is such a node."""
        if node.op_type != "Concat" or not self._facts.is_standard(node):
            return False
        state, whole = node.inputs[0], node.outputs[0]
        if not self._addresses.tensor(whole).strides or state is None:
            return False
        if self._addresses.get(state) != self._addresses[whole]:
            return False
        tensor = self._addresses.tensor(whole)
        axis = node.attributes.get_int("axis", 1) % len(tensor.sizes)
        start = self._addresses.tensor(state).sizes[axis] * tensor.strides[axis]
        for value in node.inputs[1:]:
            assert value is not None
            sizes = self._addresses.tensor(value).sizes
            rows, size = int(np.prod(sizes[:axis], dtype=np.int64)), sizes[axis] * tensor.strides[axis]
            places = (self._addresses[whole], self._addresses.address_of(value))
            self._calls.append(HelperCall("append", places, (rows, start, tensor.strides[axis - 1], size)))
            start += size
        return True

    def _meta_op(self, call: ir.Node) -> None:
        """Run the nodes of a meta-op, with temporaries in the workspace."""
        island = self._island(call)
        operands = [value for value in dict.fromkeys(call.inputs) if value is not None]
        given = [value for value in operands if not is_written_as_constant(value, self._constants)]
        sources, targets = (
            [self._addresses.address_of(value) for value in given],
            [self._addresses.address_of(value) for value in call.outputs],
        )
        sizes = [self._addresses.tensor(value).bytes for value in call.outputs]
        reads = [
            CopyCall(address, address, self._addresses.tensor(value).bytes)
            for value, address in zip(given, sources, strict=True)
        ]
        writes = [CopyCall(address, address, size) for address, size in zip(targets, sizes, strict=True)]
        # The workspace of a meta-op in another begins where that of the other ends.
        base = align(self._addresses.end, self._plan.alignment)

        def apart() -> tuple[dict[int, ByteAddress], int]:
            """Return where the results are first that may not be written to their places, and the end of the workspace."""
            places, end = dict[int, ByteAddress](), base + island.plan.arena_size
            for number, write in enumerate(writes):
                # The plan takes the meta-op for one kernel that may write over its operand. Its nodes may not.
                if _is_overwritten(write, reads, island):
                    places[number] = ByteAddress(WORKSPACE, 0, align(end, self._plan.alignment))
                    end = places[number].offset + write.size
            return places, end

        places, end = self._shared.memory.decided(apart)
        self._shared.memory.workspace = max(self._shared.memory.workspace, end)
        moved = [CopyCall(targets[number], place, sizes[number]) for number, place in places.items()]
        targets = [places.get(number, target) for number, target in enumerate(targets)]
        ends = [ByteAddress(END, number) for number in range(len(sources) + len(targets))]
        sides = (ends[: len(sources)], ends[len(sources) :])
        inner = _Planned(island.opened, island.plan, self._shared, sides, (base, end), self._sizes)
        inner.write()
        for offsets in island.offsets or [(0,) * len(ends)]:
            addresses = [address.at(offset) for address, offset in zip((*sources, *targets), offsets, strict=True)]
            self._calls += [between(inner_call, addresses) for inner_call in inner._calls]
        self._calls += moved

    def _island(self, call: ir.Node) -> PlannedIsland:
        """Return the plan of a meta-op: equal ones have one; over ranges each has one, that of the largest sizes."""
        islands, alignment = self._shared.islands, self._plan.alignment
        if self._sizes is not None:
            opened = on_integers(written_out(call, self._model, self._shapes, self._constants))
            island = self._shared.memory.decided(lambda: island_over_ranges(opened, alignment))
            return replace(island, opened=opened)
        key = (call.op_identifier(), tuple(None if v is None else self._operand_key(v) for v in call.inputs))
        if key not in islands:
            islands[key] = planned_island(written_out(call, self._model, self._shapes, self._constants), alignment)
        return islands[key]

    def _operand_key(self, value: ir.Value) -> object:
        if not is_written_as_constant(value, self._constants):
            return self._addresses.tensor(value)
        array = self._constants.array(value)
        return array.dtype, array.shape, array.tobytes()

    def _kernel(self, name: str, node: ir.Node) -> None:
        """Call the kernel of a node."""
        if node in self._own:
            self._own_kernel(name, node)
            return
        stored, arrays = stored_weights(node, self._constants) or (None, {})
        names: dict[ir.Value, str] = {}
        for value in node.inputs:
            if value is not None:
                names.setdefault(value, f"i{len(names)}")
        results = {value: f"o{index}" for index, value in enumerate(node.outputs) if value.name}
        proto = bare_node(node, {**names, **results})
        fixed = {value: inner for value, inner in names.items() if self._is_fixed(node, value)}
        constants = {inner: self._fixed_array(value) for value, inner in fixed.items()}
        forms = {inner: self._addresses.tensor(value) for value, inner in (*names.items(), *results.items())}
        constants |= arrays
        forms |= {
            inner: TensorForm(int(ir.DataType.from_numpy(array.dtype)), array.shape) for inner, array in arrays.items()
        }
        kernel = DistinctKernel(
            proto.SerializeToString(deterministic=True),
            tuple(forms.items()),
            tuple((inner, self._serialised(value)) for value, inner in fixed.items()),
            tuple(sorted(self._model.graph.opset_imports.items())),
            name,
            node.op_type,
            of_island=self._is_inside and node.op_type.startswith("QLinear"),
            stored=stored,
            macs=self._macs(node),
        )
        is_backward = node.attributes.get_string("direction", "forward") != "forward"
        if node.op_type == "LSTM" and is_backward and "o0" in forms and template_of(kernel) is None:
            raise UsageError(
                f"no C is written for {name!r}: an LSTM that runs backwards has other functions or lengths"
            )
        held = {inner: self._shared.memory.constant(array, forms[inner]) for inner, array in constants.items()}
        addresses = {
            inner: self._addresses.address_of(value)
            for value, inner in (*names.items(), *results.items())
            if inner not in held
        }
        self._calls.append(KernelCall(kernel, {inner: held.get(inner) or addresses[inner] for inner in forms}))

    def _macs(self, node: ir.Node) -> int:
        try:
            return work_of(node, self._shapes).macs
        except NotApplicable:
            return 0

    def _own_kernel(self, name: str, node: ir.Node) -> None:
        """Call the user's function for a node, with a workspace after those of the meta-ops around it."""
        kernel_call, facts = self._own[node]
        assert self._shared.own is not None
        names: dict[ir.Value, str] = {}
        addresses, tensors = dict[str, ByteAddress](), list[tuple[str, TensorForm]]()
        for index, value in enumerate((*node.inputs, *node.outputs)):
            if value is None or not value.name or value in names:
                continue
            names[value] = f"i{len(names)}" if index < len(node.inputs) else f"o{index - len(node.inputs)}"
            tensor, order = self._addresses.tensor(value), kernel_call.axes.get(index)
            if order is not None and index < len(node.inputs):
                if value not in self._constants or len(order) != len(tensor.sizes):
                    raise UsageError(f"the axes of inputs[{index}] of {name!r} are not those of a constant")
                tensor = replace(tensor, sizes=tuple(tensor.sizes[axis] for axis in order))
                addresses[names[value]] = self._shared.memory.constant(
                    self._constants.array(value).transpose(order), tensor
                )
            else:
                addresses[names[value]] = self._addresses.address_of(value)
            tensors.append((names[value], tensor))
        size = kernel_call.workspace.bytes(node, self._shapes)
        if size:
            at = align(self._addresses.end, self._plan.alignment)
            addresses[WORKING] = ByteAddress(WORKSPACE, 0, at)
            self._shared.memory.workspace = max(self._shared.memory.workspace, at + size)
        call = own_call(kernel_call, self._shared.own.include, node, facts, names)
        used = {argument for argument in call.arguments if isinstance(argument, str)}
        if WORKING in used and not size:
            raise UsageError(
                f"the call of {kernel_call.function!r} has a workspace of no bytes", hint='add workspace = "..."'
            )
        kernel = DistinctKernel(b"", tuple(tensors), (), (), name, node.op_type, call)
        self._calls.append(
            KernelCall(kernel, {operand: address for operand, address in addresses.items() if operand in used})
        )

    def _is_fixed(self, node: ir.Node, value: ir.Value) -> bool:
        """Return whether the numbers of an operand decide what the kernel is: sizes, axes, bounds, scales of a Resize."""
        row = operator_of(node)
        if (
            row is None
            or value not in self._constants
            or np.prod(self._addresses.tensor(value).sizes, dtype=np.int64) > _MOST_FIXED
        ):
            return False
        addresses = (index for index, operand in enumerate(node.inputs) if operand is value)
        return any(index in row.shaped_by or index in row.set_by for index in addresses)

    def _fixed_array(self, value: ir.Value) -> Array:
        """Return the numbers of a constant that says what is computed: a Slice up to 2^63 - 1 is one up to the end, which is 32 bits."""
        array = self._constants.array(value)
        return array.clip(-_MOST_SIZE, _MOST_SIZE) if array.dtype == np.int64 else array

    def _serialised(self, value: ir.Value) -> bytes:
        tensor = self._addresses.tensor(value)
        array = np.ascontiguousarray(self._fixed_array(value))
        proto = helper.make_tensor("", tensor.dtype, tensor.sizes, array.tobytes(), raw=True)
        data: bytes = proto.SerializeToString(deterministic=True)
        return data


# The turns of a Loop or Scan: what it carries from one to the next, the rows that each reads and makes, and the calls for both.


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
        rows = tuple(map(Row, node.outputs[len(carried) :], outputs[len(carried) :]))
        return Turns(graph, carried, (), rows, most, first, number, go, again)
    states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    given = [value for value in node.inputs if value is not None]
    carried = tuple(map(Carried, given[:states], graph.inputs, graph.outputs, node.outputs))
    read = _rows(node, "input", given[states:], graph.inputs[states:])
    return Turns(graph, carried, read, _rows(node, "output", node.outputs[states:], graph.outputs[states:]))


def _rows(node: ir.Node, kind: str, wholes: Sequence[ir.Value], rows: Sequence[ir.Value]) -> tuple[Row, ...]:
    axes, directions = (
        node.attributes.get_ints(f"scan_{kind}_{what}", [0] * len(wholes)) for what in ("axes", "directions")
    )
    addresses = zip(wholes, rows, axes, directions, strict=True)
    return tuple(
        Row(whole, row, axis if axis >= 0 else axis + len(row.shape or ()) + 1, bool(back))
        for whole, row, axis, back in addresses
        if whole.name
    )


class TurnCalls:
    """The calls around the body of a Loop or Scan. What it carries has one address in all turns; rows are copied in and out."""

    def __init__(self, turns: Turns, values: ValueAddresses) -> None:
        self._turns, self._values = turns, values
        self._sizes = [values.tensor(value.before).bytes for value in turns.carried]
        self._carried = [
            values.get(value.before) or values.cell(size)
            for value, size in zip(turns.carried, self._sizes, strict=True)
        ]
        for value, address in zip(turns.carried, self._carried, strict=True):
            values[value.before] = address
        self._always = values.memory.constant(np.asarray(1, np.uint8), TensorForm(onnx.TensorProto.UINT8, ()))
        self._most = None if turns.most is None and not turns.read else values.cell(8)
        self._goes_on = values.cell(1)
        self._number = values.cell(8) if turns.read or turns.made else values.get(turns.number)

    def before(self) -> Iterator[CopyCall | HelperCall]:
        """Yield the calls before the first turn: the number of turns, whether there is one, and what is carried into it."""
        turns, values = self._turns, self._values
        if self._most is not None and turns.most is not None:
            yield CopyCall(self._most, values.address_of(turns.most), 8)
        elif self._most is not None:
            first = turns.read[0]
            yield HelperCall("number", (self._most,), (values.tensor(first.whole).sizes[first.axis],))
        yield CopyCall(self._goes_on, self._always if turns.first is None else values.address_of(turns.first), 1)
        starts = (values.address_of(value.operand) for value in turns.carried)
        yield from values.copied_at_once(map(CopyCall, self._carried, starts, self._sizes))

    def begin(self) -> Iterator[CopyCall | HelperCall]:
        """Yield the calls at the start of a turn: its number, that there is one, and the rows that it reads."""
        number, go = (self._values.get(value) for value in (self._turns.number, self._turns.go))
        if number is not None and self._number is not None and number != self._number:
            yield CopyCall(number, self._number, 8)
        if go is not None:
            yield CopyCall(go, self._always, 1)
        yield from (self._row_call(row, is_made=False) for row in self._turns.read)

    def end(self) -> Iterator[CopyCall | HelperCall]:
        """Yield the calls at the end of a turn: the rows that it made, what is carried on, and whether there is a further turn."""
        turns, values = self._turns, self._values
        yield from (self._row_call(row, is_made=True) for row in turns.made)
        moved = [
            *map(CopyCall, self._carried, (values.address_of(value.after) for value in turns.carried), self._sizes)
        ]
        moved += [] if turns.again is None else [CopyCall(self._goes_on, values.address_of(turns.again), 1)]
        yield from values.copied_at_once(moved)

    def repeated(self, turn: Sequence[ProgramCall]) -> RepeatedCalls[ByteAddress, ProgramCall]:
        """Return the calls of a `turn`, repeated."""
        return RepeatedCalls(self._most, self._goes_on, self._number, tuple(turn))

    def after(self) -> Iterator[CopyCall]:
        """Yield the copies after the last turn: what was carried out of it."""
        copies = (
            CopyCall(self._values[value.result], address, size)
            for value, address, size in zip(self._turns.carried, self._carried, self._sizes, strict=True)
            if value.result is not None and value.result.name
        )
        return self._values.copied_at_once(copies)

    def _row_call(self, row: Row, *, is_made: bool) -> HelperCall:
        """Return the copy of the row of a whole, which is runs of bytes in this, to or from an address of its own."""
        whole = self._values.tensor(row.whole)
        if whole.strides:
            raise UsageError(
                f"no C is written for {row.whole.name!r}: a Loop or Scan has rows of it, and it is a growing state"
            )
        assert self._number is not None
        length, runs = whole.sizes[row.axis], prod(whole.sizes[: row.axis])
        size = prod(whole.sizes[row.axis + 1 :]) * whole.element
        addresses = (self._row_place(row.row), self._values.address_of(row.whole), self._number)
        return HelperCall("row", addresses, (runs, length, size, int(row.is_backwards), int(is_made)))

    def _row_place(self, row: ir.Value) -> ByteAddress:
        if row not in self._values and row not in self._values.constants:
            self._values[row] = self._values.cell(self._values.tensor(row).bytes)  # no node reads it
        return self._values.address_of(row)
