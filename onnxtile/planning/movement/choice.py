"""The choice of copies for one order of the kernels: which values are copied, and between which kernels that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.planning.movement.eviction import Eviction
from onnxtile.planning.movement.gaps import MovementProblem
from onnxtile.planning.movement.timetable import WantedCopy
from onnxtile.planning.movement.uses import GapOfTensor, TensorUses
from onnxtile.planning.offsets.problem import align


class ChosenCopy(NamedTuple):
    """A copy of `value` between the memories; `part` is the Slice that copies it as a part of an input."""

    value: ir.Value
    wanted: WantedCopy
    part: ir.Node | None = None


@dataclass(frozen=True)
class MovementChoice:
    """An order of the kernels with the gaps in which tensors leave the fast memory of `capacity` bytes."""

    uses: TensorUses
    problem: MovementProblem
    eviction: Eviction
    capacity: int

    @property
    def bytes(self) -> int:
        """The bytes of all copies."""
        return self.uses.forced + self.uses.placed + self.eviction.cost

    @cached_property
    def _left(self) -> tuple[GapOfTensor, ...]:
        """The gaps in which tensors leave the fast memory."""
        return (*(self.uses.gaps[number] for number in sorted(self.eviction.evicted)), *self.uses.absences)

    @cached_property
    def room(self) -> tuple[int, ...]:
        """The bytes of the fast memory at each place that neither its kernel nor tensors which stay take."""
        kept = set(range(len(self.problem.gaps))) - self.eviction.evicted
        return tuple(free - held for free, held in zip(self.problem.free, self.problem.held(kept), strict=True))

    @cached_property
    def copies(self) -> tuple[ChosenCopy, ...]:
        """All copies: those to the slow memory, each value once, then those to the fast one, by the place of their kernel."""
        stores = list(self._stores())
        number_of = {copy.value: number for number, copy in enumerate(stores)}
        return (*stores, *self._loads(number_of))

    def _stores(self) -> Iterator[ChosenCopy]:
        """Yield the copies to the slow memory; outputs are copied anyway."""
        uses, found = self.uses, dict[ir.Value, int]()
        for node, place in self._places.items():
            found.update((value, place) for value in node.outputs if value in uses.outputs)
        found.update((value, place) for value, place in uses.stored.items() if value not in found)
        for gap in sorted(self._left, key=lambda gap: gap.before):
            found.update((v, gap.before) for v in gap.values if not uses.is_backed(v) and v not in found)
        for value, place in sorted(found.items(), key=lambda item: item[1]):
            after = None if (value, place) in self._left_after else uses.next_use(value, place)
            is_constant = value in uses.facts.constants and value.name not in uses.residence.stay
            # A tensor that is used later takes its bytes anyway, and may be overwritten then.
            size = 0 if is_constant or after is not None else self._size(value)
            yield ChosenCopy(value, WantedCopy(False, size, uses.bytes(value), place, after))

    def _loads(self, number_of: Mapping[ir.Value, int]) -> Iterator[ChosenCopy]:
        """Yield the copies to the fast memory. Those of values that are copied out before read what the store in `number_of` wrote."""
        uses = self.uses
        for place, values in sorted(self._loaded.items()):
            for value in values:
                after = max(self._left_before.get((value, place), -1), self._made_at(value))
                source = None if value in uses.inputs or value in uses.weights else number_of.get(value)
                wanted = WantedCopy(True, self._size(value), uses.bytes(value), after, place, source)
                yield ChosenCopy(value, wanted)
        for node in uses.part_copies:
            value, place = node.outputs[0], self._places[node]
            is_early = all(one is None or one in uses.facts.constants for one in node.inputs[1:])
            wanted = WantedCopy(True, self._size(value), uses.bytes(value), -1 if is_early else place - 1, place)
            yield ChosenCopy(value, wanted, node)

    @cached_property
    def _loaded(self) -> dict[int, tuple[ir.Value, ...]]:
        """The values that are copied to the fast memory for a kernel, by its place."""
        uses = self.uses
        found: dict[int, dict[ir.Value, None]] = {}
        for value in (*uses.layout.scope.graph.inputs, *uses.weights):
            if value in uses.reads and (value in uses.inputs or value in uses.weights):
                found.setdefault(uses.reads[value][0], {})[value] = None
        for gap in self._left:
            found.setdefault(gap.after, {}).update(dict.fromkeys(gap.values))
        return {place: tuple(values) for place, values in found.items()}

    @cached_property
    def _left_before(self) -> dict[tuple[ir.Value, int], int]:
        """The place of the last kernel that uses a value before it leaves, by value and by the place of the one that uses it again."""
        return {(value, gap.after): gap.before for gap in self._left for value in gap.values}

    @cached_property
    def _left_after(self) -> frozenset[tuple[ir.Value, int]]:
        """The values that leave the fast memory, with the place of the last kernel that uses them before."""
        return frozenset((value, gap.before) for gap in self._left for value in gap.values)

    @cached_property
    def _places(self) -> dict[ir.Node, int]:
        """The place of each node in the schedule, also of those that make constants."""
        return {node: place for place, node in enumerate(self.uses.layout.schedule.nodes)}

    def _made_at(self, value: ir.Value) -> int:
        """Return the place of the node that makes the constant `value`; -1 for other values."""
        maker = value.producer()
        return -1 if maker is None or value not in self.uses.weights else self._places.get(maker, -1)

    def _size(self, value: ir.Value) -> int:
        return align(self.uses.bytes(value), self.uses.layout.alignment)
