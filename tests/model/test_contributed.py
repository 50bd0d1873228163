"""Operators of onnxruntime: what is said of their results before a run is what a run shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.binding import bind
from onnxtile.model.load import load
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import ModelWarning
from onnxtile.system.runtime import Array, Session
from tests import build
from tests.build import Text

_RANDOM = np.random.default_rng(0)


def _f(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _u(*shape: int) -> Array:
    return _RANDOM.integers(0, 255, shape).astype(np.uint8)


class Fixed:
    """A constant operand."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)


SCALE, ZERO = Fixed(np.float32(0.02)), Fixed(np.uint8(3))
Q = (SCALE, ZERO)
IDS = np.zeros((2, 4), np.int32)
CACHE = (1, 2, 10, 8)
GROUPS = {"num_heads": 4, "kv_num_heads": 2}
POOL: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
EMBEDDING = (Fixed(_f(9, 8)), Fixed(_f(6, 8)), Fixed(_f(2, 8)), Fixed(_f(8)), Fixed(_f(8)))

CASES: list[tuple[str, list[Any], int, dict[str, Any]]] = [
    ("QLinearGlobalAveragePool", [_u(2, 4, 7, 7), *Q, *Q], 1, {}),
    ("QLinearGlobalAveragePool", [_u(2, 7, 7, 4), *Q, *Q], 1, {"channels_last": 1}),
    ("QLinearAveragePool", [_u(2, 4, 7, 7), *Q, *Q], 1, {**POOL, "pads": [1, 1, 1, 1]}),
    ("QLinearAveragePool", [_u(2, 4, 8, 8), *Q, *Q], 1, {**POOL, "ceil_mode": 1}),
    ("QLinearAveragePool", [_u(2, 8, 8, 4), *Q, *Q], 1, {**POOL, "channels_last": 1}),
    ("QLinearAdd", [_u(2, 1, 5), *Q, _u(4, 1), *Q, *Q], 1, {}),
    ("QLinearMul", [_u(2, 1, 5), *Q, _u(4, 1), *Q, *Q], 1, {}),
    ("QLinearConcat", [*Q, _u(2, 3), *Q, _u(2, 5), *Q], 1, {"axis": 1}),
    ("QLinearSigmoid", [_u(2, 3), *Q, *Q], 1, {}),
    ("QLinearLeakyRelu", [_u(2, 3), *Q, *Q], 1, {"alpha": 0.1}),
    ("QLinearSoftmax", [_u(2, 3), *Q, Fixed(np.float32(1 / 256)), Fixed(np.uint8(0))], 1, {"axis": -1, "opset": 13}),
    ("QLinearWhere", [_f(2, 3) > 0, _u(2, 1), *Q, _u(3), *Q, *Q], 1, {}),
    ("QLinearConv", [_u(1, 3, 8, 8), *Q, Fixed(_u(4, 3, 3, 3)), *Q, *Q], 1, {}),
    ("QGemm", [_u(2, 8), *Q, Fixed(_u(8, 5)), *Q, None, *Q], 1, {}),
    ("QGemm", [_u(2, 8), *Q, Fixed(_u(5, 8)), *Q, Fixed(np.zeros(5, np.int32))], 1, {"transB": 1}),
    ("QAttention", [_u(2, 4, 16), Fixed(_u(16, 48)), Fixed(_f(48)), SCALE, SCALE, None, ZERO, ZERO, _f(2, 2, 2, 3, 8)],
     2, {"num_heads": 2, "unidirectional": 1}),
    ("MatMulNBits", [_f(2, 4, 32), Fixed(_u(8, 1, 16)), Fixed(_f(8))], 1,
     {"K": 32, "N": 8, "bits": 4, "block_size": 32}),
    ("DynamicQuantizeMatMul", [_f(2, 4, 8), Fixed(_u(8, 5)), Fixed(_f(5)), Fixed(_u(5))], 1, {}),
    ("MatMulIntegerToFloat", [_u(2, 4, 8), Fixed(_u(8, 5)), SCALE, SCALE, ZERO, ZERO], 1, {}),
    ("SkipLayerNormalization", [_f(2, 4, 8), _f(2, 4, 8), Fixed(_f(8)), Fixed(_f(8))], 1, {}),
    ("EmbedLayerNormalization", [IDS, IDS, *EMBEDDING], 2, {}),
    ("EmbedLayerNormalization", [IDS, IDS, *EMBEDDING, np.ones((2, 4), np.int32)], 3, {}),
    ("BiasGelu", [_f(2, 4, 8), Fixed(_f(8))], 1, {}),
    ("FusedMatMul", [_f(2, 4, 8), _f(2, 5, 8)], 1, {"transB": 1}),
    ("FusedGemm", [_f(4, 8), Fixed(_f(8, 5)), Fixed(_f(5))], 1, {"activation": "Relu"}),
    ("FusedConv", [_f(1, 3, 8, 8), Fixed(_f(4, 3, 3, 3)), Fixed(_f(4))], 1, {"activation": "Relu"}),
    ("Attention", [_f(2, 4, 16), Fixed(_f(16, 40)), Fixed(_f(40))], 1,
     {"num_heads": 2, "qkv_hidden_sizes": [16, 16, 8]}),
    ("Attention", [_f(2, 4, 16), Fixed(_f(16, 48)), Fixed(_f(48)), None, _f(2, 2, 2, 3, 8)], 2,
     {"num_heads": 2, "unidirectional": 1}),
    ("MultiHeadAttention", [_f(2, 4, 16), _f(2, 5, 16), _f(2, 5, 12)], 1, {"num_heads": 2}),
    ("GroupQueryAttention", [_f(1, 1, 32), _f(1, 1, 16), _f(1, 1, 16), _f(*CACHE), _f(*CACHE),
                             np.array([10], np.int32), Fixed(np.int32(11))], 3, GROUPS),
    # The cache has room for the new token: it is shared, and does not grow.
    ("GroupQueryAttention", [_f(1, 1, 32), _f(1, 1, 16), _f(1, 1, 16), _f(*CACHE), _f(*CACHE),
                             np.array([6], np.int32), Fixed(np.int32(7))], 3, GROUPS),
    ("RotaryEmbedding", [_f(2, 4, 16), np.zeros(1, np.int64), Fixed(_f(8, 4)), Fixed(_f(8, 4))], 1, {"num_heads": 2}),
    ("GatherND", [_f(3, 4), np.zeros((2, 1), np.int32)], 1, {}),
    ("ExpandDims", [_f(3, 4), Fixed(np.int32(1))], 1, {}),
    ("UnfoldTensor", [_f(2, 9)], 1, {"dim": -1, "size": 3, "step": 2}),
    ("NhwcMaxPool", [_u(1, 8, 8, 2)], 1, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("BiasSplitGelu", [_f(1, 4, 16), Fixed(_f(16))], 1, {}),
]  # fmt: skip
"""Operator, operands (None where one is left out), how many outputs, attributes."""


def alone(
    op: str,
    operands: list[Any],
    outputs: int,
    attributes: dict[str, Any],
    domain: str = "com.microsoft",
    opset: int = 17,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model of one node whose results, which it does not declare, are counted; and what to feed it with."""
    feeds = {f"i{k}": np.asarray(v) for k, v in enumerate(operands) if v is not None and not isinstance(v, Fixed)}
    fixed = [numpy_helper.from_array(v.array, f"i{k}") for k, v in enumerate(operands) if isinstance(v, Fixed)]
    inputs = {name: (helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for name, v in feeds.items()}
    names = ["" if v is None else f"i{k}" for k, v in enumerate(operands)]
    node = helper.make_node(op, names, [f"o{k}" for k in range(outputs)], name="n", domain=domain, **attributes)
    counts = [helper.make_node("Size", [f"o{k}"], [f"y{k}"]) for k in range(outputs)]
    made: build.Values = {f"y{k}": (TensorProto.INT64, []) for k in range(outputs)}
    return build.model([node, *counts], inputs, made, fixed, opset=opset, com_microsoft=1, ir_version=8), feeds


def shown(proto: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """Return what a run gives for everything that nodes make."""
    open_ = onnx.ModelProto.FromString(proto.SerializeToString())
    del open_.graph.output[:]
    open_.graph.output.extend(onnx.ValueInfoProto(name=name) for node in proto.graph.node for name in node.output)
    return Session(open_.SerializeToString()).run(feeds)


def results(model: ir.Model) -> list[ir.Value]:
    """Return what the first node makes."""
    return list(model.graph[0].outputs)


@pytest.mark.parametrize(("op", "operands", "outputs", "attributes"), CASES)
def test_what_is_said_without_a_run_is_what_a_run_shows(
    op: str, operands: list[Any], outputs: int, attributes: dict[str, Any]
) -> None:
    proto, feeds = alone(op, operands, outputs, attributes)
    model = load(proto)
    shapes = resolve(model)
    if op == "BiasSplitGelu":  # no kernel on a CPU: the schema gives the element type, and nothing confirms a shape
        output = results(model)[0]
        assert (shapes.dtype(output), shapes.dims(output)) == (ir.DataType.FLOAT, None)
        return
    arrays = shown(proto, feeds)
    for value in results(model):
        array = arrays[value.name or ""]
        assert shapes.sizes(value) == array.shape
        assert shapes.dtype(value) == ir.DataType.from_numpy(array.dtype)


def test_open_dimensions_go_through_and_what_the_runtime_does_not_say_stays_open() -> None:
    proto, _ = alone("QLinearGlobalAveragePool", [_u(2, 4, 7, 7), *Q, *Q], 1, {})
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model = load(proto)
    assert resolve(model).dims(results(model)[0]) == ("batch", 4, 1, 1)


def test_what_onnx_knows_of_the_operands_is_told_to_the_runtime(text: Text) -> None:
    proto = text("g (float[2, 3] x) => (float[A, B] y) { h = Relu(x) i = com.microsoft.Gelu(h) y = Transpose(i) }")
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model = load(proto)
    assert [resolve(model).sizes(node.outputs[0]) for node in model.graph] == [(2, 3), (2, 3), (3, 2)]


def test_a_cache_of_keys_grows_only_where_a_known_number_says_so() -> None:
    """With how many tokens there are in an input the runtime guesses; a run gives 11 for 11 tokens, and 10 for less."""
    operands = [
        _f(1, 1, 32),
        _f(1, 1, 16),
        _f(1, 1, 16),
        _f(*CACHE),
        _f(*CACHE),
        np.array([10], np.int32),
        np.int32(11),
    ]
    proto, feeds = alone("GroupQueryAttention", operands, 3, GROUPS)
    assert shown(proto, feeds)["o1"].shape == (1, 2, 11, 8)
    model = load(proto)
    shapes = resolve(model)
    assert shapes.sizes(results(model)[0]) == (1, 1, 32)
    found = shapes.dims(results(model)[1])
    assert found is not None
    assert (*found[:2], found[3]) == (1, 2, 8)
    assert not isinstance(found[2], int)


@pytest.mark.parametrize("op", ["CDist", "Pad", "Unique"])
def test_what_the_runtime_does_not_infer_is_open_and_a_run_shows_it(op: str) -> None:
    every: dict[str, list[Any]] = {
        "CDist": [_f(3, 4), _f(5, 4)],
        "Pad": [_f(3, 4), Fixed(np.array([1, 1, 1, 1]))],
        "Unique": [_f(5)],
    }
    proto, feeds = alone(op, every[op], 3 if op == "Unique" else 1, {})
    model = load(proto)
    output = results(model)[0]
    assert resolve(model).sizes(output) is None
    if op == "Unique":
        assert "depends on the data (Unique" in resolve(model, run=True).reason(output)
    else:
        assert resolve(model, run=True).sizes(output) == shown(proto, feeds)["o0"].shape


@pytest.mark.parametrize(("op", "opset"), [("SimplifiedLayerNormalization", 17), ("LayerNormalization", 14)])
def test_operators_that_the_runtime_has_in_the_domain_of_onnx(op: str, opset: int) -> None:
    proto, feeds = alone(op, [_f(2, 4, 8), Fixed(_f(8))], 1, {"axis": -1}, "", opset)
    with pytest.warns(ModelWarning, match=f"ONNX has no operator {op} in opset {opset}; onnxruntime takes it"):
        model = load(proto)
    assert resolve(model).sizes(results(model)[0]) == (2, 4, 8)
    assert shown(proto, feeds)["o0"].shape == (2, 4, 8)


def test_an_operator_of_the_runtime_is_not_what_a_function_of_its_name_says(text: Text) -> None:
    functions = '<domain: "com.microsoft", opset_import: ["": 17]> Gelu (a) => (b) { b = Transpose(a) }'
    proto = text("g (float[2, 3] x) => (float[A, B] y) { y = com.microsoft.Gelu(x) }", functions=functions)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model = load(proto)
    ran = Session(proto.SerializeToString()).run({"x": _f(2, 3)})["y"]
    assert resolve(model).sizes(model.graph.outputs[0]) == ran.shape == (2, 3)


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (0, 10**9, 1, "N"), (0, 10, 1, "min(10, N)"), (2, 10, 1, "max(0, min(10, N) - 2)"), (0, 2**63 - 1, 1, "N"),
        (3, 10**9, 1, "max(0, N - 3)"), (5, 5, 1, 0),
    ],
)  # fmt: skip
def test_a_slice_of_an_open_size_ends_with_it(text: Text, start: int, end: int, step: int, expected: str | int) -> None:
    inits = f"<int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}, int64[1] t = {{{step}}}>"
    model = load(text(f"g (float[N, 3] x) => (float[A, B] y) {inits} {{ h = Slice(x, s, e, a, t) y = Relu(h) }}"))
    dims = resolve(model).dims(model.graph.outputs[0])
    assert dims == (expected, 3)
    for size in (1, 4, 12):
        bound = load(model)
        bind(bound, {"N": size}, {})
        assert resolve(bound).sizes(bound.graph.outputs[0]) == (len(range(size)[start:end:step]), 3)


@pytest.fixture(scope="module", name="quantised")
def _quantised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small network for images, and what onnxruntime's own quantiser makes of it in QOperator form."""
    import onnxruntime.quantization as tools

    folder = tmp_path_factory.mktemp("quantised")
    weights = {"w": _f(8, 3, 3, 3), "v": _f(8, 8, 3, 3), "m": _f(8, 5), "n": _f(5)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Conv", ["a", "v"], ["b"], pads=[1, 1, 1, 1], name="conv2"),
        helper.make_node("Add", ["a", "b"], ["c"], name="add"),
        helper.make_node("AveragePool", ["c"], ["d"], name="pool", **POOL),
        helper.make_node("Concat", ["d", "d"], ["e"], name="concat", axis=0),
        helper.make_node("Sigmoid", ["e"], ["f"], name="sigmoid"),
        helper.make_node("GlobalAveragePool", ["f"], ["g"], name="global"),
        helper.make_node("Flatten", ["g"], ["h"], name="flatten"),
        helper.make_node("Gemm", ["h", "m", "n"], ["i"], name="gemm"),
        helper.make_node("Softmax", ["i"], ["y"], name="softmax"),
    ]
    plain, made = folder / "plain.onnx", folder / "quantised.onnx"
    onnx.save(
        build.model(nodes, {"x": ["batch", 3, 16, 16]}, {"y": ["out", 5]}, weights, opset=13, ir_version=8),
        plain,
    )

    class _Samples(tools.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = [{"x": _f(1, 3, 16, 16)}]

        def get_next(self) -> dict[str, Array] | None:
            return self._left.pop() if self._left else None

    tools.quantize_static(plain, made, _Samples(), quant_format=tools.QuantFormat.QOperator)
    return plain, made


def test_a_network_that_the_runtime_quantised_is_known_as_it_runs(quantised: tuple[Path, Path]) -> None:
    model = load(quantised[1])
    assert {"QLinearGlobalAveragePool", "QLinearAveragePool", "QGemm", "QLinearAdd"} <= {n.op_type for n in model.graph}
    shapes = resolve(model)
    assert shapes.dims(model.graph.outputs[0])[1:] == (5,)  # type: ignore[index]
    bind(model, {"batch": 2}, {})
    shapes, made = resolve(model), [value for node in model.graph for value in node.outputs]
    arrays = shown(ir.to_proto(model), {"x": _f(2, 3, 16, 16)})
    for value in made:
        array = arrays[value.name or ""]
        assert (shapes.sizes(value), shapes.dtype(value)) == (array.shape, ir.DataType.from_numpy(array.dtype))


def test_nothing_of_the_runtime_is_needed_for_operators_of_onnx(monkeypatch: pytest.MonkeyPatch, text: Text) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the runtime was asked")

    monkeypatch.setattr("onnxtile.shapes.contributed.inferred_results", refuse)
    monkeypatch.setattr("onnxtile.shapes.contributed.contrib_schemas", refuse)
    model = load(text("g (float[2, 3] x) => (float[A, B] y) { h = Relu(x) y = LayerNormalization(h, h) }"))
    assert all(resolve(model).sizes(value) == (2, 3) for value in values(model) if value.name in {"h", "y"})
