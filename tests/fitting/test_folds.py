"""Sums, means and extremes that are put together strip by strip."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.rewrites.means import sum_quantised_means
from onnxtile.fitting.strips import Cut
from onnxtile.model.load import load
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink
from onnxtile.operators.table import folding_of
from onnxtile.shapes.resolve import resolve
from tests import build
from tests.draws import draws
from tests.fitting.networks import cut_into_strips, model, run
from tests.fitting.test_axis_maps import facts_of

# Plain data: the rows of a sum are those that were added up, and all take the bytes of one.


def summed_network() -> Network:
    """Return an input of 8 rows, a map of 8 rows of 256 bytes, its sum of 64 bytes, and a result of the sum."""
    rows = (AxisLink(2),)
    tensors = [
        FitTensor("x", (1, 1, 8, 16), 4, 2, is_outside=True),
        FitTensor("map", (1, 4, 8, 16), 4, 2),
        FitTensor("sum", (1, 16, 1, 1), 4, None, folds=8, joined_by="Add"),
        FitTensor("y", (1, 16, 1, 1), 4, 2, is_kept=True),
    ]
    kernels = [
        FitKernel("wide", (0,), (1,), rows, macs=64),
        FitKernel("sum", (1,), (2,), rows),
        FitKernel("after", (2,), (3,), rows),
    ]
    return Network(tensors, kernels)


def test_a_sum_has_the_bytes_of_one_row_whatever_was_added_up() -> None:
    about = summed_network().tensors[2]
    assert (about.rows, about.size) == (8, 64)
    assert [about.bytes_of(rows) for rows in (0, 1, 3, 8)] == [0, 64, 64, 64]


def test_strips_are_added_up_and_the_sum_is_read_when_it_is_complete() -> None:
    regions = Regions(summed_network())
    rows = regions.ranges(0, 3, Cut(2))
    assert rows[1].news.pairs == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert rows[1].windows.pairs == [(0, 2), (0, 4), (0, 6), (0, 8)]
    assert rows[2].news.pairs == [None, None, None, (0, 1)]
    cost = regions.cost(0, 3, Cut(2))
    assert cost is not None
    # Two rows of the map, the sum so far and that of the strip. A strip takes a part of the input, multiplies and adds up.
    assert (cost.peak, cost.nodes, cost.macs) == (2 * 256 + 2 * 64, 4 * 3 + 3 + 1, 64)


def test_a_sum_that_only_a_later_region_reads_lives_from_strip_to_strip_too() -> None:
    regions = Regions(summed_network())
    cost = regions.cost(0, 2, Cut(2))
    assert cost is not None
    assert (cost.peak, cost.nodes) == (2 * 256 + 2 * 64, 4 * 3 + 3)


# The rule of each operator, on random parts.

REDUCTIONS = ["ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceMax", "ReduceMin", "ReduceProd", "GlobalMaxPool"]
JOINED = {"Add": np.add, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}


def reduction(op: str, axes: list[int], *, keepdims: bool, opset: int) -> onnx.ModelProto:
    """Return a reduction of a tensor of 2 × 3 × 5 × 4."""
    constants, attributes = dict[str, Any](), dict[str, Any]()
    if op.startswith("Reduce"):
        attributes["keepdims"] = int(keepdims)
        if opset < (13 if op == "ReduceSum" else 18):
            attributes["axes"] = axes
        else:
            constants["axes"] = np.asarray(axes, np.int64)
    node = helper.make_node(op, ["x", *constants], ["y"], name="one", **attributes)
    rank = 4 if keepdims or not op.startswith("Reduce") else 4 - len(axes)
    return build.model([node], {"x": [2, 3, 5, 4]}, {"y": [None] * rank}, constants, opset=opset)


@draws(30, 120)
@given(
    op=st.sampled_from(REDUCTIONS),
    axes=st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
    keepdims=st.booleans(),
    opset=st.sampled_from([11, 13, 18]),
    axis=st.integers(0, 3),
    cut=st.integers(1, 4),
)
def test_the_parts_of_a_reduction_make_the_whole(
    op: str, axes: list[int], keepdims: bool, opset: int, axis: int, cut: int
) -> None:
    proto = reduction(op, axes, keepdims=keepdims, opset=opset)
    facts: NodeView = facts_of(proto)
    folding = folding_of(facts.node)
    assert folding is not None
    reduces = axis in axes if op.startswith("Reduce") else axis > 1
    if not reduces:
        with pytest.raises(NotApplicable):
            folding.reads(facts, 0, axis)
        return
    link = folding.reads(facts, 0, axis)[0]
    assert link == AxisLink(axis)
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 4)).astype(np.float32)
    parts = [part for part in np.split(x, [min(cut, x.shape[axis] - 1)], axis) if part.size]
    results = [run(_of_any_size(proto), part) for part in parts]
    np.testing.assert_allclose(JOINED[folding.join](*results), run(proto, x), rtol=1e-5, atol=1e-5)


def _of_any_size(proto: onnx.ModelProto) -> onnx.ModelProto:
    for dim in proto.graph.input[0].type.tensor_type.shape.dim:
        dim.Clear()
    return proto


# What fit makes of them.

HEADS = {
    "global mean": "y = GlobalAveragePool(b)",
    "mean of rows and columns": "y = ReduceMean<axes=[2,3], keepdims=0>(b)",
    "a pooling of the whole map": "y = AveragePool<kernel_shape=[40,16]>(b)",
    "largest": "y = GlobalMaxPool(b)",
    "smallest": "y = ReduceMin<axes=[2,3]>(b)",
    "norm": "y = ReduceL2<axes=[1,2,3]>(b)",
    "products of transposed maps": "k = Reshape(b, flat) v = Reshape(b, flat) t = Transpose<perm=[0,2,1]>(v) y = MatMul(k, t)",
}


def headed(name: str) -> onnx.ModelProto:
    """Return two convolutions and a head that reads all of their map of 40 rows."""
    kind = {"mean of rows and columns": "float[n,c]", "products of transposed maps": "float[n,c,d]"}.get(
        name, "float[n,c,h,w]"
    )
    return model(
        f"""g (float[1,3,40,16] x) => ({kind} y) {{
            a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0) c = Relu(a)
            b = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(c, w1) {HEADS[name]} }}""",
        w0=(8, 3, 3, 3),
        w1=(16, 8, 3, 3),
        flat=[1, 16, 640],
    )


@pytest.mark.parametrize("name", HEADS)
def test_no_map_before_a_head_is_whole(name: str) -> None:
    proto = headed(name)
    fitted = onnxtile.fit(proto, capacity=8 * 40 * 16 * 4 - 1, budget="0%")
    assert fitted.before.arena >= 24 * 40 * 16 * 4, "both maps"
    assert fitted.after.arena < 8 * 40 * 16 * 4, "neither map"
    assert fitted.verdict is not None and fitted.verdict.equal
    x = np.random.default_rng(1).standard_normal((1, 3, 40, 16)).astype(np.float32)
    np.testing.assert_allclose(run(proto, x), run(ir.to_proto(fitted.model), x), rtol=1e-4, atol=1e-4)


def test_sums_of_strips_are_written_as_additions_over_the_sum_so_far() -> None:
    written, cost = cut_into_strips(headed("global mean"), 20, exact=False)
    ops = [node.op_type for node in written.graph.node]
    assert ops.count("ReduceSum") == ops.count("Add") + 1 > 1
    assert ops[-2:] == ["Add", "Mul"]
    assert not {"GlobalAveragePool", "Concat"} & {op for op in ops[-4:]}
    assert cost.nodes == len(ops)


def test_exact_puts_extremes_together_and_no_sums() -> None:
    largest = onnxtile.fit(headed("largest"), capacity=8 * 40 * 16 * 4 - 1, tolerance="exact")
    mean = onnxtile.fit(headed("global mean"), capacity="smallest", tolerance="exact", verify=False)
    assert largest.after.arena < 8 * 40 * 16 * 4 < 16 * 40 * 16 * 4 <= mean.after.arena


def test_a_gate_reads_the_mean_of_a_map_that_is_made_in_pieces() -> None:
    """The wide map lives in pieces: each dies when it was scaled and made narrow, so the narrow result needs no room of its own."""
    proto = model(
        """g (float[1,3,112,112] x) => (float[1,24,28,28] y) {
            a = Conv<kernel_shape=[3,3], strides=[4,4], pads=[1,1,1,1]>(x, w0)
            b = Conv(a, w1) c = Relu(b) d = GlobalAveragePool(c) e = Conv(d, w2) f = Relu(e) g = Conv(f, w3) h = Sigmoid(g)
            i = Mul(c, h) y = Conv(i, w4) }""",
        w0=(24, 3, 3, 3),
        w1=(64, 24, 1, 1),
        w2=(16, 64, 1, 1),
        w3=(64, 16, 1, 1),
        w4=(24, 64, 1, 1),
    )
    wide, narrow = 64 * 28 * 28 * 4, 24 * 28 * 28 * 4
    fitted = onnxtile.fit(proto, capacity=wide + narrow // 10 - 1, budget="0%")
    assert fitted.before.arena == wide + narrow
    assert fitted.after.arena < wide + narrow // 10
    assert fitted.after.macs == fitted.before.macs


# Means of quantised maps: sums of integers, which are scaled and quantised once.


def quantised_mean(mean: str, kind: str, zero_point: int, *, rows: int = 24) -> onnx.ModelProto:
    """Return a quantised convolution and the mean of its map."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g (float[1,3,{rows},16] x) => (float[n,c,h,w] y) {{
            a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) wd = DequantizeLinear(w, s, zw)
            [wide] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(b, wd) r = Relu(c)
            e = QuantizeLinear(r, s2, z) f = DequantizeLinear(e, s2, z)
            [mean] m = {mean} q = QuantizeLinear(m, s2, z) y = DequantizeLinear(q, s2, z) }}"""
    )
    random = np.random.default_rng(3)
    constants: dict[str, Any] = {
        "w": random.integers(-8, 8, (16, 3, 3, 3)).astype(np.int8),
        "s": np.asarray(1 / 16, np.float32),
        "s2": np.asarray(0.03, np.float32),
        "z": np.asarray(zero_point, kind),
        "zw": np.asarray(0, np.int8),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return proto


MEANS = ["GlobalAveragePool(f)", "ReduceMean<axes=[2,3]>(f)", "ReduceMean<axes=[3]>(f)", "ReduceMean<axes=[1,2,3]>(f)"]


@draws(16)
@given(mean=st.sampled_from(MEANS), zero_point=st.integers(-128, 255), seed=st.integers(0, 9))
def test_means_of_integers_are_scaled_and_quantised_once(mean: str, zero_point: int, seed: int) -> None:
    kind = "int8" if zero_point < 0 else "uint8"
    proto = quantised_mean(mean, kind, zero_point)
    made = load(proto)
    edit = ModelEdit(made, resolve(made, run=True))
    assert [node.name for node in sum_quantised_means(edit)] == ["mean"]
    edit.drop_unread()
    assert "ReduceMean" not in {node.op_type for node in made.graph}
    x = np.random.default_rng(seed).standard_normal((1, 3, 24, 16)).astype(np.float32)
    before, after = run(proto, x), run(ir.to_proto(made), x)
    steps = np.abs(before - after) / 0.03
    assert steps.max() < 1.01, "a mean between two steps may be rounded to either"
    assert (steps > 0.5).mean() < 0.05


@pytest.mark.parametrize(("mean", "kind", "zero_point"), [(MEANS[0], "int8", -128), (MEANS[1], "uint8", 3)])
def test_no_quantised_map_before_a_head_is_whole(mean: str, kind: str, zero_point: int) -> None:
    proto = quantised_mean(mean, kind, zero_point, rows=64)
    fitted = onnxtile.fit(proto, capacity=16 * 64 * 16 // 4 - 1, budget="5%")
    assert fitted.before.arena >= 16 * 64 * 16
    assert fitted.after.arena < 16 * 64 * 16 // 4
    assert fitted.before.macs < fitted.after.macs <= 1.05 * fitted.before.macs, "the products with ones count"
    assert fitted.verdict is not None and fitted.verdict.equal
    ops = {node.op_type for node in fitted.model.graph}
    assert "MatMulInteger" in ops and not {"GlobalAveragePool", "ReduceMean"} & ops


def test_a_mean_of_integers_leaves_the_rows_of_its_map_where_they_lie() -> None:
    """The product with ones adds up columns, which the strips lie along, as the split channels of the map have other rows."""
    q, d = (f"{kind}Linear({{}}, s, z)" for kind in ("Quantize", "Dequantize"))
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g (int8[1,1,16,64] x) => (int8[1,8,1,1] y) <int64[4] split = {{1, 16, 8, 64}}, int64[4] joined = {{1, 8, 16, 64}}> {{
            a = {d.format("x")} b = Conv<pads=[1,1,1,1]>(a, w) c = {q.format("b")} e = {d.format("c")}
            f = Conv<pads=[1,0,1,0], group=8>(e, v) g = {q.format("f")} h = {d.format("g")}
            i = Reshape(h, split) j = {q.format("i")} k = {d.format("j")}
            l = Reshape(k, joined) m = {q.format("l")} n = {d.format("m")}
            o = Add(e, n) p = {q.format("o")} r = {d.format("p")} t = GlobalAveragePool(r) y = {q.format("t")} }}"""
    )
    random = np.random.default_rng(3)
    constants = {
        "w": random.standard_normal((8, 1, 3, 3)),
        "v": random.standard_normal((8, 1, 3, 1)),
        "s": np.array(0.1),
    }
    arrays: dict[str, Any] = {
        "z": np.asarray(0, np.int8),
        **{name: array.astype(np.float32) for name, array in constants.items()},
    }
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    fitted = onnxtile.fit(proto, capacity=8 * 16 * 64)
    assert fitted.before.arena == 2 * 8 * 16 * 64


