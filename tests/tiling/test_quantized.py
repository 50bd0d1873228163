"""QLinearMatMul and QGemm: tiles that are equal to onnxruntime's own kernels to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.limits import Limits, TilingPolicy

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

FOUR = Limits.of(max=4)
INPUTS = {
    "QLinearMatMul": ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"],
    "QGemm": ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "c", "y_scale", "y_zero"],
}


def arrays(
    sizes: tuple[int, int, int], *, batch: tuple[int, ...] = (), kinds: Any = (np.uint8, np.int8), columns: bool = False,
    bias: bool = False, trans: tuple[bool, bool] = (False, False),
) -> dict[str, Array]:  # fmt: skip
    """Return operands with parameters that spread the results over the range of a byte."""
    random = np.random.default_rng(0)
    m, k, n = sizes

    def some(shape: tuple[int, ...], kind: Any) -> Array:
        bounds = np.iinfo(kind)
        return np.asarray(random.integers(bounds.min, bounds.max, shape, endpoint=True)).astype(kind)

    each = (n,) if columns else ()
    found: dict[str, Array] = {
        "a": some((*batch, k, m) if trans[0] else (*batch, m, k), kinds[0]),
        "a_scale": np.asarray(0.013, np.float32),
        "a_zero": some((), kinds[0]),
        "b": some((n, k) if trans[1] else (k, n), kinds[1]),
        "b_scale": random.uniform(0.002, 0.04, each).astype(np.float32) if columns else np.asarray(0.021, np.float32),
        "b_zero": some(each, kinds[1]),
        "y_scale": np.asarray(0.017 * np.sqrt(k) * 20, np.float32),
        "y_zero": some((), kinds[0]),
    }
    if bias:
        found["c"] = random.integers(-3000, 3000, (n,)).astype(np.int32)
    return found


def model(op: str, held: dict[str, Array], fixed: set[str], opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    names = [name if name in held else "" for name in INPUTS[op]]
    while not names[-1]:
        names.pop()
    domain = "com.microsoft" if op == "QGemm" else ""
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in held.items()}
    result = types["y_zero"] if "y_zero" in held else 1
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="fc", domain=domain, **attributes)],
        "case",
        [helper.make_tensor_value_info(n, types[n], x.shape) for n, x in held.items() if n not in fixed],
        [helper.make_tensor_value_info("y", result, [f"y{axis}" for axis in range(held["a"].ndim)])],
        [numpy_helper.from_array(x, n) for n, x in held.items() if n in fixed],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def require_equal(
    bench: Bench, source: onnx.ModelProto, held: dict[str, Array], limits: Limits, options: TilingPolicy | None = None
) -> Tiled:
    tiled = bench.tile(source, limits, options)
    feeds = {info.name: held[info.name] for info in source.graph.input}
    expected = Session(source.SerializeToString()).run(feeds)["y"]
    np.testing.assert_array_equal(tiled.run(feeds)["y"], expected, strict=True)
    assert all(verdict.passed and not verdict.error for verdict in tiled.verdicts())
    return tiled


PARAMETERS = {"a_scale", "a_zero", "b_scale", "b_zero", "y_scale", "y_zero"}
SIZES = st.tuples(st.integers(1, 11), st.integers(1, 11), st.integers(1, 11))
KINDS = st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
FIXED = st.sampled_from([PARAMETERS | {"b"}, PARAMETERS, {"b", "b_zero", "b_scale"}, {"b_zero", "a_zero", "y_zero"}])


@settings(max_examples=50, deadline=None)
@given(
    sizes=SIZES, kinds=KINDS, fixed=FIXED, batch=st.sampled_from([(), (), (2,)]), columns=st.booleans(),
    opset=st.sampled_from([10, 13, 19]), pad=st.booleans(), how=st.sampled_from(["sum", "tree"]),
)  # fmt: skip
def test_qlinear_matmul(
    bench: Bench, sizes: Any, kinds: Any, fixed: set[str], batch: Any, columns: bool, opset: int, pad: bool, how: str
) -> None:
    held = arrays(sizes, batch=batch, kinds=kinds, columns=columns and not batch)
    limits = Limits(4, 5, 3, pad=pad and opset > 10)
    tiled = require_equal(bench, model("QLinearMatMul", held, fixed, opset), held, limits, TilingPolicy(accumulate=how))
    assert not tiled.result.skipped or max(sizes) <= 5


@settings(max_examples=50, deadline=None)
@given(
    sizes=SIZES, kinds=KINDS, fixed=FIXED, columns=st.booleans(), bias=st.booleans(), quantized=st.booleans(),
    trans=st.tuples(st.booleans(), st.booleans()), alpha=st.sampled_from([1.0, 0.5, 1.7]),
)  # fmt: skip
def test_qgemm(
    bench: Bench, sizes: Any, kinds: Any, fixed: set[str], columns: bool, bias: bool, quantized: bool, trans: Any,
    alpha: float,
) -> None:  # fmt: skip
    held = arrays(sizes, kinds=kinds, columns=columns, bias=bias, trans=trans)
    if not quantized:
        del held["y_scale"], held["y_zero"]
    source = model("QGemm", held, fixed, transA=int(trans[0]), transB=int(trans[1]), alpha=alpha)
    require_equal(bench, source, held, FOUR)


def test_the_nodes_of_a_quantized_product(bench: Bench) -> None:
    held = arrays((3, 9, 10), columns=True)
    tiled = require_equal(bench, model("QLinearMatMul", held, PARAMETERS | {"b"}), held, FOUR)
    assert [node.op_type for node in tiled.nodes[-4:]] == ["Cast", "Mul", "QuantizeLinear", "Concat"]
    assert [tiled.count(op) for op in ("Cast", "Mul", "QuantizeLinear")] == [3, 3, 3]
    assert (tiled.count("MatMulInteger"), tiled.count("Add")) == (9, 6)
    assert PARAMETERS.isdisjoint({*tiled.model.graph.initializers} - {"a_zero"})
    assert [site.op for site in tiled.result.tiled] == ["QLinearMatMul"]


@pytest.mark.parametrize("op", ["QLinearMatMul", "QGemm"])
def test_it_can_be_wrapped(bench: Bench, op: str) -> None:
    held = arrays((3, 9, 10), bias=op == "QGemm")
    tiled = require_equal(bench, model(op, held, PARAMETERS | {"b"}), held, FOUR, TilingPolicy(wrap=True))
    assert [node.op_type for node in tiled.nodes] == [f"Tiled_{op}_fc"]


def test_what_is_not_tiled_says_why(bench: Bench) -> None:
    held = arrays((3, 9, 10))
    held["a_scale"] = np.full((3,), 0.1, np.float32)
    (skip,) = bench.tile(model("QLinearMatMul", held, {"b"}), FOUR).result.skipped
    assert skip.reason == "its parameter 'a_scale' of shape 3 is not a single number"
    held = arrays((3, 9, 10))
    del held["y_zero"]
    (skip,) = bench.tile(model("QGemm", held, {"b"}), FOUR).result.skipped
    assert "only one of the scale and the zero point" in skip.reason
