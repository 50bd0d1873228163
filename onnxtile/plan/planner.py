"""What a planner is, and how one is found by its name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxtile.errors import UsageError
from onnxtile.plan.problem import Plan, Problem
from onnxtile.registry import discover


@dataclass(frozen=True)
class Planner:
    """A way to give offsets to buffers.

    `place` returns an offset in bytes for each buffer of a problem, in the problem's order. It is a pure function, and the same
    problem gets the same offsets every time. It need not look at the capacity.
    """

    name: str
    summary: str
    place: Callable[[Problem], Sequence[int]]

    def plan(self, problem: Problem) -> Plan:
        """Return the plan of this planner for `problem`, whether it fits the capacity or not."""
        return Plan.of(problem, self.place(problem))


def planners() -> dict[str, Planner]:
    """Return every planner there is, by name."""
    return discover("onnxtile.plan.planners", Planner)


def planner(name: str) -> Planner:
    """Return the planner called `name`. Raises UsageError where there is none."""
    known = planners()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"there is no planner {name!r}", hint=hint)
