"""Each node as a model of its own, loaded into onnxruntime once for all equal nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import onnx
import onnx_ir as ir

from onnxtile.arena.memory import VECTOR, ArenaMemory, StateRows, TensorMemory, equal_bytes, same
from onnxtile.declare.plan_document import PlannedState
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.kernel_graph import ByteSpan, KernelGraph
from onnxtile.model.session import AnySession
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.topology import dependencies, has_body, plain_attributes
from onnxtile.operators.node_view import Dims
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.runtime import Session


@dataclass(frozen=True, slots=True)
class Kernel:
    """A node prepared to run: its session, and the names of its inputs and outputs there, each with its value.

    `kind` is equal for nodes of one session whose operands have the same sizes. With `is_fixed`, no run decides the size of an output.
    `reads` are the values that the node reads.
    """

    session: Session
    kind: Hashable
    inputs: tuple[tuple[str, ir.Value], ...]
    outputs: tuple[tuple[str, ir.Value], ...]
    is_fixed: bool
    reads: tuple[ir.Value, ...]


class Kernels:
    """Makes a Kernel of each node of a model. Nodes that differ in the sizes of their operands alone share a session."""

    def __init__(self, facts: LayoutFacts) -> None:
        self._submodels = Submodels(facts.model)
        self._shapes = facts.shapes
        self.containers = facts.containers
        self._functions = facts.model.functions
        self._sessions: dict[bytes, Session] = {}
        self._known: dict[Hashable, Session] = {}
        self._kinds: set[Hashable] = set()

    @property
    def kinds(self) -> int:
        """The number of different kernels so far."""
        return len(self._kinds)

    def kernel_of(self, node: ir.Node) -> Kernel:
        """Return `node` prepared to run; its inputs include captured values. Raises ModelError where onnxruntime refuses it."""
        inputs = list(dict.fromkeys(dependencies(node)))
        outputs = [value for value in node.outputs if value.name]
        names = self._names(node, inputs, outputs)
        try:
            session = self._session(node, inputs, outputs, names, self._ranks)
            if contradicts(session, {names[value]: value for value in outputs}, self._shapes):
                session = self._session(node, inputs, outputs, names, self._sizes)
        except ModelError:  # some operators need sizes
            session = self._session(node, inputs, outputs, names, self._sizes)
        kind = (session, *map(self._sizes, inputs))
        self._kinds.add(kind)
        return Kernel(
            session,
            kind,
            tuple((names[value], value) for value in inputs),
            tuple((names[value], value) for value in outputs),
            not self._shapes.has_bound(outputs),
            tuple(inputs),
        )

    def _session(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        names: Mapping[ir.Value, str],
        dims: Callable[[ir.Value], Dims | None],
    ) -> Session:
        """Return the session of all nodes whose models are equal to that of `node`, with inputs of `dims`."""
        signature = self._signature(node, inputs, names, dims)
        session = self._known.get(signature)
        if session is None:
            types = {value: self._type(value, dims(value)) for value in inputs}
            proto = self._submodels.model_of([node], types, outputs, names=names)
            key = proto.SerializeToString(deterministic=True)
            session = self._sessions.get(key) or self._submodels.session(proto)
            self._sessions[key] = session
        if signature is not None:
            self._known[signature] = session
        return session

    def _signature(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value],
        names: Mapping[ir.Value, str],
        dims: Callable[[ir.Value], Dims | None],
    ) -> Hashable | None:
        """Return a key that only nodes with equal models have; None where making that model tells sooner.

        The model of a node takes several times as long to make.
        """
        is_called = node.op_identifier() in self._functions
        if is_called or any(value in self.containers for value in inputs):
            return None
        attributes = plain_attributes(node)
        if attributes is None:
            return None
        read = tuple("" if value is None else names[value] for value in node.inputs)
        results = tuple(names.get(value, "") for value in node.outputs)
        types = tuple((self._shapes.dtype(value), dims(value)) for value in inputs)
        return node.op_identifier(), node.graph, attributes, read, results, types

    def _names(self, node: ir.Node, inputs: list[ir.Value], outputs: list[ir.Value]) -> dict[ir.Value, str]:
        # Bodies refer to outer values by name; without them the names are free, and equal nodes become equal bytes.
        if has_body(node):
            return {value: value.name or "" for value in (*inputs, *outputs)}
        names = {value: f"i{index}" for index, value in enumerate(inputs)}
        return names | {value: f"o{index}" for index, value in enumerate(outputs)}

    def _type(self, value: ir.Value, dims: Dims | None) -> onnx.TypeProto:
        if value in self.containers:
            return ir.serde.serialize_type(self.containers[value])
        return tensor_type(self._shapes.dtype(value), dims)

    def _ranks(self, value: ir.Value) -> Dims | None:
        """Return the dimensions of `value`, all of them open."""
        dims = self._shapes.dims(value)
        return None if dims is None else (None,) * len(dims)

    def _sizes(self, value: ir.Value) -> Dims | None:
        return self._ranks(value) if self._shapes.is_bound(value) else self._shapes.dims(value)


def contradicts(session: AnySession, outputs: dict[str, ir.Value], shapes: Shapes) -> bool:
    """Return whether onnxruntime infers a size for one of `outputs` (by name) that is not the known one: it takes no other in place.

    Of GroupQueryAttention it infers the length of the past for the present keys, however long a run makes them; of Attention with a
    bias of open length, a result without columns.
    """
    for result in session.results:
        sizes = shapes.sizes(outputs[result.name]) if result.name in outputs else None
        if sizes is not None and any(isinstance(a, int) and a != b for a, b in zip(result.shape, sizes, strict=False)):
            return True
    return False


# Nodes that are prepared to run in the arena and outside of it, and the values of both runs.

ValueTable: TypeAlias = dict[ir.Value, Any]
"""The TensorMemory of each value; a Python value where it has no fixed bytes."""


@dataclass(frozen=True)
class Corruption:
    """A tensor whose bytes differ from the reference run.

    `step` is the step of the node that reads it, or that has just written it; None after the last one.
    """

    name: str
    step: int | None


@dataclass(frozen=True)
class PairedValues:
    """The values of both runs: in the `arena`, and of the `reference` run."""

    arena: ValueTable
    reference: ValueTable

    def agree(self, value: ir.Value, spans: Sequence[ByteSpan] | None = None) -> bool:
        """Return whether `value`, or its bytes `spans`, are the same bits in both runs; one that is not made yet has none."""
        if value not in self.reference:
            return False
        actual, expected = self.arena[value], self.reference[value]
        if actual is expected:
            return True
        if spans is None or not (isinstance(actual, TensorMemory) and isinstance(expected, TensorMemory)):
            return same(actual, expected)
        return all(equal_bytes(actual.data[start:end], expected.data[start:end]) for start, end in spans)


class Controlled(Protocol):
    """A node whose bodies are run node by node."""

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values of the graph around it that the node and its bodies read."""
        ...

    def run(self, paired: PairedValues) -> Corruption | None:
        """Run once; return the first corruption in a body."""
        ...


NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""What most nodes have of a mapping, once for all of them."""


@dataclass(frozen=True, slots=True)
class PreparedNode:
    """A node as it runs in the arena. In the reference run its `kernel` runs, which proves the rest.

    It does not run where each result is an operand with another shape, or a part of it: `shown` has these, with the first byte. A node
    that moves bytes copies all but those in place: `there` has their ranges, from start to end, by output. A node that `draws` random
    numbers runs in the reference run alone, and its results are copied into the arena. `spans` are the bytes that it reads, of operands of
    which it reads only some.
    """

    kernel: Kernel
    shown: Mapping[ir.Value, tuple[ir.Value, int]] = field(default_factory=lambda: NOTHING)
    there: Mapping[ir.Value, tuple[tuple[int, int], ...]] | None = None
    draws: bool = False
    spans: Mapping[ir.Value, Sequence[ByteSpan]] = field(default_factory=lambda: NOTHING)

    @property
    def is_plain(self) -> bool:
        """Whether its kernel runs in the arena, and makes all bytes of its results."""
        return not self.shown and self.there is None and not self.draws

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it reads."""
        return self.kernel.reads

    def is_needless(self, sites: Mapping[ir.Value, TensorMemory]) -> bool:
        """Return whether every byte is in place."""
        if self.there is None:
            return bool(self.shown)
        return all(
            not missing_ranges(self.there.get(v, ()), len(sites[v].data)) for _, v in self.kernel.outputs if v in sites
        )


