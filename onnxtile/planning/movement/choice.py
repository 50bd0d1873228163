"""The choice of copies for one order of the kernels: which values are copied before and after which kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.planning.movement.eviction import Eviction
from onnxtile.planning.movement.gaps import MovementProblem
from onnxtile.planning.movement.uses import GapOfTensor, TensorUses
from onnxtile.planning.offsets.problem import align

CopiesByPlace: TypeAlias = Mapping[int, Sequence[ir.Value]]
"""Values by the place of a kernel in the schedule."""


@dataclass(frozen=True)
class MovementChoice:
    """An order of the kernels with the gaps in which tensors leave the fast memory."""

    uses: TensorUses
    problem: MovementProblem
    eviction: Eviction

    @property
    def bytes(self) -> int:
        """The bytes of all copies."""
        return self.uses.forced + self.uses.placed + self.eviction.cost

    @cached_property
    def _left(self) -> tuple[GapOfTensor, ...]:
        """The gaps in which tensors leave the fast memory."""
        return (*(self.uses.gaps[number] for number in sorted(self.eviction.evicted)), *self.uses.absences)

    @cached_property
    def loads(self) -> CopiesByPlace:
        """The values that are copied to the fast memory right before a kernel."""
        uses = self.uses
        found: dict[int, dict[ir.Value, None]] = {}
        for value in (*uses.layout.scope.graph.inputs, *uses.weights):
            if value in uses.reads and (value in uses.inputs or value in uses.weights):
                found.setdefault(uses.reads[value][0], {})[value] = None
        for gap in self._left:
            found.setdefault(gap.after, {}).update(dict.fromkeys(gap.values))
        return {place: tuple(values) for place, values in found.items()}

    @cached_property
    def stores(self) -> CopiesByPlace:
        """The values that are copied to the slow memory right after a kernel, each once; outputs are copied anyway."""
        found: dict[int, list[ir.Value]] = {}
        stored: set[ir.Value] = set()
        for value, place in self.uses.stored.items():
            found.setdefault(place, []).append(value)
        for gap in sorted(self._left, key=lambda gap: gap.before):
            for value in (v for v in gap.values if not self.uses.is_backed(v) and v not in stored):
                stored.add(value)
                found.setdefault(gap.before, []).append(value)
        return found

    @cached_property
    def early_loads(self) -> CopiesByPlace:
        """Those of `loads` for which there is room while the kernel before runs, by the place of the kernel that reads them."""
        kept = set(range(len(self.problem.gaps))) - self.eviction.evicted
        room = [free - held for free, held in zip(self.problem.free, self.problem.held(kept), strict=True)]
        before = self._places_before
        found: dict[int, tuple[ir.Value, ...]] = {}
        for place, values in sorted(self.loads.items()):
            at = before.get(place)
            if at is None:
                continue
            fitting = []
            for value in values:
                size = align(self.uses.bytes(value), self.uses.layout.alignment)
                if size <= room[at] and at > self._stored_at(value, place):
                    room[at] -= size
                    fitting.append(value)
            if fitting:
                found[place] = tuple(fitting)
        return found

    @cached_property
    def _places_before(self) -> dict[int, int]:
        """The place of the kernel before each kernel but the first."""
        return {place: before for before, place in pairwise(sorted(self.uses.kernels.values()))}

    def _stored_at(self, value: ir.Value, place: int) -> int:
        """Return the place of the last kernel before `place` that touches the tensor of `value`; -1 for none."""
        return max((gap.before for gap in self._left if gap.after == place and value in gap.values), default=-1)

    def with_early(self, early: CopiesByPlace) -> CopiesByPlace:
        """Return `loads`, with those that are `early` before the kernel before."""
        before = self._places_before
        found: dict[int, list[ir.Value]] = {}
        for place, values in self.loads.items():
            found.setdefault(place, [])[:0] = [v for v in values if v not in early.get(place, ())]
            if place in early:
                found.setdefault(before[place], []).extend(early[place])
        return {place: tuple(values) for place, values in found.items() if values}