def test_a_quantised_map_is_flattened_where_it_lies() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (int8[1,2,16,16] x) => (int8[1,4] y) {
            a = DequantizeLinear(x, s, z) b = Conv<pads=[1,1,1,1]>(a, w) c = QuantizeLinear(b, s, z)
            k = DequantizeLinear(c, s, z) l = Conv<pads=[1,1,1,1], group=8>(k, u) m = QuantizeLinear(l, s, z)
            d = DequantizeLinear(m, s, z) e = Flatten(d) f = QuantizeLinear(e, s, z)
            g = DequantizeLinear(f, s, z) h = MatMul(g, v) y = QuantizeLinear(h, s, z) }"""
    )
    random = np.random.default_rng(3)
    for name, shape in (("w", (8, 2, 3, 3)), ("u", (8, 1, 3, 3)), ("v", (8 * 16 * 16, 4)), ("s", ())):
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(random.random(shape), np.float32), name))
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(0, np.int8), "z"))
    fitted = onnxtile.fit(proto, capacity="smallest")
    assert fitted.before.arena == 2 * 8 * 16 * 16
    assert fitted.after.arena < 2 * 8 * 16 * 16


def test_a_quantised_mean_stays_where_no_product_may_be_added() -> None:
    proto = quantised_mean(MEANS[0], "int8", 0)
    fitted = onnxtile.fit(proto, capacity="smallest", budget="0%")
    assert "MatMulInteger" not in {node.op_type for node in fitted.model.graph}
