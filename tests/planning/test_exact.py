"""The exact search: it finds the smallest arena of small problems, says so only when it is, and solves hard ones."""

import csv
import importlib.util
import os
import random
import sys
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.planning.offsets import effort as compiled
from onnxtile.planning.offsets import exact_descent as descent
from onnxtile.planning.offsets.effort import LEVELS, NORMAL, Effort
from onnxtile.planning.offsets.exact_descent import as_arrays, groups, state_of
from onnxtile.planning.offsets.exact_search import RestartSchedule, Runner, solve
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, OptimalityProof, Placement, Problem
from onnxtile.planning.planners import find_planner
from onnxtile.planning.problem_plan import check, plan_buffers
from tests.bench.problem_tables import cut, variants

HARD = Path(__file__).parents[3] / "shared" / "minimalloc"


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    buffers = []
    for i in range(draw(st.integers(1, 6))):
        lower = draw(st.integers(0, 5))
        alignment = draw(st.sampled_from([None, None, 1, 2, 4]))
        buffers.append(Buffer(str(i), draw(st.integers(0, 5)), lower, draw(st.integers(lower + 1, 6)), alignment))
    pairs = [(one.name, other.name) for one, other in combinations(buffers, 2)]
    conflicts = draw(st.frozensets(st.sampled_from(pairs), max_size=2)) if pairs else frozenset()
    return Problem(tuple(buffers), draw(st.sampled_from([1, 2])), conflicts=conflicts)


STACKED = Problem(
    (
        *(Buffer(f"a{i}", 3 + i % 2, 0, 4) for i in range(5)),
        *(Buffer(f"c{i}", 1, 1, 2, 4) for i in range(3)),
        *(Buffer(f"d{i}", 2, 2, 5, 8) for i in range(3)),
    ),
    1,
)
"""Interchangeable buffers, some of them aligned: the peak cannot be reached."""


def naive(problem: Problem) -> list[int]:
    """Return offsets at which no two buffers share a byte."""
    return list(find_planner("naive").plan(problem).offsets.values())


def solved(problem: Problem, looks: int = 10**6) -> tuple[OffsetPlan, Placement]:
    solution = solve(problem, naive(problem), Effort(looks, looks))
    plan = OffsetPlan.from_offsets(problem, solution.offsets)
    assert check(problem, plan) == ()
    return plan, solution


def fits(problem: Problem, size: int, placed: tuple[int, ...] = ()) -> bool:
    """Try every offset of every buffer, with no idea of what a good one might be."""
    if len(placed) == len(problem.buffers):
        return True
    buffer = problem.buffers[len(placed)]
    footprint = problem.footprint(buffer)
    if not footprint:
        return fits(problem, size, (*placed, 0))
    others = [
        (offset, offset + problem.footprint(other))
        for other, offset in zip(problem.buffers, placed, strict=False)
        if other.size
        and (
            (other.lower < buffer.upper and buffer.lower < other.upper)
            or (other.name, buffer.name) in problem.conflicts
        )
    ]
    return any(
        all(offset + footprint <= low or high <= offset for low, high in others)
        and fits(problem, size, (*placed, offset))
        for offset in range(0, size - footprint + 1, problem.alignment_of(buffer))
    )


@given(small_problems())
def test_nothing_smaller_is_possible(problem: Problem) -> None:
    plan, solution = solved(problem)
    assert solution.proof.ended == "search ended"
    assert solution.proof.lower_bound == plan.size
    assert fits(problem, plan.size)
    assert not plan.size or not fits(problem, plan.size - problem.granule)


@given(small_problems(), st.integers(0, 60))
def test_a_budget_ends_it_and_it_says_so(problem: Problem, looks: int) -> None:
    plan, solution = solved(problem, looks)
    assert problem.lower_bound <= solution.proof.lower_bound <= plan.size
    assert plan.size <= find_planner("naive").plan(problem).size
    assert not solution.proof.lower_bound or not fits(problem, solution.proof.lower_bound - problem.granule)
    assert (solution.proof.ended == "search ended") == (plan.size == solution.proof.lower_bound)


def test_interchangeable_buffers_above_the_peak() -> None:
    plan, solution = solved(STACKED, 350_000)
    assert solution.proof.ended == "search ended"
    assert plan.size == solution.proof.lower_bound == 25


def test_failures_are_forgotten_now_and_then() -> None:
    schedule = RestartSchedule([3, 2, 1], fitting=False)
    first = schedule.order
    for _ in range(300):
        schedule.next()
    assert schedule.order is not first


def test_long_searches_are_rarer_while_fitting() -> None:
    """They prove that a size is impossible; a placement that fits is found by short ones."""
    shares = []
    for fitting in (False, True):
        schedule = RestartSchedule([1] * 100, fitting=fitting)
        searches = [schedule.next() for _ in range(5_000)]
        shares.append(sum(nodes for nodes, is_short in searches if not is_short) / sum(nodes for nodes, _ in searches))
    assert 0.3 < shares[0] < 0.6
    assert shares[1] < 0.1


