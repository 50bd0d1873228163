"""The bytes that a node reads of an operand, and the parts into which tensors and reads cut the buffer of an alias set."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.aliases.alias_sets import AliasSet, AliasSets
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


@dataclass(frozen=True)
class BytePart:
    """The bytes [start, end) of the buffer of `alias_set`: each of its tensors lies over all of them or none."""

    alias_set: AliasSet
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.start


class ByteParts:
    """The `parts` of the buffers of all tensors in `alias_sets`, as `nodes` write and read them.

    A buffer whose tensors all lie over all of its bytes, and are read as a whole, is one part. Otherwise tensors and reads of a Slice or
    Split cut it. A part is live from the first node that writes a byte of it to the last that reads one.
    """

    def __init__(self, nodes: Iterable[ir.Node], alias_sets: AliasSets, facts: LayoutFacts) -> None:
        self._alias_sets = alias_sets
        self._partial = partial_reads(nodes, facts)
        cuts: dict[int, set[int]] = {}
        found: dict[int, AliasSet] = {}
        for value, alias_set in alias_sets.of.items():
            start = alias_set.start(value)
            spans = (span for read in self._partial.get(value, {}).values() for span in read or ())
            ends = {start, start + alias_sets.size(value), *(start + at for span in spans for at in span)}
            found[id(alias_set)] = alias_set
            cuts.setdefault(id(alias_set), {0, alias_set.size}).update(ends)
        parts: list[BytePart] = []
        self._first: dict[int, tuple[int, Sequence[int]]] = {}
        for key, alias_set in found.items():
            starts = sorted(cuts[key])
            self._first[key] = (len(parts), starts)
            bounds = pairwise(starts) if len(starts) > 1 else [(0, 0)]
            parts.extend(BytePart(alias_set, start, end) for start, end in bounds)
        self.parts = tuple(parts)

    def of(self, value: ir.Value) -> range:
        """Return the numbers of the parts that `value` lies over."""
        return self._numbers(value, ByteSpan(0, self._alias_sets.size(value)))

    def read(self, node: ir.Node, value: ir.Value) -> tuple[int, ...]:
        """Return the numbers of the parts that `node` reads of `value`."""
        spans = self._partial.get(value, {}).get(node)
        if spans is None:
            return tuple(self.of(value))
        return tuple(number for span in spans for number in self._numbers(value, span))

    def _numbers(self, value: ir.Value, span: ByteSpan) -> range:
        alias_set = self._alias_sets.of[value]
        number, starts = self._first[id(alias_set)]
        at = alias_set.start(value)
        first, end = (bisect_left(starts, at + byte) for byte in span)
        return range(number + first, number + max(end, first + (len(starts) == 1)))


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
