"""Planners, found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.problem import OffsetPlan, OptimalityProof, PinOverlap, Problem, size_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import unknown
from onnxtile.system.registry import discover


@dataclass(frozen=True)
class Placement:
    """An offset in bytes for each buffer of a problem, in its order, and a bound on the smallest arena."""

    offsets: tuple[int, ...]
    proof: OptimalityProof


@dataclass(frozen=True)
class Planner:
    """A method that gives offsets to buffers.

    `place` is a pure function, unless the effort has a limit in seconds. Its arena may exceed the capacity; it may stop at the first
    that does not.
    """

    name: str
    summary: str
    place: Callable[[Problem, Effort], Placement]

    def plan(self, problem: Problem, effort: Effort = NORMAL) -> OffsetPlan:
        """Return the plan for `problem`, whether it fits the capacity or not. The order of the buffers makes no difference.

        Raises PinOverlap for pins that no plan can have.
        """
        if problem.pin_overlap is not None:
            raise PinOverlap(*problem.pin_overlap)
        given = problem.buffers
        keys = [(b.lower, b.upper, b.size, b.alignment or 0, b.name) for b in given]
        order = sorted(range(len(given)), key=keys.__getitem__)
        placement = self.place(replace(problem, buffers=tuple(given[i] for i in order)), effort)
        offsets = dict(zip(order, placement.offsets, strict=True))
        return OffsetPlan.of(problem, [offsets[i] for i in range(len(order))], placement.proof)


def heuristic(offsets_of: Callable[[Problem], Sequence[int]]) -> Callable[[Problem, Effort], Placement]:
    """Return the `Planner.place` of a planner that places every buffer once, without a search."""

    def placed(problem: Problem, _effort: Effort) -> Placement:
        offsets = tuple(offsets_of(problem))
        did_reach = size_of(problem, offsets) == problem.lower_bound
        return Placement(
            offsets,
            OptimalityProof(problem.lower_bound, problem.bound, "lower bound reached" if did_reach else "heuristic"),
        )

    return placed


def planners() -> dict[str, Planner]:
    """Return all planners by name."""
    return discover("onnxtile.planning.planners", Planner)


def find_planner(name: str) -> Planner:
    """Return the planner called `name`. Raises UsageError for an unknown name."""
    known = planners()
    if name in known:
        return known[name]
    raise unknown("planner", name, known)
