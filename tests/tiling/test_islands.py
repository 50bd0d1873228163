"""Quantised islands of DequantizeLinear, a product and QuantizeLinear: tiles as onnxruntime computes once it has fused such nodes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxtile import api
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.shapes.resolve import resolve
from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.limits import Limits, TilingPolicy, WindowBounds
from onnxtile.tiling.tile import tile

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench

CUT = Limits.of(m=20, k=18, n=4, window=WindowBounds())
CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = {
    "conv": ("Conv", (1, 6, 9, 8), (9, 6, 3, 3), 0, {"pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (1, 9, 9, 8), (9, 1, 3, 3), 0, {"group": 9}),
    "gemm": ("Gemm", (30, 40), (40, 9), 1, {}),
    "gemm, transposed": ("Gemm", (30, 40), (9, 40), 0, {"transB": 1}),
    "matmul": ("MatMul", (30, 40), (40, 9), 1, {}),
    "matmul, batch": ("MatMul", (2, 30, 40), (40, 9), 1, {}),
}


def some(shape: tuple[int, ...], kind: Any, seed: int) -> Array:
    bounds = np.iinfo(kind)
    return np.asarray(np.random.default_rng(seed).integers(bounds.min, bounds.max, shape, endpoint=True)).astype(kind)


def island(
    name: str, *, kinds: Any = (np.uint8, np.int8), per_channel: bool = False, bias: bool = True, quantizes: bool = True,
    bias_scale: float = 1.0, **changes: Array,
) -> onnx.ModelProto:  # fmt: skip
    """Return an island; where it does not quantize its result, a Relu reads that."""
    op, x, w, axis, attributes = CASES[name]
    count = w[axis]
    scales = np.random.default_rng(1).uniform(0.002, 0.04, (count,) if per_channel else ()).astype(np.float32)
    y_scale = 0.013 * float(scales.mean()) * 8000 * np.sqrt(np.prod(w) / count) / 100
    held: dict[str, Array] = {
        "x_scale": np.asarray(0.013, np.float32),
        "x_zero": some((), kinds[0], 2),
        "w": some(w, kinds[1], 3),
        "w_scale": scales,
        "w_zero": np.zeros_like(scales, kinds[1]),
        "y_scale": np.asarray(y_scale, np.float32),
        "y_zero": some((), kinds[0], 4),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], axis=axis),
    ]
    inputs = ["xf", "wf"]
    if bias and op != "MatMul":
        held["b"] = np.random.default_rng(5).integers(-30000, 30000, (count,)).astype(np.int32)
        held["b_scale"] = np.asarray(np.float32(bias_scale) * held["x_scale"] * scales, np.float32)
        nodes.append(helper.make_node("DequantizeLinear", ["b", "b_scale"], ["bf"], axis=0))
        inputs.append("bf")
    held |= changes
    nodes.append(helper.make_node(op, inputs, ["yf"], name="layer", **attributes))
    last = ("QuantizeLinear", ["yf", "y_scale", "y_zero"]) if quantizes else ("Relu", ["yf"])
    nodes.append(helper.make_node(*last, ["y"], name="last"))
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in held.items()}
    graph = helper.make_graph(
        nodes,
        "island",
        [helper.make_tensor_value_info("x", types["x_zero"], x)],
        [helper.make_tensor_value_info("y", types["y_zero"] if quantizes else 1, None)],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def feeds(name: str, kinds: Any = (np.uint8, np.int8)) -> dict[str, Array]:
    return {"x": some(CASES[name][1], kinds[0], 6)}


def fused(source: onnx.ModelProto, given: dict[str, Array]) -> tuple[Array, set[str]]:
    """Return what onnxruntime makes with its graph optimisations, and the operators that it then runs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # By default it fuses signed operands on ARM only.
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "optimised.onnx"))
        session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
        operators = {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}
    return session.run(None, given)[0], operators


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(CASES)), kinds=st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]),
    per_channel=st.booleans(), bias=st.booleans(), how=st.sampled_from(["sum", "tree"]),
)  # fmt: skip
def test_tiles_equal_the_fused_operator_to_the_last_bit(
    bench: Bench, name: str, kinds: Any, per_channel: bool, bias: bool, how: str
) -> None:
    source = island(name, kinds=kinds, per_channel=per_channel, bias=bias)
    given = feeds(name, kinds)
    expected, operators = fused(source, given)
    assert operators & {"QLinearConv", "QGemm", "QLinearMatMul"}
    tiled = bench.tile(source, CUT, TilingPolicy(accumulate=how))
    assert not tiled.result.skipped and {"DequantizeLinear", "last"}.isdisjoint(
        {text for node in tiled.nodes for text in (node.op_type, node.name)}
    )
    np.testing.assert_array_equal(tiled.run(given)["y"], expected, strict=True)
    (verdict,) = tiled.verdicts(runs=3)
    assert verdict.passed and verdict.error <= verdict.tolerance
    (site,) = tiled.result.tiled
    assert len(site.emitted) <= bench.most_nodes(site)


