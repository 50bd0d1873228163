"""Quantised models: islands and operators are cut as the kernels that they run as, and the result is equal to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.fitting.read_network import separate
from onnxtile.model.load import load
from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.table import axis_links
from onnxtile.shapes.resolve import resolve
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject
from tests.draws import draws
from tests.fitting.networks import HEAD, cut_into_strips, model, run
from tests.fitting.test_axis_maps import facts_of

# Quantised models: islands are cut as the kernels that they run as, and the result is equal to the last bit.


TEXT = """
g (float[1,3,ROWS,12] x) => (float[1,4,n,3] y) {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    w0d = DequantizeLinear(w0, s, z)
    [stem] c = Conv<pads=[1,1,1,1]>(b, w0d)
    d = Relu(c)
    e = QuantizeLinear(d, s, z)
    f = DequantizeLinear(e, s, z)
    w1d = DequantizeLinear(w1, s, z)
    [next] h = Conv<pads=[1,1,1,1]>(f, w1d)
    i = QuantizeLinear(h, s, z)
    j = DequantizeLinear(i, s, z)
    [skip] k = Add(f, j)
    l = QuantizeLinear(k, s, z)
    m = DequantizeLinear(l, s, z)
    w2d = DequantizeLinear(w2, s, z)
    [last] n = Conv<strides=[4,4]>(m, w2d)
    o = QuantizeLinear(n, s, z)
    y = DequantizeLinear(o, s, z)
}"""


def quantised(rows: int = 32) -> onnx.ModelProto:
    """Return a small quantised network with a skip, of an image of so many rows."""
    random, shapes = np.random.default_rng(0), {"w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3), "w2": (4, 16, 3, 3)}
    weights = {name: random.integers(-8, 8, shape).astype(np.int8) for name, shape in shapes.items()}
    return model(TEXT.replace("ROWS", str(rows)), **weights, s=np.float32(1 / 16), z=np.int8(0))


def test_islands_are_cut_and_planned_as_plan_does(tmp_path: Path) -> None:
    whole = onnxtile.plan(quantised()).plan.arena_size
    fitted = onnxtile.fit(quantised(), capacity=(whole - 1) // 2, tolerance="exact")
    assert fitted.before.arena == whole
    assert fitted.after.arena * 2 < whole
    fitted.save(tmp_path / "out.onnx")
    planned = onnxtile.plan(tmp_path / "out.onnx").plan
    assert planned.arena_size == fitted.after.arena
    assert planned.kernels is not None and planned.kernels.islands >= 4


def test_sums_of_quantised_products_are_not_cut() -> None:
    fitted = onnxtile.fit(quantised(16), capacity="smallest", verify=False)
    assert all(step.chunks == 1 for step in fitted.steps)


WRITTEN_OVER = """
g (float[1,4,16,12] x) => (int8[1,8,16,12] y) {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    c = DequantizeLinear(a, s, z)
    [gate] d = Sigmoid(b)
    e = QuantizeLinear(d, s, z)
    f = DequantizeLinear(e, s, z)
    [product] h = Mul(c, f)
    i = QuantizeLinear(h, s, z)
    j = DequantizeLinear(i, s, z)
    k = Relu(j)
    l = QuantizeLinear(k, s, z)
    m = DequantizeLinear(l, s, z)
    o = Sigmoid(m)
    p = QuantizeLinear(o, s, z)
    q = DequantizeLinear(p, s, z)
    r = DequantizeLinear(l, s, z)
    [join] t = Concat<axis=1>(r, q)
    y = QuantizeLinear(t, s, z)
}"""


def test_results_of_islands_share_bytes_as_in_the_plan() -> None:
    made = model(WRITTEN_OVER, s=np.float32(1 / 16), z=np.int8(0))
    subject = read_subject(FitOptions(made, capacity="smallest"))
    assert subject.whole.peak == subject.planned.plan.peak == 2 * 4 * 16 * 12


POOLED = {
    "QDQ": """
    g (float[1,4,6,6] x) => (float[1,48,1,1] y) {
        a = QuantizeLinear(x, s, z)
        b = DequantizeLinear(a, s, z)
        wd = DequantizeLinear<axis=0>(w, scales, zeros)
        cd = DequantizeLinear<axis=0>(c, scales)
        [wide] d = Conv(b, wd, cd)
        e = Relu(d)
        f = QuantizeLinear(e, s, z)
        h = DequantizeLinear(f, s, z)
        [pool] i = GlobalAveragePool(h)
        j = QuantizeLinear(i, s, z)
        y = DequantizeLinear(j, s, z)
    }""",
    "QLinear": """
    g (int8[1,4,6,6] x) => (int8[1,48,1,1] y) {
        [wide] d = QLinearConv(x, s, z, w, scales, zeros, s, z, c)
        [pool] y = com.microsoft.QLinearGlobalAveragePool(d, s, z, s, z)
    }""",
}


@pytest.mark.parametrize("form", POOLED)
def test_channels_that_a_pooling_reads_are_made_in_chunks_with_integer_weights(form: str, tmp_path: Path) -> None:
    head = HEAD.replace('"": 17', '"": 17, "com.microsoft": 1')
    made, random = onnx.parser.parse_model(head + POOLED[form]), np.random.default_rng(0)
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": random.integers(-99, 99, (48, 4, 1, 1)).astype(np.int8),
        "c": random.integers(-99, 99, 48).astype(np.int32),
        "scales": random.uniform(0.01, 0.03, 48).astype(np.float32),
        "zeros": np.zeros(48, np.int8),
        "s": np.asarray(1 / 16, np.float32),
        "z": np.asarray(0, np.int8),
    }
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    fitted = onnxtile.fit(made, capacity="smallest", budget="0%")
    assert max(step.chunks for step in fitted.steps) >= 4
    assert fitted.after.arena * 2 <= fitted.before.arena
    assert fitted.verdict is not None and fitted.verdict.max_rel == 0
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena
    wide = [tensor for tensor in onnx.load(tmp_path / "out.onnx").graph.initializer if len(tensor.dims) == 4]
    assert {tensor.data_type for tensor in wide} == {onnx.TensorProto.INT8}
    assert sum(tensor.dims[0] for tensor in wide) == 48


# Operators on quantised tensors: strips of them are equal to the whole bit for bit.


OWN = "com.microsoft"
SCALES = {"s": np.float32(0.05), "t": np.float32(0.11), "z": np.uint8(7), "w0": np.int8(0)}
"""Two scales, and the zero points of tensors and of weights."""
MIDDLES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "QLinearAdd": (OWN, ["h", "s", "z", "a", "t", "z", "t", "z"], {}),
    "QLinearMul": (OWN, ["h", "s", "z", "a", "t", "z", "s", "z"], {}),
    "QLinearConcat": (OWN, ["t", "z", "h", "s", "z", "a", "t", "z"], {"axis": 1}),
    "QLinearSigmoid": (OWN, ["h", "s", "z", "t", "z"], {}),
    "QLinearLeakyRelu": (OWN, ["h", "s", "z", "t", "z"], {"alpha": 0.1}),
    "QLinearAveragePool": (OWN, ["h", "s", "z", "t", "z"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "QLinearConv": ("", ["h", "s", "z", "v", "s", "w0", "t", "z", "b"], {"kernel_shape": [3, 3]}),
    "QLinearMatMul": ("", ["h", "s", "z", "m", "s", "w0", "t", "z"], {}),
}


def _chain(op: str, rows: int, stride: int, pads: list[int]) -> onnx.ModelProto:
    """Return a QLinearConv with a scale for each channel, an operator on its result, and a pooling."""
    domain, inputs, attributes = MIDDLES[op]
    random = np.random.default_rng(0)
    weights = {
        "w": random.integers(-99, 99, (4, 2, 3, 3)).astype(np.int8),
        "scales": np.asarray([0.01, 0.02, 0.005, 0.03], np.float32),
        "zeros": np.zeros(4, np.int8),
        "v": random.integers(-99, 99, (3, 4, 3, 3)).astype(np.int8),
        "b": random.integers(-99, 99, 3).astype(np.int32),
        "m": random.integers(-99, 99, (9 // stride + 9 % stride, 6)).astype(np.int8),
        **SCALES,
    }
    nodes = [
        helper.make_node(
            "QLinearConv", ["x", "s", "z", "w", "scales", "zeros", "s", "z"], ["h"], pads=pads, strides=[stride] * 2
        ),
        helper.make_node("MaxPool", ["h"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node(op, inputs, ["i"], domain=domain, **attributes),
        helper.make_node("MaxPool", ["i"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, 2, rows, 9])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, ["n", "c", "h", "w"])
    arrays = [numpy_helper.from_array(np.asarray(one), name) for name, one in weights.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], arrays), opset_imports=opsets, ir_version=10)


@draws(4)
@given(rows=st.integers(14, 24), stride=st.integers(1, 2), step=st.integers(1, 4))
@pytest.mark.parametrize("op", MIDDLES)
def test_strips_of_quantised_operators_are_equal_bit_for_bit(op: str, rows: int, stride: int, step: int) -> None:
    proto = _chain(op, rows, stride, [1, 1, 1, 1])
    cut, _ = cut_into_strips(proto, step, exact=True)
    assert [node.op_type for node in cut.graph.node].count(op) > 1
    x = np.random.default_rng(1).integers(0, 255, (1, 2, rows, 9)).astype(np.uint8)
    assert np.array_equal(run(proto, x), run(cut, x))


RESIZED = """
g (float[1,3,16,12] x) => (float[1,4,n,m] y) {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    w0d = DequantizeLinear(w0, s, z)
    [stem] c = Conv<pads=[1,1,1,1]>(b, w0d)
    e = QuantizeLinear(c, s, z)
    f = DequantizeLinear(e, s, z)
    [change] h = CHANGE
    i = QuantizeLinear(h, s, z)
    j = DequantizeLinear(i, s, z)
    w1d = DequantizeLinear(w1, s, z)
    [last] k = Conv<strides=[3,3]>(j, w1d)
    l = QuantizeLinear(k, s, z)
    y = DequantizeLinear(l, s, z)
}"""


def _resized(change: str, **constants: Any) -> onnx.ModelProto:
    """Return two quantised convolutions, and an operator between them that changes rows and columns."""
    random, shapes = np.random.default_rng(0), {"w0": (6, 3, 3, 3), "w1": (4, 6, 3, 3)}
    weights = {name: random.integers(-8, 8, shape).astype(np.int8) for name, shape in shapes.items()}
    # With one scale on both sides, many interpolated elements lie at the border of two steps.
    return model(RESIZED.replace("CHANGE", change), **weights, **constants, s=np.float32(0.07), z=np.int8(3))


CHANGES = {
    "mirrored": ('Pad<mode="reflect">(f, pads)', {"pads": np.asarray([0, 0, 2, 3, 0, 0, 1, 2])}),
    "edge": ('Pad<mode="edge">(f, pads)', {"pads": np.asarray([0, 0, 2, 3, 0, 0, 1, 2])}),
    "nearest": (
        'Resize<mode="nearest", coordinate_transformation_mode="align_corners">(f,,scales)',
        {"scales": np.asarray([1, 1, 3, 3], np.float32)},
    ),
    "doubled": ('Resize<mode="linear">(f,,scales)', {"scales": np.asarray([1, 1, 2, 3], np.float32)}),
    "from corners": (
        'Resize<mode="linear", coordinate_transformation_mode="asymmetric">(f,,scales)',
        {"scales": np.asarray([1, 1, 2, 2], np.float32)},
    ),
    "to sizes": (
        'Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(f,,,sizes)',
        {"sizes": np.asarray([1, 6, 64, 20])},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_quantised_rows_that_are_mirrored_or_interpolated_are_equal_bit_for_bit(change: str) -> None:
    text, constants = CHANGES[change]
    proto = _resized(text, **constants)
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 12)).astype(np.float32) * 3
    wanted = run(proto, x)
    assert len(np.unique(wanted)) > 20
    for step in (1, 3):
        cut, _ = cut_into_strips(proto, step, exact=True)
        assert [node.op_type for node in cut.graph.node].count("Conv") > 4
        assert np.array_equal(wanted, run(cut, x))


def test_a_quantised_resize_that_interpolates_needs_not_be_whole() -> None:
    text, constants = CHANGES["doubled"]
    fitted = onnxtile.fit(_resized(text, **constants), capacity="4KiB")
    assert fitted.before.arena > 2 * fitted.after.arena
    assert fitted.verdict is not None and fitted.verdict.equal


@pytest.mark.parametrize("scale", [3.0, 2.5])
def test_a_quantised_resize_whose_pieces_would_round_otherwise_stays_whole(scale: float) -> None:
    scales = np.asarray([1, 1, scale, scale], np.float32)
    with pytest.raises(onnxtile.Infeasible, match="change makes all of i, since it resizes several axes at once"):
        onnxtile.fit(_resized('Resize<mode="linear">(f,,scales)', scales=scales), capacity="1KiB")


DYNAMIC = """
g (float[1,3,24,12] x) => (float[1,4,n,m] y) {
    [stem] a = Conv<pads=[1,1,1,1]>(x, w0)
    [scale] b, s, z = DynamicQuantizeLinear(a)
    [next] c = ConvInteger<pads=[1,1,1,1], strides=[2,2]>(b, w1, z)
    d = Cast<to=1>(c)
    y = Mul(d, s)
}"""


def test_a_scale_that_comes_from_all_rows_lets_its_tensor_be_there_in_pieces() -> None:
    weights = np.random.default_rng(0).integers(0, 16, (4, 16, 3, 3)).astype(np.uint8)
    proto = model(DYNAMIC, w0=(16, 3, 3, 3), w1=weights)
    x = np.random.default_rng(1).standard_normal((1, 3, 24, 12)).astype(np.float32)
    cut, _ = cut_into_strips(proto, 4, exact=True)
    assert [node.op_type for node in cut.graph.node].count("ReduceMax") > 4
    assert np.array_equal(run(proto, x), run(cut, x))
    fitted = onnxtile.fit(proto, capacity=24 * 12 * 16 * 5 - 1, tolerance="exact")
    # The floats wait for their scale, and the integers are made strip by strip.
    assert fitted.before.arena >= 24 * 12 * 16 * 5 > fitted.after.arena
    assert fitted.verdict is not None and fitted.verdict.equal


def test_channels_after_columns_say_why() -> None:
    proto = _chain("QLinearAveragePool", 12, 1, [1, 1, 1, 1])
    del proto.graph.node[:2]
    proto.graph.node[0].input[0] = "x"
    proto.graph.node[0].attribute.append(helper.make_attribute("channels_last", 1))
    with pytest.raises(NotApplicable, match="after its columns"):
        axis_links(facts_of(proto), 2)


def test_a_copy_of_dequantised_floats_has_a_type_also_where_the_model_gives_none() -> None:
    text = """
g (int8[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z) {
    [floats] f = DequantizeLinear(x, scale)
    [first] y = Relu(f)
    [second] z = Sigmoid(f)
}"""
    read = load(model(text, scale=np.float32(0.5)))
    separate(read, resolve(read, run=False))
    (copy,) = [node for node in read.graph if node.name == "floats/copy"]
    assert copy.outputs[0].dtype == ir.DataType.FLOAT
    assert [node.name for node, _ in copy.outputs[0].uses()] == ["second"]
