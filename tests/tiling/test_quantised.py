"""Quantised products and convolutions: tiles that are equal to the kernels of onnxruntime to the last bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.model.constants import Constants
from onnxtile.model.exact_products import exact_session
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.model.session import session_of
from onnxtile.shapes.resolve import resolve
from onnxtile.system.runtime import Array
from onnxtile.tiling.limits import Limits, TilingPolicy, WindowBounds
from onnxtile.tiling.tile import tile
from tests import build
from tests.draws import draws
from tests.tiling.conftest import Bench, Tiled

# QLinearMatMul and QGemm: tiles that are equal to onnxruntime's own kernels to the last bit.


FOUR = Limits.of(max=4)
INPUTS = {
    "QLinearMatMul": ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"],
    "QGemm": ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "c", "y_scale", "y_zero"],
    "QLinearConv": ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "b"],
    "ConvInteger": ["x", "w", "x_zero", "w_zero"],
}


def some(random: np.random.Generator | int, shape: tuple[int, ...], kind: Any) -> Array:
    """Return integers over the whole range of their type; `random` may be a seed."""
    bounds, drawn = np.iinfo(kind), np.random.default_rng(random)
    return np.asarray(drawn.integers(bounds.min, bounds.max, shape, endpoint=True)).astype(kind)


def arrays(
    sizes: tuple[int, int, int], *, batch: tuple[int, ...] = (), kinds: Any = (np.uint8, np.int8), columns: bool = False,
    bias: bool = False, trans: tuple[bool, bool] = (False, False),
) -> dict[str, Array]:  # fmt: skip
    """Return operands with parameters that spread the results over the range of a byte."""
    random = np.random.default_rng(0)
    m, k, n = sizes
    each = (n,) if columns else ()
    found: dict[str, Array] = {
        "a": some(random, (*batch, k, m) if trans[0] else (*batch, m, k), kinds[0]),
        "a_scale": np.asarray(0.013, np.float32),
        "a_zero": some(random, (), kinds[0]),
        "b": some(random, (n, k) if trans[1] else (k, n), kinds[1]),
        "b_scale": random.uniform(0.002, 0.04, each).astype(np.float32) if columns else np.asarray(0.021, np.float32),
        "b_zero": some(random, each, kinds[1]),
        "y_scale": np.asarray(0.017 * np.sqrt(k) * 20, np.float32),
        "y_zero": some(random, (), kinds[0]),
    }
    if bias:
        found["c"] = random.integers(-3000, 3000, (n,)).astype(np.int32)
    return found


def model(op: str, held: dict[str, Array], fixed: set[str], opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """Return a node `op` that reads `held`, those of `fixed` as initializers."""
    names = [name if name in held else "" for name in INPUTS[op]]
    while not names[-1]:
        names.pop()
    domain = "com.microsoft" if op == "QGemm" else ""
    types = {name: helper.np_dtype_to_tensor_dtype(held[name].dtype) for name in names if name}
    result = types.get("y_zero", TensorProto.INT32 if op == "ConvInteger" else TensorProto.FLOAT)
    return build.model(
        [helper.make_node(op, names, ["y"], name="conv" if "Conv" in op else "fc", domain=domain, **attributes)],
        {n: (types[n], held[n].shape) for n in types if n not in fixed},
        {"y": (result, [f"y{axis}" for axis in range(held[names[0]].ndim)])},
        {n: held[n] for n in types if n in fixed},
        opset=opset,
        com_microsoft=1,
        ir_version=8,
    )


def require_equal(
    bench: Bench, source: onnx.ModelProto, held: dict[str, Array], limits: Limits, options: TilingPolicy | None = None
) -> Tiled:
    """Tile `source`; assert that it makes what onnxruntime's kernel makes, to the last bit."""
    tiled = bench.tile(source, limits, options)
    feeds = {info.name: held[info.name] for info in source.graph.input}
    expected = exact_session(source.SerializeToString(), source).run(feeds)["y"]
    np.testing.assert_array_equal(tiled.run(feeds)["y"], expected, strict=True)
    assert all(verdict.passed and not verdict.error for verdict in tiled.verdicts())
    for site in tiled.result.tiled if "Conv" in source.graph.node[0].op_type else ():
        assert len(site.emitted) <= bench.most_nodes(site)
    return tiled


