"""The problem of ordering as plain data: nodes, their predecessors, and the units of bytes that they write and read."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

Operands: TypeAlias = tuple[tuple[int, ...], ...]
"""The operands that one result may be written over, each as its units of bytes."""


@dataclass(frozen=True)
class OrderingProblem:
    """Nodes and units of bytes by number; the numbering of nodes is a valid order.

    Node n comes after the nodes `after[n]`, and writes or reads the units `touches[n]`. A unit of `sizes[u]` bytes is live from the first
    node that touches it to the last; from the start of the run if it is in `given`, to its end if it is in `kept`. `over[n]` has the
    operands that each result of n may be written over: while n runs, the units of one of them need no bytes beside the result, as far as
    no later node touches them.
    """

    after: tuple[tuple[int, ...], ...]
    touches: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    kept: frozenset[int] = frozenset()
    given: frozenset[int] = frozenset()
    over: Mapping[int, tuple[Operands, ...]] = field(default_factory=dict)

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """The nodes directly after each node."""
        found: list[list[int]] = [[] for _ in self.after]
        for node, before in enumerate(self.after):
            for other in before:
                found[other].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that touch each unit."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for node, touched in enumerate(self.touches):
            for unit in touched:
                found[unit].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def floor(self) -> int:
        """The bytes that every order needs: the largest sum of units that one node touches, or that are given, or kept."""
        alone = (
            sum(self._sizes_of(touched)) - self.saved(node, frozenset(touched))
            for node, touched in enumerate(self.touches)
        )
        return max(*map(sum, map(self._sizes_of, (self.given, self.kept))), max(alone, default=0))

    def _sizes_of(self, units: Iterable[int]) -> Iterable[int]:
        return (self.sizes[unit] for unit in units)

    def saved(self, node: int, ending: Container[int]) -> int:
        """Return the bytes that results of `node` save when they are written over operands; no later node touches the units `ending`."""
        return sum(
            max(sum(self.sizes[unit] for unit in units if unit in ending) for units in operands)
            for operands in self.over.get(node, ())
        )

    def forced(self, node: int) -> int:
        """Return the bytes that are live while `node` runs in every order.

        They are the units that it touches, and those that nodes on a path to it and from it touch. Takes one pass over the graph.
        """
        before = self._reached(node, self.after)
        behind = self._reached(node, self.followers)
        early = self.given.union(*(self.touches[other] for other in before))
        late = self.kept.union(*(self.touches[other] for other in behind))
        ending = {unit for unit in self.touches[node] if unit not in late}
        return sum(self._sizes_of((early & late).union(self.touches[node]))) - self.saved(node, ending)

    def _reached(self, node: int, edges: Sequence[Sequence[int]]) -> set[int]:
        """Return the nodes that paths of one edge or more lead to from `node`."""
        found: set[int] = set()
        todo = [node]
        while todo:
            new = set(edges[todo.pop()]) - found
            found |= new
            todo += new
        return found

    def without_units_below(self, least: int) -> OrderingProblem:
        """Return the problem in which units of fewer than `least` bytes have none."""
        sizes = tuple(size if size >= least else 0 for size in self.sizes)
        touches = tuple(tuple(unit for unit in touched if sizes[unit]) for touched in self.touches)
        return replace(self, touches=touches, sizes=sizes)

    def between(self, done: AbstractSet[int], nodes: Sequence[int]) -> OrderingProblem:
        """Return the problem of the order of `nodes`, in a valid order, which run after the nodes `done` and before all others.

        Node n of it is `nodes[n]`. Units that none of `nodes` touches are left out.
        """
        number = {node: place for place, node in enumerate(nodes)}
        units = dict.fromkeys(unit for node in nodes for unit in self.touches[node])
        renamed = {unit: place for place, unit in enumerate(units)}
        given = frozenset(renamed[u] for u in units if u in self.given or any(user in done for user in self.users[u]))
        kept = frozenset(
            renamed[u]
            for u in units
            if u in self.kept or any(user not in number and user not in done for user in self.users[u])
        )
        over = {
            number[node]: tuple(
                tuple(tuple(renamed[u] for u in operand) for operand in result) for result in self.over[node]
            )
            for node in nodes
            if node in self.over
        }
        return OrderingProblem(
            tuple(tuple(number[other] for other in self.after[node] if other in number) for node in nodes),
            tuple(tuple(renamed[unit] for unit in self.touches[node]) for node in nodes),
            tuple(self.sizes[unit] for unit in units),
            kept,
            given,
            over,
        )
