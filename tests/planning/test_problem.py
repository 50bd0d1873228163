"""Problems as plain data: what is refused, the peak, and what is said over capacity."""

import re

import pytest
from hypothesis import given

from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, OverCapacity, Problem, align, require_capacity
from onnxtile.planning.planner import find_planner
from onnxtile.system.errors import Infeasible, UsageError
from tests.planning.conftest import problems


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Buffer("a", -1, 0, 1), "negative size: -1"),
        (lambda: Buffer("a", 1, 2, 2), "empty live range: [2, 2)"),
        (lambda: Buffer("a", 1, 3, 2), "empty live range: [3, 2)"),
        (lambda: Buffer("a", 1, 0, 1, alignment=3), "power of two, not 3"),
        (lambda: Buffer("a", 1, 0, 1, alignment=0), "power of two, not 0"),
        (lambda: Problem((), alignment=0), "power of two, not 0"),
        (lambda: Problem((), alignment=3), "power of two, not 3"),
        (lambda: Problem((), alignment=2**22), "at most 2,097,152 bytes"),
        (lambda: Problem((), alignment=-64), "power of two, not -64"),
        (lambda: Problem((), capacity=-1), "negative: -1"),
        (lambda: Problem((Buffer("a", 1, 0, 1), Buffer("a", 2, 4, 5))), "two buffers are named 'a'"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


def test_nothing_to_place_takes_nothing() -> None:
    problem = Problem(())
    assert problem.peak == (0, 0)
    assert OffsetPlan.of(problem, []).size == 0


def test_lives_that_touch_do_not_meet() -> None:
    problem = Problem((Buffer("a", 100, 0, 2), Buffer("b", 60, 1, 3), Buffer("c", 100, 3, 4)), alignment=1)
    assert problem.peak == (160, 1)
    assert [b.name for b in problem.live_at(1)] == ["a", "b"]


def test_sizes_count_as_rounded_up_to_the_alignment() -> None:
    problem = Problem((Buffer("a", 1, 0, 2), Buffer("b", 65, 0, 2)))
    assert problem.lower_bound == 64 + 128


def test_an_alignment_of_its_own_wastes_nothing_of_the_others() -> None:
    problem = Problem((Buffer("a", 1, 0, 1, alignment=64), Buffer("b", 63, 0, 1, alignment=1)))
    assert problem.lower_bound == 64
    plan = OffsetPlan.of(problem, [0, 1])
    assert plan.size == 64


@given(problems())
def test_the_peak_is_the_largest_sum_over_all_steps(problem: Problem) -> None:
    end = max((b.upper for b in problem.buffers), default=0)
    sums = [sum(align(b.size, problem.granule) for b in problem.live_at(step)) for step in range(end)]
    assert problem.lower_bound == max(sums, default=0)
    if problem.lower_bound:
        assert problem.peak[1] == sums.index(max(sums))


def test_too_small_a_capacity_names_the_shortfall_the_step_and_what_is_live() -> None:
    problem = Problem((Buffer("a", 100, 0, 3), Buffer("b", 300, 1, 2), Buffer("c", 100, 2, 4)), 1, capacity=350)
    plan = find_planner("greedy-by-size").plan(problem)
    with pytest.raises(
        OverCapacity, match=r"at least 400 bytes, 50 more .* 350; live at step 1: b \(300\), a \(100\)"
    ) as e:
        require_capacity(problem, plan)
    assert isinstance(e.value, Infeasible)
    assert e.value.exit_code == 1
    assert (e.value.shortfall, e.value.step, [b.name for b in e.value.live]) == (50, 1, ["b", "a"])


def test_a_plan_that_another_could_better_says_so() -> None:
    problem = Problem((Buffer("a", 100, 0, 1), Buffer("b", 100, 1, 2)), 1, capacity=150)
    with pytest.raises(OverCapacity, match=r"takes 200 bytes, 50 more .*; live at step 1: b \(100\)") as e:
        require_capacity(problem, find_planner("naive").plan(problem))
    assert e.value.hint == "no plan of this order takes less than 100 bytes"


def test_a_capacity_that_is_just_enough() -> None:
    problem = Problem((Buffer("a", 100, 0, 1), Buffer("b", 100, 1, 2)), 64, capacity=128)
    require_capacity(problem, find_planner("greedy-by-size").plan(problem))


def test_a_conflict_clique_is_a_lower_bound() -> None:
    buffers = (Buffer("a", 8, 0, 1), Buffer("b", 8, 1, 2), Buffer("c", 16, 2, 3))
    conflicts = frozenset({("a", "b"), ("a", "c"), ("b", "c")})
    problem = Problem(buffers, 8, conflicts=conflicts, clique=frozenset("abc"))
    assert (problem.peak, problem.lower_bound, problem.bound) == ((16, 2), 32, "every order")
    alone = Problem(buffers, 8, conflicts=conflicts, clique=frozenset("c"))
    assert (alone.lower_bound, alone.bound) == (16, "peak")
