"""The smallest arena: a search that ends with a proof, or with its budget.

After MiniMalloc: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752; see planning.offsets.exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from onnxtile.kernels.liveness import LivePart, by_steps, rounded
from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.ejection import EjectionSearch
from onnxtile.planning.offsets.exact.search import How, solve
from onnxtile.planning.offsets.gaps import Fitter, by_breadth, by_size, placings, tightest
from onnxtile.planning.offsets.problem import Buffer, Ended, OptimalityProof, Problem, size_of
from onnxtile.planning.offsets.repeated_skyline import fillings
from onnxtile.planning.planner import Placement, Planner
from onnxtile.planning.planners.heuristics import GREEDY_BY_SIZE

_OF_PARTS = 10
"""One in so many steps goes to each proof for buffers cut into parts, and to bounding rectangles that were placed on their own before."""
_FEW = 500
"""Buffers up to which placing parts takes the whole effort where bounding rectangles need no more bytes; of more it seldom helps."""
_ENDED: dict[How, Ended] = {"optimal": "search ended", "effort": "effort", "time": "time", "size": "too many buffers"}


def improve(problem: Problem, start: tuple[int, ...], effort: Effort) -> Placement:
    """Return the best offsets that the search finds within `effort`, no worse than `start`, which are free of overlaps.

    The exact search knows rectangles only: of buffers with outlines it proves nothing.
    """
    if problem.has_outlines:
        return _of_outlines(problem, start, effort)
    solution = solve(problem, start, effort)
    if solution.lower_bound > problem.lower_bound:
        return Placement(solution.offsets, OptimalityProof(solution.lower_bound, "search", _ENDED[solution.ended]))
    did_reach = solution.ended == "optimal"
    return Placement(
        solution.offsets,
        OptimalityProof(
            problem.lower_bound, problem.bound, "lower bound reached" if did_reach else _ENDED[solution.ended]
        ),
    )


def _of_outlines(problem: Problem, start: tuple[int, ...], effort: Effort) -> Placement:
    """Return the best offsets of the exact search on the bounding rectangles, and of rounds of placing the parts.

    The rectangles go first where they need no more bytes than the parts: the search is better at them. They take little effort then,
    since a plan of a layout places them alone before.
    """
    budget, best, bounding = effort.budget, start, problem.bounding
    proof = _of_parts(problem, effort) if problem.pinned else None
    least = problem.lower_bound if proof is None else proof.lower_bound
    is_possible = bounding.pin_overlap is None
    is_tight = is_possible and bounding.lower_bound == problem.lower_bound
    if is_tight:
        best = min(best, _place(bounding, _little(effort)).offsets, key=partial(size_of, problem))
    if size_of(problem, best) > least:
        rounds = _little(effort).budget if is_tight and len(problem.buffers) > _FEW else budget
        best = min((best, *map(tuple, placings(problem, rounds, least))), key=partial(size_of, problem))
    if is_possible and not is_tight and bounding.lower_bound < size_of(problem, best) > least:
        best = min(best, _place(bounding, effort.after(budget)).offsets, key=partial(size_of, problem))
    ended: Ended = "time" if budget.is_late else "effort"
    if size_of(problem, best) == least:
        ended = "lower bound reached"
    return Placement(best, OptimalityProof(least, problem.bound if proof is None else proof.bound, ended))


def _of_parts(problem: Problem, effort: Effort) -> OptimalityProof:
    """Return the better proof of two arenas with parts of buffers apart: cut by bytes, and cut by steps. No plan takes fewer bytes."""
    cuts = (_in_parts(problem, lambda parts: parts), _in_parts(problem, by_steps))
    return max((_place(cut, _little(effort)).proof for cut in cuts), key=lambda proof: proof.lower_bound)


def _little(effort: Effort) -> Effort:
    return replace(effort, steps=effort.steps // _OF_PARTS)


def _in_parts(problem: Problem, cut: Callable[[tuple[LivePart, ...]], Iterable[LivePart]]) -> Problem:
    """Return the problem in which each part that `cut` makes of a buffer is a buffer by itself."""
    unit, buffers = problem.granule, []
    for i, buffer in enumerate(problem.buffers):
        for start, end, lower, upper in cut(rounded(buffer.live_parts, unit)):
            pin = None if buffer.pin is None else buffer.pin + start
            buffers.append(Buffer(f"{i} {start} {lower}", end - start, lower, upper, unit, pin=pin))
    return Problem(tuple(buffers), unit)


def _place(problem: Problem, effort: Effort) -> Placement:
    return improve(problem, GREEDY_BY_SIZE.place(problem, effort).offsets, effort)


EXACT = Planner("exact", "the smallest arena, by a search that proves it", _place)


# Heuristics, ejections, then the exact search with the effort that is left, until the lower bound is reached.

SKYLINE_FROM = 500
"""Buffers above which the skyline and ejections run: smaller problems are left to the exact search, which does better."""

MANY = 20_000
"""Buffers above which only the skyline runs: the other heuristics take seconds there."""


def place(problem: Problem, effort: Effort) -> Placement:
    """Return the best offsets that heuristics and then the exact search find for `problem` within `effort`."""
    budget = effort.budget
    best: Sequence[int] = ()
    size = -1

    def placement(ended: Ended) -> Placement:
        ended = "lower bound reached" if size == problem.lower_bound else ended
        return Placement(tuple(best), OptimalityProof(problem.lower_bound, problem.bound, ended))

    for offsets in _tried(problem, effort):
        reached = size_of(problem, offsets)
        if size < 0 or reached < size:
            best, size = offsets, reached
        if size <= max(problem.lower_bound, effort.enough):
            return placement("effort")
        if budget.is_late:
            return placement("time")
    if len(problem.buffers) > SKYLINE_FROM and _is_free(problem):
        best = EjectionSearch(problem).lowered(best, effort.after(budget).budget, effort.enough)
        size = size_of(problem, best)
        if size <= effort.enough:
            return placement("effort")
    return improve(problem, tuple(best), effort.after(budget))


def _is_free(problem: Problem) -> bool:
    """Return whether a problem has neither conflicts between buffers whose live ranges do not meet, nor pins."""
    return not problem.extra_conflicts and not problem.pinned


def _tried(problem: Problem, effort: Effort) -> Iterator[Sequence[int]]:
    """Yield the offsets of one heuristic after the other, the quickest first."""
    count, is_free = len(problem.buffers), _is_free(problem)
    if count > MANY and is_free:
        yield from fillings(problem, effort.steps)
        return
    fitter = Fitter(problem)
    yield fitter.place(by_size(problem), tightest)
    yield fitter.place(by_breadth(problem), tightest)
    if is_free and count > SKYLINE_FROM:
        yield from fillings(problem, effort.steps)


BEST = Planner("best", "heuristics, then an exact search, until the lower bound is reached", place)
