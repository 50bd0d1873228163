"""The choice of tensors that leave the fast memory: against trying every choice, and against the lower bound."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtile.declare.plan_document import TransferTime
from onnxtile.planning.movement import eviction
from onnxtile.planning.movement.eviction import (
    Eviction,
    Gap,
    MovementProblem,
    choose_evictions,
    least_bytes,
    proved_evictions,
)
from onnxtile.planning.movement.plan import ByteAccess, Speeds, TimedStep, transfer_time


@st.composite
def movements(draw: st.DrawFn, most: int) -> MovementProblem:
    """Problems of up to 10 steps; tensors with a store, which several gaps may share, are copied out first."""
    steps = draw(st.integers(2, 10))
    stores = tuple(draw(st.lists(st.integers(1, 9), min_size=3, max_size=3)))
    gaps = []
    for _ in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, steps - 1))
        store = draw(st.sampled_from([None, 0, 1, 2]))
        size = draw(st.integers(1, 9)) if store is None else stores[store]
        gaps.append(Gap(first, draw(st.integers(first, steps - 1)), size, size, store))
    free = draw(st.lists(st.integers(0, 16), min_size=steps, max_size=steps))
    return MovementProblem(tuple(free), tuple(gaps), stores)


def fits(problem: MovementProblem, evicted: frozenset[int]) -> bool:
    held = problem.held(set(range(len(problem.gaps))) - evicted)
    return all(used <= free for used, free in zip(held, problem.free, strict=True))


@settings(max_examples=150, deadline=None)
@given(movements(8))
def test_no_choice_copies_fewer_bytes(problem: MovementProblem) -> None:
    numbers = range(len(problem.gaps))
    choices = (frozenset(chosen) for count in range(len(numbers) + 1) for chosen in combinations(numbers, count))
    least = min(problem.cost(chosen) for chosen in choices if fits(problem, chosen))
    found = choose_evictions(problem)
    assert found.exact
    assert fits(problem, found.evicted)
    assert found.cost == problem.cost(found.evicted) == least
    bound = least_bytes(problem)
    assert bound is not None and bound <= least
    everything = frozenset(numbers)
    proved = proved_evictions(problem, Eviction(everything, problem.cost(everything), exact=False))
    assert (proved.cost, proved.exact, fits(problem, proved.evicted)) == (least, True, True)


@settings(max_examples=10, deadline=None)
@given(movements(80))
def test_a_choice_of_many_tensors_fits_and_is_not_below_the_bound(problem: MovementProblem) -> None:
    found = choose_evictions(problem)
    assert fits(problem, found.evicted)
    bound = least_bytes(problem)
    assert bound is not None and bound <= found.cost


def test_a_search_without_an_end_in_sight_tries_only_so_many_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forty tensors twenty must leave: the least sets of one step are more than can be tried."""
    tried = 0
    after = eviction._EvictionWalk._after

    def counted(*arguments: Any) -> Any:
        nonlocal tried
        tried += 1
        return after(*arguments)

    monkeypatch.setattr(eviction, "_SETS", 500)
    monkeypatch.setattr(eviction._EvictionWalk, "_after", counted)
    gaps = tuple(Gap(0, 2 + number % 3, 7 + number % 5, 9 - number % 4) for number in range(40))
    problem = MovementProblem((180, 170, 160, 90, 40), gaps)
    everything = Eviction(frozenset(range(40)), problem.cost(range(40)), exact=False)
    found = proved_evictions(problem, everything)
    assert fits(problem, found.evicted) and not found.exact and found.cost < everything.cost
    assert 500 < tried <= 500 + 4 * 5 * 4_000


def test_the_tensor_that_is_used_last_leaves() -> None:
    """Belady's rule, for tensors of one size that are not written back."""
    problem = MovementProblem((2, 2, 1, 2, 2), (Gap(0, 2, 1, 1), Gap(1, 4, 1, 1), Gap(3, 4, 1, 1)))
    assert choose_evictions(problem).evicted == {1} or choose_evictions(problem).evicted == {0}
    problem = MovementProblem((2, 2, 1, 1, 1), (Gap(0, 2, 1, 1), Gap(1, 4, 1, 1), Gap(3, 4, 1, 1)))
    assert choose_evictions(problem).evicted == {1}


def test_a_tensor_in_the_slow_memory_is_not_written_again() -> None:
    """Of two tensors of one size, the one that has a copy there leaves; and one copy is enough for two gaps."""
    problem = MovementProblem((10, 0, 10), (Gap(0, 2, 5, 5, 0), Gap(0, 2, 5, 5)), (5,))
    assert choose_evictions(MovementProblem((10, 5, 10), problem.gaps, (5,))).evicted == {1}
    both = MovementProblem((0, 9, 0), (Gap(0, 0, 5, 5, 0), Gap(2, 2, 5, 5, 0)), (5,))
    assert choose_evictions(both).cost == 15


def at(start: int, end: int, *, write: bool) -> ByteAccess:
    return ByteAccess("fast", start, end, write)


def test_a_copy_runs_beside_a_kernel_that_touches_other_bytes() -> None:
    kernel = TimedStep(None, 4, (at(0, 8, write=True),))
    apart = TimedStep(6, 0, (at(8, 14, write=True),))
    over = TimedStep(6, 0, (at(4, 10, write=True),))
    speeds = Speeds(bandwidth=2, macs_per_second=1)
    assert transfer_time([kernel, apart], speeds) == TransferTime(2, 3.0, 1, 4.0, 7.0, 4.0, (0.0, 0.0), (4.0, 3.0))
    assert transfer_time([kernel, over], speeds) == TransferTime(2, 3.0, 1, 4.0, 7.0, 7.0, (0.0, 4.0), (4.0, 7.0))
    reader = TimedStep(None, 1, (at(8, 14, write=False),))
    assert transfer_time([kernel, apart, reader], speeds).with_overlap == 5.0
    assert transfer_time([apart, reader, kernel], speeds).with_overlap == 8.0


@pytest.mark.parametrize("speeds", [Speeds(2), Speeds(2, 8)])
def test_only_times_that_follow_from_what_is_given(speeds: Speeds) -> None:
    found = transfer_time([TimedStep(6, 0, ()), TimedStep(None, 8, ())], speeds, knows_macs=False)
    assert (found.copying, found.computing, found.without_overlap, found.with_overlap) == (3.0, None, None, None)
