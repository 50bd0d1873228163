"""Several heuristics, then an exact search with what effort is left, until the lower bound is reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.gaps import Fitter, tightest
from onnxtile.planning.offsets.problem import OptimalityProof, Problem, size_of
from onnxtile.planning.offsets.ranking import by_breadth, by_size
from onnxtile.planning.offsets.repeated_skyline import fillings
from onnxtile.planning.planner import Placement, Planner
from onnxtile.planning.planners.exact import improve

MANY = 20_000
"""Above this number of buffers, only the skyline is tried: the other heuristics take seconds there."""


def _place(problem: Problem, effort: Effort) -> Placement:
    budget = effort.budget
    best: Sequence[int] = ()
    size = -1
    for offsets in _tried(problem, effort):
        reached = size_of(problem, offsets)
        if size < 0 or reached < size:
            best, size = offsets, reached
        if size == problem.lower_bound:
            return Placement(tuple(best), OptimalityProof(problem.lower_bound, problem.bound, "lower bound reached"))
        if budget.is_late:
            return Placement(tuple(best), OptimalityProof(problem.lower_bound, problem.bound, "time"))
    return improve(problem, tuple(best), effort.after(budget))


def _tried(problem: Problem, effort: Effort) -> Iterator[Sequence[int]]:
    """Yield the offsets of one heuristic after the other, the quickest and most promising first."""
    layered = not problem.extra_conflicts
    if len(problem.buffers) > MANY and layered:
        yield from fillings(problem, effort.steps)
        return
    fitter = Fitter(problem)
    yield fitter.place(by_size(problem), tightest)
    yield fitter.place(by_breadth(problem), tightest)
    if layered:
        yield from fillings(problem, effort.steps)


BEST = Planner("best", "several heuristics, then an exact search, until the lower bound is reached", _place)
