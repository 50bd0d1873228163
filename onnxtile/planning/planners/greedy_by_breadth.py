"""The buffers of the step with the most live bytes first, the largest of them first, each into the tightest gap.

Algorithm 2 of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288.
"""

from __future__ import annotations

from onnxtile.planning.offsets.gaps import Fitter, by_breadth, tightest
from onnxtile.planning.offsets.problem import Problem
from onnxtile.planning.planner import Planner, heuristic


def _place(problem: Problem) -> list[int]:
    return Fitter(problem).place(by_breadth(problem), tightest)


GREEDY_BY_BREADTH = Planner(
    "greedy-by-breadth", "the fullest step first, each into the tightest gap", heuristic(_place)
)
