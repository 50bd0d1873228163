"""Patterns of float operators are found in each form of quantised model, and the sites are those of the float model."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.make_quantised import quantise
from onnxtile import api
from onnxtile.fusion.float_view import float_view
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from tests import build

FORMS = [
    *("qdq", "qdq-per-channel", "qdq-u8s8"),
    *("qoperator", "qoperator-per-channel", "qoperator-u8s8"),
    *("dynamic", "int4", "int4-qdq"),
]
WIDTH = 32


def _block() -> onnx.ModelProto:
    """Return a block with a norm before attention and before an MLP with GELU, a gated MLP after it, and the last norm."""
    generator = np.random.default_rng(0)
    held: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def constant(array: object, dtype: type = np.float32) -> str:
        held.append(numpy_helper.from_array(np.asarray(array, dtype), f"k{len(held)}"))
        return held[-1].name

    def weight(*shape: int) -> str:
        return constant(generator.standard_normal(shape) / 6)

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], f"{op}_{len(nodes)}", **attributes))
        return nodes[-1].output[0]

    def norm(x: str) -> str:
        centre = node("Sub", x, node("ReduceMean", x, axes=[-1]))
        variance = node("ReduceMean", node("Pow", centre, constant(2.0)), axes=[-1])
        scaled = node("Div", centre, node("Sqrt", node("Add", variance, constant(1e-5))))
        return node("Add", node("Mul", scaled, weight(WIDTH)), weight(WIDTH))

    def linear(x: str, width: int = WIDTH) -> str:
        return node("Add", node("MatMul", x, weight(WIDTH, width)), weight(width))

    def heads(x: str, *perm: int) -> str:
        return node("Transpose", node("Reshape", x, constant([1, 6, 2, 16], np.int64)), perm=perm)

    def attention(x: str) -> str:
        q, k, v = heads(linear(x), 0, 2, 1, 3), heads(linear(x), 0, 2, 3, 1), heads(linear(x), 0, 2, 1, 3)
        weights = node("Softmax", node("Mul", node("MatMul", q, k), constant(0.25)), axis=-1)
        merged = node("Transpose", node("MatMul", weights, v), perm=[0, 2, 1, 3])
        return linear(node("Reshape", merged, constant([1, 6, WIDTH], np.int64)))

    def gelu(x: str) -> str:
        half = node("Add", node("Erf", node("Div", x, constant(np.sqrt(2)))), constant(1.0))
        return node("Mul", node("Mul", x, half), constant(0.5))

    def gated(x: str) -> str:
        gate = node("MatMul", x, weight(WIDTH, WIDTH))
        return node("Mul", node("Mul", gate, node("Sigmoid", gate)), node("MatMul", x, weight(WIDTH, WIDTH)))

    one = node("Add", "x", attention(norm("x")))
    two = node("Add", one, gelu(linear(norm(one))))
    three = node("Add", two, gated(norm(two)))
    nodes[-1].output[0], total = "sum", "sum"
    assert three
    last = norm(total)
    # From opset 17 on, onnxruntime's quantiser makes LayerNormalization of the norms first.
    return build.model(nodes, {"x": [1, 6, WIDTH]}, {last: [1, 6, WIDTH]}, held, opset=14, ir_version=8)


WANTED = {
    **{"LayerNorm": 4, "SkipLayerNorm": 3, "Linear": 5, "GeLU": 1, "SiLU": 1, "SwiGLU": 1},
    **{"ScaledDotProductAttention": 1, "MultiHeadAttention": 1},
}


@pytest.fixture(scope="session")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a block of a transformer in floats."""
    file = tmp_path_factory.mktemp("block") / "float.onnx"
    onnx.save(_block(), file)
    return file


@pytest.fixture(scope="session", params=FORMS)
def quantised(request: pytest.FixtureRequest, block: Path) -> Path:
    """Return the file of the block in one of the forms of quantised models."""
    file = block.with_name(f"{request.param}.onnx")
    quantise(block, request.param, file)
    return file


