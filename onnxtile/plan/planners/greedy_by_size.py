"""The largest buffer first, each into the tightest gap that its live neighbours leave.

Algorithm 3 of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288.
"""

from __future__ import annotations

from onnxtile.plan.fit import Fitter, tightest
from onnxtile.plan.planner import Planner, heuristic
from onnxtile.plan.problem import Problem
from onnxtile.plan.ranking import by_size


def _place(problem: Problem) -> list[int]:
    return Fitter(problem).place(by_size(problem), tightest)


GREEDY_BY_SIZE = Planner("greedy-by-size", "the largest first, each into the tightest gap", heuristic(_place))
