"""Buffers in the order of their first step, each into the lowest gap: like an allocator without knowledge of the future."""

from __future__ import annotations

from onnxtile.planning.offsets.gaps import Fitter, by_birth, lowest
from onnxtile.planning.offsets.problem import Problem
from onnxtile.planning.planner import Planner, heuristic


def _place(problem: Problem) -> list[int]:
    return Fitter(problem).place(by_birth(problem), lowest)


FIRST_FIT = Planner("first-fit", "by first step, each into the lowest gap", heuristic(_place))
