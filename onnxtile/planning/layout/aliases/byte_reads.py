"""The bytes that a node reads of an operand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.aliases.lawful import CUTS
from onnxtile.planning.layout.bytes import tensor_bytes


class ByteSpan(NamedTuple):
    """The bytes [start, end) of a tensor or buffer."""

    start: int
    end: int


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
