"""Norms whose means are written as sums, or whose variance is E[x²] - E[x]²."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxtile.fusion.lower.terms import atom, mean, number, power, product, total, variable
from onnxtile.fusion.lowerings.norms import in_means
from onnxtile.verbs.flows.results import FuseResult

END = "e = Add (v, eps) r = Sqrt (e) n = Div (c, r) k = Mul (n, scale) y = Add (k, bias)"
FORMS = {
    "sums times 1 / n": "s = ReduceSum <keepdims = 1> (x, axes) m = Mul (s, share) c = Sub (x, m) q = Mul (c, c)"
    " t = ReduceSum <keepdims = 1> (q, axes) v = Mul (t, share) " + END,
    "sums divided by n": "s = ReduceSum <keepdims = 1> (x, axes) m = Div (s, count) c = Sub (x, m) q = Pow (c, two)"
    " t = ReduceSum <keepdims = 1> (q, axes) v = Div (t, count) " + END,
    "sums, E[x²] - E[x]²": "s = ReduceSum <keepdims = 1> (x, axes) m = Mul (s, share) q = Mul (x, x)"
    " t = ReduceSum <keepdims = 1> (q, axes) u = Mul (t, share) w = Mul (m, m) v = Sub (u, w) c = Sub (x, m) " + END,
    "means, E[x²] - E[x]²": "m = ReduceMean <keepdims = 1, axes = [-1]> (x) q = Mul (x, x)"
    " u = ReduceMean <keepdims = 1, axes = [-1]> (q) w = Mul (m, m) v = Sub (u, w) c = Sub (x, m) " + END,
}


@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("form", FORMS)
def test_a_layer_norm_becomes_one_operator(
    bench: Any, operators: Callable[[FuseResult], list[str]], form: str, size: int
) -> None:
    vector = np.linspace(0.5, 2.0, size)
    numbers = {
        "axes": np.asarray([-1]), "share": 1 / size, "count": float(size), "two": 2.0, "eps": 1e-3, "scale": vector, "bias": vector,
    }  # fmt: skip
    used = {name: value for name, value in numbers.items() if f"{name})" in FORMS[form]}
    model = bench.model(FORMS[form], used, x=f"float[2,3,{size}]", y=f"float[2,3,{size}]")
    result = bench.lower(model, "LayerNorm")
    assert operators(result) == ["LayerNormalization"]
    assert next(iter(result.model.graph)).attributes["epsilon"].as_float() == pytest.approx(1e-3)


X = variable(0)


def test_a_sum_times_another_number_is_no_mean() -> None:
    def scaled(share: float) -> Any:
        return in_means(product(number(share), atom("ReduceSum", (-1,), 1, X)), (2, 8), 1e-6)

    assert scaled(float(np.float32(1 / 8))) == mean((-1,), X)
    assert scaled(0.12) == product(number(0.96), mean((-1,), X))


def test_of_an_axis_of_unknown_size_a_sum_stays_one() -> None:
    form = product(number(0.125), atom("ReduceSum", (-1,), 1, X))
    assert in_means(form, (2, "n"), 1e-6) == form
    assert in_means(form, None, 1e-6) == form


def test_a_variance_of_two_means_of_other_axes_is_none() -> None:
    for axes, same in (((-1,), True), ((-2,), False)):
        spread = total(mean((-1,), power(X, 2.0)), product(number(-1.0), power(mean(axes, X), 2.0)), number(1e-3))
        centred = power(total(X, product(number(-1.0), mean((-1,), X))), 2.0)
        wanted = power(total(mean((-1,), centred), number(1e-3)), -0.5)
        assert (in_means(power(spread, -0.5), (2, 8), 1e-6) == wanted) is same
