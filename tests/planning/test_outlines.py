"""Buffers with outlines as plain data: unions of parts, live bytes, and plans without overlaps by an independent count."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onnxtile.kernels.kernel_graph import LivePart, rounded, union
from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, OverCapacity, Problem, require_capacity
from onnxtile.planning.planners import planners
from onnxtile.planning.problem_plan import check, plan_buffers, read_problem, require
from onnxtile.report.format import RenderOptions
from onnxtile.report.formats.data import CSV
from onnxtile.system.errors import CheckFailed, UsageError
from tests.draws import draws

BRIEF = Effort(100_000, 100_000)

parts = st.builds(
    lambda start, size, lower, steps: LivePart(start, start + size, lower, lower + steps),
    *(st.integers(0, 60), st.integers(0, 40), st.integers(0, 8), st.integers(0, 4)),
)


def cells(given: Iterable[LivePart]) -> list[tuple[int, int]]:
    """Return each live byte in each step."""
    return [(byte, step) for p in given for byte in range(p.start, p.end) for step in range(p.lower, p.upper)]


@st.composite
def buffers(draw: st.DrawFn, name: str) -> Buffer:
    outline = union(draw(st.lists(parts, max_size=4)))
    unit = draw(st.sampled_from([None, None, 1, 4]))
    if not outline:
        return Buffer(name, draw(st.integers(0, 60)), 2, 2 + draw(st.integers(1, 6)), unit)
    size = max(part.end for part in outline)
    return Buffer(name, size, min(p.lower for p in outline), max(p.upper for p in outline), unit, outline=outline)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Problems with some buffers that have an outline."""
    found = tuple(draw(buffers(f"b{i}")) for i in range(draw(st.integers(0, 9))))
    return Problem(found, draw(st.sampled_from([1, 8, 16])))


@given(st.lists(parts, max_size=6))
def test_a_union_has_each_live_byte_once(given: list[LivePart]) -> None:
    found = union(given)
    assert sorted(cells(found)) == sorted(set(cells(given)))
    assert union(reversed(found)) == found
    assert union(LivePart(b, b + 1, s, s + 1) for b, s in cells(given)) == found


