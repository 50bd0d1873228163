"""Buffers as they come to be, each into the lowest gap: what an allocator does that does not know what is to come."""

from __future__ import annotations

from onnxtile.plan.fit import Fitter, lowest
from onnxtile.plan.planner import Planner, heuristic
from onnxtile.plan.problem import Problem
from onnxtile.plan.ranking import by_birth


def _place(problem: Problem) -> list[int]:
    return Fitter(problem).place(by_birth(problem), lowest)


FIRST_FIT = Planner("first-fit", "as they come to be, each into the lowest gap", heuristic(_place))