def _sites(result: api.FuseResult) -> dict[str, int]:
    return {one.name: len(one.calls) for one in result.patterns if one.calls and one.name != "QuantisedIsland"}


def _listed(model: onnx.ModelProto) -> list[tuple[object, ...]]:
    nodes = model.graph.node
    return [(node.op_type, node.name, *node.input, *node.output, *map(_told, node.attribute)) for node in nodes]


def _told(attribute: onnx.AttributeProto) -> str:
    # A tensor without a name and one whose name is empty are the same.
    return str(attribute).replace('  name: ""\n', "")


def test_the_float_block_has_the_sites(block: Path) -> None:
    assert _sites(api.fuse(block)) == WANTED


def test_each_quantised_form_has_the_same_sites(quantised: Path) -> None:
    result = api.fuse(quantised)
    assert _sites(result) == WANTED
    assert result.verdict is not None and result.verdict.equal
    assert all(site.equal for site in result.sites)


def test_each_quantised_form_comes_back_node_for_node(quantised: Path) -> None:
    fused = api.fuse(quantised, verify=False)
    undone, original = ir.to_proto(api.unfuse(fused.model).model), ir.to_proto(load(quantised))
    assert _listed(undone) == _listed(onnx.load(quantised))
    assert [one.name for one in undone.graph.initializer] == [one.name for one in original.graph.initializer]
    assert [one.name for one in undone.graph.value_info] == [one.name for one in original.graph.value_info]


def test_explain_sees_the_float_operators(quantised: Path) -> None:
    explained = api.explain(quantised, "LayerNorm", ["LayerNorm"])
    assert (len(explained.matches), explained.fused) == (4, 4)
    stops = api.explain(quantised, "QuickGeLU", ["QuickGeLU"])
    assert {attempt.stopped.part for attempt in stops.attempts} == {"Mul#scale[constant ≈ 1.702]"}


def test_ports_of_a_site_are_stored_tensors_and_scales_are_operands() -> None:
    proto = _concat_or_add("QLinearAdd", ["a", "s", "z", "b", "s", "z", "s", "z"])
    result = api.fuse(proto, [("Sum", "Add->Sigmoid")])
    (call,) = [node for node in result.model.graph if node.domain == "onnxtile"]
    assert [value.name for value in call.inputs if value is not None] == ["a", "b", "s", "z"]


@pytest.mark.parametrize(
    "query", ["QLinearAdd->QLinearSigmoid", "com.microsoft::QLinearAdd->com.microsoft::QLinearSigmoid"]
)
def test_a_query_that_names_a_quantised_operator_sees_it(query: str) -> None:
    proto = _concat_or_add("QLinearAdd", ["a", "s", "z", "b", "s", "z", "s", "z"])
    assert _sites(api.fuse(proto, [("Sum", query)])) == {"Sum": 1}


def _concat_or_add(op: str, inputs: list[str], **attributes: Any) -> onnx.ModelProto:
    """Return a quantised operator of `a` and `b` before a quantised Sigmoid."""
    nodes = [
        helper.make_node(op, inputs, ["t"], "first", domain="com.microsoft", **attributes),
        helper.make_node("QLinearSigmoid", ["t", "s", "z", "s", "z"], ["y"], "second", domain="com.microsoft"),
    ]
    given = {name: (TensorProto.UINT8, [1, 4]) for name in "ab"}
    made = {"y": (TensorProto.UINT8, [1, 8 if "axis" in attributes else 4])}
    held = {"s": np.float32(0.05), "z": np.uint8(3)}
    return build.model(nodes, given, made, held, com_microsoft=1, ir_version=8)


def test_a_test_of_a_quantised_weight_sees_its_floats_in_older_opsets() -> None:
    held: dict[str, np.ndarray] = {
        "w": np.full((4, 1, 1, 1), 10, np.uint8),
        "s": np.asarray(0.05, np.float32),
        "z": np.asarray(0, np.uint8),
    }
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], "conv", group=4)
    given = {"x": (TensorProto.UINT8, [1, 4, 3, 3])}
    made = {"y": (TensorProto.UINT8, [1, 4, 3, 3])}
    proto = build.model([node], given, made, held, opset=10, ir_version=6)
    assert _sites(api.fuse(proto, [("Halved", "Conv[W == 0.5 and W.shape[1] == 1]")])) == {"Halved": 1}


