"""Attention becomes one operator where scale, mask, softmax and head layout are what the operator takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxtile.api import FuseResult

Names = Callable[[FuseResult], list[str]]

Q = "x"
INPUTS = ", float[2,4,3,8] k, float[2,4,3,8] v"
BODY = (
    "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(x, t) d = Div(s, scale) "
    "a = Add(d, mask) w = Softmax<axis = -1>(a) y = MatMul(w, v)"
)
MASK = np.where(np.tri(3, 3) > 0, 0.0, -1e4).reshape(1, 1, 3, 3)
NUMBERS: dict[str, Any] = {"scale": 3.0, "mask": MASK}
SHAPE = "float[2,4,3,8]"


def made(
    bench: Any, body: str = BODY, numbers: dict[str, Any] = NUMBERS, dtype: str = "float", inputs: str = INPUTS
) -> Any:
    return bench.model(body, numbers, x=SHAPE, y=SHAPE, inputs=inputs, dtype=dtype)


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("mask", [MASK, MASK[0], MASK[0, 0], MASK[:, :, :1], np.repeat(MASK, 4, 1), None])
def test_an_attention_becomes_one_operator(bench: Any, operators: Names, mask: Any, dtype: str, target: str) -> None:
    body = BODY if mask is not None else BODY.replace("a = Add(d, mask)", "a = Identity(d)").replace("(a)", "(d)")
    numbers = {**NUMBERS, "mask": mask} if mask is not None else {"scale": 3.0}
    result = bench.lower(
        made(bench, body.replace("a = Identity(d) ", ""), numbers, dtype), "ScaledDotProductAttention", target
    )
    wanted = {"onnx": "Attention", "ort": "com.microsoft.MultiHeadAttention"}[target]
    assert wanted in operators(result)
    assert "Softmax" not in operators(result) and "MatMul" not in operators(result)
    assert result.verdict is not None and result.verdict.equal


def test_the_standard_operator_reads_what_was_transposed(bench: Any, operators: Names) -> None:
    result = bench.lower(made(bench), "ScaledDotProductAttention")
    assert operators(result) == ["Attention"]
    node = next(iter(result.model.graph))
    assert [value.name for value in node.inputs if value is not None] == ["x", "k", "v", "mask"]
    assert node.attributes["scale"].as_float() == pytest.approx(1.0 / 3.0)


PER_HEAD = np.ones((1, 4, 1, 1))
NEAR_MISSES = [
    ("softmax over another axis", BODY.replace("axis = -1", "axis = 2"), {}, INPUTS, "axis 2"),
    ("a scale for each head", BODY, {"scale": PER_HEAD}, INPUTS, "scale is no single number"),
    ("a mask that is multiplied", BODY.replace("Add(d, mask)", "Mul(d, mask)"), {"mask": MASK + 1.0}, INPUTS, ""),
    ("a guard against masked rows", BODY.replace("w = Softmax<axis = -1>(a) y = MatMul(w, v)",
     "p = Softmax<axis = -1>(a) n = IsNaN(p) w = Where(n, zero, p) y = MatMul(w, v)"), {"zero": 0.0}, INPUTS, "guarded"),
    ("one V for all batches", BODY, {}, INPUTS.replace("float[2,4,3,8] v", "float[1,4,3,8] v"), "differ"),
    ("one head of K for all", BODY, {}, INPUTS.replace("float[2,4,3,8] k", "float[2,1,3,8] k"), "differ"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize(("what", "body", "off", "inputs", "reason"), NEAR_MISSES, ids=[n[0] for n in NEAR_MISSES])
def test_a_near_miss_stays_a_call(
    bench: Any, tmp_path: Any, what: str, body: str, off: dict[str, Any], inputs: str, reason: str, target: str
) -> None:
    del what
    file = tmp_path / "loose.toml"
    name = "ScaledDotProductAttention"
    queries = (
        "MatMul-*>Div-*>(Add|Mul)->Softmax#w~2>Where#g->MatMul;Softmax#w~>IsNaN->Where#g",
        "MatMul-*>Div-*>(Add|Mul)->Softmax->MatMul",
    )
    variants = "".join(f"[[variants]]\nquery = '{query}'\n" for query in queries)
    file.write_text(f"name = '{name}'\ndoc = 'matches more than it should'\n{variants}")
    result = bench.lower(made(bench, body, {**NUMBERS, **off}, inputs=inputs), str(file), target)
    assert [site.operator for site in result.lowered] == [""]
    assert reason in result.lowered[0].reason


def test_a_mask_that_widens_the_batch_is_refused(bench: Any) -> None:
    numbers = {**NUMBERS, "mask": np.repeat(MASK, 2, 0)}
    inputs = INPUTS.replace("[2,", "[1,")
    model = bench.model(BODY, numbers, x="float[1,4,3,8]", y=SHAPE, inputs=inputs)
    result = bench.lower(model, "ScaledDotProductAttention")
    assert [site.operator for site in result.lowered] == [""]
    assert "mask's shape [2, 1, 3, 3]" in result.lowered[0].reason
