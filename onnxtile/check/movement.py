"""The check of the copies between memories: each operand of a kernel is in the fast memory, and each copy is what the plan says.

That the bytes are there when they are read follows from the check of all rows, in which a copy is a node that reads one tensor and makes
another. Here the memories are compared, the list of copies, the steps between which each may run, the times, and the sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.check.addresses import Holder, Placing
from onnxtile.check.graph import GraphFacts, RunOrder, graphs_of, names_of, reads
from onnxtile.check.operators import FACTORS, STANDARD, WITHOUT_PRODUCTS
from onnxtile.declare.plan_document import (
    UNSAID,
    Arena,
    MemoryCopy,
    PlanDocument,
    PlanFailure,
    PlannedBuffer,
    TransferTime,
)
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.functions import inline_calls
from onnxtile.model.topology import bodies_of
from onnxtile.shapes.resolve import Shapes, resolve

# The multiply-accumulates of nodes, counted from the tables of this check.

_CALLED = "onnxtile.called"
"""On a node of a copy of the model: the number of the node of the graph that it is of. It is never saved."""


def macs_of(known: GraphFacts) -> dict[ir.Node, int | None]:
    """Return the multiply-accumulates of each node of the main graph; None where they are not known.

    Calls of functions are counted in a copy of the model, in which they are written out.
    """
    nodes = list(known.model.graph)
    found = {node: _macs(node, known.shapes, known.constants) for node in nodes}
    calls = [number for number, node in enumerate(nodes) if node.op_identifier() in known.model.functions]
    if not calls:
        return found
    copied = known.model.clone()
    for number, node in enumerate(copied.graph):
        node.metadata_props[_CALLED] = str(number)
    try:
        inline_calls(copied)
    except (ValueError, ir.passes.PassError):
        return {**found, **{nodes[number]: None for number in calls}}
    shapes, constants = resolve(copied), Constants(copied)
    inside: dict[int, list[int | None]] = {number: [] for number in calls}
    for node in copied.graph:
        number = int(node.metadata_props[_CALLED])
        if number in inside:
            inside[number].append(_macs(node, shapes, constants))
    return {**found, **{nodes[number]: _sum(counts) for number, counts in inside.items()}}


def _sum(counts: Collection[int | None]) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


def _macs(node: ir.Node, shapes: Shapes, constants: Constants) -> int | None:
    """Return the multiply-accumulates of `node`; those of its bodies only where there are none."""
    bodies = [body for _, body in graphs_of(node)]
    if bodies:
        inner = [_macs(one, shapes, constants) for body in bodies for one in body]
        return None if any(count != 0 for count in inner) else 0
    name = node.op_type if node.domain in STANDARD else f"{node.domain}::{node.op_type}"
    if name in WITHOUT_PRODUCTS or all(value in constants for value in node.outputs):
        return 0
    if name not in FACTORS or max(FACTORS[name]) >= len(node.inputs):
        return None
    values = (*(node.inputs[place] for place in FACTORS[name]), node.outputs[0])
    left, right, result = (None if value is None else shapes.sizes(value) for value in values)
    if not left or not right or result is None:
        return None
    if "Conv" in name:
        # Weights are (out, in / groups, kernel ...), of a ConvTranspose (in, out / groups, kernel ...).
        is_transposed = node.op_type == "ConvTranspose"
        channels = right[0] if is_transposed else right[1] * node.attributes.get_int("group", 1)
        return None if left[1] != channels else math.prod(left if is_transposed else result) * math.prod(right[1:])
    is_turned = node.attributes.get_int("transA", 0) and len(left) > 1
    return math.prod(result) * (left[-2] if is_turned else left[-1])


# Puts the copies that a published plan claims into the model, so that its schedule can be checked there.
#
# Only the claims say where the copies are: the nodes in their order, and the names that each node reads and makes. Every operand must be
# the model's own, or follow from it through copies.

_CAST_TO_COPY = {ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4}
"""Element types of which onnxruntime has no Identity."""


def with_claimed_copies(model: ir.Model, claims: PlanDocument, shapes: Shapes) -> Shapes | PlanFailure:
    """Put the copies of `claims` into `model` (in place), of which `shapes` are known; return the shapes of all its values.

    Returns a failure where the claims do not describe a run of this model with copies; `model` is then used up.
    """
    try:
        return _Copying(model, claims, shapes).run()
    except _NoRunError as error:
        return PlanFailure(str(error))


class _NoRunError(Exception):
    """The claims do not describe a run of the model, for the reason in the message."""


def _refused(reason: str) -> _NoRunError:
    return _NoRunError(reason)


class _Copying:
    def __init__(self, model: ir.Model, claims: PlanDocument, shapes: Shapes) -> None:
        if claims.movement is None or claims.operands is None or claims.results is None:
            raise _refused("a plan with copies needs movement, operands and results")
        self._model, self._claims, self._shapes = model, claims, shapes
        self._copies = {copy.node: copy for copy in claims.movement.copies or ()}
        graph = model.graph
        made = (value for node in graph for value in node.outputs if value.name)
        self._values = {value.name or "": value for value in (*graph.initializers.values(), *graph.inputs, *made)}
        self._root: dict[ir.Value, ir.Value] = {}
        self._outputs = {id(value): value.name or "" for value in graph.outputs}

    def run(self) -> Shapes:
        graph, claims = self._model.graph, self._claims
        assert claims.operands is not None and claims.results is not None
        self._rename_outputs()
        # A node without a name has that of its first output.
        named: dict[str, list[ir.Node]] = {}
        for node, name in names_of(graph).items():
            named.setdefault(name, []).append(node)
        nodes = []
        if not len(claims.schedule) == len(claims.operands) == len(claims.results):
            raise _refused("operands and results are not those of the schedule")
        for name, operands, results in zip(claims.schedule, claims.operands, claims.results, strict=True):
            if name in self._copies and not named.get(name):
                nodes.append(self._copy(name, operands, results))
                continue
            if not named.get(name):
                raise _refused(f"the schedule has {name!r}, which the graph does not have")
            node = named[name].pop(0)
            self._connect(node, name, operands)
            nodes.append(self._copied_part(node) if name in self._copies else node)
        if any(named.values()):
            left = next(name for name, nodes in named.items() if nodes)
            raise _refused(f"the schedule lacks {left!r}")
        self._hand_out()
        graph.remove(list(graph))
        graph.extend(nodes)
        self._add_function("Copy", "Identity", 1)
        of_roots: dict[ir.Value, list[ir.Value]] = {}
        for copy, root in self._root.items():
            of_roots.setdefault(root, []).append(copy)
        return self._shapes.with_those_of(self._shapes.of_copies(of_roots))

    def _rename_outputs(self) -> None:
        """Give each output of a kernel that the plan copies out the name that the plan has for the kernel's own result."""
        sources = {copy.result: copy.source for copy in self._copies.values()}
        for name in self._outputs.values():
            value, chain = self._values[name], name
            if value.producer() is None or name not in sources:
                continue
            chain = sources[name]
            if chain in self._values:
                raise _refused(f"the output {name!r} is said to be a copy of {chain!r}, another tensor")
            del self._values[name]
            value.name = chain
            self._values[chain] = value

    def _copy(self, name: str, operands: Sequence[str], results: Sequence[str]) -> ir.Node:
        copy = self._copies[name]
        if (tuple(operands), tuple(results)) != ((copy.source,), (copy.result,)) or copy.result in self._values:
            raise _refused(f"the copy {name!r} is listed otherwise than in the schedule, or makes a tensor twice")
        source = self._values.get(copy.source)
        if source is None:
            raise _refused(f"the copy {name!r} reads {copy.source!r}, which is not there")
        root = self._root.get(source, source)
        made = ir.Value(name=copy.result, shape=root.shape, type=root.type)
        self._values[copy.result] = made
        self._root[made] = root
        of_few_bits = self._shapes.dtype(root) in _CAST_TO_COPY
        if of_few_bits:
            self._add_function("CopyBits", "CastLike", 1)
        return ir.Node(keys.DOMAIN, "CopyBits" if of_few_bits else "Copy", [source], outputs=[made], name=name)

    def _copied_part(self, node: ir.Node) -> ir.Node:
        """Return the copy of a part that the Slice `node` is."""
        if node.op_type != "Slice" or node.domain not in {"", "ai.onnx"} or node.attributes or len(node.outputs) != 1:
            raise _refused(f"{node.name or node.op_type!r} is said to be a copy, and is a kernel")
        operands, result = list(node.inputs), node.outputs[0]
        made = ir.Value(name=result.name, shape=result.shape, type=result.type)
        name = f"CopySlice.{len(operands)}"
        self._add_function(name, "Slice", len(operands))
        call = ir.Node(keys.DOMAIN, name, operands, outputs=[made], name=node.name)
        for number in range(len(operands)):
            node.replace_input_with(number, None)
        for reader, number in list(result.uses()):
            reader.replace_input_with(number, made)
        self._values[made.name or ""] = made
        self._root[made] = result
        return call

    def _connect(self, node: ir.Node, name: str, operands: Sequence[str]) -> None:
        """Let `node` read the values called `operands`, which must be copies of its own, and its bodies the latest copies."""
        if len(operands) != len(node.inputs):
            raise _refused(f"the operands of {name!r} are not those of the graph")
        for number, (value, operand) in enumerate(zip(node.inputs, operands, strict=True)):
            found = self._values.get(operand)
            if value is None or found is value:
                continue
            if found is None or self._whole(found) is not self._whole(value):
                raise _refused(f"{name!r} reads {operand!r}, which is not a copy of its operand {value.name!r}")
            node.replace_input_with(number, found)
        captured = [value for value in reads(node) if value not in node.inputs]
        latest = {root: copy for copy, root in self._root.items() if self._is_fast(copy)}
        if captured:
            self._capture(node, {value: latest[value] for value in captured if value in latest})

    def _whole(self, value: ir.Value) -> ir.Value:
        """Return the value of the model with the bytes of `value`."""
        root = self._root.get(value, value)
        return self._root.get(root, root)

    def _is_fast(self, value: ir.Value) -> bool:
        assert self._claims.movement is not None
        name = value.name
        return any(copy.result == name and copy.memory == self._claims.movement.fast for copy in self._copies.values())

    def _capture(self, node: ir.Node, copies: Mapping[ir.Value, ir.Value]) -> None:
        for inner in _inside(node):
            for number, value in enumerate(inner.inputs):
                if value is not None and value in copies:
                    inner.replace_input_with(number, copies[value])
        for body in (body for one in (node, *_inside(node)) for body in bodies_of(one)):
            for number, value in enumerate(body.graph.outputs):
                if value in copies:
                    body.graph.outputs[number] = copies[value]

    def _hand_out(self) -> None:
        """Let the outputs of the graph be the values with their names."""
        outputs = self._model.graph.outputs
        for number, value in enumerate(list(outputs)):
            found = self._values.get(self._outputs[id(value)])
            if found is None or (found is not value and self._root.get(found) is not value):
                raise _refused(f"the output {self._outputs[id(value)]!r} is not made")
            outputs[number] = found

    def _add_function(self, name: str, operator: str, count: int) -> None:
        is_cast = operator == "CastLike"
        imports = self._model.graph.opset_imports
        imports.setdefault(keys.DOMAIN, 1)
        operands, result = [ir.Value(name=f"operand{number}") for number in range(count)], ir.Value(name="result")
        body = ir.Graph(
            operands,
            [result],
            nodes=[ir.Node("", operator, operands * 2 if is_cast else operands, outputs=[result])],
            name=name,
            opset_imports={"": imports.get("", imports.get("ai.onnx", 1))},
        )
        function = ir.Function(keys.DOMAIN, name, graph=body, attributes=())
        function.metadata_props[keys.COPY] = "Identity" if is_cast else operator
        self._model.functions[function.identifier()] = function


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    return (inner for body in bodies_of(node) for inner in body.graph.all_nodes())


