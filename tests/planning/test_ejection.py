"""Buffers that are moved below a target, and ejected by others."""

import random

import pytest
from hypothesis import given, settings

from onnxtile.planning.offsets.effort import LEVELS, SearchBudget
from onnxtile.planning.offsets.ejection import EjectionSearch
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, Problem, size_of
from onnxtile.planning.planners.exact import place
from onnxtile.planning.planners.heuristics import NAIVE
from onnxtile.planning.problem_check import check
from tests.planning.conftest import problems


def sliced(rows: int, steps: int, parts: int, seed: int) -> Problem:
    """Return a rectangle of `rows` times 64 bytes and `steps`, cut into about `parts` buffers, which fit it without a gap."""
    draw = random.Random(seed)
    pieces, done = [(0, rows, 0, steps)], list[tuple[int, int, int, int]]()
    while pieces and len(pieces) + len(done) < parts:
        low, high, first, last = pieces.pop(draw.randrange(len(pieces)))
        is_flat = (high - low) * 20 < last - first or high - low < 2
        if (last - first < 4) if is_flat else (high - low < 2):
            done.append((low, high, first, last))
        elif is_flat:
            at = draw.randrange(first + 1, last)
            pieces += ((low, high, first, at), (low, high, at, last))
        else:
            at = draw.randrange(low + 1, high)
            pieces += ((low, at, first, last), (at, high, first, last))
    return Problem(
        tuple(
            Buffer(f"{number}", 64 * (high - low), first, last)
            for number, (low, high, first, last) in enumerate(pieces + done)
        )
    )


@settings(max_examples=50)
@given(problem=problems(40))
def test_it_is_sound_and_no_larger(problem: Problem) -> None:
    start = NAIVE.plan(problem)
    offsets = EjectionSearch(problem).lowered([start.offsets[b.name] for b in problem.buffers], SearchBudget(20_000))
    plan = OffsetPlan.of(problem, list(offsets))
    assert check(problem, plan) == ()
    assert problem.lower_bound <= plan.size <= start.size


@pytest.mark.parametrize("dropped", [0.1, 0.2])
def test_it_closes_gaps_that_other_heuristics_leave(dropped: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    problem = Problem(tuple(b for b in sliced(100, 2_000, 800, 1).buffers if draw.random() > dropped))
    after = size_of(problem, place(problem, LEVELS["low"]).offsets)
    monkeypatch.setattr(EjectionSearch, "lowered", lambda _search, offsets, _budget: offsets)
    before = size_of(problem, place(problem, LEVELS["low"]).offsets)
    assert problem.lower_bound <= after < before
    assert (after - problem.lower_bound) * 2 <= before - problem.lower_bound


def test_it_gives_the_same_offsets_again_and_keeps_to_its_budget() -> None:
    problem = sliced(100, 2_000, 600, 3)
    start = NAIVE.place(problem, LEVELS["low"]).offsets
    found = [EjectionSearch(problem).lowered(start, SearchBudget(100_000)) for _ in range(2)]
    assert found[0] == found[1]
    budget = SearchBudget(4_000)
    EjectionSearch(problem).lowered(start, budget)
    assert -100 < budget.looks <= 0
