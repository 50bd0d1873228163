"""Norms of pictures, softmax and lengths: operators where axes, groups and constants are what these take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]

SHAPE = "float[2,8,3,4]"
CHANNELS = np.linspace(0.5, 2.0, 8)
COLUMN = CHANNELS.reshape(8, 1, 1)
GROUPS = "r = Reshape(x, split) n = InstanceNormalization<epsilon = 0.001>(r, ones, zeros) b = Reshape(n, whole) "
SCALED = GROUPS + "m = Mul(b, scale) y = Add(m, shift)"
GROUPED: dict[str, Any] = {
    "split": [0, 2, -1], "whole": [2, 8, 3, 4], "ones": [1.0, 1.0], "zeros": [0.0, 0.0], "scale": COLUMN, "shift": COLUMN - 1.0,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("body", [SCALED, GROUPS.replace("b = ", "y = ")])
def test_groups_become_one_operator(bench: Any, operators: Names, body: str, dtype: str) -> None:
    result = bench.lower(bench.model(body, GROUPED, x=SHAPE, y=SHAPE, dtype=dtype), "GroupNorm")
    assert operators(result) == ["GroupNormalization"]
    assert next(iter(result.model.graph)).attributes["num_groups"].as_int() == 2
    assert result.verdict is not None and result.verdict.equal


def test_groups_stay_for_onnxruntime(bench: Any, reasons: Names) -> None:
    result = bench.lower(bench.model(SCALED, GROUPED, x=SHAPE, y=SHAPE), "GroupNorm", "ort")
    assert "no kernel for groups" in reasons(result)[0]


NOT_GROUPS = [
    ({"split": [1, 4, -1], "ones": [1.0] * 4, "zeros": [0.0] * 4}, "does not make groups"),
    ({"scale": np.ones((1, 3, 1))}, "not one element for each place along axis 1"),
    ({"split": [0, 16, -1], "ones": [1.0] * 16, "zeros": [0.0] * 16}, "do not fall into 16 groups"),
]


@pytest.mark.parametrize(("off", "reason"), NOT_GROUPS)
def test_what_are_no_groups_stays_a_call(bench: Any, reasons: Names, off: dict[str, Any], reason: str) -> None:
    result = bench.lower(bench.model(SCALED, {**GROUPED, **off}, x=SHAPE, y=SHAPE), "GroupNorm")
    assert reason in reasons(result)[0]


INSTANCES = (
    "m = ReduceMean<axes = [2, 3]>(x) c = Sub(x, m) p = Pow(c, two) v = ReduceMean<axes = [2, 3]>(p) a = Add(v, eps) "
    "q = Sqrt(a) n = Div(c, q) s = Mul(n, scale) y = Add(s, shift)"
)
ALONE = "n = InstanceNormalization<epsilon = 0.001>(x, ones, zeros) s = Mul(n, scale) y = Add(s, shift)"
NUMBERS: dict[str, Any] = {
    "two": 2.0,
    "eps": 1e-3,
    "scale": COLUMN,
    "shift": COLUMN,
    "ones": CHANNELS,
    "zeros": CHANNELS,
}


@pytest.mark.parametrize(("dtype", "target"), [("float", "onnx"), ("float16", "ort")])
@pytest.mark.parametrize("body", [INSTANCES, ALONE])
def test_instances_become_one_operator(bench: Any, operators: Names, body: str, dtype: str, target: str) -> None:
    result = bench.lower(bench.model(body, NUMBERS, x=SHAPE, y=SHAPE, dtype=dtype), "InstanceNorm", target)
    assert operators(result) == ["InstanceNormalization"]
    assert result.verdict is not None and result.verdict.equal


SOFTMAX = "t = ReduceMax<axes = [AXES]>(x) s = Sub(x, t) e = Exp(s) z = ReduceSum(e, axes) y = Div(e, z)"
LENGTH = "l = ReduceL2<axes = [-1]>(x) y = Div(x, l)"


@pytest.mark.parametrize(("dtype", "target"), [("float", "onnx"), ("float16", "ort")])
@pytest.mark.parametrize("axis", [-1, 1])
def test_a_softmax_becomes_one_operator(bench: Any, operators: Names, axis: int, dtype: str, target: str) -> None:
    body = SOFTMAX.replace("AXES", str(axis))
    result = bench.lower(bench.model(body, {"axes": [axis]}, dtype=dtype), "Softmax", target)
    assert operators(result) == ["Softmax"]
    assert next(iter(result.model.graph)).attributes["axis"].as_int() == axis
    assert result.verdict is not None and result.verdict.equal


def test_a_softmax_over_two_axes_stays_a_call(bench: Any, reasons: Names) -> None:
    model = bench.model(SOFTMAX.replace("AXES", "1, 2"), {"axes": [1, 2]})
    assert reasons(bench.lower(model, "Softmax")) == ["it does not reduce along one axis that stays"]


def test_a_length_becomes_one_operator(bench: Any, operators: Names) -> None:
    result = bench.lower(bench.model(LENGTH, {}), "L2Norm")
    assert operators(result) == ["LpNormalization"]
    assert result.verdict is not None and result.verdict.equal


def test_a_length_with_a_bound_stays_a_call(bench: Any, reasons: Names) -> None:
    body = LENGTH.replace("y = Div(x, l)", "b = Clip(l, least) y = Div(x, b)")
    assert "does not keep the length from 0" in reasons(bench.lower(bench.model(body, {"least": 1e-12}), "L2Norm"))[0]