PARAMETERS = {"a_scale", "a_zero", "b_scale", "b_zero", "y_scale", "y_zero"}
SIZES = st.tuples(st.integers(1, 11), st.integers(1, 11), st.integers(1, 11))
KINDS = st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
FIXED = st.sampled_from([PARAMETERS | {"b"}, PARAMETERS, {"b", "b_zero", "b_scale"}, {"b_zero", "a_zero", "y_zero"}])


@draws(25, 100)
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


@draws(25, 100)
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


# QLinearConv and ConvInteger: tiles that are equal to onnxruntime's own kernels to the last bit.


CONV_PARAMETERS = {"x_scale", "x_zero", "w_scale", "w_zero", "y_scale", "y_zero"}


def conv_arrays(
    *, channels: int = 6, filters: int = 9, kernel: tuple[int, ...] = (3, 3), groups: int = 1, kinds: Any = (np.uint8, np.int8),
    per_channel: bool = False, bias: bool = True,
) -> dict[str, Array]:  # fmt: skip
    """Return operands with parameters that spread the results over the range of a byte."""
    random = np.random.default_rng(0)
    each = (filters,) if per_channel else ()
    found: dict[str, Array] = {
        "x": some(random, (1, channels, *(11 - axis for axis in range(len(kernel)))), kinds[0]),
        "x_scale": np.asarray(0.013, np.float32),
        "x_zero": some(random, (), kinds[0]),
        "w": some(random, (filters, channels // groups, *kernel), kinds[1]),
        "w_scale": np.asarray(random.uniform(0.002, 0.04, each), np.float32),
        # onnxruntime takes no other than equal zero points of the channels.
        "w_zero": np.full(each, 3, kinds[1]),
        "y_scale": np.asarray(0.5, np.float32),
        "y_zero": some(random, (), kinds[0]),
    }
    if bias:
        found["b"] = random.integers(-30000, 30000, (filters,)).astype(np.int32)
    return found


def cut(kernel: int = 9, **more: int) -> Limits:
    """Return limits that cut all axes."""
    return Limits.of(m=20, k=2 * kernel, n=4, window=WindowBounds(**more))


CONV_FIXED = st.sampled_from(
    [CONV_PARAMETERS | {"w", "b"}, CONV_PARAMETERS, {"w", "w_zero", "w_scale"}, {"w", "w_zero"}, {"w_zero", "b"}]
)
SHAPES: Any = st.sampled_from(
    [
        ({}, {"pads": [1, 1, 1, 1]}),
        ({}, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ({"kernel": (3,)}, {"dilations": [2]}),
        ({"groups": 3}, {"group": 3}),
        ({"channels": 9, "groups": 9}, {"group": 9, "pads": [0, 1, 1, 0]}),
    ]
)


@draws(15, 60)
@given(
    shape=SHAPES, kinds=KINDS, fixed=CONV_FIXED, per_channel=st.booleans(), bias=st.booleans(),
    opset=st.sampled_from([10, 13, 21]), how=st.sampled_from(["sum", "tree"]),
)  # fmt: skip
def test_qlinear_conv(
    bench: Bench, shape: Any, kinds: Any, fixed: set[str], per_channel: bool, bias: bool, opset: int, how: str
) -> None:
    sizes, attributes = shape
    held = conv_arrays(kinds=kinds, per_channel=per_channel, bias=bias, **sizes)
    source = model("QLinearConv", held, fixed, opset, **attributes)
    limits = cut(int(np.prod(sizes.get("kernel", (3, 3)))))
    tiled = require_equal(bench, source, held, limits, TilingPolicy(accumulate=how))
    assert not tiled.result.skipped


@draws(15)
@given(shape=SHAPES, kinds=KINDS, fixed=CONV_FIXED, zeros=st.sampled_from([(), ("x_zero",), ("x_zero", "w_zero")]))
def test_conv_integer(bench: Bench, shape: Any, kinds: Any, fixed: set[str], zeros: Any) -> None:
    sizes, attributes = shape
    every = conv_arrays(kinds=kinds, **sizes)
    held = {name: array for name, array in every.items() if "_" not in name or name in zeros}
    source = model("ConvInteger", held, fixed, **attributes)
    limits = cut(int(np.prod(sizes.get("kernel", (3, 3)))))
    assert not require_equal(bench, source, held, limits).result.skipped


def test_no_more_than_a_block_is_in_int32(bench: Bench) -> None:
    held = conv_arrays(per_channel=True)
    tiled = require_equal(bench, model("QLinearConv", held, CONV_PARAMETERS | {"w", "b"}), held, cut(rows=2))
    # 9 × 9 pixels in rows of 2, 9 filters in blocks of 4, 6 channels in blocks of 2.
    assert (tiled.count("ConvInteger"), tiled.count("QuantizeLinear")) == (5 * 3 * 3, 5 * 3)
    wide = [value for node in tiled.nodes for value in node.outputs if value.dtype in {1, 6}]
    assert {value.shape.numpy()[1:3] for value in wide if value.shape is not None} <= {(4, 2), (4, 1), (1, 2), (1, 1)}
    assert CONV_PARAMETERS.isdisjoint({*tiled.model.graph.initializers} - {"x_zero"})


def test_zero_points_of_weights_that_differ_are_left(bench: Bench) -> None:
    held = conv_arrays(per_channel=True)
    held["w_zero"] = np.arange(9, dtype=np.int8)
    (skip,) = bench.tile(model("QLinearConv", held, CONV_PARAMETERS | {"w"}), cut()).result.skipped
    assert skip.reason == "its weights have a zero point for each output channel, 'w_zero'"


def test_it_is_cut_on_request(bench: Bench) -> None:
    held = conv_arrays()
    (skip,) = bench.tile(model("QLinearConv", held, CONV_PARAMETERS | {"w", "b"}), Limits.of(max=4)).result.skipped
    assert skip.reason == "convolutions are cut only on request: --conv, or [operator.QLinearConv] in the limits file"


@pytest.mark.parametrize("memory", [400, 2000])
def test_the_weights_stay_in_bytes(memory: int) -> None:
    held = conv_arrays(channels=16, filters=16, per_channel=True)
    source = model("QLinearConv", held, CONV_PARAMETERS | {"w", "b"})
    tiled = api.tile(source, Limits.of(memory=memory, window=WindowBounds()))
    assert tiled.verdict is not None and tiled.verdict.equal and all(site.passed for site in tiled.sites)
    inits = tiled.model.graph.initializers.values()
    weights = [value.const_value for value in inits if value.const_value is not None and value.dtype == 3]
    assert sum(tensor.nbytes for tensor in weights if tensor.size > 1) == held["w"].nbytes


def test_a_convolution_can_be_wrapped(bench: Bench) -> None:
    held = conv_arrays(per_channel=True)
    source = model("QLinearConv", held, CONV_PARAMETERS | {"w", "b"})
    tiled = require_equal(bench, source, held, cut(), TilingPolicy(wrap=True))
    assert [node.op_type for node in tiled.nodes] == ["Tiled_QLinearConv_conv"]


# Weights that a DequantizeLinear makes stay quantized: each block is cut from the integers, and has a
# DequantizeLinear of its own.


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
    return build.model(nodes, {"x": x}, {"y": y}, arrays, opset=13, ir_version=8)


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
    expected = exact_session(source.SerializeToString(), source).run(feeds)["y"]
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


# Quantised islands of DequantizeLinear, a product and QuantizeLinear: tiles as onnxruntime computes once it has
# fused such nodes.


CUT = Limits.of(m=20, k=18, n=4, window=WindowBounds())
ISLANDS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = {
    "conv": ("Conv", (1, 6, 9, 8), (9, 6, 3, 3), 0, {"pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (1, 9, 9, 8), (9, 1, 3, 3), 0, {"group": 9}),
    "gemm": ("Gemm", (30, 40), (40, 9), 1, {}),
    "gemm, transposed": ("Gemm", (30, 40), (9, 40), 0, {"transB": 1}),
    "matmul": ("MatMul", (30, 40), (40, 9), 1, {}),
    "matmul, batch": ("MatMul", (2, 30, 40), (40, 9), 1, {}),
}


def island(
    name: str, *, kinds: Any = (np.uint8, np.int8), per_channel: bool = False, bias: bool = True, quantizes: bool = True,
    bias_scale: float = 1.0, **changes: Array,
) -> onnx.ModelProto:  # fmt: skip
    """Return an island; where it does not quantize its result, a Relu reads that."""
    op, x, w, axis, attributes = ISLANDS[name]
    count = w[axis]
    scales = np.random.default_rng(1).uniform(0.002, 0.04, (count,) if per_channel else ()).astype(np.float32)
    y_scale = 0.013 * float(scales.mean()) * 8000 * np.sqrt(np.prod(w) / count) / 100
    held: dict[str, Array] = {
        "x_scale": np.asarray(0.013, np.float32),
        "x_zero": some(2, (), kinds[0]),
        "w": some(3, w, kinds[1]),
        "w_scale": scales,
        "w_zero": np.zeros_like(scales, kinds[1]),
        "y_scale": np.asarray(y_scale, np.float32),
        "y_zero": some(4, (), kinds[0]),
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
    model = build.model(
        nodes,
        {"x": (types["x_zero"], x)},
        [helper.make_tensor_value_info("y", types["y_zero"] if quantizes else 1, None)],
        held,
        opset=13,
        ir_version=8,
    )
    return onnx.shape_inference.infer_shapes(model)


def feeds(name: str, kinds: Any = (np.uint8, np.int8)) -> dict[str, Array]:
    return {"x": some(6, ISLANDS[name][1], kinds[0])}


def fused(source: onnx.ModelProto, given: dict[str, Array]) -> tuple[Array, set[str]]:
    """Return what onnxruntime makes with its graph optimisations, and the operators that it then runs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # By default it fuses signed operands on ARM only.
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "optimised.onnx"))
        onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimised = onnx.load(options.optimized_model_filepath)
    (result,) = exact_session(optimised.SerializeToString(), optimised).run(given).values()
    return result, {node.op_type for node in optimised.graph.node}


@draws(20, 80)
@given(
    name=st.sampled_from(sorted(ISLANDS)), kinds=st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]),
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


@pytest.mark.parametrize("name", ISLANDS)
def test_a_result_that_is_not_quantized_is_a_float(bench: Bench, name: str) -> None:
    source = island(name, per_channel=True, quantizes=False)
    tiled = bench.tile(source, CUT)
    assert tiled.count("MatMulInteger") + tiled.count("ConvInteger") == tiled.result.matmuls
    expected = exact_session(source.SerializeToString(), source).run(feeds(name))["y"]
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
    expected = exact_session(source.SerializeToString(), source).run(feeds("matmul"))
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
    source.graph.initializer.append(numpy_helper.from_array(some(7, (5, 9, 1, 1), np.int8), "v"))
    source.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", 2, (1, 5, 9, 8)))
    expected, _ = fused(source, feeds("conv"))
    for wrap in (False, True):
        model = load(source)
        constants = Constants(model)
        assert len(tile(model, CUT, resolve(model), constants, TilingPolicy(wrap=wrap)).tiled) == 2
        np.testing.assert_array_equal(exact_session(to_bytes(model), model).run(feeds("conv"))["z"], expected)


def test_it_can_be_written_without_a_run(tmp_path: Any) -> None:
    source = island("conv", per_channel=True)
    api.tile(source, CUT, verify=False).save(tmp_path / "tiled.onnx")
    expected, _ = fused(source, feeds("conv"))
    got = session_of(load(tmp_path / "tiled.onnx")).run(feeds("conv"))["y"]
    np.testing.assert_array_equal(got, expected)
