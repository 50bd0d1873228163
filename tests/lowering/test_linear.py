"""A fully connected layer is a Gemm where its input is a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]
WEIGHTS: dict[str, Any] = {"w": np.linspace(-1, 1, 72).reshape(8, 9), "b": np.linspace(0, 1, 9)}


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    "body", ["m = MatMul(x, w) y = Add(m, b)", "m = MatMul(x, w) y = Add(b, m)", "y = Gemm(x, w, b)"]
)
def test_a_linear_of_matrices_is_a_gemm(bench: Any, operators: Names, body: str, dtype: str, target: str) -> None:
    result = bench.lower(bench.model(body, WEIGHTS, x="float[3,8]", y="float[3,9]", dtype=dtype), "Linear", target)
    assert operators(result) == ["Gemm"]
    assert result.verdict is not None and result.verdict.equal


def test_a_linear_of_batches_is_a_product_and_a_sum(bench: Any, operators: Names) -> None:
    model = bench.model("m = MatMul(x, w) y = Add(m, b)", WEIGHTS, y="float[2,3,9]")
    result = bench.lower(model, "Linear")
    assert operators(result) == ["MatMul", "Add"]
    assert [site.operator for site in result.lowered] == ["MatMul"]
    assert not result.model.functions


def test_a_linear_between_reshapes_is_its_gemm(bench: Any, operators: Names) -> None:
    body = "r = Reshape(x, rows) g = Gemm(r, w, b) y = Reshape(g, back)"
    shapes = {"rows": np.array([6, 8]), "back": np.array([2, 3, 9])}
    result = bench.lower(bench.model(body, {**WEIGHTS, **shapes}, y="float[2,3,9]"), "Linear")
    assert operators(result) == ["Reshape", "Gemm", "Reshape"]
    assert [site.operator for site in result.lowered] == ["Gemm"]
