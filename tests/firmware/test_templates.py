"""Kernels of C whose text is ours compute what onnxruntime does: sums in 8 bits by the byte, gated recurrent units in all forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

import onnxtile
from onnxtile.firmware.build import build
from onnxtile.model.feeds import Wanted
from tests.firmware.test_program import built, needs_cc, opened_of

BYTES = np.arange(256, dtype=np.uint8)


@needs_cc
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("seed", range(3))
def test_a_sum_in_8_bits_has_the_bytes_of_onnxruntime(dtype: type, seed: int) -> None:
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype).name
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g ({kind}[2, 32768] a, {kind}[2, 32768] b) => ({kind}[2, 32768] c) {{
            c = com.microsoft.QLinearAdd(a, sa, za, b, sb, zb, sc, zc)
        }}"""
    )
    for name in ("a", "b", "c"):
        scale = np.asarray(np.exp(random.normal() / 2 - 3), np.float32)
        zero = np.asarray(random.integers(0, 256), np.uint8).view(dtype)
        model.graph.initializer.append(numpy_helper.from_array(scale, f"s{name}"))
        model.graph.initializer.append(numpy_helper.from_array(zero, f"z{name}"))
    sides = {"a": np.repeat(BYTES, 256), "b": np.tile(BYTES, 256)}
    given = Wanted({name: array.view(dtype).reshape(2, 32768) for name, array in sides.items()})
    planned = onnxtile.plan(model, verify=False)
    proof = build(opened_of(planned), planned.plan, wanted=given).proof
    # A processor without fused multiply-adds rounds twice in onnxruntime.
    is_fused = any(word in Path("/proc/cpuinfo").read_text("utf-8").split() for word in ("fma", "asimd"))
    assert proof.equal and proof.outputs[0].max_abs <= (0 if is_fused else 1)


@needs_cc
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(("more", "results"), [("", " , last"), ("b", "y, last"), ("b, , h", " , last")])
def test_gated_recurrent_units_keep_their_state_in_the_result(
    direction: str, after: int, more: str, results: str
) -> None:
    random, directions = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    rows = f"float[7, {directions}, 2, 5] y, " if "y" in results else ""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[7, 2, 3] x, float[{directions}, 2, 5] h) => ({rows}float[{directions}, 2, 5] last) {{
            {results} = GRU <direction = "{direction}", hidden_size = 5, linear_before_reset = {after}>
                (x, w, r{", " if more else ""}{more})
        }}"""
    )
    for name, shape in (("w", (15, 3)), ("r", (15, 5)), ("b", (30,))):
        array = random.normal(size=(directions, *shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made = built(model)
    assert made.proof.equal and "H_prev" not in made.source.code


@needs_cc
@pytest.mark.parametrize("attributes", ["clip = 1.0", 'activations = ["Sigmoid", "Relu"]'])
def test_other_recurrent_units_are_not_ours(attributes: str) -> None:
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[7, 2, 3] x) => (float[1, 2, 5] last) {{
            , last = GRU <hidden_size = 5, {attributes}> (x, w, r)
        }}"""
    )
    for name, shape in (("w", (15, 3)), ("r", (15, 5))):
        array = random.normal(size=(1, *shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made = built(model)
    assert made.proof.equal and "H_prev" in made.source.code
