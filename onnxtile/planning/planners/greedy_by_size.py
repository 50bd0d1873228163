"""The largest buffer first, each into the tightest gap between the buffers it is in conflict with.

Algorithm 3 of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288.
"""

from __future__ import annotations

from onnxtile.planning.offsets.gaps import Fitter, by_size, tightest
from onnxtile.planning.offsets.problem import Problem
from onnxtile.planning.planner import Planner, heuristic


def _place(problem: Problem) -> list[int]:
    return Fitter(problem).place(by_size(problem), tightest)


GREEDY_BY_SIZE = Planner("greedy-by-size", "the largest first, each into the tightest gap", heuristic(_place))
