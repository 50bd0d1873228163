"""The smallest arena: a search that ends with a proof, or with its budget.

After MiniMalloc: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752; see planning.offsets.exact.
"""

from __future__ import annotations

from functools import partial

from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.exact.solve import How, solve
from onnxtile.planning.offsets.problem import Ended, OptimalityProof, Problem, size_of
from onnxtile.planning.offsets.repeated_fit import placings
from onnxtile.planning.planner import Placement, Planner
from onnxtile.planning.planners.greedy_by_size import GREEDY_BY_SIZE

_ENDED: dict[How, Ended] = {"optimal": "search ended", "effort": "effort", "time": "time", "size": "too many buffers"}


def improve(problem: Problem, start: tuple[int, ...], effort: Effort) -> Placement:
    """Return the best offsets that the search finds within `effort`, no worse than `start`, which are free of overlaps.

    The exact search knows rectangles only: of buffers with outlines it proves nothing.
    """
    if problem.has_outlines:
        return _of_outlines(problem, start, effort)
    solution = solve(problem, start, effort)
    if solution.lower_bound > problem.lower_bound:
        return Placement(solution.offsets, OptimalityProof(solution.lower_bound, "search", _ENDED[solution.ended]))
    did_reach = solution.ended == "optimal"
    return Placement(
        solution.offsets,
        OptimalityProof(
            problem.lower_bound, problem.bound, "lower bound reached" if did_reach else _ENDED[solution.ended]
        ),
    )


def _of_outlines(problem: Problem, start: tuple[int, ...], effort: Effort) -> Placement:
    """Return the best offsets of the exact search on the bounding rectangles, and of rounds of placing the parts.

    The rectangles go first where they need no more bytes than the parts: the search is better at them.
    """
    budget, best, bounding = effort.budget, start, problem.bounding
    is_tight = bounding.lower_bound == problem.lower_bound
    if is_tight:
        best = min(best, _place(bounding, effort).offsets, key=partial(size_of, problem))
    if size_of(problem, best) > problem.lower_bound:
        best = min((best, *map(tuple, placings(problem, budget))), key=partial(size_of, problem))
    if not is_tight and bounding.lower_bound < size_of(problem, best):
        best = min(best, _place(bounding, effort.after(budget)).offsets, key=partial(size_of, problem))
    ended: Ended = "time" if budget.is_late else "effort"
    if size_of(problem, best) == problem.lower_bound:
        ended = "lower bound reached"
    return Placement(best, OptimalityProof(problem.lower_bound, problem.bound, ended))


def _place(problem: Problem, effort: Effort) -> Placement:
    return improve(problem, GREEDY_BY_SIZE.place(problem, effort).offsets, effort)


EXACT = Planner("exact", "the smallest arena, by a search that proves it", _place)
