"""The smallest arena: a search that ends with a proof, or with its budget.

After MiniMalloc: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752; see planning.offsets.exact.
"""

from __future__ import annotations

from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.exact.solve import How, solve
from onnxtile.planning.offsets.problem import Ended, OptimalityProof, Problem
from onnxtile.planning.planner import Placement, Planner
from onnxtile.planning.planners.greedy_by_size import GREEDY_BY_SIZE

_ENDED: dict[How, Ended] = {"optimal": "search ended", "effort": "effort", "time": "time", "size": "too many buffers"}


def improve(problem: Problem, start: tuple[int, ...], effort: Effort) -> Placement:
    """Return the best offsets that the search finds within `effort`, no worse than `start`, which are free of overlaps."""
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


def _place(problem: Problem, effort: Effort) -> Placement:
    return improve(problem, GREEDY_BY_SIZE.place(problem, effort).offsets, effort)


EXACT = Planner("exact", "the smallest arena, by a search that proves it", _place)
