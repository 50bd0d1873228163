"""One order of buffers for several sizes at once, and short formulas of where they begin."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import onnxtile
from onnxtile.model.formula import SizeFormula, exact_quotient, read_size
from onnxtile.planning.offsets.effort import NORMAL
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.planning.offsets.range_formulas import RangeFormulas
from onnxtile.planning.planners.exact import place
from tests.random_graphs.ranges import ranged_model

RANGES = {"a": (1, 30), "b": (1, 30), "c": (1, 30)}


def _formulas(seed: int, alignment: int) -> tuple[RangeFormulas, Problem, dict[str, SizeFormula], int]:
    """Return buffers of random sizes that are products of symbols, placed for the largest sizes."""
    random = Random(seed)
    sizes, buffers = dict[str, SizeFormula](), []
    for number in range(40):
        name, first = f"t{number}", random.randrange(30)
        symbols = random.choice((("a",), ("b",), ("c",), ("a", "b"), ("b", "c")))
        sizes[name] = SizeFormula.of({symbols: random.choice((4, 8, 64, 256))})
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


def test_of_several_orders_of_nodes_the_one_that_is_best_at_other_sizes_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order that is searched at the largest sizes alone needs 152 bytes at the least ones."""
    made = ranged_model(2212)
    options: dict[str, Any] = {"dims": made.ranges, "verify": False, "alignment": 8}
    found = onnxtile.plan(made.model, **options).plan
    monkeypatch.setattr("onnxtile.planning.ranges.RangeOrders.better", lambda _, present, *__: present)
    alone = onnxtile.plan(made.model, **options).plan
    least = {name: low for name, (low, _) in made.ranges.items()}
    assert found.arena_size == alone.arena_size
    assert found.arena_size_at(least) < alone.arena_size_at(least)
