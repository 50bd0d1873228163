"""The check of the copies between memories: each operand of a kernel is in the fast memory, and each copy is what the plan says.

That the bytes are there when they are read follows from the check of all rows, in which a copy is a node that reads one tensor and makes
another. Here the memories are compared, the list of copies, the steps between which each may run, the times, and the sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.inspection.inlined import works
from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.claims import (
    UNSAID,
    ArenaClaim,
    ClaimedRow,
    Claims,
    MemoryCopyClaim,
    TransferTimeClaim,
)
from onnxtile.planning.proof.published.evidence import GraphFacts
from onnxtile.planning.proof.published.placing import Placing
from onnxtile.planning.proof.published.timeline import RunOrder
from onnxtile.planning.proof.published.transfers import Clocked, Transfers

_MEMORIES = 2
_NOWHERE = ("outside", None)
_PARAMETER = 64
"""Bytes: constants of no more are parameters of kernels, such as shapes, as are those of these types."""
_PARAMETERS = frozenset({ir.DataType.INT64, ir.DataType.BOOL})


def is_copy(node: ir.Node, model: ir.Model) -> bool:
    """Return whether `node` copies a tensor into another memory."""
    function = model.functions.get(node.op_identifier())
    return function is not None and keys.COPY in function.metadata_props


def wrong_movement(claims: Claims, placing: Placing, line: RunOrder, known: GraphFacts) -> Iterator[PlanFailure]:
    """Yield the faults of the copies of a plan; none where each buffer has one memory."""
    if claims.movement is None:
        return
    copies = [node for node in line.nodes if is_copy(node, known.model)]
    if len(claims.arenas) != _MEMORIES:
        yield PlanFailure(f"copies are between two memories, and the plan has {len(claims.arenas)} arenas")
        return
    check = _MovementCheck(claims, placing, line, known)
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
    claims: Claims
    placing: Placing
    line: RunOrder
    known: GraphFacts

    @property
    def fast(self) -> ArenaClaim:
        """The fast memory: the first arena."""
        return self.claims.arenas[0]

    @property
    def slow(self) -> ArenaClaim:
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
        rows: Sequence[ClaimedRow] = [holder.row for holder in self.placing.holders if not holder.members]
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

    def listed(self, copies: Sequence[ir.Node], claimed: Sequence[MemoryCopyClaim]) -> Iterator[PlanFailure]:
        """Yield the copies that the plan does not list as they are."""
        listed = {copy.node: copy for copy in claimed}
        if len(listed) < len(claimed):
            yield PlanFailure("movement lists a copy twice")
        names = {self.line.name_of[node]: node for node in copies}
        for name in sorted(listed.keys() ^ names.keys()):
            yield PlanFailure(f"movement lists copies that are not those of the schedule: {name!r}", (name,))
        readers, allowed = self._readers(), Transfers(self.line, self.placing, copies).allowed
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

    def times(self, time: TransferTimeClaim, copies: Sequence[ir.Node]) -> Iterator[PlanFailure]:
        """Yield the times that do not follow from the bandwidth, the speed of the kernels, and the rows."""
        if time.bandwidth < 1 or (time.macs_per_second is not None and time.macs_per_second < 1):
            yield PlanFailure("the time of the movement is of a speed below 1")
            return
        copying = sum(self.known.bytes(node.outputs[0]) or 0 for node in copies) / time.bandwidth
        right: dict[str, float | None] = {"copying": copying}
        clocked = None if time.macs_per_second is None else self._clocked(time.bandwidth, time.macs_per_second, copies)
        if clocked is None:
            right |= dict.fromkeys(("computing", "without_overlap", "with_overlap"))
        else:
            computing, (starts, ends) = clocked
            right |= {
                "computing": computing,
                "without_overlap": copying + computing,
                "with_overlap": max(ends, default=0),
            }
        for name, fact in right.items():
            if not _is_same(getattr(time, name), fact):
                yield PlanFailure(f"movement says that {name} takes {getattr(time, name)} seconds, not {fact}")
        for name, seconds in (("start", starts), ("end", ends)) if clocked else (("start", None), ("end", None)):
            told = getattr(time, f"{name}s")
            if (told is None) is not (seconds is None) or len(told or ()) != len(seconds or ()):
                yield PlanFailure(
                    f"movement has times of the {name}s of {len(told or ())} nodes, not {len(seconds or ())}"
                )
                continue
            if seconds is None:
                continue
            for node, one, fact in zip(self.line.nodes, told, seconds, strict=True):
                if not _is_same(one, fact):
                    text = f"movement says that {self.line.name_of[node]!r} has its {name} at {one} seconds, not {fact}"
                    yield PlanFailure(text, (), self.line.step_of[node])
                    break

    def _clocked(
        self, bandwidth: int, macs_per_second: int, copies: Collection[ir.Node]
    ) -> tuple[float, Clocked] | None:
        """Return the seconds of all kernels, and the times of all nodes; None where the MACs of a node are not known."""
        found = works(self.known.model, self.known.shapes, self.known.constants)
        macs = [0 if node in copies else found[node].total for node in self.line.nodes]
        if any(count is None for count in macs):
            return None
        seconds = [
            (self.known.bytes(node.outputs[0]) or 0) / bandwidth if node in copies else (count or 0) / macs_per_second
            for node, count in zip(self.line.nodes, macs, strict=True)
        ]
        computing = sum(count or 0 for count in macs) / macs_per_second
        return computing, Transfers(self.line, self.placing, copies).clocked(seconds)

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
