"""Swaps in the order of placing: of a buffer at the top of the arena with one that was placed before it and is in its way."""

from __future__ import annotations

import random

from onnxtile.plan.effort import Effort
from onnxtile.plan.fit import Fitter, lowest
from onnxtile.plan.planner import Placement, Planner
from onnxtile.plan.problem import Ended, Problem, Proof, size_of
from onnxtile.plan.ranking import by_area, by_life, by_size

_STEPS_OF_A_PLACING = 150
"""What placing one buffer counts, of the steps of the effort: as many as take the same time."""


def _place(problem: Problem, effort: Effort) -> Placement:
    """Return the best of the orders tried, two for each buffer at most; worse ones are left at once, equal ones are followed."""
    budget = effort.budget
    fitter, draw = Fitter(problem), random.Random(0)
    trials = [(fitter.place(order, lowest), order) for order in (f(problem) for f in (by_size, by_area, by_life))]
    size, offsets, order = min(((size_of(problem, o), o, order) for o, order in trials), key=lambda trial: trial[0])
    for _ in range(min(effort.steps // _STEPS_OF_A_PLACING // max(1, len(order)), 2 * len(order))):
        if size == problem.lower_bound or budget.is_late:
            break
        changed = _swapped(problem, offsets, order, draw)
        found = fitter.place(changed, lowest)
        budget.take(_STEPS_OF_A_PLACING * len(order))
        reached = size_of(problem, found)
        if reached <= size:
            size, offsets, order = reached, found, changed
    ended: Ended = "time" if budget.is_late else "effort"
    if size == problem.lower_bound:
        ended = "lower bound reached"
    return Placement(tuple(offsets), Proof(problem.lower_bound, problem.bound, ended))


def _swapped(problem: Problem, offsets: list[int], order: list[int], draw: random.Random) -> list[int]:
    buffers = problem.buffers
    highest = max(
        range(len(buffers)), key=lambda i: offsets[i] + problem.footprint(buffers[i]) if buffers[i].size else 0
    )
    top = buffers[highest]
    at = order.index(highest)
    before = [k for k in range(at) if buffers[order[k]].lower < top.upper and top.lower < buffers[order[k]].upper]
    other = draw.choice(before) if before and draw.random() < 0.5 else draw.randrange(len(order))
    changed = list(order)
    if draw.random() < 0.5:
        changed.insert(min(other, at), changed.pop(max(other, at)))
    else:
        changed[at], changed[other] = changed[other], changed[at]
    return changed


LOCAL_SEARCH = Planner("local-search", "other orders of placing, as long as they are no worse", _place)
