"""Kernels of C whose text is ours compute what onnxruntime does: sums in 8 bits by the byte, gated recurrent units in all forms."""

from __future__ import annotations

from itertools import product, starmap
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

import onnxtile
from models.make_quantised import FORMS
from onnxtile.firmware.build import build
from onnxtile.model.feeds import Wanted
from onnxtile.system.runtime import Array
from tests.build import side_by_side
from tests.firmware.test_program import built, needs_cc, opened_of

BYTES = np.arange(256, dtype=np.uint8)


def sum_in_8_bits(seed: int, dtype: type) -> onnx.ModelProto:
    """Return a QLinearAdd with random scales and zero points."""
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
        zero: Array = np.asarray(random.integers(0, 128), dtype)
        model.graph.initializer.append(numpy_helper.from_array(scale, f"s{name}"))
        model.graph.initializer.append(numpy_helper.from_array(zero, f"z{name}"))
    return model


@needs_cc
def test_a_sum_in_8_bits_has_the_bytes_of_onnxruntime() -> None:
    """Each sum is of all pairs of bytes."""
    kinds = list(product(range(3), (np.int8, np.uint8)))
    sides = {"a": np.repeat(BYTES, 256), "b": np.tile(BYTES, 256)}
    given = Wanted(
        {
            f"m{number}_{name}": array.view(dtype).reshape(2, 32768)
            for number, (_, dtype) in enumerate(kinds)
            for name, array in sides.items()
        }
    )
    planned = onnxtile.plan(side_by_side(starmap(sum_in_8_bits, kinds)), verify=False)
    proof = build(opened_of(planned), planned.plan, wanted=given).proof
    # A processor without fused multiply-adds rounds twice in onnxruntime.
    is_fused = any(word in Path("/proc/cpuinfo").read_text("utf-8").split() for word in ("fma", "asimd"))
    assert proof.equal and len(proof.outputs) == len(kinds)
    assert max(output.max_abs for output in proof.outputs) <= (0 if is_fused else 1)


@needs_cc
def test_a_template_has_its_headers_beside_kernels_that_need_none() -> None:
    """The sum calls fmaf of math.h; the pool, which is emx's, calls nothing."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (uint8[1, 2, 6, 6] a, uint8[1, 2, 6, 6] b) => (uint8[1, 2, 5, 5] y) <float s = {0.1}, uint8 z = {3}> {
            c = com.microsoft.QLinearAdd(a, s, z, b, s, z, s, z)
            y = MaxPool<kernel_shape = [2, 2]>(c)
        }"""
    )
    assert built(model).proof.equal


@needs_cc
def test_attention_with_lengths_is_causal_to_the_last_key() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 24]>
        g (float[2, 4, 3, 8] q, float[2, 2, 6, 8] k, float[2, 2, 6, 8] v, int64[2] lengths) => (float[2, 4, 3, 8] y) {
            y = Attention <is_causal = 1> (q, k, v, , , , lengths)
        }"""
    )
    random = np.random.default_rng(0)
    given: dict[str, Array] = {
        name: random.standard_normal((2, heads, rows, 8)).astype(np.float32)
        for name, heads, rows in (("q", 4, 3), ("k", 2, 6), ("v", 2, 6))
    }
    planned = onnxtile.plan(model, verify=False)
    assert build(opened_of(planned), planned.plan, wanted=Wanted(given | {"lengths": np.array([2, 5])})).proof.equal


def recurrent(direction: str, after: int, more: str, results: str) -> onnx.ModelProto:
    """Return a GRU with random weights."""
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
    return model


@needs_cc
@pytest.mark.parametrize("direction", ["forward", pytest.param("reverse", marks=pytest.mark.slow), "bidirectional"])
def test_gated_recurrent_units_keep_their_state_in_the_result(direction: str) -> None:
    results = [("", " , last"), ("b", "y, last"), ("b, , h", " , last")]
    made = built(side_by_side(recurrent(direction, after, *names) for after in (0, 1) for names in results))
    assert made.proof.equal and "H_prev" not in made.source.code and made.source.calls == 6


@needs_cc
@pytest.mark.parametrize(("direction", "ways"), [("bidirectional", 2), ("reverse", 1)])
def test_all_states_of_an_lstm_on_the_way_back_are_in_the_order_of_its_steps(direction: str, ways: int) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[7, 2, 3] x, float[{ways}, 2, 5] h, float[{ways}, 2, 5] c)
            => (float[7, {ways}, 2, 5] y, float[7, {ways}, 2, 5] z, float[{ways}, 2, 5] last, float[{ways}, 2, 5] cell) {{
            y = LSTM <direction = "{direction}", hidden_size = 5> (x, w, r)
            z, last, cell = LSTM <direction = "{direction}", hidden_size = 5> (x, w, r, b, , h, c)
        }}"""
    )
    random = np.random.default_rng(0)
    for name, shape in (("w", (20, 3)), ("r", (20, 5)), ("b", (40,))):
        model.graph.initializer.append(
            numpy_helper.from_array(random.normal(size=(ways, *shape)).astype(np.float32), name)
        )
    assert built(model).proof.equal