# When the copies of a published plan may run, and when they do, derived from its rows alone.
#
# The bytes of each arena are cut where a row begins or ends. A walk over the schedule keeps for each piece who touched it last.


class Allowed(NamedTuple):
    """The steps between which a copy may run: see planning.movement.copies.MemoryCopy."""

    target_free: int
    source_ready: int
    source_until: int | None


class Clocked(NamedTuple):
    """The seconds at which the nodes of a schedule start and end."""

    starts: list[float]
    ends: list[float]


class _Touch(NamedTuple):
    pieces: slice
    is_write: bool


@dataclass(frozen=True)
class Transfers:
    """The run of the nodes of a graph, of which `copies` copy between memories, at the addresses of `placing`."""

    placing: Placing
    copies: Collection[ir.Node]

    @property
    def line(self) -> RunOrder:
        """The order of the nodes."""
        return self.placing.line

    @cached_property
    def allowed(self) -> dict[ir.Node, Allowed]:
        """When each copy may run. Copies run in their order, so that only kernels are in their way."""
        following = self._writes_after()
        touched, written = self._never(), self._never()
        found = {}
        for number, node in enumerate(self.line.nodes):
            step = self.line.steps[number]
            if node in self.copies:
                free = max((int(touched[t.pieces].max()) for t in self._touches[number] if t.is_write), default=-1)
                ready = max((int(written[t.pieces].max()) for t in self._touches[number] if not t.is_write), default=-1)
                found[node] = Allowed(free + 1, max(ready, self._made(node)) + 1, following[number])
                continue
            for touch in self._touches[number]:
                touched[touch.pieces] = step
                if touch.is_write:
                    written[touch.pieces] = step
        return found

    def clocked(self, seconds: Sequence[float]) -> Clocked:
        """Return when each node starts and ends that takes so many `seconds`: kernels in turn, and copies in turn beside them.

        Each waits for what wrote the bytes that it reads, and for all that touched the bytes that it writes.
        """
        used, made = self._never(float), self._never(float)
        turns = {True: 0.0, False: 0.0}
        found = Clocked([], [])
        for number, node in enumerate(self.line.nodes):
            start = turns[node in self.copies]
            for touch in self._touches[number]:
                last = (used if touch.is_write else made)[touch.pieces].max()
                start = max(start, float(last))
            end = turns[node in self.copies] = start + seconds[number]
            for touch in self._touches[number]:
                used[touch.pieces] = np.maximum(used[touch.pieces], end)
                if touch.is_write:
                    made[touch.pieces] = np.maximum(made[touch.pieces], end)
            found.starts.append(start)
            found.ends.append(end)
        return found

    def _writes_after(self) -> dict[int, int | None]:
        """Return for each copy, by its place, the step before the first kernel after it that writes over its source."""
        end = self.line.end + 1
        upcoming, found = np.full(len(self._never()), end), {}
        for number in reversed(range(len(self.line.nodes))):
            touches = self._touches[number]
            if self.line.nodes[number] in self.copies:
                first = min((int(upcoming[t.pieces].min()) for t in touches if not t.is_write), default=end)
                found[number] = None if first == end else first - 1
                continue
            for touch in touches:
                if touch.is_write:
                    upcoming[touch.pieces] = self.line.steps[number]
        return found

    def _made(self, copy: ir.Node) -> int:
        """Return the step of the kernel that makes the source of `copy`, which may be a constant without a row; -1 for another."""
        source = copy.inputs[0]
        maker = None if source is None else source.producer()
        return -1 if maker is None or maker in self.copies else self.line.step_of.get(maker, -1)

    def _never(self, kind: type = int) -> np.typing.NDArray[np.generic]:
        return np.full(max(len(self._cuts), 1), -1, kind)

    @cached_property
    def _cuts(self) -> list[tuple[str, int]]:
        """The ends of rows, by arena and byte: each begins a piece."""
        rows = [*self.placing.rows.values(), *(holder.row for holder in self._workspaces)]
        return sorted({(row.arena, at) for row in rows for at in (row.offset, row.end)})

    @cached_property
    def _workspaces(self) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.placing.holders if not holder.members and holder.row.size)

    @cached_property
    def _touches(self) -> list[list[_Touch]]:
        """The pieces that each node touches: operands, results, and the workspaces that are held in its step."""
        number_of = {cut: number for number, cut in enumerate(self._cuts)}
        return [list(self._touched_by(node, number_of)) for node in self.line.nodes]

    def _touched_by(self, node: ir.Node, number_of: Mapping[tuple[str, int], int]) -> Iterator[_Touch]:
        def pieces(row: PlannedBuffer) -> slice:
            return slice(number_of[row.arena, row.offset], number_of[row.arena, row.end])

        rows = self.placing.rows
        read = node.inputs[:1] if node in self.copies else self.line.reads[node]
        for values, is_write in ((read, False), (node.outputs, True)):
            for value in values:
                if value is not None and value in rows and rows[value].size:
                    yield _Touch(pieces(rows[value]), is_write)
        if node not in self.copies:
            step = self.line.step_of[node]
            for holder in self._workspaces:
                if holder.first <= step <= holder.last:
                    yield _Touch(pieces(holder.row), True)


