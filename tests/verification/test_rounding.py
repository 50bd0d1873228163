"""The judgement of the whole model: rounding that the original has itself is no mistake, anything else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.load import load
from onnxtile.model.session import session_of
from onnxtile.verification.rounding import compare, judge, one_step_off


def model(scale: float, shift: float = -10.0) -> onnx.ModelProto:
    """Sigmoid(x · w · scale + shift): near 0 float32's sigmoid has steps as large as its results."""
    weight = np.random.default_rng(0).standard_normal((512, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "scale"], ["s"]),
        helper.make_node("Add", ["s", "shift"], ["t"]),
        helper.make_node("Sigmoid", ["t"], ["y"]),
    ]
    constants = {"w": weight, "scale": np.float32(scale), "shift": np.float32(shift)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [8, 512])],
        [helper.make_tensor_value_info("y", 1, [8, 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_rounding_explains_is_no_mistake() -> None:
    verdict = judge(load(model(0.05)), load(model(0.05 * (1 + 2e-7))))
    assert verdict.equal


def test_what_rounding_does_not_explain_is_one() -> None:
    verdict = judge(load(model(0.05)), load(model(0.05 * 1.01)))
    assert not verdict.equal
    assert not judge(load(model(0.05)), load(model(0.05, -9.99))).equal


def test_inputs_without_axes_are_moved_by_a_unit_too() -> None:
    first, second = (
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
            g (float x) => (float y) {{ c = Constant<value = float {{{factor}}}>() y = Mul(x, c) }}""")
        for factor in ("1.0", "1.5")
    )
    assert not judge(load(first), load(second)).equal


NEAR = 1 + 3e-4 * np.random.default_rng(1).standard_normal(64)


def quantised(factor: Any, *, dynamic: bool, output: str = "y", zero: int = 3) -> onnx.ModelProto:
    """Two products of which the second is quantised; `factor` multiplies what is quantised. Inputs are token ids: they cannot be nudged."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["p"]),
        helper.make_node("Mul", ["p", "factor"], ["a"]),
    ]
    if dynamic:
        nodes += [
            helper.make_node("DynamicQuantizeLinear", ["a"], ["q", "s", "z"]),
            helper.make_node("MatMulInteger", ["q", "v", "z"], ["i"]),
            helper.make_node("Cast", ["i"], ["f"], to=1),
            helper.make_node("Mul", ["f", "s"], ["y"]),
        ]
    else:
        nodes += [
            helper.make_node("QuantizeLinear", ["a", "step", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"]),
            helper.make_node("MatMul", ["d", "u"], ["y"]),
        ]
    constants = {
        "table": random.standard_normal((64, 512)).astype(np.float32),
        "w": random.standard_normal((512, 64)).astype(np.float32),
        "v": random.integers(-9, 9, (64, 4)).astype(np.int8),
        "u": random.standard_normal((64, 4)).astype(np.float32),
        "factor": np.asarray(factor, np.float32),
        "step": np.float32(0.25),
        "zero": np.int8(zero),
    }
    used = {name for node in nodes for name in node.input}
    typed = helper.make_tensor_value_info(output, 1, [64, 4])
    if output == "q":
        nodes, typed = nodes[:4], helper.make_tensor_value_info("q", TensorProto.INT8, [64, 64])
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [64])],
        [typed],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_step_of_quantisation_is_no_mistake(dynamic: bool) -> None:
    near, far = (load(quantised(factor, dynamic=dynamic)) for factor in (NEAR, 1.05))
    original = load(quantised(1.0, dynamic=dynamic))
    assert not compare(original, near).equal
    assert judge(original, near).equal
    assert not judge(original, far).equal


def test_quantised_outputs_may_be_steps_off_and_other_integers_may_not() -> None:
    original = load(quantised(1.0, dynamic=False, output="q"))
    off = load(quantised(NEAR, dynamic=False, output="q"))
    verdict = judge(original, off)
    assert verdict.equal and verdict.outputs[0].max_abs == 1
    assert not judge(original, load(quantised(1.0, dynamic=False, output="q", zero=6))).equal


@pytest.mark.parametrize("opset", [17, 22])
@pytest.mark.parametrize("dynamic", [True, False])
def test_one_step_off_moves_few_elements_and_stays_inside_the_type(dynamic: bool, opset: int) -> None:
    proto = quantised(40.0, dynamic=dynamic)
    proto.opset_import[0].version, proto.ir_version = opset, 10
    proto.graph.output.append(
        helper.make_tensor_value_info("q", TensorProto.UINT8 if dynamic else TensorProto.INT8, [64, 64])
    )
    original = load(proto)
    stepping = one_step_off(original)
    assert stepping is not None
    feeds = {"x": np.arange(64)}
    q, moved = (session_of(one).run(feeds)["q"] for one in (original, stepping))
    off = np.abs(q.astype(int) - moved.astype(int))
    assert q.dtype == moved.dtype
    assert off.max() == 1
    assert 0 < off.mean() < 0.05


def test_a_float_model_has_no_steps() -> None:
    assert one_step_off(load(model(0.05))) is None


def halves(factor: float, *, apart: bool) -> onnx.ModelProto:
    """A product in float16 times `factor`, whole or as a sum of two, between inputs and outputs of float32."""
    whole = "p = MatMul(h, w)"
    two = "a, b = Split <axis = 1> (h, sizes) v, u = Split <axis = 0> (w, sizes) q = MatMul(a, v) r = MatMul(b, u) p = Add(q, r)"
    found = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[16, 64] x) => (float[16, 64] y) <int64[2] sizes = {{32, 32}}>
        {{ h = Cast <to = 10> (x) {two if apart else whole} s = Mul(p, factor) y = Cast <to = 1> (s) }}""")
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    for name, array in {"w": weight, "factor": np.float16(factor)}.items():
        found.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return found


def test_outputs_computed_in_halves_may_be_off_as_far_as_halves_where_floats_agree() -> None:
    original, near = (load(halves(1.0, apart=apart)) for apart in (False, True))
    assert not compare(original, near).equal
    verdict = judge(original, near)
    assert verdict.equal and "float32" in verdict.outputs[0].reason
    far = load(halves(1.001, apart=False))
    assert np.float16(1.001) != 1 and not judge(original, far).equal
