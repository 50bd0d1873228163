"""What a planner is, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onnxtile.errors import unknown
from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, OptimalityProof, Problem, size_of
from onnxtile.registry import discover


@dataclass(frozen=True)
class Placement:
    """An offset in bytes for each buffer of a problem, in its order, and what is known of a smaller arena."""

    offsets: tuple[int, ...]
    proof: OptimalityProof


@dataclass(frozen=True)
class Planner:
    """A way to give offsets to buffers.

    `place` is a pure function: the same problem gets the same offsets every time, unless the effort has an end in seconds. It need
    not keep to the capacity, but may stop as soon as it does.
    """

    name: str
    summary: str
    place: Callable[[Problem, Effort], Placement]

    def plan(self, problem: Problem, effort: Effort = NORMAL) -> OffsetPlan:
        """Return the plan of this planner for `problem`, whether it fits the capacity or not.

        In which order the buffers stand in the problem makes no difference.
        """
        order = sorted(range(len(problem.buffers)), key=lambda i: _standing(problem.buffers[i]))
        placement = self.place(replace(problem, buffers=tuple(problem.buffers[i] for i in order)), effort)
        offsets = dict(zip(order, placement.offsets, strict=True))
        return OffsetPlan.of(problem, [offsets[i] for i in range(len(order))], placement.proof)


def _standing(buffer: Buffer) -> tuple[int, int, int, int, str]:
    return buffer.lower, buffer.upper, buffer.size, buffer.alignment or 0, buffer.name


def heuristic(place: Callable[[Problem], Sequence[int]]) -> Callable[[Problem, Effort], Placement]:
    """Return the `Planner.place` of a planner that takes every buffer once, and looks for nothing better."""

    def placed(problem: Problem, _effort: Effort) -> Placement:
        offsets = tuple(place(problem))
        did_reach = size_of(problem, offsets) == problem.lower_bound
        return Placement(
            offsets,
            OptimalityProof(problem.lower_bound, problem.bound, "lower bound reached" if did_reach else "heuristic"),
        )

    return placed


def planners() -> dict[str, Planner]:
    """Return every planner there is, by name."""
    return discover("onnxtile.planning.planners", Planner)


def find_planner(name: str) -> Planner:
    """Return the planner called `name`. Raises UsageError for an unknown name."""
    known = planners()
    if name in known:
        return known[name]
    raise unknown("planner", name, known)