_MEMORIES = 2
_NOWHERE = ("outside", None)
_PARAMETER = 64
"""Bytes: constants of no more are parameters of kernels, such as shapes, as are those of these types."""
_PARAMETERS = frozenset({ir.DataType.INT64, ir.DataType.BOOL})


def is_copy(node: ir.Node, model: ir.Model) -> bool:
    """Return whether `node` copies a tensor into another memory."""
    function = model.functions.get(node.op_identifier())
    return function is not None and keys.COPY in function.metadata_props


def wrong_movement(claims: PlanDocument, placing: Placing, unchecked: list[str]) -> Iterator[PlanFailure]:
    """Yield the faults of the copies of a plan; none where each buffer has one memory. What is not checked is added to `unchecked`."""
    if claims.movement is None:
        return
    line, known = placing.line, placing.known
    copies = [node for node in line.nodes if is_copy(node, known.model)]
    if len(claims.arenas) != _MEMORIES:
        yield PlanFailure(f"copies are between two memories, and the plan has {len(claims.arenas)} arenas")
        return
    check = _MovementCheck(claims, placing, line, known, unchecked)
    for node in line.nodes:
        yield from check.copy(node) if is_copy(node, known.model) else check.kernel(node)
    yield from check.workspaces()
    if claims.movement.copies is not None:
        yield from check.listed(copies, claims.movement.copies)
    yield from check.sums(copies)
    if claims.movement.time is not None:
        yield from check.times(claims.movement.time, copies)


