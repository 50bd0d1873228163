"""Who is before whom: whether all uses of one value come before another is made, in one schedule or in every order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.plan.live import Life
from onnxtile.plan.schedule import Schedule, predecessors


class Precedence(Protocol):
    """What two values that want the same bytes must be asked."""

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether nobody uses `a` any more when `b` is made."""
        ...

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether the last to use `a`, and the only one by then, is the node that makes `b`."""
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


class InEveryOrder:
    """Precedence in every order that the graph allows: a node is before another where a path leads from it to that.

    Each node has a set of bits, one for each node that is before it: n²/8 bytes for n nodes.
    """

    def __init__(self, graph: ir.Graph, schedule: Schedule) -> None:
        outputs = set(graph.outputs)
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
                # The caller reads an output after every node.
                if value in outputs:
                    self._uses[value] |= 1 << len(place)

    def before(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether every node that uses `a` is before the one that makes `b`."""
        return not self._uses[a] & ~self._before[_maker(b)]

    def until(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether every other node that uses `a` is before the one that makes `b`."""
        maker = _maker(b)
        return not self._uses[a] & ~(self._before[maker] | self._bit[maker])


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
