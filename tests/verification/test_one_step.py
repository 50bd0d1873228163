"""verify --tolerance 1step: quantised outputs may be one step of quantisation off, and no more."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.model.load import load
from onnxtile.verification.rounding import judge

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
