"""What a run may be off: rounding of quantised models, one step of them, and what is written before the last."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtile
from onnxtile.model.load import load
from onnxtile.model.session import session_of
from onnxtile.verification.rounding import compare, judge, one_step_off
from tests import build

# The judgement of the whole model: rounding that the original has itself is no mistake, anything else is.


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
    return build.model(nodes, {"x": [8, 512]}, {"y": [8, 4]}, constants, ir_version=8)


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
    return build.model(
        nodes,
        {"x": (TensorProto.INT64, [64])},
        [typed],
        {name: array for name, array in constants.items() if name in used},
        ir_version=8,
    )


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


# verify --tolerance 1step: quantised outputs may be one step of quantisation off, and no more.


HEAD = '<ir_version: 10, opset_import: ["": 17]>\n'


def ending(tail: str, kind: str, steps: int = 0, scale: float | tuple[float, ...] = 0.25) -> onnx.ModelProto:
    """Return a model whose quantised result is `steps` off in one element; `tail` makes the output of it."""
    text = f"{HEAD} g (float[2,4] x) => ({kind} y) {{ q = QuantizeLinear(x, step, zero) o = Add(q, off) {tail} }}"
    made = onnx.parser.parse_model(text)
    off = np.zeros((2, 4), np.uint8)
    off[1, 2] = steps
    weights = {"step": np.float32(0.25), "zero": np.uint8(100), "off": off, "scale": np.asarray(scale, np.float32)}
    weights["zeros"] = np.full(np.shape(scale), 100, np.uint8)
    for name, array in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return made


TAILS: list[tuple[str, str, float | tuple[float, ...]]] = [
    ("y = Identity(o)", "uint8[2,4]", 0.25),
    ("y = DequantizeLinear(o, scale, zeros)", "float[2,4]", 0.25),
    ("d = DequantizeLinear(o, scale, zeros) y = Transpose(d)", "float[4,2]", 0.25),
    ("y = DequantizeLinear<axis=1>(o, scale, zeros)", "float[2,4]", (0.5, 1.0, 0.25, 8.0)),
]


@pytest.mark.parametrize(("tail", "kind", "scale"), TAILS)
def test_one_step_passes_and_two_do_not(tail: str, kind: str, scale: float | tuple[float, ...]) -> None:
    original = ending(tail, kind, scale=scale)
    one, two = (ending(tail, kind, steps, scale) for steps in (1, 2))
    assert not onnxtile.verify(original, one).equal
    verdict = onnxtile.verify(original, one, tolerance="1step")
    assert verdict.equal and "one step of quantisation" in verdict.outputs[0].why
    assert not onnxtile.verify(original, two, tolerance="1step").equal


def test_a_float_that_is_not_dequantised_keeps_its_tolerance() -> None:
    tail = "d = DequantizeLinear(o, scale, zeros) y = Exp(d)"
    original, one = ending(tail, "float[2,4]"), ending(tail, "float[2,4]", 1)
    assert onnxtile.verify(original, original, tolerance="1step").equal
    assert not onnxtile.verify(original, one, tolerance="1step").equal


def test_any_other_tolerance_is_refused() -> None:
    with pytest.raises(onnxtile.UsageError, match="tolerance='2step'"):
        onnxtile.verify(ending(*TAILS[0][:2]), ending(*TAILS[0][:2]), tolerance="2step")  # type: ignore[arg-type]


RESULTS = [
    ("y = Transpose(q)", "int8[4,64]"),
    ("y = DequantizeLinear(q, scale, zero)", "float[64,4]"),
    ("t = Identity(q) y = Concat<axis=0>(t, q)", "int8[128,4]"),
    ("y = com.microsoft.QLinearAdd(q, scale, zero, q, scale, zero, wide, zero)", "int8[64,4]"),
]


def rounding(tail: str, kind: str, factor: float = 1.0, shift: float = 0.0) -> onnx.ModelProto:
    """Return a model that quantises a product times `factor`, plus `shift` steps; `tail` makes the output of that."""
    text = f"""<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]> g (float[64,8] x) => ({kind} y) {{
        p = MatMul(x, w) a = Mul(p, factor) b = Add(a, shift) q = QuantizeLinear(b, scale, zero) {tail} }}"""
    made = onnx.parser.parse_model(text)
    weights = {
        "w": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32),
        "factor": np.float32(factor),
        "shift": np.float32(shift / 8),
        "scale": np.float32(1 / 8),
        "wide": np.float32(1 / 4),
        "zero": np.int8(3),
    }
    for name, array in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return made


@pytest.mark.parametrize(("tail", "kind"), RESULTS)
def test_verify_and_fit_judge_by_one_rule(tail: str, kind: str) -> None:
    """Rounding of the product crosses the border between two steps in a few elements, which both let pass and count."""
    original, near, far = (rounding(tail, kind, *how) for how in ((1.0, 0.0), (1 + 1e-3, 0.0), (1.0, 3.0)))
    verdict = onnxtile.verify(original, near)
    judged = judge(load(original), load(near))
    assert verdict.equal and judged.equal
    assert verdict.outputs == judged.outputs
    assert re.fullmatch(r"\d{1,2} of (256|512) elements are one step of quantisation off", verdict.outputs[0].reason)
    assert not onnxtile.verify(original, far).equal


def test_integers_and_floats_that_no_quantisation_makes_are_as_strict_as_before() -> None:
    for tail, kind in (
        ("d = DequantizeLinear(q, scale, zero) y = Exp(d)", "float[64,4]"),
        ("c = Cast<to=6>(q) y = Mul(c, c)", "int32[64,4]"),
        ("d = DequantizeLinear(q, scale, zero) r = Round(d) y = Cast<to=3>(r)", "int8[64,4]"),
    ):
        original, near = (rounding(tail, kind, factor) for factor in (1.0, 1.05))
        assert onnxtile.verify(original, original).equal
        assert not onnxtile.verify(original, near).equal


# Outputs that are flat on noise are compared before their last Sigmoid or Softmax.


def head(last: str, *, factor: float = 1.0, shift: float = -100.0, pieces: bool = False) -> onnx.ModelProto:
    """Return MatMul, Add and the operator `last`, written as two pieces of rows or as one."""
    body = "p = MatMul(x, w) t = Add(p, shift) "
    body += (
        f"a, b = Split<axis=0>(t) c = {last}(a) d = {last}(b) y = Concat<axis=0>(c, d)" if pieces else f"y = {last}(t)"
    )
    made = onnx.parser.parse_model(f"{HEAD} g (float[4,8] x) => (float[4,3] y) {{ {body} }}")
    random = np.random.default_rng(0)
    weight = (random.standard_normal((8, 3)) * factor).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    made.graph.initializer.append(
        numpy_helper.from_array(np.asarray([shift, 0, 0], np.float32)[: 3 if last == "Softmax" else 1], "shift")
    )
    return made


@pytest.mark.parametrize(("last", "shift"), [("Sigmoid", -100.0), ("Sigmoid", 100.0), ("Softmax", 1000.0)])
def test_a_wrong_model_with_the_same_flat_output_differs(last: str, shift: float) -> None:
    good, wrong = head(last, shift=shift), head(last, shift=shift, factor=1.1)
    for verdict in (onnxtile.verify(good, wrong), judge(load(good), load(wrong))):
        assert not verdict.equal
        assert f"compared before the last {last}" in verdict.outputs[0].reason


def test_pieces_are_compared_before_each_of_their_last_operators() -> None:
    verdict = onnxtile.verify(head("Sigmoid"), head("Sigmoid", pieces=True))
    assert verdict.equal
    assert "compared before the last Sigmoid: the output is flat" in verdict.outputs[0].reason
    assert not onnxtile.verify(head("Sigmoid"), head("Sigmoid", pieces=True, factor=1.1)).equal


def test_an_output_that_tells_something_is_compared_itself() -> None:
    assert onnxtile.verify(head("Sigmoid", shift=0.0), head("Sigmoid", shift=0.0)).outputs[0].reason == ""
    verdict = onnxtile.verify(head("Sigmoid", shift=0.0), head("Sigmoid", shift=0.0, factor=1.1))
    assert not verdict.equal and verdict.outputs[0].reason == ""


def test_models_that_end_in_different_operators_are_compared_by_their_outputs() -> None:
    other = onnx.parser.parse_model(
        f"{HEAD} g (float[4,8] x) => (float[4,3] y) {{ s = Slice(x, a, b, b) y = Mul(s, z) }}"
    )
    for name, array in {"a": np.asarray([0]), "b": np.asarray([3]), "z": np.zeros(1, np.float32)}.items():
        other.graph.initializer.append(numpy_helper.from_array(array, name))
    other.graph.node[0].input[3] = "one"
    other.graph.initializer.append(numpy_helper.from_array(np.asarray([1]), "one"))
    assert onnxtile.verify(head("Sigmoid", shift=-200.0), other).equal
