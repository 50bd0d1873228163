"""The work of a model with open dimensions: formulas that give, at each size, what is counted there."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

import onnxtile
from onnxtile.inspection.work import SymbolicSize
from onnxtile.model.formula import SizeFormula

WEIGHT = "{" + ", ".join(["0.5"] * 64) + "}"
ATTENTION = f"""
attention (float[batch, seq, 8] x) => (float[batch, seq, 8] y) <float[8, 8] w = {WEIGHT}> {{
  q = MatMul(x, w)
  k = Transpose<perm = [0, 2, 1]>(x)
  scores = MatMul(q, k)
  weights = Softmax(scores)
  y = MatMul(weights, x)
}}
"""
IMAGE = """
image (float[n, 3, h, w] x, float[4, 3, 3, 3] k) => (float[n, 4, a, b] y) {
  c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, k)
  y = Relu(c)
}
"""
POOLED = """
pooled (float[n, 3, h, 32] x, float[4, 3, 3, 3] k) => (float[n, 4, a, b] y) {
  c = Conv(x, k)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
  d = AveragePool<kernel_shape = [3, 3], strides = [2, 2]>(p)
  y = Relu(d)
}
"""
CALL = """
<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
called (float[n, 8] x, float[8, 4] w) => (float[n, 4] y) { y = own.twice(x, w) }
<domain: "own", opset_import: ["" : 20]> twice (a, b) => (c) { m = MatMul(a, b) c = Add(m, m) }
"""


def parsed(text: str) -> onnx.ModelProto:
    whole = text if "ir_version" in text else f'<ir_version: 10, opset_import: ["" : 20]>\n{text}'
    return onnx.parser.parse_model(whole)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (ATTENTION, {"batch": 3, "seq": 7}),
        (ATTENTION, {"batch": 1, "seq": 1}),
        (IMAGE, {"n": 2, "h": 33, "w": 16}),
        (POOLED, {"n": 2, "h": 8}),
        (POOLED, {"n": 1, "h": 35}),
        (CALL, {"n": 5}),
    ],
)
def test_formulas_give_what_is_counted_at_each_size(text: str, sizes: dict[str, int]) -> None:
    found = onnxtile.inspect(parsed(text)).formulas
    fixed = onnxtile.inspect(parsed(text), dims=sizes)
    assert found is not None and fixed.formulas is None
    assert found.macs.unknown == found.traffic.unknown == ()
    assert found.macs.total.at(sizes) == fixed.totals.total
    assert found.flops.total.at(sizes) == sum(fixed.totals.flops.values())
    assert found.traffic.total.at(sizes) == fixed.traffic.sum
    assert found.weights.total.at(sizes) == fixed.traffic.weights
    assert found.activations.total.at(sizes) == fixed.traffic.activations


def test_the_formula_is_in_the_json_and_in_the_summary() -> None:
    found = onnxtile.inspect(parsed(ATTENTION), dims={"seq": (1, 512)})
    told: dict[str, Any] = found.to_dict()["formulas"]
    assert told["ranges"] == {"batch": [1, None], "seq": [1, 512]}
    assert told["macs"]["by_operator"] == {"MatMul": "16*batch*seq**2 + 64*batch*seq"}
    assert found.summary.endswith("16*batch*seq**2 + 64*batch*seq MACs")


def test_what_is_not_known_is_named_and_not_counted() -> None:
    text = "g (float[n, 8] x, float[8, 4] w) => (float[m, 4] y) { i = NonZero(x) f = Cast<to = 1>(i) t = Transpose(f) y = MatMul(x, w) }"
    found = onnxtile.inspect(parsed(text)).formulas
    assert found is not None
    assert str(found.macs.total) == "32*n"
    assert found.traffic.unknown == ("i", "f", "t")


def test_sizes_are_compared_where_the_ranges_decide() -> None:
    ranges = {"n": (2, 8)}
    size = SymbolicSize(SizeFormula.symbol("n"), ranges)
    assert size != 1
    assert size == size + 0
    assert size < 9
    assert size > 1
    assert not size < 2
    assert 2 * size - 2 > size - 1
    for undecided in (lambda: size == 4, lambda: size < 4, lambda: size > 4, lambda: operator.floordiv(size, size)):
        with pytest.raises(TypeError):
            undecided()


@pytest.mark.parametrize("name", ["gpt2_dy20dyn", "bert_ts14dyn_sim"])
def test_formulas_of_transformers(zoo: Callable[[str], Path], name: str) -> None:
    path = zoo(name)
    found = onnxtile.inspect(path).formulas
    sizes = {"batch": 2, "seq": 12}
    assert found is not None and found.macs.unknown == ()
    assert found.macs.total.at(sizes) == onnxtile.inspect(path, dims=sizes).totals.total


def test_work_that_is_none_at_the_smallest_size_is_counted() -> None:
    pool = "pool (float[1, 3, h, 8] x) => (float[1, 3, a, 7] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }"
    found = onnxtile.inspect(parsed(pool), training=True).formulas
    assert found is not None and found.flops.unknown == ()
    assert onnxtile.inspect(parsed(pool), dims={"h": 4}).totals.flops == {"MaxPool": 3 * (3 * 7) * 4}
