"""The parts into which tensors and reads cut the buffer of an alias set."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from onnxtile.planning.layout.aliases.alias_sets import AliasSet, AliasSets
from onnxtile.planning.layout.aliases.byte_reads import ByteSpan, partial_reads
from onnxtile.planning.layout.aliases.find import LayoutFacts


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
