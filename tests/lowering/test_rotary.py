"""Rotary embedding becomes the operator where cosines and sines are the same for both halves, and the halves are the halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]

HALVES = (
    "c = Mul(x, cos) b = Slice(x, half, far, last) n = Neg(b) a = Slice(x, zero, half, last) "
    "r = Concat<axis = -1>(n, a) s = Mul(r, sin) y = Add(c, s)"
)
SHAPE = "float[2,4,3,8]"
ANGLES = np.linspace(0.0, 3.0, 12).reshape(1, 1, 3, 4)
TWICE = np.concatenate([ANGLES, ANGLES], -1)
NUMBERS: dict[str, Any] = {
    "half": [4], "zero": [0], "far": [2**63 - 1], "last": [3], "cos": np.cos(TWICE), "sin": np.sin(TWICE),
}  # fmt: skip


def lowered(bench: Any, body: str = HALVES, dtype: str = "float", shape: str = SHAPE, **off: Any) -> FuseResult:
    model = bench.model(body, {**NUMBERS, **off}, x=shape, y=shape, dtype=dtype)
    result: FuseResult = bench.lower(model, "RotaryEmbedding")
    return result


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("shape", [SHAPE, "float[batch,4,3,8]"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_it_becomes_one_operator(bench: Any, operators: Names, dtype: str, shape: str, rank: int) -> None:
    angles = TWICE.reshape(TWICE.shape[4 - rank :])
    result = lowered(bench, dtype=dtype, shape=shape, cos=np.cos(angles), sin=np.sin(angles))
    assert operators(result).count("RotaryEmbedding") == 1
    assert not {"Neg", "Mul", "Add"} & set(operators(result))
    assert result.verdict is not None and result.verdict.equal
    assert all(site.equal and not site.skipped for site in result.sites)


def test_angles_that_the_model_puts_together(bench: Any, operators: Names) -> None:
    body = "t = Concat<axis = -1>(f, f) o = Cos(t) cos = Mul(o, one) i = Sin(t) sin = Mul(i, one) " + HALVES
    model = bench.model(body, {**NUMBERS, "one": 1.0}, x=SHAPE, y=SHAPE, inputs=", float[1,1,3,4] f")
    del model.graph.initializer[[t.name for t in model.graph.initializer].index("cos")]
    del model.graph.initializer[[t.name for t in model.graph.initializer].index("sin")]
    result = bench.lower(model, "RotaryEmbedding")
    assert operators(result).count("RotaryEmbedding") == 1


OTHER = np.concatenate([ANGLES, ANGLES + 0.5], -1)
NEAR_MISSES = [
    ("other angles for the second half", HALVES, {"cos": np.cos(OTHER)}, "not known to be the same"),
    ("cut elsewhere", HALVES, {"half": [3]}, "not cut in the middle"),
    ("along another axis", HALVES.replace("axis = -1", "axis = 1"), {"last": [1], "half": [2]}, "last axis"),
    ("the first half is negated", HALVES.replace("Concat<axis = -1>(n, a)", "Concat<axis = -1>(a, n)"), {}, ""),
    ("not negated", HALVES.replace("Neg(b)", "Abs(b)"), {}, ""),
    ("angles for each head", HALVES, {"cos": np.cos(np.repeat(TWICE, 4, 1))}, "cosines have the shape"),
]


@pytest.mark.parametrize(("what", "body", "off", "reason"), NEAR_MISSES, ids=[n[0] for n in NEAR_MISSES])
def test_a_near_miss_stays_a_call(
    bench: Any, tmp_path: Any, what: str, body: str, off: dict[str, Any], reason: str
) -> None:
    del what
    file = tmp_path / "loose.toml"
    query = "Slice#b->(Neg|Abs)-*>Concat#r-*>Mul-*>Add<*-Mul;Concat#r<*-Slice#a"
    file.write_text(f"name = 'RotaryEmbedding'\ndoc = 'matches more'\n[[variants]]\nquery = '{query}'\n")
    model = bench.model(body, {**NUMBERS, **off}, x=SHAPE, y=SHAPE)
    result = bench.lower(model, str(file))
    assert [site.operator for site in result.lowered] == [""]
    assert reason in result.lowered[0].reason
