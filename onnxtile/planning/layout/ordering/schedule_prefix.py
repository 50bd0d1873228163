"""A prefix of a schedule: the nodes that have run, the nodes that may run next, and the live bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem

Trail: TypeAlias = "tuple[Trail, int] | None"
"""The nodes that have run, the last one first."""


@dataclass
class SchedulePrefix:
    """A set of nodes that have run.

    `ready` nodes may run next; they determine the set: every node that is not one of them, nor after one, has run. `waiting` counts
    the predecessors left, for nodes of which some have run; `left` counts the nodes that still touch a live buffer. `live` bytes are in
    use between two steps, `peak` in the largest step so far. `recent` are the last few nodes that became ready. With `limit`, only these
    nodes are to run.
    """

    problem: OrderingProblem
    ready: set[int]
    waiting: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    live: int = 0
    peak: int = 0
    done: int = 0
    trail: Trail = None
    recent: tuple[int, ...] = ()
    limit: frozenset[int] | None = None

    @classmethod
    def start(cls, problem: OrderingProblem) -> SchedulePrefix:
        """Return the empty prefix."""
        return cls(problem, {node for node, before in enumerate(problem.after) if not before})

    def copy(self) -> SchedulePrefix:
        """Return a copy that can be continued in another way."""
        return SchedulePrefix(
            self.problem,
            set(self.ready),
            dict(self.waiting),
            dict(self.left),
            self.live,
            self.peak,
            self.done,
            self.trail,
            self.recent,
            self.limit,
        )

    def limited(self, nodes: Iterable[int]) -> SchedulePrefix:
        """Return the start of a search for an order of `nodes` only, which come next; their peak counts from here."""
        found = self.copy()
        found.limit = frozenset(nodes)
        found.ready &= found.limit
        found.peak, found.done, found.trail, found.recent = 0, 0, None, ()
        return found

    @property
    def is_complete(self) -> bool:
        """Whether every node (of the limit) has run."""
        return not self.ready

    def price(self, node: int) -> tuple[int, int]:
        """Return the live bytes while `node` runs next, and those after it."""
        problem, left = self.problem, self.left
        during = after = self.live
        for buffer in problem.touches[node]:
            size = problem.sizes[buffer]
            uses = left.get(buffer)
            if uses is None:
                during += size
                after += size
                uses = problem.uses[buffer]
            if uses == 1:
                after -= size
        saved = 0
        for made, source in problem.overwrites(node):
            if made not in left and left.get(source) == 1:
                saved = max(saved, problem.sizes[made])
        return during - saved, after

    def run(self, node: int) -> list[int]:
        """Run `node`; return the nodes that became ready."""
        problem, left = self.problem, self.left
        during, self.live = self.price(node)
        self.peak = max(self.peak, during)
        for buffer in problem.touches[node]:
            uses = left.get(buffer, problem.uses[buffer]) - 1
            if uses:
                left[buffer] = uses
            else:
                left.pop(buffer, None)
        self.ready.discard(node)
        self.done += 1
        self.trail = (self.trail, node)
        freed = []
        for follower in problem.followers[node]:
            count = self.waiting.pop(follower, len(problem.after[follower])) - 1
            if count:
                self.waiting[follower] = count
            elif self.limit is None or follower in self.limit:
                freed.append(follower)
        self.ready.update(freed)
        self.recent = (*freed, *self.recent)[:_RECENT]
        return freed

    def run_safely(self, fresh: Iterable[int], floor: int) -> list[int]:
        """Run every safe node, of `fresh` and of those that become ready; return all of them.

        A node is safe if it leaves no more bytes live than before, and does not raise the peak (or `floor`, which no order avoids): no
        later node then meets more live bytes than without it.
        """
        seen = sorted(fresh)
        todo = seen[::-1]
        while todo:
            node = todo.pop()
            if node not in self.ready:
                continue
            during, after = self.price(node)
            if after <= self.live and during <= max(self.peak, floor):
                new = sorted(self.run(node))
                seen.extend(new)
                todo.extend((*self._neighbours(node), *reversed(new)))
        return seen

    def _neighbours(self, node: int) -> Iterator[int]:
        """Yield the ready nodes that touch a buffer which only one node is still to touch after `node`."""
        single = {b for b in self.problem.touches[node] if self.left.get(b) == 1}
        if single and len(self.ready) <= _FEW:
            yield from (other for other in self.ready if not single.isdisjoint(self.problem.touches[other]))

    def order(self) -> list[int]:
        """Return the nodes that have run, in their order."""
        found, trail = [], self.trail
        while trail is not None:
            trail, node = trail
            found.append(node)
        return found[::-1]


_RECENT = 12

_FEW = 64
"""The most ready nodes that are searched after each step; in wider graphs only nodes that become ready are."""
