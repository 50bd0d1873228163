"""Buffers as they come to be, each into the lowest gap: what an allocator does that does not know what is to come."""

from __future__ import annotations

from onnxtile.planning.offsets.gaps import Fitter, lowest
from onnxtile.planning.offsets.problem import Problem
from onnxtile.planning.offsets.ranking import by_birth
from onnxtile.planning.planner import Planner, heuristic


def _place(problem: Problem) -> list[int]:
    return Fitter(problem).place(by_birth(problem), lowest)


FIRST_FIT = Planner("first-fit", "as they come to be, each into the lowest gap", heuristic(_place))
