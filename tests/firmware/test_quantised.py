"""Programs in C of quantised models: in integers, compared node by node, islands of floats row by row, weights of 4 bits packed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtile
from models.make_quantised import FORMS
from onnxtile.firmware.build import Firmware, build
from onnxtile.firmware.kernels import kernels_in_c
from onnxtile.report.plan_tables import for_firmware
from onnxtile.report.table import Table
from onnxtile.system.errors import Mismatch
from tests.build import side_by_side
from tests.firmware.test_program import M4, M7, built, emulated, needs_cc, network, opened_of


@cache
def quantised(form: str = "qoperator") -> onnx.ModelProto:
    """Return the network quantised in a form."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(network(), source := Path(folder, "float.onnx"))
        FORMS[form](source, target := Path(folder, "int.onnx"))
        return onnx.load(target)


@cache
def firmware_of(form: str) -> Firmware:
    """Return the program of a quantised network, planned as islands."""
    return built(quantised(form))


@needs_cc
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
    "form",
    [
        "qdq-per-channel",
        "qoperator",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("qdq", "qoperator-per-channel")),
    ],
)
def test_a_quantised_network_runs_in_integers(form: str) -> None:
    made = firmware_of(form)
    assert made.proof.equal and made.source.workspace <= 256  # the floats of an island that has no operator on integers
    functions = made.source.code.split("_run(", maxsplit=1)[0]
    assert "weights_8[]" in functions


@needs_cc
def test_a_plan_of_nodes_says_that_its_kernels_run_in_floats() -> None:
    made = built(quantised("qdq"), kernels="nodes")
    assert made.in_floats > 3
    table = for_firmware(made.to_dict())[0]
    assert isinstance(table, Table)
    rows = dict(zip(*(map(str, column.cells) for column in table.columns), strict=True))
    assert (
        rows["kernels in floats"]
        == f"{made.in_floats} between quantised tensors: planned as islands, they run in integers"
    )
    assert firmware_of("qdq").in_floats == 0


def _with_sums_rounded_by(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sum of QLinearAdd be rounded by `text` in place of the nearest whole number."""
    from onnxtile.firmware import write

    def changed(*arguments: Any) -> Any:
        made = kernels_in_c(*arguments)
        before = "nearbyintf(fmaf("
        assert sum(before in function.text for function in made.functions) == 1
        functions = tuple(replace(one, text=one.text.replace(before, f"{text}(fmaf(")) for one in made.functions)
        return replace(made, functions=functions)

    monkeypatch.setattr(write, "kernels_in_c", changed)


@needs_cc
@pytest.mark.parametrize("io", ["inside", *(pytest.param(io, marks=pytest.mark.slow) for io in ("outputs", "outside"))])
def test_results_that_are_rounded_otherwise_are_within_one_step(io: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_sums_rounded_by("floorf", monkeypatch)
    proof = built(quantised(), io=io).proof
    assert proof.equal and proof.results is not None
    assert proof.results.operators == ("QLinearAdd",) and proof.results.one_step == proof.runs
    assert proof.results.count == proof.results.equal + proof.runs > 10 * proof.runs
    assert f"{proof.runs} within one step of quantisation (QLinearAdd)" in proof.summary


@needs_cc
def test_the_node_whose_result_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_sums_rounded_by("2.0f + rintf", monkeypatch)
    with pytest.raises(Mismatch, match=r"on the same operands 'sum_quantized' .QLinearAdd. is off by 2"):
        built(quantised())


@needs_cc
def test_a_quantised_tensor_at_a_wrong_address_is_noticed() -> None:
    planned = onnxtile.plan(quantised(), verify=False)
    offsets = {row.name: row.offset for row in planned.plan.buffers}
    moved = tuple(
        replace(row, offset=offsets["c2_quantized"], alias=None) if row.name == "c3_quantized" else row
        for row in planned.plan.buffers
    )
    with pytest.raises(Mismatch, match=r"on the same operands '|writes outside"):
        build(opened_of(planned), replace(planned.plan, buffers=moved))


FEW_BITS = [
    ("int4", "b = 32"),
    ("int4", "of a column"),
    ("int4", "of all"),
    ("uint4", "b = 16"),
    ("int8", "b = 6"),
    ("uint8", "of all"),
]
KINDS = {
    "int4": (TensorProto.INT4, -8, 8),
    "uint4": (TensorProto.UINT4, 0, 16),
    "int8": (TensorProto.INT8, -128, 128),
    "uint8": (TensorProto.UINT8, 0, 256),
}


def _with_weights(
    body: str, dtype: str, sizes: tuple[int, ...], scales: tuple[int, ...], attributes: str, floats: Any = np.float32
) -> onnx.ModelProto:
    """Return a model of `body`, which reads the weights `w`, stored as `q`, and a bias `b` of 48 elements."""
    random = np.random.default_rng(1)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g {body.replace("{", "{ w = DequantizeLinear <" + attributes + "> (q, s, z)", 1)}"""
    )
    kind, low, high = KINDS[dtype]
    zeros = random.integers(low, high, scales) if dtype.startswith("u") else np.zeros(scales, np.int64)
    model.graph.initializer.extend(
        [
            helper.make_tensor("q", kind, sizes, random.integers(low, high, sizes).ravel().tolist()),
            numpy_helper.from_array(random.uniform(0.01, 0.1, scales).astype(floats), "s"),
            helper.make_tensor("z", kind, scales, zeros.ravel().tolist()),
        ]
    )
    if ", b)" in body:
        model.graph.initializer.append(numpy_helper.from_array(random.normal(size=48).astype(floats), "b"))
    return onnx.shape_inference.infer_shapes(model)