@st.composite
def piles(draw: st.DrawFn) -> Problem:
    """Many buffers of few lives and sizes, which can change places."""
    lives = draw(st.lists(st.sampled_from([(0, 2), (0, 4), (1, 3), (2, 4), (3, 4)]), min_size=1, max_size=3))
    count = draw(st.integers(1, 7))
    chosen = [(draw(st.sampled_from(lives)), draw(st.sampled_from([1, 1, 2, 3, 4]))) for _ in range(count)]
    unit = st.sampled_from([None, None, None, 2])
    return Problem(tuple(Buffer(str(i), size, *life, draw(unit)) for i, (life, size) in enumerate(chosen)), 1)


@given(st.one_of(piles(), small_problems()), st.randoms(use_true_random=False), st.integers(-1, 3))
def test_no_order_of_trying_misses_a_plan(problem: Problem, draw: random.Random, more: int) -> None:
    grain = problem.granule
    capacity = problem.lower_bound // grain + more
    endings = []
    for members in groups(problem):
        state, _ = state_of(problem, members, grain)
        state.rank[:] = draw.sample(range(len(members)), len(members))
        endings.append(descent.descend(state, capacity, 10**6, 10**9)[0])
    assert descent.STOPPED not in endings
    assert (descent.IMPOSSIBLE not in endings) == fits(problem, capacity * grain)


def test_a_bound_that_cannot_be_reached_is_raised() -> None:
    # Never more than 3 bytes are live, and yet "a" and "b" have to start at 0 and 4.
    problem = Problem((Buffer("a", 1, 0, 2, 4), Buffer("b", 1, 0, 2, 4), Buffer("c", 1, 1, 2)), 1)
    plan, solution = solved(problem)
    assert solution.proof.ended == "search ended"
    assert (problem.lower_bound, solution.proof.lower_bound, plan.size) == (3, 5, 5)
    assert not fits(problem, 4)


def pieces(count: int, seed: int, size: int, missing: float = 0.0) -> Problem:
    """Return the pieces of a block of `size` bytes and as many steps, which are known to fit into it."""
    rows = cut(count, missing, seed, size, size)
    return Problem(tuple(Buffer(name, height, lower, upper) for name, lower, upper, height in rows), 1, size)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_a_whole_are_put_together_again(seed: int) -> None:
    problem = pieces(100, seed, 500)
    assert {sum(b.size for b in problem.live_at(step)) for step in range(500)} == {500}
    plan, solution = solved(problem, 10**7)
    assert plan.size == 500
    assert solution.proof.ended == "search ended"


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_of_the_pieces_fits(seed: int) -> None:
    assert solved(pieces(80, seed, 500, 0.03), 10**7)[0].size <= 500


@pytest.mark.parametrize(("count", "missing", "seed"), [(200, 0.03, 1), (200, 0.15, 2), (300, 0.15, 1)])
def test_a_bare_problem_comes_near_to_its_bound_without_a_capacity(count: int, missing: float, seed: int) -> None:
    """The heuristics and the steps of the normal effort alone end 10 to 29 % above the bound."""
    if not compiled.is_available():
        pytest.skip("numba is not installed")
    rows = cut(count, missing, seed, steps=2048, size=1 << 20)
    plan = plan_buffers(Problem(tuple(Buffer(name, size, lower, upper) for name, lower, upper, size in rows), 1))
    assert plan.arena_size <= 1.03 * plan.lower_bound


def test_only_the_normal_effort_of_one_problem_has_more_steps() -> None:
    assert NORMAL.alone.closing > NORMAL.steps > NORMAL.closing == 0
    assert replace(NORMAL.alone, closing=0) == NORMAL
    for effort in (LEVELS["low"], LEVELS["high"], Effort(7, 7)):
        assert effort.alone == effort


def test_a_group_too_large_for_a_few_descents_is_not_searched() -> None:
    problem = Problem(tuple(Buffer(str(i), 1 + i % 7, i % 90, i % 90 + 12) for i in range(1_100)), 1)
    assert max(map(len, groups(problem))) > 1_000
    looks: list[int] = []
    effort = Effort(1_000_000, 1_000_000, progress=lambda _what, done=0, _all=0, /: looks.append(done))
    start = naive(problem)
    assert solve(problem, start, effort) == Placement(
        tuple(start), OptimalityProof(problem.lower_bound, "search", "effort")
    )
    assert not looks


def test_groups_that_never_meet_are_solved_apart() -> None:
    one = pieces(30, 1, 100)
    shifted = [
        Buffer(f"{b.name}+{k}", b.size, b.lower + 100 * k, b.upper + 100 * k) for k in range(20) for b in one.buffers
    ]
    problem = Problem(tuple(shifted), 1)
    assert len(groups(problem)) == 20
    assert solved(problem)[0].size == 100


