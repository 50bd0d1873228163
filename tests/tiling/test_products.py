"""Tiled products against numpy, through onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtile.tiling.limits import Limits

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int]:
    """A size and its bound, ragged ones first: a whole number of tiles is what shrinking comes to last."""
    bound = draw(st.integers(1, 8))
    left_over = draw(st.integers(0, bound - 1).map(lambda r: (r + 1) % bound))
    full = draw(st.integers(0, 3))
    return max(1, full * bound + left_over), bound


BIASES: list[Any] = [None, (), (1,), ("n",), (1, "n"), ("m", 1), ("m", "n"), (1, 1)]
FACTORS = st.sampled_from([1.0, 0.5, -1.25, 0.1, 3.0])


GEMMS = given(
    sizes=st.tuples(axes(), axes(), axes()),
    trans=st.tuples(st.booleans(), st.booleans()),
    factors=st.tuples(FACTORS, st.one_of(FACTORS, st.just(0.0))),
    bias=st.sampled_from(BIASES),
    constants=st.sets(st.sampled_from("abc")),
    opset=st.sampled_from([7, 9, 11, 13, 18, 21]),
    seed=st.integers(0, 1000),
)


def require_gemm(
    bench: Bench, sizes: Any, trans: Any, factors: Any, bias: Any, constants: set[str], opset: int, seed: int
) -> None:
    (m, max_m), (k, max_k), (n, max_n) = sizes
    if bias is None and opset < 11:
        bias = ("n",)
    shape = None if bias is None else tuple({"m": m, "n": n}.get(size, size) for size in bias)
    case = bench.case(
        m=m, k=k, n=n, trans_a=trans[0], trans_b=trans[1], alpha=factors[0], beta=factors[1], bias=shape,
        constants="".join(sorted(constants)), opset=opset, seed=seed,
    )  # fmt: skip
    tiled = bench.judge(case, Limits(max_m, max_k, max_n))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()


test_gemm = settings(max_examples=100, deadline=None)(GEMMS(require_gemm))
test_a_thousand_gemms = pytest.mark.slow(settings(max_examples=1000, deadline=None)(GEMMS(require_gemm)))


MATMULS = given(
    sizes=st.tuples(axes(), axes(), axes()),
    constants=st.sets(st.sampled_from("ab")),
    opset=st.sampled_from([7, 12, 13, 21]),
    dtype=st.sampled_from([np.float32, np.float64, np.float16, np.int32, np.int64, np.uint32, np.uint64]),
    seed=st.integers(0, 1000),
)


def require_matmul(bench: Bench, sizes: Any, constants: set[str], opset: int, dtype: Any, seed: int) -> None:
    (m, max_m), (k, max_k), (n, max_n) = sizes
    if np.issubdtype(dtype, np.integer):
        opset = max(opset, 9)
    case = bench.case(
        op="MatMul", m=m, k=k, n=n, constants="".join(sorted(constants)), opset=opset, dtype=dtype, seed=seed
    )
    tiled = bench.judge(case, Limits(max_m, max_k, max_n))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()


test_matmul = settings(max_examples=60, deadline=None)(MATMULS(require_matmul))
test_a_thousand_matmuls = pytest.mark.slow(settings(max_examples=1000, deadline=None)(MATMULS(require_matmul)))


@pytest.mark.parametrize("bias", BIASES, ids=str)
@pytest.mark.parametrize("constants", ["", "a", "b", "c", "ab", "bc", "abc"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_every_bias_shape(bench: Bench, bias: Any, constants: str, dtype: Any) -> None:
    shape = None if bias is None else tuple({"m": 7, "n": 9}.get(size, size) for size in bias)
    case = bench.case(m=7, k=11, n=9, bias=shape, constants=constants, alpha=0.3, beta=-2.5, trans_b=True, dtype=dtype)
    tiled = bench.judge(case, Limits.of(max=4))
    assert tiled.result.matmuls == 2 * 3 * 3
    assert tiled.verdicts()[0].passed, tiled.verdicts()


@pytest.mark.parametrize("opset", range(7, 26))
@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
def test_every_opset(bench: Bench, op: str, opset: int) -> None:
    case = bench.case(op=op, m=7, k=11, n=9, bias=(9,) if op == "Gemm" else None, trans_a=op == "Gemm", opset=opset)
    tiled = bench.judge(case, Limits.of(max=4))
    splits = [node for node in tiled.nodes if node.op_type == "Split"]
    assert splits
    assert all(("split" in node.attributes) == (opset < 13) for node in splits)
    assert all(len(node.inputs) == (1 if opset < 13 else 2) for node in splits)


@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
def test_only_a_computed_operand_is_transposed_when_the_model_runs(bench: Bench, trans: tuple[bool, bool]) -> None:
    case = bench.case(m=7, k=11, n=9, trans_a=trans[0], trans_b=trans[1], constants="b")
    tiled = bench.judge(case, Limits.of(max=4))
    (site,) = tiled.result.tiled
    # One block is copied at a time, and again for each column; the block at a turn of the loops stays.
    copies = 2 * 3 * 3 - 2 * (3 - 1)
    assert site.grid.shape == (2, 3, 3) and tiled.count("Transpose") == trans[0] * copies
    assert (tiled.count("Split"), tiled.count("Slice")) == (1, copies)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "result"), [((11,), (11, 9), (9,)), ((7, 11), (11,), (7,)), ((11,), (11,), ())]
)
@pytest.mark.parametrize("constant", [False, True])
def test_vectors(
    bench: Bench, shape_a: tuple[int, ...], shape_b: tuple[int, ...], result: tuple[int, ...], *, constant: bool
) -> None:
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in (shape_a, shape_b))
    inputs = [helper.make_tensor_value_info("a", 1, shape_a)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("b", 1, shape_b))
    initializers = [numpy_helper.from_array(b, "b")] if constant else []
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="fc")
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, result)], initializers)
    tiled = bench.tile(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), Limits.of(max=4)
    )
    got = tiled.run({"a": a} if constant else {"a": a, "b": b})["y"]
    assert got.shape == result
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), atol=1e-5)
    assert tiled.verdicts()[0].passed
