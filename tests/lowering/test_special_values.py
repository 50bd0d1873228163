"""A few seeds of `tests.bench.special_values`: what differs on special values is named by the result, or refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.bench.special_values import difference, faults
from tests.lowering.special_sites import random_site

SEEDS, BLOCK = 60, 20


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_differences_are_named(first: int) -> None:
    found = [(seed, text) for seed in range(first, first + BLOCK) for text in faults(seed)[1]]
    assert not found, "\n".join(f"seed {seed}: {text}" for seed, text in found)


@pytest.mark.parametrize("seed", [39, 46, 50, 404, 513, 1889])
def test_seeds_that_found_faults(seed: int) -> None:
    assert faults(seed)[1] == []


def test_sites_are_of_every_kind_and_the_same_again() -> None:
    names = Counter(random_site(seed).name.partition(":")[0] for seed in range(150))
    assert len(names) > 20 and names["ScaledDotProductAttention"] > 10
    assert random_site(3).model == random_site(3).model


def test_what_counts_as_a_difference() -> None:
    number, nan, inf = (np.array([1.0, value], np.float32) for value in (2.0, np.nan, np.inf))
    assert difference(number, number * 1.0001, number, 1e-3) == ""
    assert difference(number, number * 1.1, number, 1e-3).startswith("worse")
    assert difference(nan, number, number, 1e-3) == "kinder"
    assert difference(number, nan, number, 1e-3).startswith("worse")
    assert difference(inf, nan, inf, 1e-3).startswith("worse")
    assert difference(inf[1:], nan[1:], inf[1:], 1e-3) == "no number"
