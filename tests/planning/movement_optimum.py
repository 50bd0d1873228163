"""The fewest bytes that any plan of a small graph copies between two memories, by trying all of them. It shares nothing with the planner.

Tensors are split into items that leave and return by themselves: whole tensors, or units of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias

Item: TypeAlias = str


@dataclass(frozen=True)
class SmallKernel:
    """The tensors that a kernel reads and the one that it makes. All are in the fast memory while it runs, with bytes of their own."""

    reads: tuple[str, ...]
    result: str


class _MemoryState(NamedTuple):
    done: frozenset[int]
    fast: frozenset[Item]
    slow: frozenset[Item]


@dataclass(frozen=True)
class SmallMovement:
    """A graph of `kernels`, in which each tensor has a number of `units`. `capacity` counts units of the fast memory, too."""

    kernels: tuple[SmallKernel, ...]
    units: Mapping[str, int]
    inputs: frozenset[str]
    outputs: frozenset[str]
    capacity: int

    def least(self, order: Sequence[int] | None, *, in_parts: bool = False) -> int:
        """Return the fewest units copied with the kernels in this `order` (None: any), of whole tensors or `in_parts`."""
        items = {
            name: [f"{name}.{number}" for number in range(count)] if in_parts else [name]
            for name, count in self.units.items()
        }
        units = {item: 1 if in_parts else self.units[name] for name, own in items.items() for item in own}
        return _Trial(self, items, units, order).least()


@dataclass(frozen=True)
class _Trial:
    graph: SmallMovement
    items: Mapping[str, Sequence[Item]]
    units: Mapping[Item, int]
    order: Sequence[int] | None

    def least(self) -> int:
        given = frozenset(item for name in self.graph.inputs for item in self.items[name])
        ways = {_MemoryState(frozenset(), frozenset(), given): 0}
        for _ in self.graph.kernels:
            after: dict[_MemoryState, int] = {}
            for state, cost in ways.items():
                for number in self._next(state.done):
                    for found, more in self._run(state, number):
                        after[found] = min(after.get(found, cost + more), cost + more)
            ways = after
        made = frozenset(item for name in self.graph.outputs for item in self.items[name])
        return min(cost + self._sum(made - state.slow) for state, cost in ways.items())

    def _next(self, done: frozenset[int]) -> Iterator[int]:
        if self.order is not None:
            yield self.order[len(done)]
            return
        made = {self.graph.kernels[number].result for number in done} | self.graph.inputs
        for number, kernel in enumerate(self.graph.kernels):
            if number not in done and made.issuperset(kernel.reads):
                yield number

    def _run(self, state: _MemoryState, number: int) -> Iterator[tuple[_MemoryState, int]]:
        """Yield the states after a kernel, with the units copied. Only items for which there is no room leave."""
        kernel, done = self.graph.kernels[number], state.done | {number}
        reads = frozenset(item for name in kernel.reads for item in self.items[name])
        result = frozenset(self.items[kernel.result])
        later = {name for place, other in enumerate(self.graph.kernels) if place not in done for name in other.reads}
        wanted = {item for name in later for item in self.items[name]}
        wanted |= {item for name in self.graph.outputs for item in self.items[name]} - state.slow
        room = self.graph.capacity - self._sum(reads | result)
        assert room >= 0
        loaded = self._sum(reads - state.fast)
        for kept in self._largest(state.fast - reads & wanted, room):
            stored = (state.fast - reads - kept) & wanted - state.slow
            fast = (kept | reads | result) & (wanted | result)
            yield _MemoryState(done, fast, state.slow | stored), loaded + self._sum(stored)

    def _largest(self, items: Iterable[Item], room: int) -> Iterator[frozenset[Item]]:
        """Yield the sets of `items` that fit `room` and to which none can be added."""
        items = sorted(items)
        for count in range(len(items), -1, -1):
            for chosen in combinations(items, count):
                left = room - self._sum(chosen)
                if left >= 0 and all(self.units[item] > left for item in items if item not in chosen):
                    yield frozenset(chosen)

    def _sum(self, items: Iterable[Item]) -> int:
        return sum(self.units[item] for item in items)
