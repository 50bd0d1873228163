"""A larger capacity or a larger budget never gives a worse result of fit: what fits less fits more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations, product

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from onnxtile.fitting.search import FitTarget
from onnxtile.fitting.strips import Prices
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import _is_better, attempt, read_subject
from onnxtile.verbs.flows.fit_drafts import FitSubject
from onnxtile.verbs.flows.results import FittedModel
from tests.fitting.networks import model
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


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(nets())
def test_what_fits_less_fits_more(made: onnx.ModelProto) -> None:
    require_no_worse(made, {*product(SHARES, BUDGETS[1:2]), *product(SHARES[1:2], BUDGETS)})


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(nets())
def test_what_fits_less_fits_more_at_all_shares_and_budgets(made: onnx.ModelProto) -> None:
    require_no_worse(made, product(SHARES, BUDGETS))


@dataclass(frozen=True)
class Reached:
    """A result of so many bytes, for a price."""

    least_known: int
    cost: float

    def price(self, _: Prices) -> float:
        return self.cost

    def worth(self, _: int | None, __: Prices) -> tuple[int, float, int]:
        return self.least_known, self.cost, self.least_known


@pytest.mark.parametrize(
    ("found", "is_better"),
    [
        (Reached(999, 2.0), False),
        (Reached(989, 2.0), True),
        (Reached(999, 1.0), True),
        (Reached(1000, 0.5), True),
        (Reached(1001, 0.5), False),
    ],
)
def test_more_time_is_taken_for_a_smaller_arena_only_where_it_is_a_percent_smaller(
    found: Reached, is_better: bool
) -> None:
    best = Reached(1000, 1.5)
    assert _is_better(found, best, FitTarget(None, 0.1), Prices()) is is_better  # type: ignore[arg-type]


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
