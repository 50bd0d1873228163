"""A larger capacity or a larger budget never gives a worse result of fit: what fits less fits more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise, permutations, product
from typing import Any

import onnx
import pytest
from hypothesis import given

from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import Descent, FitTarget, rungs_below
from onnxtile.fitting.strips import FitSchedule
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import attempt, read_subject, unblocked_subject
from onnxtile.verbs.flows.fit_drafts import FitSubject
from onnxtile.verbs.flows.results import FittedModel
from tests.draws import draws
from tests.fitting.networks import inverted_residuals, model, search_within
from tests.fitting.random_nets import nets

SHARES = (0.4, 0.55, 0.8)
BUDGETS = (0.0, 0.1, 1.0)


def subject(made: onnx.ModelProto) -> FitSubject:
    """Return a model that was read."""
    return read_subject(FitOptions(made, capacity=1, verify=False))


def fitted(about: FitSubject, capacity: int | None, budget: float) -> FittedModel:
    """Return the model cut for a capacity in bytes, or for the smallest arena, within a budget of MACs."""
    given = about.options
    assert isinstance(given, FitOptions)
    options = replace(given, capacity=capacity or "smallest", budget=f"{100 * budget}%")
    return attempt(options, replace(about, options=options))


def is_no_worse(result: FittedModel, than: FittedModel) -> bool:
    """Return whether a result fits where the other does, with as few MACs."""
    return not than.fits or (result.fits and result.after.macs <= than.after.macs)


def require_no_worse(made: onnx.ModelProto, points: Iterable[tuple[float, float]]) -> None:
    """Fit a model at several pairs of a share of its arena and a budget; more of one, and as much of the other, is no worse."""
    about = subject(made)
    results = {
        (share, budget): fitted(about, max(int(share * about.before.arena), 1), budget) for share, budget in points
    }
    for ((less, low), small), ((more, high), large) in permutations(results.items(), 2):
        if less < more and low == high:
            assert is_no_worse(large, small)
        elif less == more and low < high:
            assert large.fits or not small.fits


@draws(6, slow=6)
@given(nets())
def test_what_fits_less_fits_more(made: onnx.ModelProto) -> None:
    require_no_worse(made, {*product(SHARES, BUDGETS[1:2]), *product(SHARES[1:2], BUDGETS)})


@pytest.mark.slow
@draws(12, slow=12)
@given(nets())
def test_what_fits_less_fits_more_at_all_shares_and_budgets(made: onnx.ModelProto) -> None:
    require_no_worse(made, product(SHARES, BUDGETS))


@draws(3, slow=8)
@given(nets())
def test_the_smallest_arena_is_what_fits_and_what_a_refusal_names(made: onnx.ModelProto) -> None:
    about = subject(made)
    least = fitted(about, None, 0.1).after.arena
    assert fitted(about, least, 0.1).fits
    below = fitted(about, least - 1, 0.1)
    assert not below.fits
    assert below.blocked_by is not None
    assert below.after.arena == (about.before.arena if below.blocked_by.search == "floor" else least)


@pytest.fixture(scope="module", name="down", params=[0.0, 0.3], ids=["no budget", "a budget"])
def way_down(request: pytest.FixtureRequest) -> tuple[Regions, FitTarget, list[FitSchedule]]:
    """Return a network, a budget of MACs for its smallest arena, and the points of the way down to it."""
    about = unblocked_subject(subject(inverted_residuals(33)))
    wanted = FitTarget(None, request.param, prices=about.prices)
    return about.regions, wanted, Descent(about.regions, wanted).all_points()


def uncounted(regions: Regions) -> Regions:
    """Return the regions of the same network with no costs counted."""
    return Regions(regions.network, regions.groups)


def test_all_capacities_take_points_of_one_way_down(
    down: tuple[Regions, FitTarget, list[FitSchedule]], share: Callable[[Iterable[Any], int], list[Any]]
) -> None:
    """Half-way between two points the one below counts, so that each capacity does as well as the smaller ones."""
    whole, wanted, points = down
    assert len(points) > 6 and [point.peak for point in points] == sorted({p.peak for p in points}, reverse=True)
    for above, point in [*share([*pairwise(points)][:-1], 6), points[-2:]]:
        regions, capacity = uncounted(whole), (above.peak + point.peak) // 2
        found, way = search_within(regions, replace(wanted, capacity=capacity)), Descent(regions, wanted)
        assert found is not None and found.peak <= capacity and way.price(found) <= way.price(point)
    assert search_within(whole, replace(wanted, capacity=points[-1].peak - 1)) is None


def test_points_within_a_capacity_are_found_without_those_above_it(
    down: tuple[Regions, FitTarget, list[FitSchedule]],
) -> None:
    whole, wanted, points = down
    regions = uncounted(whole)
    capacity = next(rungs_below(regions, FitSchedule(tuple(regions.whole)).peak // 2))
    within = list(Descent(regions, wanted).within(capacity))
    assert within and {point.peak for point in points if point.peak <= capacity} <= {point.peak for point in within}


def test_a_capacity_that_fits_is_met_without_the_way_down_and_no_slower(
    down: tuple[Regions, FitTarget, list[FitSchedule]],
) -> None:
    whole, wanted, points = down
    above, point = points[2:4]
    way = Descent(uncounted(whole), wanted)
    found = way.quickest((above.peak + point.peak) // 2)
    assert found is not None and found.peak < above.peak and not way.points
    assert way.price(found) <= way.price(point)


GATE = """
g (float[1,3,56,56] x) => (float[1,6,28,28] y) {
    [stem] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x, w0)
    [mean] p = GlobalAveragePool(a)
    [squeeze] q = Conv(p, w1)
    [gate] s = Sigmoid(q)
    [scale] m = Mul(a, s)
    [relu] r = Relu(m)
    [project] y = Conv(r, w2)
}"""


@pytest.fixture(scope="module")
def gate() -> FitSubject:
    """Return a gate whose operand takes 50,176 bytes, beside a result of 18,816."""
    return subject(model(GATE, w0=(16, 3, 3, 3), w1=(16, 16, 1, 1), w2=(6, 16, 1, 1)))


@pytest.mark.parametrize("capacity", [37_760, 50_176, 50_240, 51_250, 57_500, 65_000, 68_991])
def test_the_operand_of_a_mean_is_made_twice_where_it_fits_but_nothing_beside_it(
    gate: FitSubject, capacity: int
) -> None:
    assert gate.before.arena == 68_992
    found = fitted(gate, capacity, 1.0)
    assert found.fits
    assert found.after.macs < 2 * found.before.macs


def test_the_smallest_arena_is_looked_for_with_the_operand_of_a_mean_made_twice(gate: FitSubject) -> None:
    least = fitted(gate, None, 1.0).after.arena
    assert least <= 37_760
    assert fitted(gate, least, 1.0).fits
    assert fitted(gate, None, 0.0).after.macs == gate.before.macs
