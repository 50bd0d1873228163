"""Problems as plain data: what is refused, the peak, and what is said over capacity."""

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnxtile
from onnxtile.planning import problem_plan
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, OverCapacity, Problem, align, require_capacity
from onnxtile.planning.planners import find_planner
from onnxtile.planning.problem_plan import check, read_problem, require
from onnxtile.system.errors import CheckFailed, Infeasible, UsageError
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
    assert OffsetPlan.from_offsets(problem, []).size == 0


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
    plan = OffsetPlan.from_offsets(problem, [0, 1])
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


# The independent check of a bare problem: it passes what is sound, and refuses and names whatever is made unsound.


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


# Problems as CSV with MiniMalloc's columns, good and bad.


def test_columns_in_any_order_and_one_that_is_not_asked_for() -> None:
    text = "size,id,lower,upper,colour,alignment\n4,a,0,3,red,\n10,b,1,2,blue,8\n"
    assert read_problem(text) == Problem((Buffer("a", 4, 0, 3), Buffer("b", 10, 1, 2, 8)), 1)


def test_what_editors_add_is_no_matter() -> None:
    text = "\ufeffid, lower, upper, size\r\na, 0, 3, 4\r\n\r\n"
    assert read_problem(text) == Problem((Buffer("a", 4, 0, 3),), 1)


def test_bytes_moved() -> None:
    assert read_problem("id,lower,upper,size,moved\na,0,3,4,40\nb,0,3,4,\n").buffers[0].moved == 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: missing column 'id'"),
        ("id,lower,upper\n", "line 1: missing column 'size'"),
        ("id,lower,upper,size\na,0,1,4\na,0,1,4\n", "line 3: the id 'a' is repeated"),
        ("id,lower,upper,size\na,0,1,-4\n", "line 2: the buffer 'a' has a negative size: -4"),
        ("id,lower,upper,size\na,4,3,4\n", r"line 2: the buffer 'a' has an empty live range: \[4, 3\)"),
        ("id,lower,upper,size\na,3,3,4\n", r"line 2: the buffer 'a' has an empty live range: \[3, 3\)"),
        ("id,lower,upper,size\na,0,1,many\n", "line 2: size must be a whole number, not 'many'"),
        ("id,lower,upper,size\na,0,1,0x10\n", "line 2: size must be a whole number, not '0x10'"),
        ("id,lower,upper,size\na,0,1,1e3\n", "line 2: size must be a whole number, not '1e3'"),
        ("id,lower,upper,size\na,0,1.5,4\n", "line 2: upper must be a whole number, not '1.5'"),
        ("id,lower,upper,size\na,0\n", "line 2: upper must be a whole number, not ''"),
        ("id,lower,upper,size\n,0,1,4\n", "line 2: the id is empty"),
        ("id,lower,upper,size\na,-2,1,4\n", "line 2: steps must be between 0 and"),
        ("id,lower,upper,size,size\na,0,1,4,4\n", "line 1: column 'size' is repeated"),
        ("id,lower,upper,size\na,0,1,9007199254740993\n", "the sizes add up to more than"),
        ("id,lower,upper,size,moved\na,0,1,4,-1\n", "line 2: the buffer 'a' moves a negative number of bytes"),
        ('id,lower,upper,size\n"a,0,1,4\n' + "x" * 200_000, "line 3: not CSV"),
        ("id,lower,upper,size,alignment\na,0,1,4,3\n", "line 2: the alignment must be a power of two, not 3"),
    ],
)
def test_what_is_no_problem_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_problem(text)


PLAIN = st.tuples(st.integers(0, 3), st.integers(3, 9), st.integers(0, 9)).map(lambda row: ",".join(map(str, row)))
ODD = st.lists(
    st.sampled_from(["", "1", "+2", " 3", "4 ", "-5", "x", "1_0", "\u0663", '"6"', '"', str(2**60)]), max_size=5
)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcdef"), PLAIN | ODD.map(",".join)).map(",".join) | st.just(""), max_size=6
    ),
    header=st.sampled_from(
        ["id,lower,upper,size", "id,lower,upper,size,alignment", "", "id,lower,upper", "\ufeffid,lower,upper,size"]
    ),
)
def test_column_by_column_is_as_row_by_row(rows: list[str], header: str) -> None:
    def outcome() -> object:
        try:
            return read_problem("\n".join([header, *rows]))
        except UsageError as error:
            return str(error), error.hint

    found = outcome()
    with patch.object(problem_plan, "_plain", return_value=None):
        assert found == outcome()


PINNED = "id,lower,upper,size,pin,memory\na,0,2,64,256,sram\nb,0,2,64,,\nc,1,3,64,,dram\n"


def test_pins_and_memories_are_columns(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(PINNED)
    plan = onnxtile.plan_problem(tmp_path / "p.csv", capacity={"sram": 512, "dram": 512})
    found = {row.name: (row.arena, row.offset) for row in plan.buffers}
    assert found == {"a": ("sram", 256), "b": ("sram", 0), "c": ("dram", 0)}


def test_a_pinned_part_pins_its_buffer(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(
        "id,lower,upper,size,part_of,part_start,pin\nb0,0,2,64,b,0,\nb1,0,4,64,b,64,192\na,0,4,64,,,0\n"
    )
    plan = onnxtile.plan_problem(tmp_path / "p.csv")
    assert {row.name: row.offset for row in plan.buffers} == {"b": 128, "a": 0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id,lower,upper,size,pin\na,0,2,64,-4\n", "line 2: the buffer 'a' has a negative pin: -4"),
        ("id,lower,upper,size,pin\na,0,2,64,x\n", "line 2: pin must be a whole number"),
        (
            "id,lower,upper,size,pin\na,0,2,64,0\nb,1,3,64,32\n",
            "the pins of two tensors that are live together overlap: 'a' at 0",
        ),
        ("id,lower,upper,size,memory\na,0,2,64,flash\n", "'flash', which has no capacity"),
        ("id,lower,upper,size,part_of,part_start,pin\nb0,0,2,64,b,0,0\nb1,0,4,64,b,64,0\n", "at least its start 64"),
        ("id,lower,upper,size,part_of,part_start,pin\nb0,0,2,64,b,0,0\nb1,0,4,64,b,64,96\n", "parts of 'b' have pins"),
    ],
)
def test_pins_that_no_plan_can_have(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(UsageError, match=reason):
        onnxtile.plan_problem(tmp_path / "p.csv", capacity=1 << 20)
