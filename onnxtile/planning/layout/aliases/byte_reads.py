"""The bytes that a node reads of an operand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.aliases.lawful import CUTS
from onnxtile.planning.layout.byte_span import ByteSpan
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.live_ranges import LiveRange
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.offsets.outline import LivePart, union


def spans_read(node: ir.Node, value: ir.Value, facts: LayoutFacts) -> tuple[ByteSpan, ...] | None:
    """Return the bytes of `value` that `node` reads; None for all of them.

    A Slice or Split reads only the bytes of its results, where these are contiguous.
    """
    if node.op_type not in CUTS or not facts.is_standard(node):
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
        source = node.inputs[0] if node.op_type in CUTS and node.inputs else None
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
