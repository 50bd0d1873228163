"""Hidden channels in chunks: partial sums and joins give what the whole gives, with no product twice."""

from __future__ import annotations

import onnx
import pytest

import onnxtile
from tests.fitting.networks import model

HIDDEN: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "expand and reduce": (
        "float[1,4,6,6]",
        "[e] h = Conv(x, w0, b0) [r] i = Relu(h) [d] j = Conv<group=48, pads=[1,1,1,1]>(i, w1, b0) [p] y = Conv(j, w2, b2)",
        {"w0": (48, 4, 1, 1), "b0": (48,), "w1": (48, 1, 3, 3), "w2": (4, 48, 1, 1), "b2": (4,)},
    ),
    "two readers of one tensor": (
        "float[1,4,6,6]",
        "[e] h = Conv(x, w0) [s] i = Sigmoid(h) [m] j = Mul(h, i) [p] y = Conv(j, w2)",
        {"w0": (48, 4, 1, 1), "w2": (4, 48, 1, 1)},
    ),
    "products of matrices": (
        "float[7,8]",
        "[e] h = MatMul(x, w0) [a] i = Add(h, b0) [r] j = Relu(i) [p] k = MatMul(j, w2) [b] y = Add(k, b2)",
        {"w0": (8, 64), "b0": (64,), "w2": (64, 8), "b2": (8,)},
    ),
    "Gemm, turned": (
        "float[7,8]",
        "[e] h = Gemm<transB=1>(x, w0, b0) [r] j = Relu(h) [p] y = Gemm<transB=1, beta=0.5>(j, w2, b2)",
        {"w0": (64, 8), "b0": (64,), "w2": (8, 64), "b2": (8,)},
    ),
    "products whose columns are hidden": (
        "float[1,3,6,8]",
        "[e] h = MatMul(x, w0) [a] i = Add(h, b0) [r] j = Relu(i) [p] y = MatMul(j, w2)",
        {"w0": (8, 64), "b0": (64,), "w2": (64, 8)},
    ),
    "joined behind a pooling": (
        "float[1,4,6,6]",
        "[e] h = Conv(x, w0, b0) [r] i = Relu(h) [g] y = GlobalAveragePool(i)",
        {"w0": (48, 4, 1, 1), "b0": (48,)},
    ),
}


def hidden(name: str) -> onnx.ModelProto:
    """Return the model of a case."""
    given, text, weights = HIDDEN[name]
    rank = given.count(",") + 1
    result = ",".join("abcd"[:rank])
    return model(f"g ({given} x) => (float[{result}] y) {{ {text} }}", **weights)


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_channels_in_chunks(name: str) -> None:
    """The outputs are compared by fit itself; the arena is at most half, and no product is computed twice."""
    fitted = onnxtile.fit(hidden(name), smallest=True, max_extra_macs="0%")
    assert any(step.chunks > 1 for step in fitted.steps)
    assert fitted.after.arena * 2 <= fitted.before.arena
    assert fitted.after.macs <= fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_exact_adds_nothing_up_in_another_order() -> None:
    fitted = onnxtile.fit(hidden("expand and reduce"), smallest=True, exact=True)
    assert all(step.chunks == 1 for step in fitted.steps)


def test_a_hidden_result_that_nobody_reads_is_computed_in_chunks_too() -> None:
    text = "[e] h = Conv(x, w0) [d] dead = Sigmoid(h) [r] i = Relu(h) [p] y = Conv(i, w2)"
    source = model(f"g (float[1,4,6,6] x) => (float[a,b,c,d] y) {{ {text} }}", w0=(48, 4, 1, 1), w2=(4, 48, 1, 1))
    fitted = onnxtile.fit(source, smallest=True)
    assert fitted.after.arena < fitted.before.arena
    assert fitted.verdict is not None and fitted.verdict.equal
