"""Activations become operators where their constants say so, and stay calls where these are off by a little."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]

ERF = "d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)"
ERF_HALF_FIRST = "h = Mul(x, half) d = Mul(x, inverse) e = Erf(d) a = Add(one, e) y = Mul(a, h)"
TANH = "p = Pow(x, three) q = Mul(p, k) s = Add(x, q) r = Mul(s, c) t = Tanh(r) a = Add(t, one) h = Mul(x, half) y = Mul(h, a)"
QUICK = "s = Mul(x, alpha) g = Sigmoid(s) y = Mul(x, g)"
SILU = "g = Sigmoid(x) y = Mul(x, g)"
HARD_SWISH = "s = Add(x, three) b = Clip(s, zero, six) m = Mul(x, b) y = Div(m, six)"
MISH = "s = Softplus(x) t = Tanh(s) y = Mul(x, t)"
NUMBERS: dict[str, Any] = {
    "root": math.sqrt(2.0), "inverse": math.sqrt(0.5), "one": 1.0, "half": 0.5, "zero": 0.0, "three": 3.0, "six": 6.0,
    "k": 0.044715, "c": math.sqrt(2.0 / math.pi), "alpha": 1.702,
}  # fmt: skip

SITES = [
    ("GeLU", ERF, "Gelu", 20, "com.microsoft.Gelu"),
    ("GeLU", ERF_HALF_FIRST, "Gelu", 20, "com.microsoft.Gelu"),
    ("GeLUTanh", TANH, "Gelu", 20, "com.microsoft.FastGelu"),
    ("QuickGeLU", QUICK, "Swish", 24, "com.microsoft.QuickGelu"),
    ("SiLU", SILU, "Swish", 24, "com.microsoft.QuickGelu"),
    ("HardSwish", HARD_SWISH, "HardSwish", 14, "HardSwish"),
    ("Mish", MISH, "Mish", 18, "Mish"),
]


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(("pattern", "body", "standard", "opset", "contrib"), SITES)
def test_an_activation_becomes_one_operator(
    bench: Any, operators: Names, pattern: str, body: str, standard: str, opset: int, contrib: str, dtype: str
) -> None:
    model = bench.model(body, NUMBERS, dtype=dtype)
    result = bench.lower(model, pattern)
    assert operators(result) == [standard]
    assert result.model.graph.opset_imports[""] == max(17, opset)
    assert not result.model.functions
    assert result.verdict is not None and result.verdict.equal
    assert [site.equal for site in result.sites] == [True]
    assert [site.decided for site in result.lowered] == [""]
    result = bench.lower(model, pattern, "ort")
    assert operators(result) == [contrib]
    assert result.verdict is not None and result.verdict.equal


TWICE = [
    ("TwiceGeLU", "d = Div(x, root) e = Erf(d) a = Add(e, one) y = Mul(x, a)", "com.microsoft.Gelu"),
    (
        "TwiceGeLUTanh",
        TANH.removesuffix(" h = Mul(x, half) y = Mul(h, a)") + " y = Mul(x, a)",
        "com.microsoft.FastGelu",
    ),
]


@pytest.mark.parametrize(("pattern", "body", "contrib"), TWICE)
def test_an_activation_whose_half_was_folded_away_is_doubled(
    bench: Any, operators: Names, pattern: str, body: str, contrib: str
) -> None:
    for target, wanted in (("onnx", "Gelu"), ("ort", contrib)):
        result = bench.lower(bench.model(body, NUMBERS), pattern, target)
        assert operators(result) == [wanted, "Mul"]
        assert [site.equal for site in result.sites] == [True]
        assert result.verdict is not None and result.verdict.equal


@pytest.mark.parametrize(("pattern", "body", "standard"), [s[:3] for s in SITES if s[0] not in {"HardSwish", "Mish"}])
def test_bfloat16_is_lowered_as_well(bench: Any, operators: Names, pattern: str, body: str, standard: str) -> None:
    # onnxruntime has no kernels of these in bfloat16, neither of the operators nor of what they stand for.
    model = bench.model(body, NUMBERS, dtype="bfloat16")
    assert operators(bench.lower(model, pattern, verify=False)) == [standard]


def test_tanh_gelu_is_not_the_erf_one(bench: Any) -> None:
    gelu = next(iter(bench.lower(bench.model(TANH, NUMBERS), "GeLUTanh").model.graph))
    assert gelu.attributes["approximate"].as_string() == "tanh"
    gelu = next(iter(bench.lower(bench.model(ERF, NUMBERS), "GeLU").model.graph))
    assert "approximate" not in gelu.attributes


NEAR_MISSES = [
    ("MyGeLU", ERF, {"root": 1.4}),
    ("MyGeLU", ERF, {"half": 0.25}),
    ("MyGeLU", ERF, {"one": 0.0}),
    ("MyQuick", QUICK, {"alpha": 1.7}),
    ("MyTanh", TANH, {"k": 0.045}),
    ("MyTanh", TANH, {"three": 2.0}),
    ("MyTanh", TANH, {"c": 0.8}),
    ("MyHardSwish", HARD_SWISH, {"three": 2.5}),
    ("MyHardSwish", HARD_SWISH, {"six": 5.0}),
]
LOOSE = {
    "MyGeLU": ("GeLU", "Div->Erf-*>Add-*>Mul-*>Mul"),
    "MyQuick": ("QuickGeLU", "Mul->Sigmoid-*>Mul"),
    "MyTanh": ("GeLUTanh", "Pow-*>Mul-*>Add#sum-*>Mul->Tanh-*>Add-*>Mul#gate<*-Mul"),
    "MyHardSwish": ("HardSwish", "Add->Clip-*>Mul-*>Div"),
}


@pytest.mark.parametrize(("dtype", "target"), [("float", "onnx"), ("float16", "ort")])
@pytest.mark.parametrize(("loose", "body", "off"), NEAR_MISSES)
def test_a_near_miss_stays_a_call(
    bench: Any, tmp_path: Any, loose: str, body: str, off: dict[str, float], dtype: str, target: str
) -> None:
    name, query = LOOSE[loose]
    file = tmp_path / "loose.toml"
    file.write_text(f"name = '{name}'\ndoc = 'matches more than it should'\n[[variants]]\nquery = '{query}'\n")
    result = bench.lower(bench.model(body, {**NUMBERS, **off}, dtype=dtype), str(file), target)
    assert [site.operator for site in result.lowered] == [""]
    assert "is not" in result.lowered[0].reason
    assert [node.op_type for node in result.model.graph] == [name]
    assert result.model.graph.opset_imports[""] == 17
    whole = bench.lower(bench.model(body, NUMBERS, dtype=dtype), str(file), target)
    assert [bool(site.operator) for site in whole.lowered] == [True]


def test_a_vector_that_widens_the_result_is_no_input_of_an_activation(bench: Any) -> None:
    body = "g = Sigmoid(x) y = Mul(x, g)"
    model = bench.model(body, {}, x="float[8]", y="float[8]")
    assert bench.lower(model, "SiLU").lowered[0].operator == "Swish"


def test_constants_of_a_higher_rank_change_the_shape(bench: Any) -> None:
    model = bench.model(QUICK, {"alpha": [[[1.702]]]}, x="float[8]", y="float[1,1,8]")
    result = bench.lower(model, "QuickGeLU")
    assert not [site for site in result.lowered if site.operator]


# A fully connected layer is a Gemm where its input is a matrix.


WEIGHTS: dict[str, Any] = {"w": np.linspace(-1, 1, 72).reshape(8, 9), "b": np.linspace(0, 1, 9)}


@pytest.mark.parametrize(("dtype", "target"), [("float", "onnx"), ("float16", "ort")])
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
