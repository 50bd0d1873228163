"""What every planner must do, over all that there are."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.kernels.kernel_graph import Ints, LivePart
from onnxtile.planning import planners as planners_module
from onnxtile.planning.offsets import effort as compiled
from onnxtile.planning.offsets import skyline
from onnxtile.planning.offsets.effort import LEVELS, Effort
from onnxtile.planning.offsets.gaps import Choose, Fitter, by_breadth, lowest, tightest
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, Problem
from onnxtile.planning.offsets.skyline import Strip
from onnxtile.planning.planners import Planner, fillings, find_planner, planners
from onnxtile.planning.problem_plan import check
from onnxtile.system.errors import UsageError
from tests.draws import draws
from tests.planning.conftest import problems

LITTLE = Effort(20_000, 20_000)

every_planner = pytest.mark.parametrize("planner", planners().values(), ids=planners())


def test_which_there_are() -> None:
    assert {"naive", "greedy-by-size"} <= planners().keys()
    assert list(planners()) == sorted(planners())


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown planner 'greedy-by-sise'") as e:
        find_planner("greedy-by-sise")
    assert e.value.hint == "did you mean 'greedy-by-size'?"


@every_planner
@given(problem=problems())
def test_its_plan_is_sound_and_not_below_the_bound(planner: Planner, problem: Problem) -> None:
    plan = planner.plan(problem, LITTLE)
    assert check(problem, plan) == ()
    assert plan.proof is not None and problem.lower_bound <= plan.proof.lower_bound <= plan.size
    assert plan.optimal == (plan.proof.ended in {"lower bound reached", "search ended"})


@every_planner
def test_no_buffers(planner: Planner) -> None:
    plan = planner.plan(Problem(()))
    assert (plan.offsets, plan.size, plan.optimal) == ({}, 0, True)


@every_planner
def test_buffers_without_bytes(planner: Planner) -> None:
    problem = Problem((Buffer("a", 0, 0, 9), Buffer("b", 64, 0, 9), Buffer("c", 0, 3, 4)))
    plan = planner.plan(problem)
    assert check(problem, plan) == ()
    assert plan.size == 64


@every_planner
@draws(15, 60)
@given(problem=problems(12), draw=st.randoms(use_true_random=False))
def test_the_order_of_the_buffers_makes_no_difference(planner: Planner, problem: Problem, draw: random.Random) -> None:
    mixed = replace(problem, buffers=tuple(draw.sample(problem.buffers, len(problem.buffers))))
    assert planner.plan(mixed, LITTLE) == planner.plan(problem, LITTLE)


@draws(25, 100)
@given(problem=problems(8))
def test_nothing_beats_exact_on_small_problems_and_best_is_as_good(problem: Problem) -> None:
    least = find_planner("exact").plan(problem)
    assert least.optimal
    assert find_planner("best").plan(problem).size == least.size
    assert all(other.plan(problem, LITTLE).size >= least.size for other in planners().values())


def test_the_order_by_breadth_begins_with_the_fullest_step() -> None:
    buffers = (Buffer("a", 90, 0, 2), Buffer("b", 80, 2, 4), Buffer("c", 70, 1, 4), Buffer("d", 20, 1, 2))
    problem = Problem(buffers, alignment=1)
    # 180 bytes are live at step 1, 150 at steps 2 and 3, 90 at step 0.
    assert by_breadth(problem) == [0, 2, 3, 1]
    assert Fitter(problem).place(by_breadth(problem), tightest) == [0, 0, 90, 160]


@given(problems())
def test_every_filling_of_the_skyline_is_sound(problem: Problem) -> None:
    for offsets in fillings(problem, 10_000):
        assert check(problem, OffsetPlan.from_offsets(problem, offsets)) == ()


def test_rounds_of_the_skyline_that_ran_before_are_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    starts = [draw.randrange(100) for _ in range(200)]
    buffers = tuple(
        Buffer(str(i), draw.randrange(1, 10**6), s, s + draw.randrange(1, 60)) for i, s in enumerate(starts)
    )
    runs: list[int] = []

    def counted(waiting: skyline.Waiting, soonest: Ints, live: Ints, weight: int) -> Ints:
        runs.append(weight)
        return fill(waiting, soonest, live, weight)

    fill = skyline.fill
    monkeypatch.setattr(skyline, "fill", counted)
    for asked in ("is_loaded", "is_available"):  # a test before this one may have compiled it
        monkeypatch.setattr(compiled, asked, lambda *_: False)
    few = list(fillings(Problem(buffers), 12 * 200 * 3))
    more = list(fillings(Problem(tuple(replace(b, name=f"{b.name}/other") for b in buffers)), 12 * 200 * 11))
    assert (len(few), len(more), len(runs)) == (3, 11, 11)
    assert more[:3] == few
    planners_module._rounds.cache_clear()
    assert more == list(fillings(Problem(buffers), 12 * 200 * 11))


@pytest.mark.parametrize(
    ("is_kept", "can_keep", "least"), [(True, True, 10_000), (False, True, 100_000), (False, False, 500_000)]
)
def test_the_skyline_is_compiled_where_that_takes_less_time(
    monkeypatch: pytest.MonkeyPatch, is_kept: bool, can_keep: bool, least: int
) -> None:
    fast = object()
    answers = {"is_loaded": False, "is_available": True, "is_kept": is_kept, "can_keep": can_keep, "function": fast}
    for name, answer in answers.items():
        monkeypatch.setattr(compiled, name, lambda *_given, answer=answer: answer)
    assert planners_module._fill(least - 1) is skyline.fill
    assert planners_module._fill(least) is fast
    monkeypatch.setattr(compiled, "is_available", lambda: False)
    assert planners_module._fill(least) is skyline.fill


@given(problem=problems(40), weight=st.integers(1, 100), power=st.floats(-3, 3))
def test_however_far_the_fullest_runs_ahead_the_filling_is_sound(problem: Problem, weight: int, power: float) -> None:
    strip = Strip.from_problem(problem)
    if not len(strip.number):
        return
    keys = strip.size.astype(float) ** power
    found = skyline.fill(strip.waiting(keys), strip.soonest, strip.live, weight)
    offsets = strip.offsets(found, len(problem.buffers))
    assert check(replace(problem, conflicts=frozenset()), OffsetPlan.from_offsets(problem, offsets)) == ()


@pytest.mark.slow
@pytest.mark.skipif(not compiled.is_available(), reason="numba is not installed")
def test_compiled_the_skyline_is_filled_in_the_same_way() -> None:
    draw = random.Random(3)
    starts = [draw.randrange(2_000) for _ in range(2_000)]
    buffers = [Buffer(str(i), draw.randrange(1, 10**6), s, s + draw.randrange(1, 200)) for i, s in enumerate(starts)]
    strip = Strip.from_problem(Problem(tuple(buffers)))
    keys = (strip.upper - strip.lower).astype(float)
    fast = compiled.function(skyline, "fill")
    for weight in (2, 15, 100):
        plain = skyline.fill(strip.waiting(keys), strip.soonest, strip.live, weight)
        assert (plain == fast(strip.waiting(keys), strip.soonest, strip.live, weight)).all()


@given(problems())
def test_naive_shares_nothing(problem: Problem) -> None:
    plan = find_planner("naive").plan(problem)
    forever = replace(problem, buffers=tuple(replace(b, lower=0, upper=99) for b in problem.buffers))
    assert check(forever, plan) == ()


@given(problems())
def test_slots_are_as_few_as_buffers_live_at_once(problem: Problem) -> None:
    plan = find_planner("slots").plan(problem)
    starts = {plan.offsets[b.name] for b in problem.buffers if b.size}
    assert len(starts) == max((sum(o.size > 0 for o in problem.live_at(b.lower)) for b in problem.buffers), default=0)


def test_a_slot_is_as_large_as_the_largest_that_uses_it() -> None:
    buffers = (Buffer("a", 100, 0, 2), Buffer("b", 10, 1, 3), Buffer("c", 90, 2, 4), Buffer("d", 20, 3, 5))
    plan = find_planner("slots").plan(Problem(buffers, alignment=1))
    assert plan.offsets["a"] == plan.offsets["c"]
    assert plan.offsets["b"] == plan.offsets["d"]
    assert plan.size == 120


def test_greedy_by_size_takes_the_tightest_gap() -> None:
    # At step 1 the gaps [0, 300) and [500, 610) are free; "d" fits both.
    buffers = (
        Buffer("a", 300, 0, 1),
        Buffer("b", 200, 0, 2),
        Buffer("c", 110, 0, 1),
        Buffer("top", 100, 0, 2),
        Buffer("d", 90, 1, 2),
    )
    plan = find_planner("greedy-by-size").plan(Problem(buffers, alignment=1))
    assert plan.offsets == {"a": 0, "b": 300, "c": 500, "top": 610, "d": 500}


@every_planner
def test_many_buffers_with_hundreds_of_overlaps(planner: Planner) -> None:
    draw = random.Random(0)
    starts = [draw.randrange(2_000) for _ in range(2_000)]
    buffers = [Buffer(str(i), draw.randrange(1, 10**6), s, s + draw.randrange(1, 400)) for i, s in enumerate(starts)]
    problem = Problem(tuple(buffers))
    assert check(problem, planner.plan(problem, LEVELS["low"])) == ()


@pytest.mark.parametrize("choose", [lowest, tightest])
def test_a_gap_between_all_placed_buffers_is_that_between_those_in_conflict(choose: Choose) -> None:
    """A buffer with an outline is compared with each other one. One without is not, where it meets all that are placed."""
    draw = random.Random(3)
    for _ in range(100):
        ends = [(draw.randrange(8), draw.randrange(1, 5), draw.choice([0, 64, 100, 200])) for _ in range(12)]
        whole = [Buffer(f"b{i}", size, lower, lower + steps) for i, (lower, steps, size) in enumerate(ends)]
        halves = [
            replace(b, outline=(LivePart(0, b.size // 2, b.lower, b.upper), LivePart(b.size // 2, b.size, b.lower, b.upper)))
            if b.size
            else b
            for b in whole
        ]  # fmt: skip
        order = draw.sample(range(12), 12)
        offsets = [Fitter(Problem(tuple(buffers), 64)).place(order, choose) for buffers in (whole, halves)]
        assert offsets[0] == offsets[1]
