"""A lower bound on the bytes copied: tensors may stay in the fast memory in part, which makes the choice a flow of least cost.

Each byte that stays flows from the first full step of its gap to the step after the last. All bytes that a step has free flow through it.
Source: Carlisle and Lloyd, On the k-coloring of intervals (1995), with the bytes of a gap as intervals. A copy into the slow memory that
several gaps share is divided among them, so that the bound stays a lower bound.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import pairwise

from onnxtile.graph import least_cost_flow
from onnxtile.planning.movement.gaps import MovementProblem

UNIT = 1 << 12
"""Costs of a byte are whole numbers of this part of a copied byte, rounded down."""
_MOST = 4_000
"""The most full steps and gaps: the flow takes a time that grows with their product."""


def least_bytes(problem: MovementProblem) -> int | None:
    """Return bytes that every choice of gaps copies; None for a problem that is too large."""
    found = _relaxed(problem)
    return None if found is None else found[0]


def prices(problem: MovementProblem) -> dict[str, int] | None:
    """Return what a byte costs in steps, in parts of a copied byte, where all that is saved by tensors that stay is worth the most.

    None for a problem that is too large.
    """
    found = _relaxed(problem)
    if found is None:
        return None
    costs = zip(problem.full_steps, pairwise(found[1]), strict=False)
    return {str(step): before - after for step, (before, after) in costs if before > after}


def _relaxed(problem: MovementProblem) -> tuple[int, list[int]] | None:
    """Return the least bytes, and the potential of each full step and of the end."""
    steps = problem.full_steps
    spells = [(bisect_left(steps, g.first), bisect_right(steps, g.last), g) for g in problem.gaps]
    spells = [spell for spell in spells if spell[0] < spell[1]]
    if len(steps) + len(spells) > _MOST:
        return None
    if not spells:
        return 0, []
    shares = Counter(gap.store for *_, gap in spells)
    free = [problem.free[step] for step in steps]
    most = max(free)
    demand = [0] * (len(steps) + 1)
    demand[0], demand[-1] = -most, most
    edges = []
    # Of the bytes that flow through a step, at least those above its free ones take the edge that costs nothing.
    for place, room in enumerate(free):
        demand[place] += most - room
        demand[place + 1] -= most - room
        edges.append((place, place + 1, most, 0))
    total = 0
    for low, high, gap in spells:
        stored = 0 if gap.store is None else problem.stores[gap.store] // shares[gap.store]
        price = (gap.loaded + stored) * UNIT // gap.size
        total += price * gap.size
        edges.append((low, high, gap.size, -price))
    saved, potentials = least_cost_flow(demand, edges)
    return max(0, -(-(total + saved) // UNIT)), potentials
