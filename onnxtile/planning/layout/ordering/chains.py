"""Precedence of nodes in every order, by chains: paths that together hold every node once.

The nodes before a node are the first few of each chain. One number for each chain says how many: n·k numbers for n nodes on k chains,
where a set for each node takes n² bits. k is about the number of nodes that may run at the same time. After Jagadish, "A compression
technique to materialize transitive closure", TODS 1990, doi 10.1145/99935.99944.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from onnxtile.errors import UsageError
from onnxtile.planning.offsets.problem import Ints

MOST_NUMBERS = 50_000_000
"""The largest n·k: 200 MB."""
MOST_PAIRS = 20_000_000
"""The largest number of unordered pairs of nodes."""

_HINT = "plan for one order instead (--order model or min-peak), or for nodes that run at once (--streams N)"


def require_narrow(after: Sequence[Sequence[int]]) -> None:
    """Raise UsageError for a graph that `Chains` would refuse, where that is seen in one pass over its nodes.

    Nodes at the same distance from the first ones, counted along the longest path, are unordered: that is a lower bound on all pairs.
    """
    depths: list[int] = []
    for before in after:
        depths.append(1 + max((depths[other] for other in before), default=-1))
    pairs = sum(count * (count - 1) // 2 for count in Counter(depths).values())
    _require(pairs, MOST_PAIRS, f"{len(after):,} nodes have too many unordered pairs")


class Chains:
    """The chains of a graph whose node n comes after the nodes `after[n]`, all of lower numbers.

    `chain[n]` is the chain of node n, `place[n]` its place there, and `through[n, c]` how many nodes of chain c are before it.
    Raises UsageError for a graph with too many unordered pairs of nodes.
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
            _require(pairs, MOST_PAIRS, f"{count:,} nodes have too many unordered pairs")
            self._append(node, self._ended(before, row))
        self.through = self._through[:, : self.count]

    def _ended(self, before: Sequence[int], row: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
        """Return a chain that ends before the node of `row`, preferably of a node directly `before` it; or a new chain."""
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
            _require(numbers, MOST_NUMBERS, f"{len(self.chain):,} nodes form {self.count:,} chains")
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
        """Return the last of `nodes` on each chain: a node after these is after all of `nodes`."""
        last: dict[int, int] = {}
        for node in nodes:
            chain = int(self.chain[node])
            if chain not in last or self.place[last[chain]] < self.place[node]:
                last[chain] = node
        return tuple(last.values())

    def before_all(self, nodes: Sequence[int]) -> Ints:
        """Return the number of nodes of each chain that are before all of `nodes`, which must not be empty."""
        least: Ints = self.through[list(nodes)].min(axis=0).astype(np.int64)
        return least


def _require(number: int, most: int, what: str) -> None:
    if number > most:
        raise UsageError(
            f"the graph is too wide for the order 'any': {what} ({number:,}, at most {most:,})", hint=_HINT
        )
