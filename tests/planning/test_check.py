"""The independent check of a bare problem: it passes what is sound, and refuses and names whatever is made unsound."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, Problem
from onnxtile.planning.planner import find_planner
from onnxtile.planning.problem_check import check, require
from onnxtile.system.errors import CheckFailed
from tests.planning.conftest import problems

PROBLEM = Problem((Buffer("a", 100, 0, 3), Buffer("b", 64, 2, 4), Buffer("c", 10, 3, 5)))
SOUND = OffsetPlan({"a": 0, "b": 128, "c": 0}, 192)


def moved(plan: OffsetPlan, name: str, offset: int) -> OffsetPlan:
    return OffsetPlan({**plan.offsets, name: offset}, plan.size)


def test_a_sound_plan() -> None:
    assert check(PROBLEM, SOUND) == ()
    require(PROBLEM, SOUND)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (moved(SOUND, "b", 64), "'a' in [0, 100) and 'b' in [64, 128) are live together (step 2)"),
        (moved(SOUND, "c", 128), "'b' in [128, 192) and 'c' in [128, 138) are live together (step 3)"),
        (moved(SOUND, "b", 100), "'b' at 100 is not aligned to 64 (step 2)"),
        (moved(SOUND, "b", -64), "'b' starts at -64, before the arena (step 2)"),
        (moved(SOUND, "b", 192), "'b' ends at 256, beyond the arena of 192 bytes (step 2)"),
        (OffsetPlan({"a": 0, "b": 128}, 192), "'c' has no offset (step 3)"),
        (moved(SOUND, "d", 0), "the plan places 'd', which is not a buffer"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named(plan: OffsetPlan, reason: str) -> None:
    assert reason in map(str, check(PROBLEM, plan))
    with pytest.raises(CheckFailed, match="the plan is not sound: "):
        require(PROBLEM, plan)


def test_a_capacity() -> None:
    assert check(replace(PROBLEM, capacity=192), SOUND) == ()
    failures = check(replace(PROBLEM, capacity=191), SOUND)
    assert [str(f) for f in failures] == ["the arena of 192 bytes is larger than its capacity of 191"]


def test_a_failure_carries_both_buffers_and_the_step() -> None:
    (failure,) = check(PROBLEM, moved(SOUND, "b", 64))
    assert (failure.names, failure.step) == (("a", "b"), 2)


def test_an_alignment_of_its_own() -> None:
    problem = Problem((Buffer("a", 4, 0, 1, alignment=4), Buffer("b", 4, 0, 1, alignment=256)), 64)
    assert check(problem, OffsetPlan({"a": 4, "b": 0}, 8)) == ()
    assert "'b' at 128 is not aligned to 256" in str(check(problem, OffsetPlan({"a": 4, "b": 128}, 132))[0])


@given(problems(), st.data())
def test_a_buffer_moved_onto_a_live_neighbour_is_refused(problem: Problem, data: st.DataObject) -> None:
    plan = find_planner("greedy-by-size").plan(problem)
    pairs = [
        (a, b)
        for a in problem.buffers
        for b in problem.buffers
        if a is not b and a.size and b.size and max(a.lower, b.lower) < min(a.upper, b.upper)
    ]
    if not pairs:
        return
    a, b = data.draw(st.sampled_from(pairs))
    wrong = moved(plan, a.name, plan.offsets[b.name])
    both = [f for f in check(problem, wrong) if len(f.names) == 2]
    assert both
    assert all(a.name in f.names for f in both)


@given(problems(), st.lists(st.integers(0, 40), min_size=24, max_size=24))
def test_the_sweep_finds_a_clash_exactly_where_comparing_all_pairs_does(problem: Problem, where: list[int]) -> None:
    offsets = {b.name: 8 * place for b, place in zip(problem.buffers, where, strict=False)}
    buffers = [b for b in problem.buffers if b.size]
    clash = any(
        max(a.lower, b.lower) < min(a.upper, b.upper)
        and max(offsets[a.name], offsets[b.name]) < min(offsets[a.name] + a.size, offsets[b.name] + b.size)
        for i, a in enumerate(buffers)
        for b in buffers[:i]
    )
    failures = check(replace(problem, alignment=1), OffsetPlan(offsets, 10**6))
    assert any(len(f.names) == 2 for f in failures) == clash