@pytest.mark.skipif(not compiled.is_available(), reason="numba is not installed")
def test_compiled_it_does_the_same() -> None:
    problem = pieces(80, 7, 500)
    members = max(groups(problem), key=len)
    plain, _ = state_of(problem, members, 1)
    arrays = as_arrays(plain)
    for buffer, rank in enumerate(random.Random(0).sample(range(len(members)), len(members))):
        plain.rank[buffer] = arrays.rank[buffer] = rank
    assert descent.descend(plain, 500, 5000, 10**6) == compiled.function(descent, "descend", allocates=False)(
        arrays, 500, 5000, 10**6
    )
    assert plain.offset == list(arrays.offset)
    assert plain.failures == list(arrays.failures)


def test_what_is_compiled_is_loaded_after_the_looks_of_all_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last problem goes on compiled after 45,725 looks, since the others took 52,887; the offsets are those of plain Python."""
    problems = [pieces(80, seed, 500, 0.03) for seed in range(1, 5)]

    def placements() -> list[Placement]:
        return [solve(problem, naive(problem), Effort(100_000, 100_000)) for problem in problems]

    loaded: list[int] = []

    def function(*_: object, **__: object) -> Any:
        loaded.append(Runner.spent)
        return partial(descent.descend)

    monkeypatch.setattr("onnxtile.planning.offsets.exact_search.LOAD_FROM", 60_000)
    monkeypatch.setattr(Runner, "spent", 0)
    monkeypatch.setattr(compiled, "is_loaded", lambda *_: bool(loaded))
    monkeypatch.setattr(compiled, "is_kept", lambda *_: True)
    monkeypatch.setattr(compiled, "function", function)
    monkeypatch.setattr(compiled, "is_available", lambda: False)
    plain = placements()
    assert not loaded
    monkeypatch.setattr(Runner, "spent", 0)
    monkeypatch.setattr(compiled, "is_available", lambda: True)
    assert placements() == plain
    assert loaded == [52_887 + 45_725]


def hard_problem(name: str) -> Problem:
    file = HARD / f"{name}.1048576.csv"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    buffers = (Buffer(r["id"], int(r["size"]), int(r["lower"]), int(r["upper"])) for r in rows)
    return Problem(tuple(buffers), 1, 1048576)


@pytest.mark.parametrize("name", "ACGH")
def test_hard_problems(name: str) -> None:
    assert solved(hard_problem(name), 10**8)[0].size <= 1048576


@pytest.mark.slow
@pytest.mark.parametrize("name", "BDEFIJK")
def test_harder_problems(name: str) -> None:
    if not compiled.is_available():
        pytest.skip("numba is not installed")
    assert solved(hard_problem(name), 3 * 10**9)[0].size <= 1048576


@pytest.mark.slow
@pytest.mark.parametrize("name", "AFK")
def test_problems_as_hard(name: str) -> None:
    if not compiled.is_available():
        pytest.skip("numba is not installed")
    rows = [(b.name, b.lower, b.upper, b.size) for b in hard_problem(name).buffers]
    for _, changed, capacity, alignment in variants(rows, random.Random(0)):
        buffers = tuple(Buffer(name, size, lower, upper) for name, lower, upper, size in changed)
        assert solved(Problem(buffers, alignment, capacity), 3 * 10**9)[0].size <= capacity


def test_compiled_code_older_than_the_source_is_deleted(tmp_path: Path) -> None:
    """Code kept by an earlier release refers to types that may be gone: numba would fail to load it."""
    source = tmp_path / "search.py"
    source.write_text("def add(a, b):\n    return a + b\n")
    kept = tmp_path / "__pycache__" / "search.add-1.py311.nbi"
    kept.parent.mkdir()
    kept.write_bytes(b"not what numba wrote")
    os.utime(kept, (0, 0))
    spec = importlib.util.spec_from_file_location("search", source)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    compiled._drop_stale(module)
    assert not kept.exists()
    kept.write_bytes(b"newer than the source")
    os.utime(kept, (2**33, 2**33))
    compiled._drop_stale(module)
    assert kept.exists()


def test_kept_code_is_that_of_this_version_of_python(tmp_path: Path) -> None:
    source = tmp_path / "search.py"
    source.write_text("def add(a, b):\n    return a + b\n")
    spec = importlib.util.spec_from_file_location("search", source)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    folder = tmp_path / "__pycache__"
    folder.mkdir()
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    for name, is_kept in (("search.add-1.py27.nbi", False), (f"search.add-1.py{version}.nbi", True)):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (2**33, 2**33))
        assert compiled.is_kept(module, "add") == is_kept
    assert not compiled.is_kept(module, "fill")
    assert not compiled.is_loaded(module, "add")
