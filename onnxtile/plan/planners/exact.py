"""The smallest arena: a search that ends with the best plan there is, or with its budget.

The idea is MiniMalloc's: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752; plan.exact says what is done here.
"""

from __future__ import annotations

from onnxtile.plan.exact.solve import solve
from onnxtile.plan.planner import Planner
from onnxtile.plan.planners.greedy_by_size import GREEDY_BY_SIZE
from onnxtile.plan.problem import Problem

LEAST, MOST = 100_000, 1_000_000_000
"""The budget, in looks at a buffer, grows with the cube of their number. A million takes a fifth of a second, or a hundredth with numba."""


def _place(problem: Problem) -> tuple[int, ...]:
    looks = min(max(10 * len(problem.buffers) ** 3, LEAST), MOST)
    return solve(problem, GREEDY_BY_SIZE.place(problem), looks).offsets


EXACT = Planner("exact", "the smallest arena, by a search with a budget", _place)
