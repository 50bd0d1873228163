"""Which nodes are before which in every order, by chains: paths that together hold every node once.

A node is after the first few nodes of each chain and after no others of it, so one number for each chain says all that is before a node:
n·k numbers for n nodes on k chains, where a set for each node takes n² bits. k is about the number of nodes that may run at once.
The idea is that of Jagadish, "A compression technique to materialize transitive closure", TODS 1990, doi 10.1145/99935.99944.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxtile.errors import UsageError
from onnxtile.planning.offsets.problem import Ints

MOST_NUMBERS = 50_000_000
"""Of n·k, at most: 200 MB."""
MOST_PAIRS = 20_000_000
"""Pairs of nodes of which neither is before the other, at most."""

_HINT = "plan for one order instead (--order model or min-peak), or for nodes that run at once (--streams N)"


class Chains:
    """The chains of a graph whose node n comes after the nodes `after[n]`, all of lower numbers.

    `chain[n]` is the chain of node n, `place[n]` its place there, and `through[n, c]` how many nodes of chain c are before it.
    Raises UsageError for a graph in which too many nodes are in no order.
    """

    def __init__(self, after: Sequence[Sequence[int]]) -> None:
        count = len(after)
        self.chain = np.zeros(count, np.int64)
        self.place = np.zeros(count, np.int64)
        self._through = np.zeros((count, 8), np.int32)
        self._lengths = np.zeros(8, np.int32)
        self.count = 0
        pairs = 0
        for node, before in enumerate(after):
            row = self._through[node]
            for other in before:
                np.maximum(row, self._through[other], out=row)
            for other in before:
                chain = self.chain[other]
                row[chain] = max(row[chain], self.place[other] + 1)
            pairs += int((self._lengths - row).sum())
            _require(pairs, MOST_PAIRS, f"{count:,} nodes are in no order with so many others")
            self._append(node, self._ended(before, row))
        self.through = self._through[:, : self.count]

    def _ended(self, before: Sequence[int], row: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
        """Return a chain all of whose nodes are before the node that `row` is of, or a new one; rather one of a node right `before` it."""
        for other in before:
            chain = int(self.chain[other])
            if self.place[other] + 1 == self._lengths[chain]:
                return chain
        ended = np.flatnonzero(row[: self.count] == self._lengths[: self.count])
        return int(ended[0]) if len(ended) else self.count

    def _append(self, node: int, chain: int) -> None:
        if chain == self.count:
            self.count += 1
            numbers = self.count * len(self.chain)
            _require(numbers, MOST_NUMBERS, f"{len(self.chain):,} nodes stand on {self.count:,} chains")
        if chain == len(self._lengths):
            self._through = np.pad(self._through, ((0, 0), (0, chain)))
            self._lengths = np.pad(self._lengths, (0, chain))
        self.chain[node] = chain
        self.place[node] = self._lengths[chain]
        self._lengths[chain] += 1

    def is_before(self, node: int, other: int) -> bool:
        """Return whether `node` is before `other` in every order."""
        return bool(self.through[other, self.chain[node]] > self.place[node])

    def ends(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return the last of `nodes` on each chain: what is after these is after all of `nodes`."""
        last: dict[int, int] = {}
        for node in nodes:
            chain = int(self.chain[node])
            if chain not in last or self.place[last[chain]] < self.place[node]:
                last[chain] = node
        return tuple(last.values())

    def before_all(self, nodes: Sequence[int]) -> Ints:
        """Return how many nodes of each chain are before all of `nodes`, of which there is one at least."""
        least: Ints = self.through[list(nodes)].min(axis=0).astype(np.int64)
        return least


def _require(number: int, most: int, what: str) -> None:
    if number > most:
        raise UsageError(
            f"the graph is too wide for the order 'any': {what} ({number:,}, at most {most:,})", hint=_HINT
        )