@pytest.mark.parametrize("name", CASES)
def test_a_result_that_is_not_quantized_is_a_float(bench: Bench, name: str) -> None:
    source = island(name, per_channel=True, quantizes=False)
    tiled = bench.tile(source, CUT)
    assert tiled.count("MatMulInteger") + tiled.count("ConvInteger") == tiled.result.matmuls
    expected = Session(source.SerializeToString()).run(feeds(name))["y"]
    np.testing.assert_allclose(tiled.run(feeds(name))["y"], expected, rtol=0, atol=1e-6 * float(np.abs(expected).max()))
    assert all(verdict.passed for verdict in tiled.verdicts())


def test_a_quantized_value_with_other_readers_stays(bench: Bench) -> None:
    source = island("matmul")
    source.graph.output.append(helper.make_tensor_value_info("yf", 1, (30, 9)))
    source.graph.output.append(helper.make_tensor_value_info("xf", 1, (30, 40)))
    tiled = bench.tile(source, CUT)
    assert [node.name for node in tiled.nodes if node.name == "last"] == ["last"]
    assert tiled.count("MatMulInteger") == tiled.result.matmuls and tiled.count("DequantizeLinear") == 1
    results = tiled.run(feeds("matmul"))
    expected = Session(source.SerializeToString()).run(feeds("matmul"))
    np.testing.assert_allclose(results["yf"], expected["yf"], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"bias_scale": 1.01},
        {"w_zero": np.arange(9, dtype=np.int8), "per_channel": True},
        {"x_scale": np.asarray(0.013, np.float16), "w_scale": np.asarray(0.01, np.float16)},
    ],
)
def test_floats_are_cut_where_integers_cannot_be(bench: Bench, changes: dict[str, Any]) -> None:
    if "x_scale" in changes:  # scales of 16 bits make factors of 16 bits
        source = island("conv", bias=False, quantizes=False)
        for tensor in source.graph.initializer:
            if tensor.name in changes:
                tensor.CopyFrom(numpy_helper.from_array(changes[tensor.name], tensor.name))
        del source.graph.value_info[:]
        source.graph.output[0].type.tensor_type.elem_type = 10
        source.opset_import[0].version = 19
    else:
        source = island("conv", **changes)
    tiled = bench.tile(source, CUT)
    assert tiled.count("Conv") == tiled.result.matmuls > 1 and not tiled.count("ConvInteger")
    weights = [value for value in tiled.model.graph.initializers.values() if value.dtype == 3]
    assert sum(value.const_value.size for value in weights if value.const_value is not None) >= 9 * 6 * 3 * 3


def test_a_wrong_scale_is_noticed(bench: Bench) -> None:
    tiled = bench.tile(island("conv"), CUT)
    (site,) = tiled.result.tiled
    factor = next(value for node in site.emitted if node.op_type == "Mul" for value in node.inputs[1:])
    assert factor is not None and factor.const_value is not None
    held = factor.const_value.numpy()
    factor.const_value = ir.Tensor(np.asarray(held * np.float32(1.001), np.float32), name=factor.name)
    (verdict,) = tiled.verdicts()
    assert not verdict.passed and verdict.error > verdict.tolerance


def test_two_islands_in_a_row() -> None:
    source = island("conv")
    again = [
        helper.make_node("DequantizeLinear", ["y", "y_scale", "y_zero"], ["yd"]),
        helper.make_node("Conv", ["yd", "vf"], ["zf"], name="second"),
        helper.make_node("DequantizeLinear", ["v", "w_scale", "w_zero"], ["vf"]),
        helper.make_node("QuantizeLinear", ["zf", "y_scale", "y_zero"], ["z"]),
    ]
    source.graph.node.extend([again[0], again[2], again[1], again[3]])
    source.graph.initializer.append(numpy_helper.from_array(some((5, 9, 1, 1), np.int8, 7), "v"))
    source.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", 2, (1, 5, 9, 8)))
    expected, _ = fused(source, feeds("conv"))
    for wrap in (False, True):
        model = load(source)
        constants = Constants(model)
        assert len(tile(model, CUT, resolve(model), constants, TilingPolicy(wrap=wrap)).tiled) == 2
        np.testing.assert_array_equal(Session(to_bytes(model)).run(feeds("conv"))["z"], expected)


def test_it_can_be_written_without_a_run(tmp_path: Any) -> None:
    source = island("conv", per_channel=True)
    api.tile(source, CUT, verify=False).save(tmp_path / "tiled.onnx")
    expected, _ = fused(source, feeds("conv"))
    got = Session((tmp_path / "tiled.onnx").read_bytes()).run(feeds("conv"))["y"]
    np.testing.assert_array_equal(got, expected)
