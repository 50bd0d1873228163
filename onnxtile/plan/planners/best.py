"""Several heuristics, each only while none has reached the lower bound; the best of them, the first of equals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxtile.plan.fit import Fitter, lowest, tightest
from onnxtile.plan.orders import by_area, by_breadth, by_life, by_size
from onnxtile.plan.planner import Planner
from onnxtile.plan.planners.local_search import LOCAL_SEARCH
from onnxtile.plan.problem import Plan, Problem
from onnxtile.plan.skyline import fill

FEW, MANY = 1_000, 20_000
"""With so many buffers or fewer all heuristics are tried; with more than so many only the quickest."""


def _place(problem: Problem) -> Sequence[int]:
    best: Sequence[int] = ()
    size = -1
    for offsets in _tried(problem):
        reached = Plan.of(problem, offsets).size
        if size < 0 or reached < size:
            best, size = offsets, reached
        if size == problem.lower_bound:
            break
    return best


def _tried(problem: Problem) -> Iterator[Sequence[int]]:
    lives = [b.upper - b.lower for b in problem.buffers]
    if len(lives) > MANY:
        yield fill(problem, lives)
        return
    fitter = Fitter(problem)
    yield fitter.place(by_size(problem), tightest)
    yield fitter.place(by_breadth(problem), tightest)
    yield fill(problem, [life * (b.size + 1) for life, b in zip(lives, problem.buffers, strict=True)])
    yield fill(problem, lives)
    if len(lives) <= FEW:
        yield from (fitter.place(order(problem), lowest) for order in (by_size, by_area, by_life, by_breadth))
        yield LOCAL_SEARCH.place(problem)


BEST = Planner("best", "several heuristics, until one reaches the lower bound", _place)