def test_an_operator_that_onnxruntime_takes_in_no_function_is_refused() -> None:
    proto = _concat_or_add("QLinearConcat", ["s", "z", "a", "s", "z", "b", "s", "z"], axis=1)
    (outcome,) = api.fuse(proto, [("Joined", "Concat->Sigmoid")]).patterns
    assert [one.reason for one in outcome.refused] == ["onnxruntime takes no QLinearConcat in a function"]


def _product_with_bias() -> onnx.ModelProto:
    """Return MatMulNBits with a bias."""
    generator = np.random.default_rng(0)
    held = {
        "w": generator.integers(0, 256, (8, 1, 16)).astype(np.uint8),
        "s": generator.uniform(0.01, 0.02, 8).astype(np.float32),
        "b": generator.standard_normal(8).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s", "", "", "b"], ["y"], "product", domain="com.microsoft", K=32, N=8, bits=4, block_size=32
    )  # fmt: skip
    return build.model([node], {"x": [2, 32]}, {"y": [2, 8]}, held, com_microsoft=1, ir_version=8)


def test_a_product_with_a_bias_in_one_operator_is_linear_and_no_bare_product() -> None:
    assert _sites(api.fuse(_product_with_bias())) == {"Linear": 1}
    (outcome,) = api.fuse(_product_with_bias(), [("Product", "MatMul[inputs[1].constant]")]).patterns
    assert [one.reason for one in outcome.refused] == ["it ends inside an operator"]


def test_a_test_of_a_packed_weight_sees_its_floats() -> None:
    model = load(_product_with_bias())
    view = float_view(model, Constants(model))
    product = next(node for node in view.model.graph if node.op_type == "MatMul")
    assert product.inputs[1] is not None
    weight = Constants(view.model).array(product.inputs[1])
    packed, scales = (numpy_helper.to_array(one) for one in _product_with_bias().graph.initializer[:2])
    wanted = np.stack([packed[:, 0] & 15, packed[:, 0] >> 4], -1).reshape(8, 32).astype(np.float32) - 8
    np.testing.assert_allclose(weight, (wanted * scales[:, None]).T, rtol=1e-6)


def test_what_quantises_for_several_products_stays_outside_of_them() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise"),
        *(node for letter in "ab" for node in _dynamic_linear(letter)),
        helper.make_node("Add", ["sum_a", "sum_b"], ["y"], "total"),
    ]
    weight, bias = np.eye(4, dtype=np.int8), np.arange(4, dtype=np.float32)
    scale, zero = np.asarray(0.1, np.float32), np.asarray(0, np.int8)
    held: dict[str, np.ndarray] = {"w": weight, "ws": scale, "wz": zero, "bias": bias}
    proto = build.model(nodes, {"x": [2, 4]}, {"y": [2, 4]}, held, ir_version=8)
    both = api.fuse(proto, ["Linear"])
    assert Counter(node.op_type for node in both.model.graph) == {"DynamicQuantizeLinear": 1, "Linear": 2, "Add": 1}
    whole = api.fuse(proto, [("Twin", "MatMul-*>Add-*>Add#y;Add#y<*-Add<*-MatMul")])
    assert [node.op_type for node in whole.model.graph] == ["Twin"]


def _dynamic_linear(letter: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], [f"i_{letter}"], f"product_{letter}"),
        helper.make_node("Cast", [f"i_{letter}"], [f"f_{letter}"], f"cast_{letter}", to=1),
        helper.make_node("Mul", ["s", "ws"], [f"m_{letter}"], f"scales_{letter}"),
        helper.make_node("Mul", [f"f_{letter}", f"m_{letter}"], [f"p_{letter}"], f"scaled_{letter}"),
        helper.make_node("Add", [f"p_{letter}", "bias"], [f"sum_{letter}"], f"sum_{letter}"),
    ]