@dataclass(frozen=True)
class _MovementCheck:
    claims: PlanDocument
    placing: Placing
    line: RunOrder
    known: GraphFacts
    unchecked: list[str]

    @property
    def fast(self) -> Arena:
        """The fast memory: the first arena."""
        return self.claims.arenas[0]

    @property
    def slow(self) -> Arena:
        """The slow memory: the second arena."""
        return self.claims.arenas[1]

    def memory(self, value: ir.Value) -> tuple[str, int | None]:
        """Return the memory of `value`, and its offset there."""
        row = self.placing.rows.get(value)
        if row is not None:
            return row.arena, row.offset
        if value in self.known.constants:
            told = (one for one in self.claims.constants or () if one.name == value.name)
            listed = [one.offset for one in told if one.size == self.known.bytes(value)]
            return "constants", listed[0] if listed else None
        return _NOWHERE

    def kernel(self, node: ir.Node) -> Iterator[PlanFailure]:
        """Yield the operands and results of a kernel that are not in the fast memory. Constants may be read where they are."""
        if all(value in self.known.constants and value not in self.placing.rows for value in node.outputs):
            return
        made = [value for value in node.outputs if value.name]
        for value in (*self.line.reads[node], *made):
            if not self.known.bytes(value) or (value in self.known.constants and value not in self.placing.rows):
                continue
            memory, _ = self.memory(value)
            if memory != self.fast.name:
                reason = (
                    f"{self.line.name_of[node]!r} needs {value.name!r} in {self.fast.name!r}, and it is in {memory!r}"
                )
                yield PlanFailure(reason, (value.name or "",), self.line.step_of[node])

    def workspaces(self) -> Iterator[PlanFailure]:
        """Yield the workspaces that are not in the fast memory."""
        rows: Sequence[PlannedBuffer] = [holder.row for holder in self.placing.holders if not holder.members]
        for row in rows:
            if row.size and row.arena != self.fast.name:
                yield PlanFailure(f"the workspace {row.name!r} is not in {self.fast.name!r}", (row.name,))

    def copy(self, node: ir.Node) -> Iterator[PlanFailure]:
        """Yield that a copy does not go from one memory to the other, or changes the number of bytes; a part has no more than the whole."""
        source, result = node.inputs[0], node.outputs[0]
        name, step = self.line.name_of[node], self.line.step_of[node]
        if source is None or not self._is_copied(source, result, self._is_part(node)):
            yield PlanFailure(f"{name!r} does not copy all bytes of one tensor", (result.name or "",), step)
            return
        ends = [self.memory(value)[0] for value in (source, result)]
        # An output that is constant is copied from the constants, wherever these are.
        if ends.count(self.fast.name) != 1 and ends != ["constants", self.slow.name]:
            yield PlanFailure(f"{name!r} does not copy into or out of {self.fast.name!r}", (result.name or "",), step)

    def _is_part(self, node: ir.Node) -> bool:
        """Return whether the copy `node` copies a part of its operand, as a Slice does."""
        return self.known.model.functions[node.op_identifier()].metadata_props[keys.COPY] == "Slice"

    def _is_copied(self, source: ir.Value, result: ir.Value, is_part: bool) -> bool:
        whole, copied = self.known.bytes(source), self.known.bytes(result)
        return whole is not None and copied is not None and (copied <= whole if is_part else copied == whole)

    def listed(self, copies: Sequence[ir.Node], claimed: Sequence[MemoryCopy]) -> Iterator[PlanFailure]:
        """Yield the copies that the plan does not list as they are."""
        listed = {copy.node: copy for copy in claimed}
        if len(listed) < len(claimed):
            yield PlanFailure("movement lists a copy twice")
        names = {self.line.name_of[node]: node for node in copies}
        for name in sorted(listed.keys() ^ names.keys()):
            yield PlanFailure(f"movement lists copies that are not those of the schedule: {name!r}", (name,))
        readers, allowed = self._readers(), Transfers(self.placing, copies).allowed
        for name, node in names.items():
            right = {**self._right(name, node, readers), **allowed[node]._asdict()}
            wrong = [
                key
                for key, fact in right.items()
                if name in listed and getattr(listed[name], key) not in {fact, UNSAID}
            ]
            if wrong:
                told = f"{wrong[0]} {getattr(listed[name], wrong[0])!r}, not {right[wrong[0]]!r}"
                yield PlanFailure(f"movement lists the copy {name!r} with {told}", (name,), self.line.step_of[node])

    def _readers(self) -> dict[ir.Value, int]:
        """Return the step of the first kernel that reads each value."""
        found: dict[ir.Value, int] = {}
        for node in self.line.nodes:
            for value in () if is_copy(node, self.known.model) else self.line.reads[node]:
                found.setdefault(value, self.line.step_of[node])
        return found

    def _right(self, name: str, node: ir.Node, readers: Mapping[ir.Value, int]) -> dict[str, object]:
        """Return the fields of the copy `node` by the graph and the rows."""
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        from_, to = self.memory(source), self.memory(result)
        ends = {"source": source.name, "source_memory": from_[0], "source_offset": from_[1]}
        ends |= {"result": result.name, "memory": to[0], "offset": to[1]}
        figures = {"bytes": self.known.bytes(result), "step": self.line.step_of[node], "before": readers.get(result)}
        return {"node": name, **ends, **figures, "tensor": self._tensor(result)}

    def _tensor(self, value: ir.Value) -> str:
        """Return the name in the model without copies of the tensor with the bytes of `value`: the output's, or that of the first."""
        first = value
        while (maker := first.producer()) is not None and is_copy(maker, self.known.model):
            operand = maker.inputs[0]
            assert operand is not None
            first = operand
        outputs = {id(one): one for one in self.line.graph.outputs}
        todo = [first]
        while todo and first.producer() is not None:
            one = todo.pop()
            if id(one) in outputs:
                return one.name or ""
            todo += [node.outputs[0] for node, _ in one.uses() if is_copy(node, self.known.model)]
        return first.name or ""

    def sums(self, copies: Sequence[ir.Node]) -> Iterator[PlanFailure]:
        """Yield wrong names and sums of a movement."""
        movement = self.claims.movement
        assert movement is not None
        if (movement.fast, movement.slow) != (self.fast.name, self.slow.name):
            yield PlanFailure(
                f"movement is between {movement.fast!r} and {movement.slow!r}, not the arenas of the plan"
            )
        total = sum(self.known.bytes(node.outputs[0]) or 0 for node in copies)
        if movement.bytes not in {UNSAID, total}:
            yield PlanFailure(f"movement says {movement.bytes} bytes, and the copies have {total}")
        # Each bound holds for all plans of the one before, and for more.
        limit = total
        for bound in () if self.claims.search is None else self.claims.search.moved:
            if bound > limit:
                yield PlanFailure(f"a bound of the movement is {bound}, above the {limit} bytes of the one before")
            limit = bound
        yield from self._weights(copies)
        if movement.forced != UNSAID and movement.forced != (forced := self._forced(copies)):
            yield PlanFailure(f"movement says that {movement.forced} bytes are forced, and {forced} are")

    def _weights(self, copies: Sequence[ir.Node]) -> Iterator[PlanFailure]:
        """Yield that weights are copied, and said not to be, or the other way round."""
        movement = self.claims.movement
        assert movement is not None
        if movement.weights is None:
            return
        copied = [node.inputs[0] for node in copies if node.inputs[0] is not None and self._is_weight(node.inputs[0])]
        kernels = (node for node in self.line.nodes if not is_copy(node, self.known.model))
        read = (value for node in kernels if not self._is_constant(node) for value in self.line.reads[node])
        left = [value for value in read if self._is_weight(value)]
        wrong = left if movement.weights else [value for value in copied if not value.is_graph_output()]
        if wrong:
            told = "is read where it is" if movement.weights else "is copied"
            reason = f"movement.weights is {movement.weights}, but the weight {wrong[0].name!r} {told}"
            yield PlanFailure(reason, (wrong[0].name or "",))

    def _is_constant(self, node: ir.Node) -> bool:
        return all(value in self.known.constants for value in node.outputs)

    def _is_weight(self, value: ir.Value) -> bool:
        """Return whether `value` is a constant of more than 64 bytes, of a type that is not that of shapes."""
        is_constant = value in self.known.constants and value not in self.placing.rows
        return (
            is_constant
            and (self.known.bytes(value) or 0) > _PARAMETER
            and self.known.shapes.dtype(value) not in _PARAMETERS
        )

    def times(self, time: TransferTime, copies: Sequence[ir.Node]) -> Iterator[PlanFailure]:
        """Yield the times that do not follow from the bandwidth, the speed of the kernels, and the rows."""
        if time.bandwidth < 1 or (time.macs_per_second is not None and time.macs_per_second < 1):
            yield PlanFailure("the time of the movement is of a speed below 1")
            return
        copying = sum(self.known.bytes(node.outputs[0]) or 0 for node in copies) / time.bandwidth
        if not _is_same(time.copying, copying):
            yield PlanFailure(f"movement says that copying takes {time.copying} seconds, not {copying}")
        for name, fact in self._of_kernels(time, copies, copying).items():
            told = getattr(time, name)
            if isinstance(fact, list):
                yield from self._wrong_turns(name, told, fact)
            elif isinstance(told, tuple):
                yield PlanFailure(f"movement has {name} of nodes, and no speed of kernels that are all counted")
            elif not _is_same(told, fact):
                yield PlanFailure(f"movement says that {name} takes {told} seconds, not {fact}")

    def _wrong_turns(self, name: str, told: Sequence[float] | None, right: Sequence[float]) -> Iterator[PlanFailure]:
        """Yield that the plan has other `starts` or `ends` of nodes."""
        if told is None or len(told) != len(right):
            yield PlanFailure(f"movement has {name} of {len(told or ())} nodes, not {len(right)}")
            return
        for node, one, fact in zip(self.line.nodes, told, right, strict=True):
            if not _is_same(one, fact):
                reason = f"movement {name} {self.line.name_of[node]!r} at {one} seconds, not {fact}"
                yield PlanFailure(reason, (), self.line.step_of[node])
                return

    def _of_kernels(
        self, time: TransferTime, copies: Sequence[ir.Node], copying: float
    ) -> Mapping[str, float | list[float] | None]:
        """Return the times that depend on the speed of the kernels; the sum of two alone where the work of one is not known."""
        speed = time.macs_per_second
        macs = [] if speed is None else self._macs(copies)
        if speed is None or (None in macs and time.computing is None):
            return dict.fromkeys(("computing", "without_overlap", "with_overlap", "starts", "ends"))
        if None in macs:
            return {"without_overlap": copying + (time.computing or 0)}
        seconds = [
            (self.known.bytes(node.outputs[0]) or 0) / time.bandwidth if node in copies else (count or 0) / speed
            for node, count in zip(self.line.nodes, macs, strict=True)
        ]
        starts, ends = Transfers(self.placing, copies).clocked(seconds)
        computing = sum(count or 0 for count in macs) / speed
        sums = {"computing": computing, "without_overlap": copying + computing, "with_overlap": max(ends, default=0)}
        return {**sums, "starts": starts, "ends": ends}

    def _macs(self, copies: Collection[ir.Node]) -> list[int | None]:
        """Return the MACs of all nodes; for those that are not known, note that times are not checked."""
        found = macs_of(self.known)
        macs = [0 if node in copies else found[node] for node in self.line.nodes]
        names = [node.op_type for node, count in zip(self.line.nodes, macs, strict=True) if count is None]
        if names:
            told = ", ".join(dict.fromkeys(names))
            self.unchecked.append(f"the times of the kernels: the products of {told} are not counted")
        return macs

    def _forced(self, copies: Sequence[ir.Node]) -> int:
        """Return the bytes of inputs and weights that are copied, and of outputs."""
        outputs = [value for value in dict.fromkeys(self.line.graph.outputs) if self._is_handed_out(value)]
        first = [node for node in copies if not self._is_made(node.inputs[0]) and node.outputs[0] not in outputs]
        parts = [node.outputs[0] for node in first if self._is_part(node)]
        given = dict.fromkeys([*parts, *(node.inputs[0] for node in first if not self._is_part(node))])
        return sum(self.known.bytes(value) or 0 for value in (*given, *outputs) if value is not None)

    def _is_made(self, value: ir.Value | None) -> bool:
        return value is not None and value.producer() is not None and value not in self.known.constants

    def _is_handed_out(self, value: ir.Value) -> bool:
        maker = value.producer()
        return maker is not None and is_copy(maker, self.known.model)


def _is_same(told: float | None, fact: float | None) -> bool:
    """Return whether two times are equal but for rounding."""
    if told is None or fact is None:
        return told is fact
    return math.isclose(told, fact, rel_tol=1e-9, abs_tol=1e-18)