def missing_ranges(there: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the ranges of `size` bytes that are not in `there`."""
    missing, at = [], 0
    for start, end in (*sorted(there), (size, size)):
        if at < start:
            missing.append((at, start))
        at = max(at, end)
    return missing


# Further runs of one kernel that shares bytes: on other values of the operands that are in the arena.
#
# A kernel that reads and writes different bytes needs one run: every tensor is compared when it is written, and whenever it is read.

FURTHER_RUNS = 2
"""The further runs of a kernel that shares bytes."""


def shares_bytes(kernel: Kernel, sites: Mapping[ir.Value, TensorMemory]) -> bool:
    """Return whether an output of `kernel` has bytes of one of its operands."""
    results = [sites[value] for _, value in kernel.outputs if value in sites]
    read = [sites[value] for value in kernel.reads if value in sites]
    return any(_overlap(result, operand) for result in results for operand in read)


def placement(
    kernel: Kernel, sites: Mapping[ir.Value, TensorMemory], values: Mapping[ir.Value, TensorMemory]
) -> Hashable:
    """Return the same key for kernels of one kind whose operands and results have the same distances in the arena.

    One of them on other values stands for all. An operand that keeps its values, such as indices, is in the key itself.
    """
    addresses = [sites[value].address if value in sites else None for value in kernel.reads]
    addresses += [sites[value].address if value in sites else None for _, value in kernel.outputs]
    base = min(address for address in addresses if address is not None)
    kept = tuple(value for value in kernel.reads if not _is_movable(values[value]))
    return (
        kernel.kind,
        base % VECTOR,
        tuple(None if address is None else address - base for address in addresses),
        kept,
    )


def other_values(
    kernel: Kernel, sites: Mapping[ir.Value, TensorMemory], values: Mapping[ir.Value, TensorMemory]
) -> Iterator[dict[ir.Value, TensorMemory]]:
    """Yield the operands of `kernel` with their elements moved around, once for each further run.

    Only operands in the arena change, and no integers of more than 8 bits: these may be indices or sizes. Nothing is yielded where
    two such operands share bytes.
    """
    moved = [value for value in dict.fromkeys(kernel.reads) if value in sites and _is_movable(values[value])]
    if _share_bytes([sites[value] for value in moved]):
        return
    for turn in range(1, FURTHER_RUNS + 1 if moved else 1):
        yield {value: _moved(values[value], turn) for value in moved}


def _is_movable(tensor: object) -> bool:
    if not isinstance(tensor, TensorMemory):
        return False
    bits = tensor.dtype.bitwidth
    return len(tensor.data) > 1 and (bits == 8 or (bits > 8 and tensor.dtype.is_floating_point()))


def _moved(tensor: TensorMemory, turn: int) -> TensorMemory:
    """Return a copy of `tensor` in which all elements come a number of places later, the last ones first."""
    element, size = tensor.dtype.bitwidth // 8, len(tensor.data)
    start = (turn * (size // element // 3) + 1) * element % size
    copy = TensorMemory.empty(tensor.dtype, tensor.shape, size, tensor.address)
    copy.data[start:], copy.data[:start] = tensor.data[: size - start], tensor.data[size - start :]
    return copy


def _share_bytes(tensors: Iterable[TensorMemory]) -> bool:
    """Return whether two of `tensors`, which all have bytes, share one: then two do whose first bytes are neighbours."""
    ranges = sorted((tensor.address, tensor.address + len(tensor.data)) for tensor in tensors)
    return any(start < end for (_, end), (start, _) in pairwise(ranges))


def _overlap(a: TensorMemory, b: TensorMemory) -> bool:
    return a.address < b.address + len(b.data) and b.address < a.address + len(a.data)


# The tensors of states that grow in a run: rows in the arena, at the distance that they have at the largest length.
#
# onnxruntime reads and writes contiguous tensors only. So each has a contiguous copy outside the arena, which is read from the arena before
# every use. Of a result, only the elements that are new go back: those of the operand must be in place.

_APPENDS = frozenset({"Attention", "Concat", "MultiHeadAttention"})
"""Operators whose result begins with all elements of the operand, unchanged."""


@dataclass(frozen=True)
class GrowingStates:
    """The rows of each tensor of a growing state, and the operand, if any, that each result begins with."""

    rows: Mapping[ir.Value, StateRows] = field(default_factory=dict)
    begun: Mapping[ir.Value, ir.Value] = field(default_factory=dict)

    @classmethod
    def from_states(
        cls,
        graph: KernelGraph,
        states: Iterable[PlannedState],
        sites: Mapping[ir.Value, TensorMemory],
        blocks: Mapping[str, ArenaMemory],
        shapes: Shapes,
    ) -> GrowingStates:
        """Return those of `states` of `graph`, whose values have `sites` in the arenas `blocks`."""
        inputs, outputs = ({graph.tensors[n].name: n for n in ends} for ends in (graph.inputs, graph.outputs))
        rows: dict[ir.Value, StateRows] = {}
        for state in states:
            before, after = inputs[state.input], graph.root(outputs[state.output])
            state_rows = rows_of_state(state, blocks, graph.tensors[before].dims or ())
            if state_rows is not None:
                tensors = _tensors((before, after), len(state_rows.data), graph, sites, shapes)
                rows.update(dict.fromkeys(tensors, state_rows))
        begun = {value: operand for value in rows for operand in _begun(value, rows)}
        return cls(rows, begun)

    def read(self, values: Iterable[ir.Value], paired: PairedValues) -> None:
        """Read those of `values` that are such tensors from the arena."""
        for value in values if self.rows else ():
            if value in self.rows:
                self.rows[value].read(paired.arena[value])

    def write(self, values: Iterable[ir.Value], arena: ValueTable) -> None:
        """Write the new elements of those of `values` that are such tensors into the arena, and read all again."""
        for value in values if self.rows else ():
            if value in self.rows:
                rows, operand = self.rows[value], self.begun.get(value)
                rows.write(arena[value], 0 if operand is None else len(arena[operand].data) // rows.rows)
                rows.read(arena[value])


def rows_of_state(state: PlannedState, blocks: Mapping[str, ArenaMemory], shape: tuple[int, ...]) -> StateRows | None:
    """Return the rows of `state`, whose input has `shape`; None where it is one row, or has one shape."""
    if state.strides is None or not state.axis or math.prod(shape[: state.axis]) < 2:
        return None
    data = blocks[state.arena or ""].part(state.offset or 0, state.size or 0)
    pitch = state.strides[state.axis - 1]
    return None if data is None or not pitch else StateRows(data, len(data) // pitch, pitch)


def _tensors(
    ends: Iterable[int], size: int, graph: KernelGraph, sites: Mapping[ir.Value, TensorMemory], shapes: Shapes
) -> Iterator[ir.Value]:
    """Yield both `ends` of a state of `size` bytes, and the views of those that are shorter."""
    todo = [number for number in ends if (site := sites.get(graph.tensors[number].value)) and len(site.data)]
    while todo:
        number = todo.pop()
        value = graph.tensors[number].value
        yield value
        if len(sites[value].data) == size and not shapes.is_bound(value):
            continue
        shown = ((n, graph.tensors[n].value) for n, operand in graph.views.items() if operand == number)
        todo += (n for n, view in shown if view in sites and sites[view].address == sites[value].address)


def _begun(value: ir.Value, rows: Mapping[ir.Value, StateRows]) -> Iterator[ir.Value]:
    maker = value.producer()
    if maker is not None and maker.op_type in _APPENDS:
        yield from (operand for operand in dependencies(maker) if rows.get(operand) is rows[value])


def is_appended(
    node: ir.Node, reads: Iterable[ir.Value], sites: Mapping[ir.Value, TensorMemory], shapes: Shapes
) -> bool:
    """Return whether a result of `node`, which `reads` values, begins at the address of a shorter one.

    That is a state that grows, or a value that its bodies read. Kernels of onnxruntime do not append to their operand. Such a node runs
    beside the arena, and its result is put there.
    """
    results = [sites[value] for value in node.outputs if value in sites and not shapes.is_bound(value)]
    read = [sites[value] for value in reads if value in sites]
    together = [
        (result, operand)
        for result in results
        for operand in read
        if result.address == operand.address and len(operand.data)
    ]
    return any(len(result.data) > len(operand.data) for result, operand in together) or (
        bool(together) and has_body(node)
    )


def begun_in_place(
    node: ir.Node, sites: Mapping[ir.Value, TensorMemory]
) -> dict[ir.Value, tuple[tuple[int, int], ...]]:
    """Return the bytes, by result of `node`, that are in place because the node appends to the operand there, which is one row."""
    if node.op_type not in _APPENDS:
        return {}
    sites_of = {value: sites[value] for value in node.outputs if value in sites}
    read = [sites[value] for value in dict.fromkeys(dependencies(node)) if value in sites]
    sizes = (
        (value, len(operand.data))
        for value, site in sites_of.items()
        for operand in read
        if operand.address == site.address
    )
    return {value: ((0, size),) for value, size in sizes if size < len(sites_of[value].data)}
