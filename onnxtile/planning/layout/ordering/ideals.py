"""Sets of nodes that have run, as bits of a whole number: the live bytes beside them, and the nodes that may run next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem

Trail: TypeAlias = "tuple[Trail, list[int]] | None"
"""The nodes that have run, the last ones first."""


class Ideal(NamedTuple):
    """The nodes `done`, which contain the predecessors of each, the `live` bytes between two steps, and the nodes `ready` to run next."""

    done: int
    live: int
    ready: int


class Ideals:
    """The ideals of the graph of `problem`: sets of nodes that contain all predecessors of each.

    With `backward`, nodes run from the last to the first: a node is ready when all its followers have run.
    """

    def __init__(self, problem: OrderingProblem, *, backward: bool = False) -> None:
        count = len(problem.after)
        self._backward = backward
        given, kept = (problem.kept, problem.given) if backward else (problem.given, problem.kept)
        # A bit more for the caller before the run, and another for the caller after it.
        users = [_bits(nodes) for nodes in problem.users]
        users = [bits | (unit in given) << count | (unit in kept) << count + 1 for unit, bits in enumerate(users)]
        self._users = users
        waits = problem.followers if backward else problem.after
        self._next = problem.after if backward else problem.followers
        self._waits = [_bits(nodes) for nodes in waits]
        sized = [[(problem.sizes[unit], users[unit]) for unit in touched] for touched in problem.touches]
        self._touched = sized
        self._over = {
            node: [[[(problem.sizes[u], users[u]) for u in units] for units in operands] for operands in results]
            for node, results in problem.over.items()
        }
        ready = sum(1 << node for node, bits in enumerate(self._waits) if not bits)
        self.start = Ideal(1 << count, sum(problem.sizes[unit] for unit in given), ready)
        self.all = (1 << count + 1) - 1
        self.steps = 0

    def price(self, ideal: Ideal, node: int) -> tuple[int, int]:
        """Return the live bytes while `node` runs next, and those after it."""
        self.steps += 1
        done = ideal.done
        later = done | 1 << node
        during = after = ideal.live
        for size, users in self._touched[node]:
            if not users & done:
                during += size
                after += size
            if users & later == users:
                after -= size
        if node in self._over:
            during -= self._saved(node, done, later)
        return during, after

    def _saved(self, node: int, done: int, later: int) -> int:
        """Return the bytes that results of `node` save when they are written over operands that no later node touches."""
        saved = 0
        for operands in self._over[node]:
            if self._backward:
                saved += max(sum(size for size, users in units if not users & done) for units in operands)
            else:
                saved += max(sum(size for size, users in units if users & later == users) for units in operands)
        return saved

    def run(self, ideal: Ideal, node: int, live: int) -> tuple[Ideal, int]:
        """Return the ideal after `node`, which leaves `live` bytes, and the nodes that became ready."""
        done = ideal.done | 1 << node
        freed = 0
        for other in self._next[node]:
            if self._waits[other] & done == self._waits[other]:
                freed |= 1 << other
        return Ideal(done, live, ideal.ready & ~(1 << node) | freed), freed

    def run_safely(self, ideal: Ideal, fresh: int, limit: int, run: list[int]) -> Ideal:
        """Return the ideal after every safe node, of `fresh` and of those whose price they change; append these to `run`.

        A node is safe if it leaves no more bytes live than before and needs at most `limit`: no later node then meets more live bytes.
        """
        todo = fresh
        while todo:
            bit = todo & -todo
            todo ^= bit
            node = bit.bit_length() - 1
            during, after = self.price(ideal, node)
            if after <= ideal.live and during <= limit:
                changed = self.changed(node, ideal.done)
                ideal, freed = self.run(ideal, node, after)
                run.append(node)
                todo |= freed | changed & ideal.ready
        return ideal

    def changed(self, node: int, done: int) -> int:
        """Return the nodes that take fewer bytes once `node` has run after `done`.

        A unit that they touch is live by then, or they are the last to touch it.
        """
        found, later = 0, done | 1 << node
        for _, users in self._touched[node]:
            left = users & ~later
            if not users & done or not left & (left - 1):
                found |= left
        return found


def members(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, the lowest first."""
    while bits:
        bit = bits & -bits
        yield bit.bit_length() - 1
        bits ^= bit


def unrolled(trail: Trail) -> list[int]:
    """Return the nodes of `trail` in the order in which they ran."""
    found = []
    while trail is not None:
        trail, run = trail
        found.append(run)
    return [node for run in reversed(found) for node in run]


def _bits(nodes: Sequence[int]) -> int:
    """Return a number with the bits `nodes` set, in one pass over its bytes."""
    found = bytearray(max(nodes, default=0) // 8 + 1)
    for node in nodes:
        found[node // 8] |= 1 << node % 8
    return int.from_bytes(found, "little")
