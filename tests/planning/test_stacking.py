"""One order of buffers for several sizes at once, and short formulas of where they begin."""

from __future__ import annotations

import random
from random import Random

import numpy as np
import pytest
from hypothesis import given

from onnxtile.model.formula import SizeFormula, exact_quotient, read_size
from onnxtile.planning.offsets.effort import LEVELS, NORMAL, SearchBudget
from onnxtile.planning.offsets.gaps import EjectionSearch
from onnxtile.planning.offsets.problem import Buffer, OffsetPlan, Problem, size_of
from onnxtile.planning.offsets.range_formulas import RangeFormulas
from onnxtile.planning.planners import GREEDY_BY_SIZE, NAIVE, place
from onnxtile.planning.problem_plan import check
from tests.draws import draws
from tests.planning.conftest import problems

RANGES = {"a": (1, 30), "b": (1, 30), "c": (1, 30)}


def _formulas(seed: int, alignment: int) -> tuple[RangeFormulas, Problem, dict[str, SizeFormula], int]:
    """Return buffers of random sizes that are products of symbols, placed for the largest sizes."""
    random = Random(seed)
    sizes, buffers = dict[str, SizeFormula](), []
    for number in range(40):
        name, first = f"t{number}", random.randrange(30)
        symbols = random.choice((("a",), ("b",), ("c",), ("a", "b"), ("b", "c")))
        sizes[name] = SizeFormula.from_terms({symbols: random.choice((4, 8, 64, 256))})
        unit = random.choice((None, 8)) if alignment < 8 else None
        most = sizes[name].at({"a": 30, "b": 30, "c": 30})
        buffers.append(Buffer(name, most, first, first + random.randint(1, 8), unit))
    problem = Problem(tuple(buffers), alignment)
    offsets = place(problem, NORMAL).offsets
    named = {buffer.name: offset for buffer, offset in zip(buffers, offsets, strict=True)}
    size = max(offset + problem.footprint(buffer) for buffer, offset in zip(buffers, offsets, strict=True))
    return RangeFormulas(problem, named, sizes, RANGES), problem, sizes, size


@pytest.mark.parametrize("alignment", [1, 4, 64])
@pytest.mark.parametrize("seed", range(3))
def test_scaled_offsets_are_nearly_as_small_as_the_peak_at_all_sizes(seed: int, alignment: int) -> None:
    formulas, problem, sizes, limit = _formulas(seed, alignment)
    found, peak = formulas.scaled(limit), formulas.peak()
    assert found is not None and peak is not None
    random, ratios = Random(seed), []
    for turn in range(40):
        at = {name: high if not turn else random.randint(low, high) for name, (low, high) in RANGES.items()}
        placed = []
        for buffer in problem.buffers:
            start = found.offsets[buffer.name].at(at)
            assert start % (buffer.alignment or alignment) == 0
            placed.append((start, start + sizes[buffer.name].at(at), buffer))
        for place_, (start, end, one) in enumerate(placed):
            assert end <= found.size.at(at)
            for begin, until, other in placed[:place_]:
                together = one.lower < other.upper and other.lower < one.upper
                assert not together or end <= begin or until <= start
        ratios.append(found.size.at(at) / peak.at(at))
        assert turn or found.size.at(at) <= limit
    assert np.mean(ratios) < 1.2
    assert max(ratios) < 1.6
    assert all(len(offset.pieces) <= 32 for offset in found.offsets.values())


def test_a_size_divided_by_a_sum_of_symbols_is_read_where_nothing_is_left() -> None:
    ranges = {"batch": (1, 3), "past": (1, 9), "seq": (1, 9)}
    assert str(read_size("floor(64*batch*(past + seq)/(16*past + 16*seq))", ranges)) == "4*batch"
    assert read_size("floor(64*batch*(past + seq)/(48*past + 16*seq))", ranges) is None
    past, seq = SizeFormula.symbol("past"), SizeFormula.symbol("seq")
    assert exact_quotient(past * past - seq * seq, past - seq) == past + seq
    assert exact_quotient(past, SizeFormula.number(0)) is None


# Buffers that are moved below a target, and ejected by others.


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


@draws(25, 100)
@given(problem=problems(40))
def test_it_is_sound_and_no_larger(problem: Problem) -> None:
    start = NAIVE.plan(problem)
    offsets = EjectionSearch(problem).lowered([start.offsets[b.name] for b in problem.buffers], SearchBudget(20_000))
    plan = OffsetPlan.from_offsets(problem, list(offsets))
    assert check(problem, plan) == ()
    assert problem.lower_bound <= plan.size <= start.size


@pytest.mark.parametrize("dropped", [0.1, 0.2])
def test_it_closes_gaps_that_other_heuristics_leave(dropped: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    problem = Problem(tuple(b for b in sliced(100, 2_000, 800, 1).buffers if draw.random() > dropped))
    after = size_of(problem, place(problem, LEVELS["low"]).offsets)
    monkeypatch.setattr(EjectionSearch, "lowered", lambda _search, offsets, *_: offsets)
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


def test_little_effort_leaves_a_target_that_moves_bring_no_nearer() -> None:
    problem = sliced(100, 2_000, 600, 3)
    start = GREEDY_BY_SIZE.place(problem, LEVELS["low"]).offsets
    budget = SearchBudget(500_000)
    lowered = EjectionSearch(problem).lowered(start, budget)
    assert size_of(problem, lowered) < size_of(problem, start)
    assert budget.looks > 200_000
