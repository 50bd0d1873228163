"""Weights that a DequantizeLinear makes stay quantized: each block is cut from the integers, and has a DequantizeLinear of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.system.runtime import Session
from onnxtile.tiling.limits import Limits, WindowBounds

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench

INTEGERS = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32}


def qdq(
    op: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], axis: int | None, **attributes: Any
) -> onnx.ModelProto:
    """Return a node `op` whose weights, of `w`, and bias are quantized; with `axis` there is a scale for each index of it."""
    random = np.random.default_rng(3)
    count = 1 if axis is None else w[axis]
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    arrays: dict[str, Any] = {
        "w_q": random.integers(-128, 128, w).astype(np.int8),
        "w_scale": random.uniform(0.01, 0.1, count).astype(np.float32).reshape(() if axis is None else (count,)),
        "w_zero": random.integers(-5, 5, count).astype(np.int8).reshape(() if axis is None else (count,)),
        "b_q": random.integers(-500, 500, y[1]).astype(np.int32),
        "b_scale": np.asarray(0.01, np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w_q", "w_scale", "w_zero"], ["w"], **along),
        helper.make_node("DequantizeLinear", ["b_q", "b_scale"], ["b"]),
        helper.make_node(op, ["x", "w", "b"], ["y"], name="layer", **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "gemm": ("Gemm", (5, 9), (9, 7), (5, 7), {}),
    "gemm, transposed": ("Gemm", (5, 9), (7, 9), (5, 7), {"transB": 1}),
    "conv": ("Conv", (1, 6, 7, 7), (8, 6, 3, 3), (1, 8, 5, 5), {}),
    "conv in groups": ("Conv", (1, 6, 7, 7), (8, 3, 3, 3), (1, 8, 5, 5), {"group": 2}),
    "transposed conv": ("ConvTranspose", (1, 6, 5, 5), (6, 8, 3, 3), (1, 8, 7, 7), {}),
}


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", CASES)
def test_weights_stay_quantized(bench: Bench, name: str, axis: int | None) -> None:
    op, x, w, y, attributes = CASES[name]
    source = qdq(op, x, w, y, axis, **attributes)
    tiled = bench.tile(source, Limits.of(k=36 if "onv" in name else 4, n=3, window=WindowBounds()))
    (site,) = tiled.result.tiled
    assert len(site.emitted) <= bench.most_nodes(site)
    held = tiled.model.graph.initializers
    weights = [value for key, value in held.items() if key.endswith("_quantized")]
    assert weights and all(int(value.dtype or 0) in INTEGERS for value in weights)
    assert not any(
        value.dtype is not None and int(value.dtype) == TensorProto.FLOAT and _large(value) for value in held.values()
    )
    feeds = {"x": np.random.default_rng(0).standard_normal(x).astype(np.float32)}
    expected = Session(source.SerializeToString()).run(feeds)["y"]
    np.testing.assert_allclose(tiled.run(feeds)["y"], expected, rtol=0, atol=2e-5 * float(np.abs(expected).max()))


def _large(value: Any) -> bool:
    return value.const_value is not None and value.const_value.size > 8


@pytest.mark.parametrize("wrap", [False, True])
def test_a_file_does_not_grow_by_the_size_of_floats(wrap: bool) -> None:
    source = qdq("Gemm", (4, 300), (300, 200), (4, 200), 1)
    tiled = api.tile(source, Limits.of(max=100), wrap=wrap)
    assert all(verdict.passed for verdict in tiled.sites) and tiled.verdict is not None and tiled.verdict.equal
    held = sum(v.const_value.nbytes for v in tiled.model.graph.initializers.values() if v.const_value is not None)
    assert 300 * 200 <= held < 1.2 * 300 * 200
