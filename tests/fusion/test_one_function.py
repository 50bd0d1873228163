"""Sites that differ in a number only share one function: the number is an input of the call."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile import api

BOTH = ("LayerNorm", "SkipLayerNorm")


def norm(i: int, source: str, result: str, epsilon: str, axis: int = -1) -> str:
    return f"""m{i} = ReduceMean <axes = [{axis}], keepdims = 1> ({source}) d{i} = Sub ({source}, m{i})
      p{i} = Pow (d{i}, two) v{i} = ReduceMean <axes = [{axis}], keepdims = 1> (p{i}) a{i} = Add (v{i}, {epsilon})
      s{i} = Sqrt (a{i}) n{i} = Div (d{i}, s{i}) g{i} = Mul (n{i}, w) {result} = Add (g{i}, b) """


def model(body: str, **constants: float) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2,3,8] x) => (float[2,3,8] y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    arrays = {"two": 2.0, "w": np.arange(8) + 1.0, "b": np.arange(8) / 8.0, **constants}
    for name, value in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    return proto


def functions(fused: ir.Model) -> list[str]:
    return [name for domain, name, _ in fused.functions if domain == "onnxtile"]


def require_undone(original: onnx.ModelProto, fused: ir.Model, patterns: tuple[str, ...]) -> None:
    """Assert that unfuse gives the model back: the same nodes and values, and the same bytes when fused again."""
    restored = api.unfuse(fused).model
    assert [node.op_type for node in restored.graph] == [node.op_type for node in original.graph.node]
    assert [list(node.input) for node in ir.to_proto(restored).graph.node] == [
        list(n.input) for n in original.graph.node
    ]
    assert {t.name for t in ir.to_proto(restored).graph.initializer} == {t.name for t in original.graph.initializer}
    again = api.fuse(restored, patterns, verify=False).model
    assert ir.to_proto(again).SerializeToString(deterministic=True) == ir.to_proto(fused).SerializeToString(
        deterministic=True
    )


def test_an_epsilon_that_differs_is_an_input() -> None:
    original = model(norm(0, "x", "t", "e0") + norm(1, "t", "u", "e1") + norm(2, "u", "y", "e0"), e0=1e-5, e1=1e-3)
    result = api.fuse(original, ["LayerNorm"])
    assert functions(result.model) == ["LayerNorm"]
    read = [[value.name for value in node.inputs if value is not None] for node in result.model.graph]
    assert read == [["x", "w", "b", "e0"], ["t", "w", "b", "e1"], ["u", "w", "b", "e0"]]
    assert result.verdict is not None and result.verdict.equal and all(site.equal for site in result.sites)
    require_undone(original, result.model, ("LayerNorm",))


def test_an_epsilon_that_is_the_same_everywhere_stays_inside() -> None:
    original = model(norm(0, "x", "t", "e0") + norm(1, "t", "y", "e1"), e0=1e-5, e1=1e-5)
    result = api.fuse(original, ["LayerNorm"])
    assert [len(node.inputs) for node in result.model.graph] == [3, 3]
    assert not {"e0", "e1", "two"} & result.model.graph.initializers.keys()
    require_undone(original, result.model, ("LayerNorm",))


def test_a_constant_node_keeps_its_place() -> None:
    first, second = "e0 = Constant <value_float = 0.00001> () ", "e1 = Constant <value_float = 0.001> () "
    original = model(first + norm(0, "x", "t", "e0") + second + norm(1, "t", "y", "e1"))
    result = api.fuse(original, ["LayerNorm"])
    assert functions(result.model) == ["LayerNorm"]
    require_undone(original, result.model, ("LayerNorm",))


def test_an_outer_meta_op_hands_the_number_on() -> None:
    body = "r = Add (x, x2) " + norm(0, "r", "t", "e0") + "r2 = Add (t, x2) " + norm(1, "r2", "y", "e1")
    original = model("x2 = Tanh (x) " + body, e0=1e-5, e1=1e-3)
    result = api.fuse(original, BOTH)
    assert functions(result.model) == ["LayerNorm", "SkipLayerNorm"]
    require_undone(original, result.model, BOTH)


def test_another_structure_is_another_function() -> None:
    """An axis is part of what is computed; numbers of functions count on without gaps."""
    square = norm(2, "u", "y", "e1", axis=-2).replace("Mul (n2, w)", "Mul (n2, two)").replace("(g2, b)", "(g2, two)")
    original = model(norm(0, "x", "t", "e0") + norm(1, "t", "u", "e1") + square, e0=1e-5, e1=1e-3)
    result = api.fuse(original, ["LayerNorm"])
    assert functions(result.model) == ["LayerNorm", "LayerNorm.2"]
    require_undone(original, result.model, ("LayerNorm",))


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_the_number_is_still_proved(target: str) -> None:
    original = model(norm(0, "x", "t", "e0") + norm(1, "t", "y", "e1"), e0=1e-5, e1=1e-3)
    result = api.fuse(original, ["LayerNorm"], lower=target)
    assert [round(node.attributes.get_float("epsilon", 0.0), 6) for node in result.model.graph] == [1e-5, 1e-3]
    assert not {"e0", "e1"} & result.model.graph.initializers.keys()


def test_scales_and_zero_points_that_differ_are_inputs() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (uint8[2,8] x) => (uint8[2,8] y)
      <float s0 = {0.5}, float s1 = {0.25}, float s2 = {0.125}, uint8 z0 = {3}, uint8 z1 = {128}, uint8 z2 = {0}>
      { a = DequantizeLinear (x, s0, z0) b = Relu (a) c = QuantizeLinear (b, s1, z1)
        d = DequantizeLinear (c, s1, z1) e = Relu (d) y = QuantizeLinear (e, s2, z2) }"""
    original = onnx.parser.parse_model(text)
    result = api.fuse(original, ["DequantizeLinear->Relu->QuantizeLinear"])
    assert functions(result.model) == ["MetaOp"]
    assert [[v.name for v in n.inputs if v is not None] for n in result.model.graph] == [
        ["x", "s0", "z0", "s1", "z1"],
        ["c", "s1", "z1", "s2", "z2"],
    ]
    require_undone(original, result.model, ("DequantizeLinear->Relu->QuantizeLinear",))
