"""verify --tolerance 1step: quantised outputs may be one step of quantisation off, and no more."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtile

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