@given(st.lists(parts, max_size=6), st.sampled_from([1, 4, 16]))
@example([LivePart(1, 1, 0, 1)], 4)
def test_rounding_takes_whole_blocks(given: list[LivePart], unit: int) -> None:
    blocks = {(byte // unit, step) for byte, step in cells(given)}
    assert {(byte // unit, step) for byte, step in cells(rounded(given, unit))} == blocks
    assert len(cells(rounded(given, unit))) == len(blocks) * unit


@given(problems())
def test_the_peak_is_the_largest_sum_of_live_blocks(problem: Problem) -> None:
    unit = problem.granule
    live: dict[int, int] = {}
    for buffer in problem.buffers:
        for _, step in {(byte // unit, step) for byte, step in cells(buffer.live_parts)}:
            live[step] = live.get(step, 0) + unit
    assert problem.peak[0] == max(live.values(), default=0)
    assert live.get(problem.peak[1], 0) == problem.peak[0]


@pytest.mark.parametrize("name", sorted(planners()))
@draws(20, 80)
@given(problem=problems())
def test_no_plan_has_two_tensors_in_one_live_byte(name: str, problem: Problem) -> None:
    plan = planners()[name].plan(problem, BRIEF)
    require(problem, plan)
    taken: dict[tuple[int, int], str] = {}
    for buffer in problem.buffers:
        offset = plan.offsets[buffer.name]
        assert offset % (buffer.alignment or problem.alignment) == 0
        for byte, step in cells(buffer.live_parts):
            assert taken.setdefault((offset + byte, step), buffer.name) == buffer.name
            assert 0 <= offset + byte < plan.size
    assert plan.proof is not None and problem.peak[0] == plan.proof.lower_bound <= plan.size


@draws(20, 80)
@given(problems())
def test_the_best_plan_is_never_larger_than_that_of_rectangles(problem: Problem) -> None:
    best = planners()["best"]
    if problem.bounding.lower_bound == problem.lower_bound:
        assert best.plan(problem, BRIEF).size <= best.plan(problem.bounding, BRIEF).size


def stairs() -> Problem:
    """Return two buffers of 40 bytes: one dies as the other is written, ten bytes a step."""
    falls = tuple(LivePart(10 * i, 10 * i + 10, 0, i + 2) for i in range(4))
    rises = tuple(LivePart(10 * i, 10 * i + 10, i + 1, 6) for i in range(4))
    return Problem((Buffer("falls", 40, 0, 5, outline=falls), Buffer("rises", 40, 1, 6, outline=rises)), 1)


def test_a_buffer_grows_into_the_bytes_that_another_leaves() -> None:
    plan = planners()["best"].plan(stairs())
    assert plan.size == 50
    assert plan.optimal
    assert plan.offsets == {"falls": 10, "rises": 0}


def test_the_check_finds_a_part_over_another() -> None:
    plan = OffsetPlan({"falls": 0, "rises": 0}, 40)
    (failure, *_) = check(stairs(), plan)
    assert "are live together" in str(failure)
    with pytest.raises(CheckFailed, match="'falls' in"):
        require(stairs(), plan)


def test_a_message_has_the_live_bytes_of_parts() -> None:
    problem = Problem(stairs().buffers, 1, capacity=20)
    with pytest.raises(OverCapacity, match=r"live at step 1: falls \(40\), rises \(10\)$"):
        require_capacity(problem, planners()["best"].plan(problem))


@pytest.mark.parametrize("part", [(0, 9, 0, 2), (-1, 4, 0, 2), (0, 4, 0, 3), (3, 3, 0, 1), (0, 4, 1, 1)])
def test_a_part_lies_inside_of_its_buffer(part: tuple[int, int, int, int]) -> None:
    with pytest.raises(UsageError, match="a part outside of its bytes and live range"):
        Buffer("b", 8, 0, 2, outline=(LivePart(*part),))


def test_outlines_and_conflicts_of_every_order_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="cannot have buffers with outlines"):
        Problem(stairs().buffers, 1, conflicts=frozenset({("falls", "rises")}))


@given(problems())
def test_a_csv_has_each_part_and_gives_the_problem_back(problem: Problem) -> None:
    plain = tuple(Buffer(b.name, b.size, b.lower, b.upper, outline=b.outline) for b in problem.buffers)
    problem = Problem(plain, problem.alignment)
    text = CSV.write(plan_buffers(problem, effort=BRIEF).to_dict(), RenderOptions()).decode()
    found = {buffer.name: buffer for buffer in read_problem(text).buffers}
    assert {name: buffer.live_parts for name, buffer in found.items()} == {b.name: b.live_parts for b in plain}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,0,2,4,b,-1", "a start of at least 0"),
        ("a,0,2,0,b,0", "must have bytes"),
        ("a,0,2,4,b,x", "start must be a whole"),
    ],
)
def test_a_wrong_part_in_a_csv_is_named_with_its_line(row: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^line 2: .*{reason}"):
        read_problem(f"id,lower,upper,size,part_of,part_start\n{row}\n")


def test_short_lives_lie_below_a_large_buffer_whose_parts_die_one_after_another() -> None:
    # A convolution of three groups: `x` has their inputs, `pad` a padded copy of each, `y` the results. With `x` at the bottom the
    # larger second copy does not fit where the first one was; with `x` on top of the first copy it does, since the parts below are dead.
    x = (LivePart(0, 2400, 0, 10), LivePart(2400, 4800, 0, 20), LivePart(4800, 7200, 1, 30))
    y = (LivePart(0, 600, 10, 40), LivePart(600, 1200, 20, 40), LivePart(1200, 1800, 30, 40))
    pads = [Buffer(f"pad{i}", 2450 + 90 * i, 10 * i + 9, 10 * i + 11) for i in range(3)]
    before = [Buffer("a", 1200, -6, -3), Buffer("b", 1200, -4, -2), Buffer("c", 1200, -8, 2)]
    problem = Problem(
        (Buffer("x", 7200, 0, 30, outline=x), Buffer("y", 1800, 10, 40, outline=y), *pads, *before), alignment=1
    )
    # Sixty rounds, as many as hundreds of buffers get.
    found = planners()["best"].plan(problem, Effort(60 * 200 * len(problem.buffers), 1))
    assert problem.lower_bound == 7200 + 2450
    assert found.size == problem.lower_bound
    require(problem, found)
