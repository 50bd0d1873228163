"""Who is before whom: whether all uses of one value come before another is made, in one schedule or in every order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtile.graph import dependencies, heaviest_antichain
from onnxtile.plan.order.live import Life
from onnxtile.plan.order.schedule import Schedule, predecessors
from onnxtile.plan.scope import Scope


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

    def __init__(self, schedule: Schedule, lives: Mapping[ir.Value, Life]) -> None:
        self._lives = lives
        self._readers: Counter[tuple[ir.Value, int]] = Counter()
        if schedule.numbers:
            self._readers.update((v, step) for node, step in schedule.steps.items() for v in set(dependencies(node)))

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the life of `a` ends before that of `b` begins."""
        return self._lives[a][1] <= self._lives[b][0]

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether `a` is read last in the step that makes `b`, and by no other node of that step."""
        step = self._lives[b][0]
        return self._lives[a][1] == step + 1 and self._readers[a, step] <= 1

    def made_before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the life of `a` begins before that of `b`."""
        return self._lives[a][0] < self._lives[b][0]


class InEveryOrder:
    """Precedence in every order that the graph allows: a node is before another where a path leads from it to that.

    Each node has a set of bits, one for each node that is before it: n²/8 bytes for n nodes.
    """

    def __init__(self, scope: Scope, schedule: Schedule) -> None:
        place = {node: number for number, node in enumerate(schedule.nodes)}
        self._before: dict[ir.Node, int] = {}
        self._bit = {node: 1 << number for node, number in place.items()}
        self._uses: dict[ir.Value, int] = {}
        for node in schedule.nodes:
            earlier = 0
            for maker in predecessors(node):
                if maker in place:
                    earlier |= self._before[maker] | self._bit[maker]
            self._before[node] = earlier
            for value in (*dependencies(node), *node.outputs):
                self._uses[value] = self._uses.get(value, 0) | self._bit[node]

        self._earlier = list(self._before.values())
        for value in scope.kept:
            # The caller reads it after every node.
            self._uses[value] = self._uses.get(value, 0) | 1 << len(place)

    def uses(self, value: ir.Value) -> Iterator[int]:
        """Yield the numbers of the nodes that use `value`; of one more than there are for an output."""
        mask = self._uses.get(value, 0)
        while mask:
            yield (mask & -mask).bit_length() - 1
            mask &= mask - 1

    def claim(self, name: str, life: Life, values: Iterable[ir.Value]) -> Claim:
        """Return the claim of a buffer in which `values` lie."""
        values = list(values)
        makers = (value.producer() for value in values)
        numbers = tuple(dict.fromkeys(None if maker is None else self.number(maker) for maker in makers))
        return Claim(name, life, tuple(sorted({use for value in values for use in self.uses(value)})), numbers)

    def number(self, node: ir.Node) -> int:
        """Return the number of `node`: its place in the schedule."""
        return self._bit[node].bit_length() - 1

    def before_all(self, makers: Iterable[int | None]) -> npt.NDArray[np.bool_]:
        """Return for each node whether it is before all of `makers`; no for the end of the run."""
        common = -1
        for maker in makers:
            common &= 0 if maker is None else self._earlier[maker]
        size = len(self._bit) // 8 + 1
        return np.unpackbits(np.frombuffer(common.to_bytes(size, "little"), np.uint8), bitorder="little").astype(bool)

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether every node that uses `a` is before the one that makes `b`."""
        maker = b.producer()
        return maker is not None and not self._uses.get(a, 0) & ~self._before[maker]

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether every other node that uses `a` is before the one that makes `b`."""
        maker = b.producer()
        return maker is not None and not self._uses.get(a, 0) & ~(self._before[maker] | self._bit[maker])

    def made_before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether a path leads from the node that makes `a`, or the caller, to the one that makes `b`."""
        first, second = a.producer(), b.producer()
        return second is not None and (first is None or bool(self._before[second] & self._bit[first]))


@dataclass(frozen=True)
class Claim:
    """Who wants bytes, and in which steps: the nodes that `uses` them (also the end of the run), and the first of these.

    Of the `makers` None is the caller.
    """

    name: str
    life: Life
    uses: tuple[int, ...]
    makers: tuple[int | None, ...]


def conflicts(claims: Sequence[Claim], order: InEveryOrder) -> frozenset[tuple[str, str]]:
    """Return the names of which may want their bytes together in some order although they never do in the schedule's.

    Takes c² steps for c claims, each of them one of numpy's.
    """
    if not claims:
        return frozenset()
    unordered = _unordered(claims, order)
    found = set()
    for i, k in np.argwhere(np.triu(unordered & unordered.T, 1)):
        one, other = claims[i], claims[k]
        if one.life[1] <= other.life[0] or other.life[1] <= one.life[0]:
            found.add((one.name, other.name))
    return frozenset(found)


def crowd(claims: Sequence[Claim], weights: Sequence[int], order: InEveryOrder) -> frozenset[str]:
    """Return the names of the heaviest claims of which any two may want their bytes together in some order.

    `weights` are bytes, one of each claim. Takes c³ steps of numpy's for c claims.
    """
    if not claims:
        return frozenset()
    before = ~_unordered(claims, order).T
    np.fill_diagonal(before, False)
    return frozenset(claims[i].name for i in heaviest_antichain(weights, before))


def _unordered(claims: Sequence[Claim], order: InEveryOrder) -> npt.NDArray[np.bool_]:
    """Return in row k, column i, whether a node that uses the bytes of claim i is not before all makers of claim k."""
    uses = [claim.uses or (0,) for claim in claims]
    flat = np.fromiter((number for used in uses for number in used), np.int64)
    starts = np.cumsum([0, *(len(used) for used in uses[:-1])])
    found = np.empty((len(claims), len(claims)), bool)
    for k, claim in enumerate(claims):
        found[k] = np.logical_or.reduceat(~order.before_all(claim.makers)[flat], starts)
    return found
