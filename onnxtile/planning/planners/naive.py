"""Every buffer in bytes of its own: the baseline of all other planners."""

from __future__ import annotations

from onnxtile.planning.offsets.problem import Problem, align
from onnxtile.planning.planner import Planner, heuristic


def _place(problem: Problem) -> list[int]:
    offsets, top = [], 0
    for buffer in problem.buffers:
        offset = align(top, problem.alignment_of(buffer))
        offsets.append(offset)
        top = offset + problem.footprint(buffer)
    return offsets


NAIVE = Planner("naive", "no two buffers share a byte", heuristic(_place))
