"""More memory never gives a result with more multiply-accumulates, or none."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as some

from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget, search
from onnxtile.fitting.strips import FitSchedule
from tests.fitting.test_search import regions

_BUDGET = 0.6


@cache
def _found(rows: int, capacity: int, in_chunks: bool) -> FitSchedule:
    about = regions(rows)
    return search(about if in_chunks else Regions(about.network), FitTarget(capacity, _BUDGET))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    rows=some.sampled_from([17, 25]),
    in_chunks=some.booleans(),
    capacities=some.tuples(some.integers(20, 110), some.integers(1, 40)),
)
def test_more_memory_gives_no_more_products(rows: int, in_chunks: bool, capacities: tuple[int, int]) -> None:
    less, more = 64 * capacities[0], 64 * sum(capacities)
    small, large = _found(rows, less, in_chunks), _found(rows, more, in_chunks)
    if small.peak <= less:
        assert large.peak <= more
        assert large.macs <= small.macs
