"""Precedence: whether all uses of one value come before another value is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.byte_span import ByteSpan
from onnxtile.planning.layout.live_ranges import LiveRange
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.offsets.outline import LivePart


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
