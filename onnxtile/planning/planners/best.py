"""Heuristics, ejections, then the exact search with the effort that is left, until the lower bound is reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.ejection import EjectionSearch
from onnxtile.planning.offsets.gaps import Fitter, by_breadth, by_size, tightest
from onnxtile.planning.offsets.problem import OptimalityProof, Problem, size_of
from onnxtile.planning.offsets.repeated_skyline import fillings
from onnxtile.planning.planner import Placement, Planner
from onnxtile.planning.planners.exact import improve

SKYLINE_FROM = 500
"""Buffers above which the skyline and ejections run: smaller problems are left to the exact search, which does better."""

MANY = 20_000
"""Buffers above which only the skyline runs: the other heuristics take seconds there."""


def place(problem: Problem, effort: Effort) -> Placement:
    """Return the best offsets that heuristics and then the exact search find for `problem` within `effort`."""
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
    if len(problem.buffers) > SKYLINE_FROM and _is_free(problem):
        best = EjectionSearch(problem).lowered(best, effort.after(budget).budget)
    return improve(problem, tuple(best), effort.after(budget))


def _is_free(problem: Problem) -> bool:
    """Return whether a problem has neither conflicts between buffers whose live ranges do not meet, nor pins."""
    return not problem.extra_conflicts and not problem.pinned


def _tried(problem: Problem, effort: Effort) -> Iterator[Sequence[int]]:
    """Yield the offsets of one heuristic after the other, the quickest first."""
    count, is_free = len(problem.buffers), _is_free(problem)
    if count > MANY and is_free:
        yield from fillings(problem, effort.steps)
        return
    fitter = Fitter(problem)
    yield fitter.place(by_size(problem), tightest)
    yield fitter.place(by_breadth(problem), tightest)
    if is_free and count > SKYLINE_FROM:
        yield from fillings(problem, effort.steps)


BEST = Planner("best", "heuristics, then an exact search, until the lower bound is reached", place)
