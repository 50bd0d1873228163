"""Live ranges: the steps in which the bytes of a value must be kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope
from onnxtile.kernels.kernel_graph import ByteSpan
from onnxtile.kernels.liveness import LivePart, LiveRange, union
from onnxtile.model.topology import dependencies
from onnxtile.operators.table import sharing_of
from onnxtile.planning.schedule import Schedule
from onnxtile.shapes.resolve import tensor_bytes


def find_live_ranges(scope: PlanScope, schedule: Schedule) -> dict[ir.Value, LiveRange]:
    """Return the live range of each input in `scope` and of each value that a node makes, in the order in which they are made.

    It starts with the step that makes the value, and ends after the last step that reads it, or after its own if none does. A node also
    reads the values that its bodies capture. Inputs are live from the first step on, kept values to the last. Values that share bytes
    with nothing are live in all steps.
    """
    live_ranges: dict[ir.Value, LiveRange] = {value: (0, 1) for value in scope.given}
    for node, step in schedule.steps.items():
        for value in dependencies(node):
            if value in live_ranges:
                live_ranges[value] = (live_ranges[value][0], step + 1)
        live_ranges.update((value, (step, step + 1)) for value in node.outputs if value.name)
    for value in scope.kept & live_ranges.keys():
        first = 0 if value in scope.apart else live_ranges[value][0]
        live_ranges[value] = (first, max(schedule.end, 1))
    return live_ranges


def with_states(
    live_ranges: Mapping[ir.Value, LiveRange], scope: PlanScope, schedule: Schedule
) -> dict[ir.Value, LiveRange]:
    """Return `live_ranges` in which the inputs of the states of `scope` keep their bytes in all steps: the next run reads these, too."""
    whole = (0, max(schedule.end, 1))
    return {**live_ranges, **{pair.input: whole for pair in scope.states if pair.input in live_ranges}}


# Precedence: whether all uses of one value come before another value is made.


class Precedence(Protocol):
    """The questions about two values that may share bytes."""

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether every use of `a` comes before `b` is made."""
        ...

    def before_in(self, span: ByteSpan, a: ir.Value, b: ir.Value) -> bool:
        """Return whether every use of the bytes `span` of `a` comes before `b` is made."""
        ...

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the node that makes `b` is the last to use `a`, and the only one in its step."""
        ...

    def made_before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether `a` is made before `b` is."""
        ...


class InSteps:
    """Precedence in one schedule with known live ranges; `parts` has those of tensors that die part by part."""

    def __init__(
        self,
        schedule: Schedule,
        live_ranges: Mapping[ir.Value, LiveRange],
        parts: Mapping[ir.Value, Sequence[LivePart]] | None = None,
    ) -> None:
        self._live_ranges = live_ranges
        self._parts = parts or {}
        self._readers: Counter[tuple[ir.Value, int]] = Counter()
        if schedule.numbers:
            self._readers.update((v, step) for node, step in schedule.steps.items() for v in set(dependencies(node)))

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the live range of `a` ends before the one of `b` begins."""
        return self._live_ranges[a][1] <= self._live_ranges[b][0]

    def before_in(self, span: ByteSpan, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the live ranges of the bytes `span` of `a` end before the one of `b` begins."""
        if a not in self._parts:
            return self.before(a, b)
        start = self._live_ranges[b][0]
        return all(p.upper <= start for p in self._parts[a] if p.start < span.end and span.start < p.end)

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether `a` is read last in the step that makes `b`, and by no other node of that step."""
        step = self._live_ranges[b][0]
        return self._live_ranges[a][1] == step + 1 and self._readers[a, step] <= 1

    def made_before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the live range of `a` begins before the one of `b`."""
        return self._live_ranges[a][0] < self._live_ranges[b][0]


# The bytes that a node reads of an operand.


def spans_read(node: ir.Node, value: ir.Value, facts: LayoutFacts) -> tuple[ByteSpan, ...] | None:
    """Return the bytes of `value` that `node` reads; None for all of them.

    A Slice or Split reads only the bytes of its results, where these are contiguous.
    """
    if sharing_of(node) != "cut" or not facts.is_standard(node):
        return None
    if [place for place, operand in enumerate(node.inputs) if operand is value] != [0]:
        return None
    found = [alias for alias in facts.lawful(node) if alias.rule == "cut"]
    if {alias.value for alias in found} != {result for result in node.outputs if result.name}:
        return None
    return tuple(ByteSpan(alias.at, alias.at + (tensor_bytes(alias.value, facts.shapes) or 0)) for alias in found)


def partial_reads(
    nodes: Iterable[ir.Node], facts: LayoutFacts
) -> Mapping[ir.Value, Mapping[ir.Node, tuple[ByteSpan, ...] | None]]:
    """Return the nodes that read each tensor of which some node reads only a part, with the bytes read (None: all of them)."""
    nodes = tuple(nodes)
    found: dict[ir.Value, dict[ir.Node, tuple[ByteSpan, ...] | None]] = {}
    for node in nodes:
        source = node.inputs[0] if sharing_of(node) == "cut" and node.inputs else None
        if source is not None and spans_read(node, source, facts) is not None:
            found[source] = {}
    for node in nodes if found else ():
        for value in dependencies(node):
            if value in found:
                found[value][node] = spans_read(node, value, facts)
    return found


def early_ends(
    scope: PlanScope, schedule: Schedule, facts: LayoutFacts, live_ranges: Mapping[ir.Value, LiveRange]
) -> dict[ir.Value, tuple[LivePart, ...]]:
    """Return the live ranges of the bytes of each tensor that dies part by part: the last to read it are Slices or Splits.

    Bytes that no node reads are live in the step that makes them.
    """
    found = {}
    for value, readers in partial_reads(schedule.nodes, facts).items():
        size = tensor_bytes(value, facts.shapes)
        if value not in live_ranges or value in scope.kept or not size:
            continue
        lower = live_ranges[value][0]
        ends = [(schedule.steps[node] + 1, spans) for node, spans in readers.items()]
        whole = max((end for end, spans in ends if spans is None), default=lower + 1)
        parts = [LivePart(0, size, lower, whole)]
        parts += (LivePart(*span, lower, end) for end, spans in ends for span in spans or () if end > whole)
        if len(joined := union(parts)) > 1:
            found[value] = joined
    return found
