"""Operators on quantised tensors as float ones between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from onnxtile import api
from onnxtile.model.save import to_bytes
from onnxtile.verbs.flows.results import FuseResult
from tests import build
from tests.random_graphs.drawing import in_order


def products(*, rows: int = 96, columns: int = 40, conv: bool = False) -> onnx.ModelProto:
    """Return two products with weights and a bias, or a convolution."""
    random = np.random.default_rng(3)
    shapes = {"w": (rows, columns), "v": (columns, 16), "b": (16,)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    given, made = [3, rows], [3, 16]
    if conv:
        shapes = {"w": (4, 3, 3, 3), "b": (4,)}
        nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"])]
        given, made = [1, 3, 8, 8], [1, 4, 6, 6]
    held = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    return build.model(nodes, {"x": (1, given)}, {"y": (1, made)}, held, opset=21)


def dynamic(proto: onnx.ModelProto, folder: Path, *, per_channel: bool = False) -> onnx.ModelProto:
    source, target = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(proto, source)
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=per_channel)
    return onnx.load(target)


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_products(tmp_path: Path, operators: Callable[[FuseResult], list[str]], per_channel: bool) -> None:
    model = dynamic(products(), tmp_path, per_channel=per_channel)
    pair = ["DynamicQuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
    assert Counter(operators(api.fuse(model, lower="qdq"))) == Counter([*pair, *pair, "Add"])
    assert operators(api.fuse(model, lower="ort")) == ["com.microsoft.DynamicQuantizeMatMul"] * 2


def test_a_tensor_that_is_quantised_for_several_products(
    tmp_path: Path, operators: Callable[[FuseResult], list[str]]
) -> None:
    proto = products(columns=96)
    proto.graph.node[1].input[0] = "x"
    proto.graph.node[2].input[1] = "h"
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.eye(96, dtype=np.float32), "v"))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 96
    model = dynamic(proto, tmp_path)
    found = Counter(operators(api.fuse(model, lower="ort")))
    assert found == {"DynamicQuantizeLinear": 1, "com.microsoft.MatMulIntegerToFloat": 2, "Add": 1}
    found = Counter(operators(api.fuse(model, lower="qdq")))
    assert found == {"DynamicQuantizeLinear": 1, "DequantizeLinear": 3, "MatMul": 2, "Add": 1}


def test_a_dynamic_convolution(
    tmp_path: Path, operators: Callable[[FuseResult], list[str]], reasons: Callable[[FuseResult], list[str]]
) -> None:
    model = dynamic(products(conv=True), tmp_path)
    found = operators(api.fuse(model, lower="qdq"))
    assert "Conv" in found and "ConvInteger" not in found
    assert "onnxruntime has no operator" in reasons(api.fuse(model, lower="ort"))[0]


@pytest.mark.parametrize("rows", [96, 80])
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_in_blocks_of_four_bits(
    operators: Callable[[FuseResult], list[str]], rows: int, symmetric: bool
) -> None:
    quantiser = MatMulNBitsQuantizer(
        products(rows=rows), block_size=32, is_symmetric=symmetric, quant_format=QuantFormat.QOperator
    )
    quantiser.process()
    result = api.fuse(quantiser.model.model, lower="qdq")
    assert Counter(operators(result)) == {"DequantizeLinear": 2, "MatMul": 2, "Add": 1}
    again = api.fuse(result.model, lower="ort")
    assert Counter(operators(again)) == {"com.microsoft.MatMulNBits": 2, "Add": 1}


def test_an_operator_that_is_not_lowered_stays_as_it_is(operators: Callable[[FuseResult], list[str]]) -> None:
    """Nothing is fused for it: the node is in the model with its reason in the report."""
    result = api.fuse(
        build.model(
            [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
            {"x": (TensorProto.UINT8, [2, 4])},
            {"y": (TensorProto.INT32, [2, 3])},
            {"w": np.ones((4, 3), np.int8)},
        ),
        lower="qdq",
    )
    assert operators(result) == ["MatMulInteger"]
    assert "not scaled to floats" in result.lowered[0].reason
    assert result.verdict is not None and result.verdict.equal


def test_an_attention_of_stored_tensors(operators: Callable[[FuseResult], list[str]]) -> None:
    random = np.random.default_rng(0)
    held = {
        "w": random.integers(-90, 90, (8, 24)).astype(np.int8), "b": random.standard_normal(24).astype(np.float32),
        "s": np.float32(0.02), "ws": np.float32(0.01), "z": np.uint8(128), "wz": np.int8(0),
    }  # fmt: skip
    node = helper.make_node(
        "QAttention", ["x", "w", "b", "s", "ws", "", "z", "wz"], ["y"], domain="com.microsoft", num_heads=2
    )
    result = api.fuse(
        build.model([node], {"x": (TensorProto.UINT8, [1, 4, 8])}, {"y": [1, 4, 8]}, held, com_microsoft=1),
        lower="qdq",
    )
    assert operators(result) == ["DequantizeLinear", "DequantizeLinear", "com.microsoft.Attention"]
    assert operators(api.fuse(result.model, lower="ort")) == ["com.microsoft.QAttention"]


def test_a_float_model_is_left_alone() -> None:
    result = api.fuse(products(), lower="qdq")
    assert not result.lowered
    assert [node.op_type for node in result.model.graph] == ["MatMul", "MatMul", "Add"]


def test_a_dropout_that_trains_stays_where_quantised_products_around_it_are_lowered() -> None:
    """The convolution is rounded otherwise in some elements, and the Dropout behind it draws the same numbers in both models."""
    original = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1, 3, 64, 64] x) => (float[1, 8, 32, 32] y) {
        half = Constant <value_float = 0.5> () yes = Constant <value = bool {1}> ()
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) w = DequantizeLinear(wq, s, zi)
        c = Conv <pads = [1, 1, 1, 1]> (b, w) d = QuantizeLinear(c, t, z) e = DequantizeLinear(d, t, z)
        f = Dropout <seed = 7> (e, half, yes) g = QuantizeLinear(f, t, z) h = DequantizeLinear(g, t, z)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (h) v = DequantizeLinear(vq, s, zi)
        k = Conv(p, v) l = QuantizeLinear(k, t, z) y = DequantizeLinear(l, t, z)
      }""")
    random = np.random.default_rng(0)
    weights = {
        "s": np.float32(0.03),
        "t": np.float32(0.1),
        "z": np.uint8(128),
        "zi": np.int8(0),
        "wq": random.integers(-90, 90, (16, 3, 3, 3)).astype(np.int8),
        "vq": random.integers(-90, 90, (8, 16, 1, 1)).astype(np.int8),
    }
    original.graph.initializer.extend(numpy_helper.from_array(np.asarray(one), name) for name, one in weights.items())
    result = api.fuse(original, lower="ort")
    assert result.verdict is not None and result.verdict.equal
    assert [site.skipped for site in result.sites if site.skipped] == []
    assert in_order(onnx.load_from_string(to_bytes(result.model))) == [("Dropout", 7)]
