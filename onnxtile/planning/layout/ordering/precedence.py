"""Who is before whom: whether all uses of one value come before another is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.live_ranges import LiveRange
from onnxtile.planning.layout.ordering.schedule import Schedule


class Precedence(Protocol):
    """What two values that want the same bytes must be asked."""

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether nobody uses `a` any more when `b` is made."""
        ...

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the last to use `a`, and the only one by then, is the node that makes `b`."""
        ...

    def made_before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether `a` is made before `b` is."""
        ...


class InSteps:
    """Precedence in one schedule, of whose steps `lives` tell."""

    def __init__(self, schedule: Schedule, live_ranges: Mapping[ir.Value, LiveRange]) -> None:
        self._live_ranges = live_ranges
        self._readers: Counter[tuple[ir.Value, int]] = Counter()
        if schedule.numbers:
            self._readers.update((v, step) for node, step in schedule.steps.items() for v in set(dependencies(node)))

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the life of `a` ends before that of `b` begins."""
        return self._live_ranges[a][1] <= self._live_ranges[b][0]

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether `a` is read last in the step that makes `b`, and by no other node of that step."""
        step = self._live_ranges[b][0]
        return self._live_ranges[a][1] == step + 1 and self._readers[a, step] <= 1

    def made_before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the life of `a` begins before that of `b`."""
        return self._live_ranges[a][0] < self._live_ranges[b][0]
