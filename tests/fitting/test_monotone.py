"""A larger capacity or a larger budget never gives a worse result of fit: what fits less fits more."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import attempt, read_subject
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


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(nets())
def test_what_fits_less_fits_more(made: onnx.ModelProto) -> None:
    about = subject(made)
    results = [
        [fitted(about, max(int(share * about.before.arena), 1), budget) for share in SHARES] for budget in BUDGETS
    ]
    for row in results:
        for less, more in pairwise(row):
            assert is_no_worse(more, less)
    for column in zip(*results, strict=True):
        for less, more in pairwise(column):
            assert more.fits or not less.fits


GATE = """
g (float[1,3,112,112] x) => (float[1,6,56,56] y) {
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
    """Return a gate whose operand takes 200,704 bytes, beside a result of 75,264."""
    return subject(model(GATE, w0=(16, 3, 3, 3), w1=(16, 16, 1, 1), w2=(6, 16, 1, 1)))


@pytest.mark.parametrize("capacity", [150_528, 200_704, 200_768, 205_000, 230_000, 260_000, 275_967])
def test_the_operand_of_a_mean_is_made_twice_where_it_fits_but_nothing_beside_it(
    gate: FitSubject, capacity: int
) -> None:
    assert gate.before.arena == 275_968
    found = fitted(gate, capacity, 1.0)
    assert found.fits
    assert found.after.macs < 2 * found.before.macs


def test_the_smallest_arena_is_looked_for_with_the_operand_of_a_mean_made_twice(gate: FitSubject) -> None:
    least = fitted(gate, None, 1.0).after.arena
    assert least <= 150_528
    assert fitted(gate, least, 1.0).fits
    assert fitted(gate, None, 0.0).after.macs == gate.before.macs