def _require_packed(models: Sequence[onnx.ModelProto], **options: str) -> None:
    """Require of the program of all models that one kernel is called for each, which reads the weights as they are stored."""
    model = side_by_side(models)
    made = built(model, **options)
    assert made.proof.equal and len(made.proof.outputs) == made.source.calls == len(models)
    assert made.source.workspace == 0
    bits: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.INT8: 8, TensorProto.UINT8: 8}
    most = (-(-int(np.prod(one.dims)) * bits.get(one.data_type, 32) // 8) for one in model.graph.initializer)
    assert made.source.weights <= sum(most)


@needs_cc
@pytest.mark.parametrize("kernels", ["islands", "nodes"])
def test_weights_of_few_bits_are_unpacked_by_the_kernel(kernels: str) -> None:
    models = []
    for dtype, scales in FEW_BITS:
        block = int(scales[4:]) if scales.startswith("b") else 0
        shape = {"of a column": (48,), "of all": ()}.get(scales, (96 // (block or 1), 48))
        attributes = f"axis = {0 if block else 1}, block_size = {block}"
        body = "(float[2, 5, 96] x) => (float[2, 5, 48] y) { y = MatMul(x, w) }"
        models.append(_with_weights(body, dtype, (96, 48), shape, attributes))
    _require_packed(models, kernels=kernels)


Weights: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], str]
"""What reads weights, their sizes and those of their scales, and the attributes of their DequantizeLinear."""
UNPACKING: list[Weights] = [
    (
        "(float[7, 96] x) => (float[7, 48] y) { y = Gemm <alpha = 0.5, beta = -2.0> (x, w, b) }",
        (96, 48),
        (48,),
        "axis = 1",
    ),
    (
        "(float[96, 7] x) => (float[7, 48] y) { y = Gemm <transA = 1, transB = 1> (x, w) }",
        (48, 96),
        (48, 3),
        "block_size = 32",
    ),
    (
        "(float[1, 96] x) => (float[1, 48] y) { t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t) }",
        *((48, 96), (48, 6), "block_size = 16"),
    ),
    ("(float[96] x) => (float[48] y) { y = MatMul(x, w) }", (96, 48), (96,), "axis = 0"),
    (
        "(float[2, 8, 9, 7] x) => (float y) { y = Conv <pads = [1, 0, 2, 1], strides = [2, 1]> (x, w, b) }",
        *((48, 8, 3, 3), (48,), "axis = 0"),
    ),
    (
        "(float[1, 16, 9, 9] x) => (float y) { y = Conv <group = 4, dilations = [1, 2], strides = [1, 2], pads = [0, 4, 0, 3]> (x, w) }",
        *((48, 4, 2, 3), (48, 2, 2, 3), "axis = 1, block_size = 2"),
    ),
    (
        "(float[1, 6, 20] x) => (float y) { y = Conv <strides = [3], pads = [2, 2]> (x, w, b) }",
        (48, 6, 5),
        (),
        "axis = 0",
    ),
    (
        "(float[1, 6, 5, 5] x) => (float y) { y = Conv <group = 6, pads = [4, 4, 4, 4]> (x, w, b) }",
        (48, 1, 3, 3),
        (),
        "axis = 0",
    ),
    (
        '(float[1, 4, 9, 8] x) => (float[1, 6, 5, 4] y) { y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w) }',
        (6, 4, 3, 4),
        (6,),
        "axis = 0",
    ),
    (
        '(float[1, 4, 9] x) => (float[1, 6, 5] y) { y = Conv <auto_pad = "SAME_LOWER", strides = [2]>(x, w) }',
        (6, 4, 4),
        (6,),
        "axis = 0",
    ),
    (
        "(float[1, 2, 5, 7, 6] x) => (float[1, 4, 3, 7, 4] y) "
        "{ y = Conv <pads = [1, 1, 0, 1, 1, 0], strides = [2, 1, 1]>(x, w) }",
        (4, 2, 3, 3, 3),
        (4,),
        "axis = 0",
    ),
    ("(int64[3, 2] x) => (float[3, 2, 40] y) { y = Gather(w, x) }", (30, 40), (30, 5), "block_size = 8"),
    ("(int32[4] x) => (float[3, 4, 5, 2] y) { y = Gather <axis = 1> (w, x) }", (3, 9, 5, 2), (5,), "axis = 2"),
]


UNPACKING_OF_16_BITS: list[Weights] = [
    ("(float16[3, 96] x) => (float16[3, 48] y) { y = MatMul(x, w) }", (96, 48), (48,), "axis = 1"),
    (
        "(float16[1, 96] x) => (float16[1, 48] y) { y = Gemm <transB = 1> (x, w, b) }",
        (48, 96),
        (48, 3),
        "block_size = 32",
    ),
    ("(int64[3, 2] x) => (float16[3, 2, 40] y) { y = Gather(w, x) }", (30, 40), (30, 5), "block_size = 8"),
    (
        "(float16[2, 8, 9, 7] x) => (float16 y) { y = Conv <pads = [1, 0, 2, 1], strides = [2, 1]> (x, w, b) }",
        *((48, 8, 3, 3), (48,), "axis = 0"),
    ),
    (
        "(float16[1, 16, 9, 9] x) => (float16 y) { y = Conv <group = 4, dilations = [1, 2], strides = [1, 2]> (x, w) }",
        *((48, 4, 2, 3), (48, 2, 2, 3), "axis = 1, block_size = 2"),
    ),
    (
        '(float16[1, 4, 9] x) => (float16 y) { y = Conv <auto_pad = "SAME_LOWER", strides = [2]>(x, w) }',
        *((6, 4, 4), (6,), "axis = 0"),
    ),
    (
        "(float16[1, 2, 5, 7, 6] x) => (float16 y) { y = Conv <pads = [1, 1, 0, 1, 1, 0], strides = [2, 1, 1]>(x, w) }",
        *((4, 2, 3, 3, 3), (4,), "axis = 0"),
    ),
]


@needs_cc
@pytest.mark.parametrize("dtype", ["int4", pytest.param("uint4", marks=pytest.mark.slow), "uint8"])
def test_products_convolutions_and_gathers_unpack_their_weights(dtype: str) -> None:
    _require_packed([_with_weights(case[0], dtype, *case[1:]) for case in UNPACKING])
    if dtype != "uint4":
        _require_packed([_with_weights(case[0], dtype, *case[1:], np.float16) for case in UNPACKING_OF_16_BITS])


@needs_cc
def test_results_a_step_off_are_compared_with_the_operator_on_integers() -> None:
    """A scale of a half makes every second sum a tie, which floats of 0.1 and of 0.05 decide by their own rounding."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 19]>
        g (int8[1, 16, 8, 8] q) => (int8[1, 4, 8, 8] r) <float s = {0.1}, float t = {0.05}, float u = {0.01}, int8 z = {0}> {
            x = DequantizeLinear(q, s, z)
            w = DequantizeLinear(k, t, z)
            y = Conv(x, w)
            r = QuantizeLinear(y, u, z)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(random.integers(-4, 5, (4, 16, 1, 1)).astype(np.int8), "k"))
    proof = built(model).proof
    results = proof.results
    assert proof.equal and results is not None and results.one_step == results.integers > 0
    assert results.operators == ("QConv",) and results.nodes == ("r",)
    assert "all with the bytes of onnxruntime's operator on integers, made by 'r'" in proof.summary


def _island(body: str, sizes: str, out: str = "") -> onnx.ModelProto:
    """A quantised tensor that is read as floats `x`, changed by `body`, and quantised again from `y`."""
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 19]>
        g (int8[{sizes}] q) => (int8[{out or sizes}] r)
        <float s = {{0.05}}, int8 z = {{3}}, float t = {{0.04}}, int8 u = {{-5}}, int64[1] two = {{2}}, int64[1] ten = {{10}}> {{
            x = DequantizeLinear(q, s, z)
            {body}
            r = QuantizeLinear(y, t, u)
        }}"""
    )


@needs_cc
@pytest.mark.parametrize(
    ("body", "sizes", "out", "row"),
    [
        ("y = Tanh(x)", "1, 8, 16, 32", "", 32),
        ("a = Erf(x) b = Mul(a, x) y = Sub(b, x)", "4, 6, 40", "", 40),
        ("y = LayerNormalization <axis = -1> (x, scale)", "12, 50", "", 50),
        ("a = Softmax <axis = 1> (x) y = Sqrt(a)", "2, 40, 30", "", 1200),
        ("a = Slice(x, two, ten, two) y = Sin(a)", "3, 5, 12, 24", "3, 5, 8, 24", 24),
        ("a = Slice(x, two, ten, last) y = Sin(a)", "3, 5, 12", "3, 5, 8", 12),
    ],
)
def test_an_island_in_floats_runs_row_by_row(
    body: str, sizes: str, out: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxtile.firmware import islands

    monkeypatch.setattr(islands, "_LITTLE", 64)
    model = _island(body, sizes, out)
    model.graph.initializer.append(numpy_helper.from_array(np.linspace(0.5, 1.5, 50, dtype=np.float32), "scale"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([-1], np.int64), "last"))
    made = built(model)
    assert made.proof.equal and made.proof.results is not None
    elements = int(np.prod([int(size) for size in (out or sizes).split(",")]))
    assert 0 < made.source.workspace <= 3 * 4 * row + 64 and row < elements
    assert made.source.calls >= 2 * elements // row


@needs_cc
@pytest.mark.parametrize("rows", [True, False])
def test_an_island_may_be_written_over_its_operand(rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtile.firmware import islands

    monkeypatch.setattr(islands, "_LITTLE", 64 if rows else 1 << 20)
    model = _island("y = Tanh(x)", "2, 16, 32")
    model.graph.node.append(helper.make_node("Neg", ["r"], ["n"]))
    model.graph.node.insert(0, helper.make_node("Neg", ["p"], ["q"]))
    model.graph.input[0].name = "p"
    model.graph.output[0].name = "n"
    made = built(model)
    assert (
        made.proof.equal
        and made.source.interface.arenas[0][2] == 1024
        and made.source.workspace <= (256 if rows else 4096)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("options", "board"), [M7, M4])
@pytest.mark.usefixtures("footprint")
def test_a_quantised_program_is_compared_node_by_node_on_a_microcontroller(options: str, board: str) -> None:
    planned = onnxtile.plan(quantised(), verify=False)
    made = build(opened_of(planned), planned.plan, target=emulated(options, board))
    results = made.proof.results
    assert made.proof.equal and made.proof.runs == 3 and results is not None
    assert results.count == results.equal + results.one_step + results.within >= 10
    assert made.footprint is not None and made.footprint.ram is not None and made.footprint.ram < 4096


@needs_cc
def test_a_cache_of_floats_around_integers_is_at_one_address() -> None:
    """A ScatterND that reads an 8-bit row writes into the cache; the cache is quantised before it is transposed."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 19]>
        g (int8[1, 24] q, int64[1, 1] at, float[32, 24] past) => (float[32, 24] next, int8[24, 32] turned)
        <float s = {0.05}, int8 z = {3}> {
            row = DequantizeLinear(q, s, z)
            next = ScatterND(past, at, row)
            columns = Transpose <perm = [1, 0]> (next)
            turned = QuantizeLinear(columns, s, z)
        }"""
    )
    planned = onnxtile.plan(model, verify=False, state={"past": "next"}, io="overwrite")
    assert [state.copied for state in planned.plan.states] == [0]
    made = build(opened_of(planned), planned.plan)
    assert made.proof.runs == 64 and all(output.max_abs == 0 for output in made.proof.outputs)
    assert made.source.workspace <= 24 * 32 + 128, "the workspace has no floats of the whole cache"


@needs_cc
def test_a_softmax_in_8_bits_is_rounded_once() -> None:
    """QLinearSoftmax takes 1 / scale as a whole number, so that shares near 1 are a step too small."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 19]>
        g (int8[40, 9] q) => (int8[40, 9] r)
        <float s = {0.05}, int8 z = {3}, float t = {0.00397}, int8 low = {-128}> {
            x = DequantizeLinear(q, s, z)
            y = Softmax <axis = -1> (x)
            r = QuantizeLinear(y, t, low)
        }"""
    )
    made = built(model)
    assert made.proof.outputs[0].max_abs == 0 and 0 < made.source.workspace <= 40 * 9 * 4


@needs_cc
@pytest.mark.parametrize("padding", ["", "pads = [1, 1, 1, 1], "])
def test_a_mean_over_a_window_that_the_tensor_cuts_off_divides_by_what_is_there(padding: str) -> None:
    """The QLinearAveragePool of emx-onnx-cgen divides by all of the kernel, so its place is taken by the operator on floats."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 19]> g (float[1, 2, 8, 8] x) => (float[1, 2, h, w] y)
        <float s = {{0.05}}, int8 z = {{3}}, float t = {{0.04}}, int8 u = {{-5}}> {{
            q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
            p = AveragePool<kernel_shape = [3, 3], strides = [2, 2], {padding}ceil_mode = 1, count_include_pad = 1>(d)
            r = QuantizeLinear(p, t, u)  y = DequantizeLinear(r, t, u) }}""")
    made = built(model)
    assert made.proof.equal and made.in_floats == 0
