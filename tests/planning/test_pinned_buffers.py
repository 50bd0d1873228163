"""Buffers with pins: every planner leaves them at their offsets, and the exact search still proves the smallest arena."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from onnxtile.kernels.kernel_graph import LivePart
from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.exact_search import solve
from onnxtile.planning.offsets.memories import Memory, allocate
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, OverCapacity, PinOverlap, Problem
from onnxtile.planning.planners import Planner, find_planner, planners
from onnxtile.planning.problem_plan import check
from onnxtile.system.errors import UsageError
from tests.draws import draws
from tests.planning.conftest import problems

LITTLE = Effort(20_000, 20_000)
BEST = find_planner("best")

every_planner = pytest.mark.parametrize("planner", planners().values(), ids=planners())


def pinned(problem: Problem, pins: dict[str, int]) -> Problem:
    """Return `problem` with these pins, in units of the alignment of each buffer."""
    found = (replace(b, pin=pins[b.name] * problem.alignment_of(b)) if b.name in pins else b for b in problem.buffers)
    return replace(problem, buffers=tuple(found))


@st.composite
def pinned_problems(draw: st.DrawFn) -> Problem:
    problem = draw(problems(12))
    names = st.sampled_from([b.name for b in problem.buffers] or ["none"])
    return pinned(problem, draw(st.dictionaries(names, st.integers(0, 12), max_size=4)))


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    buffers = []
    for i in range(draw(st.integers(1, 6))):
        lower = draw(st.integers(0, 4))
        alignment = draw(st.sampled_from([None, None, 1, 2]))
        buffers.append(Buffer(str(i), draw(st.integers(0, 5)), lower, draw(st.integers(lower + 1, 5)), alignment))
    pairs = [(one.name, other.name) for one, other in combinations(buffers, 2)]
    conflicts = draw(st.frozensets(st.sampled_from(pairs), max_size=2)) if pairs else frozenset()
    problem = Problem(tuple(buffers), draw(st.sampled_from([1, 2])), conflicts=conflicts)
    return pinned(
        problem, draw(st.dictionaries(st.sampled_from([b.name for b in buffers]), st.integers(0, 6), max_size=3))
    )


SLOT_BETWEEN_ALIGNED = Problem(
    (Buffer("a", 5, 0, 4, 4, pin=48), Buffer("b", 3, 15, 20, 128), Buffer("c", 63, 15, 20, 128)), 64
)
"""In the slot of `a` there are no bytes at a multiple of 128."""


ONE_BESIDE_THE_PIN = Problem((Buffer("a", 1, 1, 2, pin=0), Buffer("b", 1, 0, 1), Buffer("c", 1, 0, 2)), 1)
"""`b` and `c` are live together in one section, and only `c` is live beside `a`: `b` has to lie below it."""


def fits(problem: Problem, size: int, placed: tuple[tuple[Buffer, int], ...] = ()) -> bool:
    """Try every offset of every buffer without a pin, beside those that have one."""
    if len(placed) == len(problem.buffers):
        return True
    buffer = sorted(problem.buffers, key=lambda b: b.pin is None)[len(placed)]
    footprint = problem.footprint(buffer)
    others = [
        (offset, offset + problem.footprint(other))
        for other, offset in placed
        if problem.footprint(other)
        and (
            (other.lower < buffer.upper and buffer.lower < other.upper)
            or not problem.conflicts.isdisjoint({(other.name, buffer.name), (buffer.name, other.name)})
        )
    ]
    tried = range(0, max(size - footprint, 0) + 1, problem.alignment_of(buffer)) if buffer.pin is None else [buffer.pin]
    return any(
        (not footprint or offset + footprint <= size)
        and (not footprint or all(offset + footprint <= low or high <= offset for low, high in others))
        and fits(problem, size, (*placed, (buffer, offset)))
        for offset in tried
    )


@every_planner
@draws(20, 80)
@example(problem=SLOT_BETWEEN_ALIGNED)
@given(problem=pinned_problems())
def test_every_planner_leaves_pinned_buffers_at_their_offsets(planner: Planner, problem: Problem) -> None:
    assume(problem.pin_overlap is None)
    plan = planner.plan(problem, LITTLE)
    assert check(problem, plan) == ()
    assert all(b.pin in {None, plan.offsets[b.name]} for b in problem.buffers)
    assert plan.proof is not None and problem.lower_bound <= plan.proof.lower_bound <= plan.size


@example(ONE_BESIDE_THE_PIN)
@given(small_problems())
def test_the_search_proves_the_smallest_arena_around_pins(problem: Problem) -> None:
    assume(problem.pin_overlap is None)
    start = list(find_planner("naive").plan(problem).offsets.values())
    solution = solve(problem, start, Effort(10**6, 10**6))
    plan = OffsetPlan.from_offsets(problem, solution.offsets)
    assert check(problem, plan) == ()
    assert solution.proof.ended == "search ended"
    assert solution.proof.lower_bound == plan.size
    assert not plan.size or not fits(problem, plan.size - 1)


@given(small_problems())
def test_two_pins_overlap_where_no_plan_has_both(problem: Problem) -> None:
    if problem.pin_overlap is None:
        assert fits(problem, 200)
        return
    assert not fits(problem, 200)
    with pytest.raises(PinOverlap, match="the pins of two tensors that are live together overlap"):
        BEST.plan(problem)


def test_a_pin_may_cost_bytes_and_the_bound_says_so() -> None:
    """Below the pin are 64 bytes, above it nothing: 100 bytes lie on top."""
    problem = Problem((Buffer("x", 32, 0, 4, pin=64), Buffer("y", 100, 0, 4)), 1)
    plan = BEST.plan(problem)
    assert plan.offsets == {"x": 64, "y": 96}
    assert plan.optimal
    assert plan.proof is not None
    assert (problem.lower_bound, plan.proof.lower_bound, plan.proof.bound) == (132, 196, "search")


def test_a_high_pin_is_the_bound() -> None:
    problem = Problem((Buffer("x", 32, 0, 4, pin=4096), Buffer("y", 100, 0, 4)), 64)
    plan = BEST.plan(problem)
    assert (plan.size, plan.optimal, problem.bound) == (4160, True, "pin")


def test_a_buffer_may_lie_below_a_pin_that_others_cannot_reach() -> None:
    """The search places from below: a buffer that is not at its first offset may still lie under the pinned one."""
    problem = Problem(
        (Buffer("p", 2, 2, 6, pin=4), Buffer("a", 4, 0, 3), Buffer("b", 4, 3, 6), Buffer("c", 2, 2, 4)), 1
    )
    plan = find_planner("exact").plan(problem)
    assert plan.optimal
    assert not fits(problem, plan.size - 1)


def test_parts_of_a_pinned_buffer_leave_room_for_others() -> None:
    outline = (LivePart(0, 64, 0, 2), LivePart(64, 128, 0, 4))
    problem = Problem(
        (Buffer("x", 128, 0, 4, outline=outline, pin=0), Buffer("y", 64, 2, 4, pin=0), Buffer("z", 64, 0, 4)), 64
    )
    for planner in planners().values():
        assert check(problem, planner.plan(problem, LITTLE)) == (), planner.name
    plan = BEST.plan(problem)
    assert (plan.size, plan.optimal) == (192, True)


@pytest.mark.parametrize(
    ("buffer", "capacity", "message"),
    [
        (Buffer("x", 64, 0, 1, pin=100), None, "the pin 100 of 'x' is not aligned to 64"),
        (Buffer("x", 64, 0, 1, pin=64), 100, "'x' pinned at 64 ends at 128, beyond the capacity of 100 bytes"),
    ],
)
def test_pins_that_no_arena_can_have_are_refused(buffer: Buffer, capacity: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Problem((buffer,), 64, capacity)


TWO = (Memory("sram", 256), Memory("dram", 4096))


def test_a_place_names_the_memory() -> None:
    problem = Problem(
        (Buffer("x", 64, 0, 4, memory="dram"), Buffer("y", 64, 0, 4), Buffer("z", 192, 0, 4, memory="sram"))
    )
    found = allocate(problem, TWO, BEST, LITTLE)
    assert found.places == {"x": "dram", "y": "sram", "z": "sram"}


def test_a_place_comes_before_the_worth() -> None:
    """Without the place, the buffer that moves more bytes is in the fast memory."""
    x, y = Buffer("x", 256, 0, 4, moved=1), Buffer("y", 256, 0, 4, moved=9999)
    assert allocate(Problem((x, y)), TWO, BEST, LITTLE).places == {"x": "dram", "y": "sram"}
    placed = Problem((replace(x, memory="sram"), y))
    assert allocate(placed, TWO, BEST, LITTLE).places == {"x": "sram", "y": "dram"}


def test_pins_in_two_memories_do_not_meet() -> None:
    problem = Problem((Buffer("x", 64, 0, 4, memory="dram", pin=0), Buffer("y", 64, 0, 4, memory="sram", pin=0)))
    found = allocate(problem, TWO, BEST, LITTLE)
    assert found.offsets == {"x": 0, "y": 0}


def test_a_place_that_is_too_small_is_over_capacity() -> None:
    with pytest.raises(OverCapacity, match="the arena 'sram' needs at least 512 bytes"):
        allocate(Problem((Buffer("x", 512, 0, 4, memory="sram"), Buffer("y", 0, 0, 4))), TWO, BEST, LITTLE)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (Buffer("x", 64, 0, 1, memory="flash"), "'x' is to be in 'flash', which has no capacity"),
        (Buffer("x", 64, 0, 1, pin=0), "the memory of the pinned 'x' is not known"),
    ],
)
def test_places_that_there_are_not_are_refused(buffer: Buffer, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        allocate(Problem((buffer,)), TWO, BEST, LITTLE)


def test_the_check_notices_a_buffer_that_is_not_at_its_pin() -> None:
    problem = Problem((Buffer("x", 64, 0, 4, pin=64),))
    assert [str(f) for f in check(problem, OffsetPlan({"x": 128}, 192))] == [
        "'x' is at 128, not at its pin 64 (step 0)"
    ]
