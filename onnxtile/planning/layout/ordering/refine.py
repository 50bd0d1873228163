"""Orders the nodes before and after a peak so that they have the least peak there, too, and so on within them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem
from onnxtile.planning.layout.ordering.search import heights, search

_BUDGET = 200_000
"""The default budget in steps: each look at a stretch of nodes counts its nodes, and the steps that its search took."""
_SHORTEST = 2
"""Nodes of a stretch, at least, that is searched."""
_STEPS_OF_A_NODE = 50
"""Steps for each node of a stretch that its search may take."""
_LEAST_OF_A_NODE = 80
"""Steps of the budget for each node of the graph, at least: of larger graphs, few stretches could be searched."""


@dataclass(frozen=True)
class _Stretch:
    """Nodes that run one after the other; `searched` where their order has the least peak already."""

    nodes: Sequence[int]
    searched: bool


def refined(problem: OrderingProblem, order: Sequence[int], budget: int = _BUDGET) -> tuple[int, ...]:
    """Return `order` with the nodes before and after its peak in an order of less peak, recursively; the peak stays the same.

    The nodes before the peak stay before it, so that only their order changes. The result is deterministic. A graph with too many nodes
    for the budget stays in `order`.
    """
    if len(order) * _LEAST_OF_A_NODE > budget:
        return tuple(order)
    found: list[int] = []
    done: set[int] = set()
    todo = [_Stretch(order, searched=True)]
    while todo:
        stretch = todo.pop()
        nodes = stretch.nodes
        if len(nodes) < _SHORTEST or budget < len(nodes):
            found += nodes
            done.update(nodes)
            continue
        budget -= len(nodes)
        part = problem.between(done, nodes)
        places: Sequence[int] = range(len(nodes))
        if not stretch.searched:
            best = search(part, _STEPS_OF_A_NODE * len(nodes))
            places, budget = best.order, budget - best.steps
        during = heights(part, places)
        at = during.index(max(during))
        nodes = [nodes[place] for place in places]
        todo += [_Stretch(nodes[at + 1 :], False), _Stretch(nodes[at : at + 1], True), _Stretch(nodes[:at], False)]
    return tuple(found)