@needs_cc
def test_einsums_of_any_equation_have_a_kernel() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[3, 4, 2] x, float[4, 2, 5] w, float[4, 4] m) => (float[3, 2, 5] y, float s, float[4, 1, 3] t, float[4] d) {
            y = Einsum <equation = "ijh, jhd -> ihd"> (x, w)
            s = Einsum <equation = "ab,ab->"> (m, m)
            t = Einsum <equation = "ajh,jk,khd->kda"> (x, m, first)
            d = Einsum <equation = "ii->i"> (m)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 2, 1), np.float32), "first"))
    assert built(model).proof.equal


@needs_cc
def test_slices_read_axes_backwards() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 5, 3] x) => (float[4, 5, 3] y, float[4, 2, 1] z)
            <int64[1] least = {-9223372036854775807}, int64[1] last = {-1},
             int64[2] starts = {-2, 0}, int64[2] ends = {0, 2}, int64[2] axes = {1, -1}, int64[2] steps = {-2, 2}> {
            y = Slice(x, last, least, last, last)
            z = Slice(x, starts, ends, axes, steps)
        }"""
    )
    assert built(model).proof.equal


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


CONVOLUTIONS = [
    ("1, 3, 9, 8", "6, 3, 3, 3", "pads = [1, 1, 1, 1]"),
    ("1, 8, 9, 8", "6, 8, 3, 2", "pads = [1, 0, 2, 1], strides = [2, 1]"),
    ("1, 8, 5, 5", "4, 2, 1, 1", "group = 4, strides = [2, 2]"),
    ("1, 6, 7, 9", "6, 1, 5, 3", "group = 6, pads = [4, 2, 2, 0]"),
    ("1, 4, 2, 2", "8, 1, 3, 3", "group = 4, pads = [3, 3, 3, 3], strides = [3, 3]"),
    ("1, 5, 4, 4", "3, 5, 1, 1", ""),
    ("1, 3, 9", "4, 3, 3", ""),
    ("1, 6, 9", "4, 6, 5", "pads = [3, 1], strides = [2]"),
    ("1, 4, 7", "8, 1, 3", "group = 4, pads = [4, 0]"),
    ("1, 5, 8", "3, 5, 1", "strides = [3]"),
]
OTHER_CONVOLUTIONS = [
    ("2, 3, 6, 6", "4, 3, 3, 3", ""),
    ("1, 3, 9, 9", "4, 3, 3, 3", "dilations = [2, 2]"),
    ("1, 3, 9, 9", "4, 3, 3, 3", 'auto_pad = "SAME_UPPER"'),
    ("2, 3, 9", "4, 3, 3", ""),
    ("1, 3, 9", "4, 3, 3", "dilations = [2]"),
]


def convolution(sizes: str, weight: str, attributes: str) -> onnx.ModelProto:
    """Return a convolution with random weights, and a Relu."""
    random = np.random.default_rng(0)
    shape = [int(size) for size in weight.split(", ")]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{sizes}] x) => (float y) {{
            c = Conv <kernel_shape = {shape[2:]}{", " if attributes else ""}{attributes}> (x, w, b)
            y = Relu(c)
        }}"""
    )
    for name, size in (("w", tuple(shape)), ("b", (shape[0],))):
        model.graph.initializer.append(numpy_helper.from_array(random.normal(size=size).astype(np.float32), name))
    return onnx.shape_inference.infer_shapes(model)


@needs_cc
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
    "form", ["float", pytest.param("qoperator-per-channel", marks=pytest.mark.slow), "qoperator-u8s8"]
)
@pytest.mark.parametrize("cases", [CONVOLUTIONS, OTHER_CONVOLUTIONS], ids=["ours", "others"])
def test_convolutions_of_all_shapes(form: str, cases: list[tuple[str, str, str]], tmp_path: Path) -> None:
    onnx.save(side_by_side(starmap(convolution, cases)), tmp_path / "model.onnx")
    if form != "float":
        FORMS[form](tmp_path / "model.onnx", tmp_path / "model.onnx")
    made = built(tmp_path / "model.onnx")
    results = made.proof.results
    assert made.proof.equal and (results is None or results.one_step == 0)
    texts = made.source.code.split("\nstatic ")
    is_ours = {"row_end" in text or "a +=" in text for text in texts if "a +=" in text or text.count("for (") > 4}
    assert is_ours == {cases is CONVOLUTIONS}
