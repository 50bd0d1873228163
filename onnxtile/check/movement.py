"""The check of the copies between memories: each operand of a kernel is in the fast memory, and each copy is what the plan says.

The check of all rows proves that the bytes are there when they are read: a copy is a node that reads one tensor and makes another. Here
the memories are compared, the list of copies, the steps between which each may run, the times, and the sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnx

from onnxtile.check.addresses import Holder, Placing
from onnxtile.check.graph import (
    COPY,
    DOMAIN,
    GraphNode,
    GraphPath,
    PlainModel,
    Value,
    ValueFacts,
    graphs_of,
    inferred,
    plan_names,
)
from onnxtile.check.operators import FACTORS, STANDARD, WITHOUT_PRODUCTS
from onnxtile.check.sharing import RunOrder
from onnxtile.declare.plan_document import (
    UNSAID,
    Arena,
    MemoryCopy,
    PlanDocument,
    PlanFailure,
    PlannedBuffer,
    TransferTime,
)
from onnxtile.system.dataclass import dataclass

# The multiply-accumulates of nodes, counted from the tables of this check.


def macs_of(node: GraphNode) -> int | None:
    """Return the multiply-accumulates of `node`; None where they are not known. Calls of functions are counted inside."""
    if node.function is not None:
        try:
            return _sum([macs_of(inner) for inner in inferred(node).nodes])
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            return None
    if node.bodies:
        return 0 if all(macs_of(inner) == 0 for body in node.bodies.values() for inner in body.nodes) else None
    name = node.operator
    if name in WITHOUT_PRODUCTS or all(value.is_constant for value in node.outputs):
        return 0
    if name not in FACTORS or max(FACTORS[name]) >= len(node.inputs):
        return None
    values = (*(node.inputs[index] for index in FACTORS[name]), node.outputs[0])
    left, right, result = (None if value is None else value.shape for value in values)
    if not left or not right or result is None:
        return None
    if "Conv" in name:
        # Weights are (out, in / groups, kernel ...), of a ConvTranspose (in, out / groups, kernel ...).
        is_transposed = node.op_type == "ConvTranspose"
        channels = right[0] if is_transposed else right[1] * node.number("group", 1)
        return None if left[1] != channels else math.prod(left if is_transposed else result) * math.prod(right[1:])
    is_turned = node.number("transA", 0) and len(left) > 1
    return math.prod(result) * (left[-2] if is_turned else left[-1])


def _sum(counts: Collection[int | None]) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


# Puts the copies that a published plan claims into the model, so that its schedule can be checked there.
#
# Only the claims say where the copies are: the nodes in their order, and the names that each node reads and makes. Every operand must be
# the model's own, or follow from it through copies.

_CAST_TO_COPY = {getattr(onnx.TensorProto, name, None) for name in ("INT2", "UINT2", "INT4", "UINT4")} - {None}
"""Element types of which onnxruntime has no Identity."""


def with_claimed_copies(plain: PlainModel, claims: PlanDocument) -> PlainModel | PlanFailure:
    """Return the model `plain`, which is used up, with the copies of `claims`.

    Returns a failure where the claims do not describe a run of this model with copies.
    """
    try:
        return _Copying(plain, claims).run()
    except _NoRunError as error:
        return PlanFailure(str(error))


class _NoRunError(Exception):
    """The claims do not describe a run of the model, for the reason in the message."""


class _Copying:
    """Values are names. `_root` has the tensor of the model that each copy copies, `_renamed` the new names of results of kernels."""

    def __init__(self, plain: PlainModel, claims: PlanDocument) -> None:
        if claims.movement is None or claims.operands is None or claims.results is None:
            raise _NoRunError("a plan with copies needs movement, operands and results")
        self._plain, self._movement = plain, claims.movement
        self._claimed = list(zip(claims.schedule, claims.operands, claims.results, strict=False))
        if not len(claims.schedule) == len(claims.operands) == len(claims.results):
            raise _NoRunError("operands and results are not those of the schedule")
        self._copies = {copy.node: copy for copy in claims.movement.copies or ()}
        graph = plain.proto.graph
        self._results = {name for node in graph.node for name in node.output if name}
        self._values = {
            *(tensor.name for tensor in graph.initializer),
            *(tensor.name for tensor in graph.input),
            *self._results,
        }
        self._outputs = [info.name for info in graph.output]
        self._root: dict[str, str] = {}
        self._renamed = self._renamed_outputs()

    def run(self) -> PlainModel:
        graph = self._plain.proto.graph
        nodes = [_copied(node) for node in graph.node]
        for node in nodes:
            node.output[:] = [self._renamed.get(name, name) for name in node.output]
        waiting: dict[str, list[int]] = {}
        for index, name in enumerate(plan_names(nodes)):
            waiting.setdefault(name, []).append(index)
        placed: list[tuple[int | None, onnx.NodeProto]] = []
        for name, operands, results in self._claimed:
            if waiting.get(name):
                index = waiting[name].pop(0)
                placed.append((index, self._connected(nodes[index], name, operands)))
            elif name in self._copies:
                placed.append((None, self._copy(name, operands, results)))
            else:
                raise _NoRunError(f"the schedule has {name!r}, which the graph does not have")
        if left := next((name for name, places in waiting.items() if places), None):
            raise _NoRunError(f"the schedule lacks {left!r}")
        for name in self._outputs:
            if name not in self._values or (name in self._renamed and self._root.get(name) != self._renamed[name]):
                raise _NoRunError(f"the output {name!r} is not made")
        for info in [info for info in graph.output if info.name in self._renamed]:
            graph.value_info.add(name=self._renamed[info.name], metadata_props=info.metadata_props)
            del info.metadata_props[:]
        del graph.node[:]
        graph.node.extend(node for _, node in placed)
        return self._plain._replace(facts=self._facts(placed))

    def _facts(self, placed: Sequence[tuple[int | None, onnx.NodeProto]]) -> dict[GraphPath, dict[str, ValueFacts]]:
        """Return what is known of all values, where the nodes are in their new places."""
        new = {old: index for index, (old, _) in enumerate(placed)}
        facts = {
            (((new[path[0][0]], path[0][1]), *path[1:]) if path else ()): dict(of)
            for path, of in self._plain.facts.items()
        }
        known = facts[()]
        known |= {new_name: known[name] for name, new_name in self._renamed.items() if name in known}
        known |= {copy: known.get(root, ValueFacts())._replace(numbers=None) for copy, root in self._root.items()}
        return facts

    def _renamed_outputs(self) -> dict[str, str]:
        """Return the name that the plan has for the result of a kernel that it copies out, by that of the output."""
        sources, renamed = {copy.result: copy.source for copy in self._copies.values()}, {}
        for name in self._outputs:
            if name not in self._results or name not in sources:
                continue
            if sources[name] in self._values:
                raise _NoRunError(f"the output {name!r} is said to be a copy of {sources[name]!r}, another tensor")
            renamed[name] = sources[name]
            self._values = self._values - {name} | {sources[name]}
        return renamed

    def _copy(self, name: str, operands: Sequence[str], results: Sequence[str]) -> onnx.NodeProto:
        copy = self._copies[name]
        if (tuple(operands), tuple(results)) != ((copy.source,), (copy.result,)) or copy.result in self._values:
            raise _NoRunError(f"the copy {name!r} is listed otherwise than in the schedule, or makes a tensor twice")
        if copy.source not in self._values:
            raise _NoRunError(f"the copy {name!r} reads {copy.source!r}, which is not there")
        root = self._root.get(copy.source, copy.source)
        self._values.add(copy.result)
        self._root[copy.result] = root
        original = next((old for old, new in self._renamed.items() if new == root), root)
        known = self._plain.facts[()].get(original, ValueFacts())
        is_cast = known.dtype in _CAST_TO_COPY
        operator = self._add_function("CopyBits" if is_cast else "Copy", "Identity", 1)
        return onnx.helper.make_node(operator, operands, results, name=name, domain=DOMAIN)

    def _connected(self, node: onnx.NodeProto, name: str, operands: Sequence[str]) -> onnx.NodeProto:
        """Return `node` with `operands`, which must be copies of its own; its bodies read the latest copies."""
        if len(operands) != len(node.input):
            raise _NoRunError(f"the operands of {name!r} are not those of the graph")
        originals = [self._renamed.get(value, value) for value in node.input]
        for number, (value, operand) in enumerate(zip(originals, operands, strict=True)):
            if not value or value == operand:
                node.input[number] = value
            elif operand not in self._values or self._whole(operand) != self._whole(value):
                raise _NoRunError(f"{name!r} reads {operand!r}, which is not a copy of its operand {value!r}")
            else:
                node.input[number] = operand
        fast = {copy.result for copy in self._copies.values() if copy.memory == self._movement.fast}
        latest = {root: copy for copy, root in self._root.items() if copy in fast}
        captured = {value: latest[value] for value in latest if value not in node.input}
        _rename(node, {**self._renamed, **captured})
        return self._copied_part(node) if name in self._copies else node

    def _copied_part(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the copy of a part that the Slice `node` is."""
        if node.op_type != "Slice" or node.domain not in STANDARD or node.attribute or len(node.output) != 1:
            raise _NoRunError(f"{node.name or node.op_type!r} is said to be a copy, and is a kernel")
        node.op_type = self._add_function(f"CopySlice.{len(node.input)}", "Slice", len(node.input))
        node.domain = DOMAIN
        return node

    def _whole(self, value: str) -> str:
        """Return the value of the model with the bytes of `value`."""
        return self._root.get(value, value)

    def _add_function(self, name: str, operator: str, count: int) -> str:
        proto = self._plain.proto
        if not any((function.domain, function.name) == (DOMAIN, name) for function in proto.functions):
            operands = [f"operand{number}" for number in range(count)]
            body = [onnx.helper.make_node(operator, operands, ["result"])]
            function = onnx.helper.make_function(DOMAIN, name, operands, ["result"], body, proto.opset_import)
            function.metadata_props.add(key=COPY, value=operator)
            proto.functions.append(function)
        return name


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let the bodies of `node` read values around them by new names."""
    for graph in graphs_of(node):
        given = {value.name for value in graph.input} | {value.name for value in graph.initializer}
        inside = given.union(*(inner.output for inner in graph.node))
        left = {old: new for old, new in names.items() if old not in inside}
        for inner in graph.node:
            inner.input[:] = [left.get(name, name) for name in inner.input]
            _rename(inner, left)
        for output in graph.output:
            output.name = left.get(output.name, output.name)


# When the copies of a published plan may run, and when they do, derived from its rows alone.
#
# The bytes of each arena are cut where a row begins or ends. A walk over the schedule keeps for each piece who touched it last.


class Allowed(NamedTuple):
    """The steps between which a copy may run: see declare.plan_document.MemoryCopy."""

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
    copies: Collection[GraphNode]

    @property
    def line(self) -> RunOrder:
        """The order of the nodes."""
        return self.placing.line

    @cached_property
    def allowed(self) -> dict[GraphNode, Allowed]:
        """When each copy may run. Copies run in their order, so that only kernels are in their way."""
        following = self._writes_after()
        touched, written = self._never(), self._never()
        ranges = {}
        for number, node in enumerate(self.line.nodes):
            step = self.line.steps[number]
            if node in self.copies:
                free = max((int(touched[t.pieces].max()) for t in self._touches[number] if t.is_write), default=-1)
                ready = max((int(written[t.pieces].max()) for t in self._touches[number] if not t.is_write), default=-1)
                ranges[node] = Allowed(free + 1, max(ready, self._source_step(node)) + 1, following[number])
                continue
            for touch in self._touches[number]:
                touched[touch.pieces] = step
                if touch.is_write:
                    written[touch.pieces] = step
        return ranges

    def clocked(self, seconds: Sequence[float]) -> Clocked:
        """Return when each node starts and ends that takes so many `seconds`: kernels in turn, and copies in turn beside them.

        Each waits for what wrote the bytes that it reads, and for all that touched the bytes that it writes.
        """
        used, written = self._never(float), self._never(float)
        turns = {True: 0.0, False: 0.0}
        times = Clocked([], [])
        for number, node in enumerate(self.line.nodes):
            start = turns[node in self.copies]
            for touch in self._touches[number]:
                last = (used if touch.is_write else written)[touch.pieces].max()
                start = max(start, float(last))
            end = turns[node in self.copies] = start + seconds[number]
            for touch in self._touches[number]:
                used[touch.pieces] = np.maximum(used[touch.pieces], end)
                if touch.is_write:
                    written[touch.pieces] = np.maximum(written[touch.pieces], end)
            times.starts.append(start)
            times.ends.append(end)
        return times

    def _writes_after(self) -> dict[int, int | None]:
        """Return for each copy, by its place, the step before the first kernel after it that writes over its source."""
        end = self.line.end + 1
        upcoming, steps = np.full(len(self._never()), end), {}
        for number in reversed(range(len(self.line.nodes))):
            touches = self._touches[number]
            if self.line.nodes[number] in self.copies:
                first = min((int(upcoming[t.pieces].min()) for t in touches if not t.is_write), default=end)
                steps[number] = None if first == end else first - 1
                continue
            for touch in touches:
                if touch.is_write:
                    upcoming[touch.pieces] = self.line.steps[number]
        return steps

    def _source_step(self, copy: GraphNode) -> int:
        """Return the step of the kernel that makes the source of `copy`, which may be a constant without a row; -1 for another."""
        source = copy.inputs[0]
        maker = None if source is None else source.maker
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

    def _touched_by(self, node: GraphNode, number_of: Mapping[tuple[str, int], int]) -> Iterator[_Touch]:
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
_PARAMETERS = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.BOOL})


def wrong_movement(claims: PlanDocument, placing: Placing, unchecked: list[str]) -> Iterator[PlanFailure]:
    """Yield the faults of the copies of a plan with a movement. What is not checked is added to `unchecked`."""
    assert claims.movement is not None
    line = placing.line
    copies = [node for node in line.nodes if node.copied]
    if len(claims.arenas) != _MEMORIES:
        yield PlanFailure(f"copies are between two memories, and the plan has {len(claims.arenas)} arenas")
        return
    check = _MovementCheck(claims, placing, line, unchecked)
    for node in line.nodes:
        yield from check.copy(node) if node.copied else check.kernel(node)
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
    unchecked: list[str]

    @property
    def fast(self) -> Arena:
        """The fast memory: the first arena."""
        return self.claims.arenas[0]

    @property
    def slow(self) -> Arena:
        """The slow memory: the second arena."""
        return self.claims.arenas[1]

    def memory(self, value: Value) -> tuple[str, int | None]:
        """Return the memory of `value`, and its offset there."""
        row = self.placing.rows.get(value)
        if row is not None:
            return row.arena, row.offset
        if value.is_constant:
            rows = (constant for constant in self.claims.constants or () if constant.name == value.name)
            listed = [constant.offset for constant in rows if constant.size == value.bytes]
            return "constants", listed[0] if listed else None
        return _NOWHERE

    def kernel(self, node: GraphNode) -> Iterator[PlanFailure]:
        """Yield the operands and results of a kernel that are not in the fast memory. Constants may be read where they are."""
        if all(value.is_constant and value not in self.placing.rows for value in node.outputs):
            return
        results = [value for value in node.outputs if value.name]
        for value in (*self.line.reads[node], *results):
            if not value.bytes or (value.is_constant and value not in self.placing.rows):
                continue
            memory, _ = self.memory(value)
            if memory != self.fast.name:
                reason = (
                    f"{self.line.name_of[node]!r} needs {value.name!r} in {self.fast.name!r}, and it is in {memory!r}"
                )
                yield PlanFailure(reason, (value.name,), self.line.step_of[node])

    def workspaces(self) -> Iterator[PlanFailure]:
        """Yield the workspaces that are not in the fast memory."""
        rows: Sequence[PlannedBuffer] = [holder.row for holder in self.placing.holders if not holder.members]
        for row in rows:
            if row.size and row.arena != self.fast.name:
                yield PlanFailure(f"the workspace {row.name!r} is not in {self.fast.name!r}", (row.name,))

    def copy(self, node: GraphNode) -> Iterator[PlanFailure]:
        """Yield that a copy does not go from one memory to the other, or changes the number of bytes; a part has no more than the whole."""
        source, result = node.inputs[0], node.outputs[0]
        name, step = self.line.name_of[node], self.line.step_of[node]
        whole, copied = None if source is None else source.bytes, result.bytes
        is_whole = whole is not None and (
            copied == whole or (node.copied == "Slice" and copied is not None and copied <= whole)
        )
        if source is None or not is_whole:
            yield PlanFailure(f"{name!r} does not copy all bytes of one tensor", (result.name,), step)
            return
        ends = [self.memory(value)[0] for value in (source, result)]
        # An output that is constant is copied from the constants, wherever these are.
        if ends.count(self.fast.name) != 1 and ends != ["constants", self.slow.name]:
            yield PlanFailure(f"{name!r} does not copy into or out of {self.fast.name!r}", (result.name,), step)

    def listed(self, copies: Sequence[GraphNode], claimed: Sequence[MemoryCopy]) -> Iterator[PlanFailure]:
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
                difference = f"{wrong[0]} {getattr(listed[name], wrong[0])!r}, not {right[wrong[0]]!r}"
                yield PlanFailure(
                    f"movement lists the copy {name!r} with {difference}", (name,), self.line.step_of[node]
                )

    def _readers(self) -> dict[Value, int]:
        """Return the step of the first kernel that reads each value."""
        first_reads: dict[Value, int] = {}
        for node in self.line.nodes:
            for value in () if node.copied else self.line.reads[node]:
                first_reads.setdefault(value, self.line.step_of[node])
        return first_reads

    def _right(self, name: str, node: GraphNode, readers: Mapping[Value, int]) -> dict[str, object]:
        """Return the fields of the copy `node` by the graph and the rows."""
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        from_, to = self.memory(source), self.memory(result)
        ends = {"source": source.name, "source_memory": from_[0], "source_offset": from_[1]}
        ends |= {"result": result.name, "memory": to[0], "offset": to[1]}
        figures = {"bytes": result.bytes, "step": self.line.step_of[node], "before": readers.get(result)}
        return {"node": name, **ends, **figures, "tensor": self._tensor(result)}

    def _tensor(self, value: Value) -> str:
        """Return the name in the model without copies of the tensor with the bytes of `value`: the output's, or that of the first."""
        first = value
        while (maker := first.maker) is not None and maker.copied:
            operand = maker.inputs[0]
            assert operand is not None
            first = operand
        outputs = {id(output): output for output in self.line.graph.outputs}
        todo = [first]
        while todo and first.maker is not None:
            copy = todo.pop()
            if id(copy) in outputs:
                return copy.name
            todo += [node.outputs[0] for node in copy.readers if node.copied]
        return first.name

    def sums(self, copies: Sequence[GraphNode]) -> Iterator[PlanFailure]:
        """Yield wrong names and sums of a movement."""
        movement = self.claims.movement
        assert movement is not None
        if (movement.fast, movement.slow) != (self.fast.name, self.slow.name):
            yield PlanFailure(
                f"movement is between {movement.fast!r} and {movement.slow!r}, not the arenas of the plan"
            )
        total = sum(node.outputs[0].bytes or 0 for node in copies)
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

    def _weights(self, copies: Sequence[GraphNode]) -> Iterator[PlanFailure]:
        """Yield that weights are copied, and said not to be, or the other way round."""
        movement = self.claims.movement
        assert movement is not None
        if movement.weights is None:
            return
        copied = [node.inputs[0] for node in copies if node.inputs[0] is not None and self._is_weight(node.inputs[0])]
        kernels = (node for node in self.line.nodes if not node.copied)
        read = (value for node in kernels if not self._is_constant(node) for value in self.line.reads[node])
        left = [value for value in read if self._is_weight(value)]
        wrong = left if movement.weights else [value for value in copied if not value.is_output]
        if wrong:
            use = "is read where it is" if movement.weights else "is copied"
            reason = f"movement.weights is {movement.weights}, but the weight {wrong[0].name!r} {use}"
            yield PlanFailure(reason, (wrong[0].name,))

    def _is_constant(self, node: GraphNode) -> bool:
        return all(value.is_constant for value in node.outputs)

    def _is_weight(self, value: Value) -> bool:
        """Return whether `value` is a constant of more than 64 bytes, of a type that is not that of shapes."""
        is_constant = value.is_constant and value not in self.placing.rows
        return is_constant and (value.bytes or 0) > _PARAMETER and value.dtype not in _PARAMETERS

    def times(self, time: TransferTime, copies: Sequence[GraphNode]) -> Iterator[PlanFailure]:
        """Yield the times that do not follow from the bandwidth, the speed of the kernels, and the rows."""
        if time.bandwidth < 1 or (time.macs_per_second is not None and time.macs_per_second < 1):
            yield PlanFailure("the time of the movement is of a speed below 1")
            return
        copying = sum(node.outputs[0].bytes or 0 for node in copies) / time.bandwidth
        if not _is_same(time.copying, copying):
            yield PlanFailure(f"movement says that copying takes {time.copying} seconds, not {copying}")
        for name, fact in self._of_kernels(time, copies, copying).items():
            claimed = getattr(time, name)
            if isinstance(fact, list):
                yield from self._wrong_turns(name, claimed, fact)
            elif isinstance(claimed, tuple):
                yield PlanFailure(f"movement has {name} of nodes, and no speed of kernels that are all counted")
            elif not _is_same(claimed, fact):
                yield PlanFailure(f"movement says that {name} takes {claimed} seconds, not {fact}")

    def _wrong_turns(self, name: str, claimed: Sequence[float] | None, right: Sequence[float]) -> Iterator[PlanFailure]:
        """Yield that the plan has other `starts` or `ends` of nodes."""
        if claimed is None or len(claimed) != len(right):
            yield PlanFailure(f"movement has {name} of {len(claimed or ())} nodes, not {len(right)}")
            return
        for node, time, fact in zip(self.line.nodes, claimed, right, strict=True):
            if not _is_same(time, fact):
                reason = f"movement {name} {self.line.name_of[node]!r} at {time} seconds, not {fact}"
                yield PlanFailure(reason, (), self.line.step_of[node])
                return

    def _of_kernels(
        self, time: TransferTime, copies: Sequence[GraphNode], copying: float
    ) -> Mapping[str, float | list[float] | None]:
        """Return the times that depend on the speed of the kernels; the sum of two alone where the work of one is not known."""
        speed = time.macs_per_second
        macs = [] if speed is None else self._macs(copies)
        if speed is None or (None in macs and time.computing is None):
            return dict.fromkeys(("computing", "without_overlap", "with_overlap", "starts", "ends"))
        if None in macs:
            return {"without_overlap": copying + (time.computing or 0)}
        seconds = [
            (node.outputs[0].bytes or 0) / time.bandwidth if node in copies else (count or 0) / speed
            for node, count in zip(self.line.nodes, macs, strict=True)
        ]
        starts, ends = Transfers(self.placing, copies).clocked(seconds)
        computing = sum(count or 0 for count in macs) / speed
        sums = {"computing": computing, "without_overlap": copying + computing, "with_overlap": max(ends, default=0)}
        return {**sums, "starts": starts, "ends": ends}

    def _macs(self, copies: Collection[GraphNode]) -> list[int | None]:
        """Return the MACs of all nodes; for those that are not known, note that times are not checked."""
        macs = [0 if node in copies else macs_of(node) for node in self.line.nodes]
        names = [node.op_type for node, count in zip(self.line.nodes, macs, strict=True) if count is None]
        if names:
            operators = ", ".join(dict.fromkeys(names))
            self.unchecked.append(f"the times of the kernels: the products of {operators} are not counted")
        return macs

    def _forced(self, copies: Sequence[GraphNode]) -> int:
        """Return the bytes of inputs and weights that are copied, and of outputs."""
        outputs = [value for value in dict.fromkeys(self.line.graph.outputs) if self._is_handed_out(value)]
        first = [node for node in copies if not self._is_made(node.inputs[0]) and node.outputs[0] not in outputs]
        parts = [node.outputs[0] for node in first if node.copied == "Slice"]
        given = dict.fromkeys([*parts, *(node.inputs[0] for node in first if node.copied != "Slice")])
        return sum(value.bytes or 0 for value in (*given, *outputs) if value is not None)

    def _is_made(self, value: Value | None) -> bool:
        return value is not None and value.maker is not None and not value.is_constant

    def _is_handed_out(self, value: Value) -> bool:
        maker = value.maker
        return maker is not None and maker.copied is not None


def _is_same(claimed: float | None, fact: float | None) -> bool:
    """Return whether two times are equal but for rounding."""
    if claimed is None or fact is None:
        return claimed is fact
    return math.isclose(claimed, fact, rel_tol=1e-9, abs_tol=1e-18)
