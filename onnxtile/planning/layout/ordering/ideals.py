"""Sets of nodes that have run, as bits of a whole number: the live bytes beside them, and the nodes that may run next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem

Trail: TypeAlias = "tuple[Trail, list[int]] | None"
"""The nodes that have run, the last ones first."""


class Ideal(NamedTuple):
    """The nodes `done`, which contain the predecessors of each, the `live` bytes between two steps, and the nodes `ready` to run next."""

    done: int
    live: int
    ready: int


class Effect(NamedTuple):
    """The effect of a node on the live bytes: while it runs and after it, against those before.

    After it, the nodes `cheaper` take fewer bytes, and those `freed` are ready.
    """

    during: int
    after: int
    cheaper: int
    freed: int


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
        waits = problem.followers if backward else problem.after
        self._next = problem.after if backward else problem.followers
        self._waits = [_bits(nodes) for nodes in waits]
        sized = [[(problem.sizes[unit], users[unit]) for unit in touched] for touched in problem.touches]
        self._touched = sized
        self._over = {
            node: [[[(problem.sizes[u], users[u]) for u in units] for units in operands] for operands in results]
            for node, results in problem.over.items()
        }
        self._near = [self._span(node) for node in range(count)]
        self._effects: list[dict[int, Effect]] = [{} for _ in range(count)]
        ready = sum(1 << node for node, bits in enumerate(self._waits) if not bits)
        self.start = Ideal(1 << count, sum(problem.sizes[unit] for unit in given), ready)
        self.all = (1 << count + 1) - 1
        self.steps = 0

    def _span(self, node: int) -> tuple[int, int]:
        """Return the nodes that decide the effect of `node`, as bits, and the number of zeros below them, which are left out."""
        near = 0
        for _, users in self._touched[node]:
            near |= users
        for other in self._next[node]:
            near |= self._waits[other]
        for operands in self._over.get(node, ()):
            for _, users in chain.from_iterable(operands):
                near |= users
        near &= (1 << len(self._waits)) - 1  # the bits of the caller never change
        low = max((near & -near).bit_length() - 1, 0)
        return low, near >> low

    def effect(self, done: int, node: int) -> Effect:
        """Return what `node` changes where it runs after the nodes `done`."""
        self.steps += 1
        # Only the nodes near `node` matter, and ideals share most of these: each case is computed once.
        low, near = self._near[node]
        key = done >> low & near
        found = self._effects[node].get(key)
        if found is None:
            found = self._effects[node][key] = self._computed(done, node)
        return found

    def _computed(self, done: int, node: int) -> Effect:
        later = done | 1 << node
        during = after = cheaper = 0
        for size, users in self._touched[node]:
            left = users & ~later
            first, last = not users & done, not left
            during += size * first
            after += size * (first - last)
            # A unit that they touch is live by then, or they are the last to touch it.
            if first or not left & (left - 1):
                cheaper |= left
        during -= self._saved(node, done, later) if node in self._over else 0
        ready = (other for other in self._next[node] if self._waits[other] & later == self._waits[other])
        return Effect(during, after, cheaper, sum(1 << other for other in ready))

    def _saved(self, node: int, done: int, later: int) -> int:
        """Return the bytes that results of `node` save when they are written over operands that no later node touches."""
        saved = 0
        for operands in self._over[node]:
            if self._backward:
                saved += max(sum(size for size, users in units if not users & done) for units in operands)
            else:
                saved += max(sum(size for size, users in units if users & later == users) for units in operands)
        return saved

    def run_safely(self, ideal: Ideal, fresh: int, limit: int, run: list[int]) -> Ideal:
        """Return the ideal after every safe node, of `fresh` and of those whose price they change; append these to `run`.

        A node is safe if it leaves no more bytes live than before and needs at most `limit`: no later node then meets more live bytes.
        """
        done, live, ready = ideal
        todo = fresh
        while todo:
            bit = todo & -todo
            todo ^= bit
            node = bit.bit_length() - 1
            during, after, cheaper, freed = self.effect(done, node)
            if after <= 0 and live + during <= limit:
                done, live, ready = done | bit, live + after, ready & ~bit | freed
                run.append(node)
                todo |= freed | cheaper & ready
        return Ideal(done, live, ready)

    def run(self, ideal: Ideal, node: int, effect: Effect, limit: int) -> tuple[Ideal, list[int]]:
        """Return the ideal after `node` and every safe node after it, and these nodes in the order in which they run."""
        _, after, cheaper, freed = effect
        ready = ideal.ready & ~(1 << node) | freed
        run = [node]
        further = Ideal(ideal.done | 1 << node, ideal.live + after, ready)
        return self.run_safely(further, freed | cheaper & ready, limit, run), run


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
