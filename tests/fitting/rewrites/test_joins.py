"""Axes that are taken apart: operands of a Concat, items of a batch, channels of an output."""

from __future__ import annotations

from math import prod
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import onnxtile
from models.make_quantised import quantise
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites import rewrite
from onnxtile.fitting.rewrites.sink_concats import group_outputs, run_items_apart, sink_concats
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import attempt, read_subject
from tests.build import parsed
from tests.fitting.networks import model

# Nodes behind a Concat that treat each element of its axis alone run on its operands; their results are joined.


def detector() -> onnx.ModelProto:
    """Return three levels whose boxes and classes are joined along their pixels, with 16 bins for each side of a box."""
    text = """
g (float[1,4,32,32] x) => (float[1,14,1344] y) {
    [down] l2 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
    [downer] l3 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(l2)
    [head1] h1 = Conv(x, w1)
    [head2] h2 = Conv(l2, w2)
    [head3] h3 = Conv(l3, w3)
    [flat1] f1 = Reshape(h1, s1)
    [flat2] f2 = Reshape(h2, s2)
    [flat3] f3 = Reshape(h3, s3)
    [joined] j = Concat<axis=2>(f1, f2, f3)
    sizes = Constant<value_ints=[64,10]>()
    [parts] box, classes = Split<axis=1>(j, sizes)
    [sides] b = Reshape(box, s4)
    [turned] t = Transpose<perm=[0,2,1,3]>(b)
    [bins] p = Softmax<axis=1>(t)
    [mean] m = Conv(p, dfl)
    [flat] n = Reshape(m, s5)
    [corners] lt, rb = Split<axis=1>(n, halves)
    [first] lo = Sub(anchors, lt)
    [last] hi = Add(anchors, rb)
    [corner] o = Concat<axis=1>(lo, hi)
    [sure] q = Sigmoid(classes)
    [all] y = Concat<axis=1>(o, q)
}"""
    weights = {name: (74, 4, 1, 1) for name in ("w1", "w2", "w3")} | {"dfl": (1, 16, 1, 1), "anchors": (2, 1344)}
    sizes = {"s1": [1, 74, 1024], "s2": [1, 74, 256], "s3": [1, 74, 64], "s4": [1, 4, 16, -1], "s5": [1, 4, -1]}
    return model(text, **weights, **sizes, halves=[2, 2])


def test_the_join_of_a_detection_head_stands_behind_its_tail() -> None:
    fitted = onnxtile.fit(detector(), capacity="200KiB", budget="0%")
    assert "joined" in {name for step in fitted.steps if step.kind == "rewrite" for name in step.nodes}
    assert fitted.before.arena > 700 * 1024
    assert fitted.after.arena <= 200 * 1024
    assert fitted.after.macs <= fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_the_join_of_a_quantised_detection_head_moves_below_whole_islands(tmp_path: Path) -> None:
    onnx.save(detector(), tmp_path / "float.onnx")
    quantise(tmp_path / "float.onnx", "qdq", tmp_path / "qdq.onnx")
    read = load(tmp_path / "qdq.onnx")
    edit = ModelEdit(read, resolve(read))
    assert [node.name for node in sink_concats(edit, exact=False)] == ["joined"]
    # What is joined are integers that islands make, so no part of an island runs as a kernel of floats.
    joins = [node for node in read.graph if node.op_type == "Concat" and len(node.inputs) == 3]
    assert joins and {edit.dtype(join.outputs[0]) for join in joins} == {ir.DataType.INT8}
    assert onnxtile.verify(tmp_path / "qdq.onnx", read).max_rel == 0
    before, after = (onnxtile.plan(one, verify=False).plan.arena_size for one in (tmp_path / "qdq.onnx", read))
    assert after < before


def test_with_exact_no_join_moves_below_a_product() -> None:
    read = load(detector())
    known = resolve(read)
    assert not sink_concats(ModelEdit(read, known), exact=True)
    assert [node.name for node in sink_concats(ModelEdit(read, known), exact=False)] == ["joined"]


@pytest.mark.parametrize(
    ("columns", "behind"),
    [pytest.param(16, "Tanh(j)", id="as many bytes"), pytest.param(1, "ReduceMax<axes=[3]>(j)", id="mixed parts")],
)
def test_a_join_stays_where_no_fewer_bytes_are_joined_or_parts_are_mixed(columns: int, behind: str) -> None:
    text = f"""
g (float[1,4,8,8] x) => (float[1,4,8,{columns}] y) {{
    [a] a = Relu(x)
    [b] b = Sigmoid(x)
    [joined] j = Concat<axis=3>(a, b)
    [end] y = {behind}
}}"""
    read = load(model(text))
    assert not sink_concats(ModelEdit(read, resolve(read)), exact=False)


def ghost_module() -> onnx.ModelProto:
    """Return a map that is joined with a cheap one made of it, and read by a depthwise convolution."""
    text = """
g (float[1,2,32,32] x) => (float[1,4,1,1] y) {
    [primary] a = Conv(x, w0)
    [cheap] b = Conv<group=8, kernel_shape=[3,3], pads=[1,1,1,1]>(a, w1)
    [ghost] c = Concat<axis=1>(a, b)
    [depthwise] d = Conv<group=16, kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(c, w2, b2)
    [project] e = Conv(d, w3)
    [pool] y = GlobalAveragePool(e)
}"""
    return model(text, w0=(8, 2, 1, 1), w1=(8, 1, 3, 3), w2=(16, 1, 3, 3), b2=(16,), w3=(4, 16, 1, 1))


def test_a_depthwise_convolution_of_joined_channels_has_a_group_for_each_channel_of_a_part() -> None:
    fitted = onnxtile.fit(ghost_module(), capacity="60KiB", budget="0%")
    assert [step.nodes for step in fitted.steps if step.kind == "rewrite"] == [("pool",), ("ghost",)]
    assert fitted.verdict is not None and fitted.verdict.equal


def test_parts_of_quantised_weights_stand_before_the_nodes_that_read_them(tmp_path: Path) -> None:
    onnx.save(ghost_module(), tmp_path / "float.onnx")
    quantise(tmp_path / "float.onnx", "qdq-per-channel", tmp_path / "qdq.onnx")
    proto = onnx.load(tmp_path / "qdq.onnx")
    nodes = sorted(proto.graph.node, key=lambda node: node.name != "w2_DequantizeLinear")
    after = 1 + next(index for index, node in enumerate(nodes) if node.name == "ghost")
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes[1:after], nodes[0], *nodes[after:]])
    read = load(proto)
    assert [node.name for node in sink_concats(ModelEdit(read, resolve(read)), exact=False)] == ["ghost"]
    onnx.checker.check_model(ir.to_proto(read))
    assert onnxtile.verify(proto, read).max_rel == 0


# The items of a batch run one after the other.


def batched(items: int) -> onnx.ModelProto:
    """Return a network over a batch, with a Split, a Reshape to fixed sizes, a product, and a second input for each item."""
    text = f"""
g (float[{items},4,16,16] x, float[{items},8,1,1] scale) => (float[{items},6] y, float[{items},8,8,8] z) {{
    [wide] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [relu] b = Relu(a)
    sizes = Constant<value_ints=[8,8]>()
    [parts] c, d = Split<axis=1>(b, sizes)
    [gated] e = Mul(c, scale)
    [less] f = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e)
    [more] g = AveragePool<kernel_shape=[2,2], strides=[2,2]>(d)
    [sum] z = Add(f, g)
    [flat] h = Reshape(z, flatten)
    [last] y = MatMul(h, w1)
}}"""
    return model(text, w0=(16, 4, 3, 3), w1=(512, 6), flatten=[items, 512])


def test_items_of_a_batch_take_the_bytes_of_one_and_the_results() -> None:
    one, batch = onnxtile.plan(batched(1)).plan.arena_size, 4
    results = batch * (6 + 8 * 8 * 8) * 4
    fitted = onnxtile.fit(batched(batch), capacity=one + results, budget="0%")
    assert fitted.steps[0].kind == "batch"
    assert {step.kind for step in fitted.steps} <= {"batch", "order"}
    assert fitted.before.arena > 3 * one
    assert fitted.after.arena <= one + results
    assert fitted.after.macs == fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_one_item_is_cut_further_where_that_is_not_enough() -> None:
    one, batch = onnxtile.plan(batched(1)).plan.arena_size, 4
    fitted = onnxtile.fit(batched(batch), capacity=one * 3 // 4 + batch * (6 + 512) * 4, budget="0%")
    assert {"strip", "channels"} & {step.kind for step in fitted.steps}
    assert fitted.steps[0].kind == "batch"
    assert fitted.verdict is not None and fitted.verdict.equal


def test_operators_that_mix_items_stay() -> None:
    text = """
g (float[4,4,8,8] x) => (float[4,4,8,8] y) {
    [relu] a = Relu(x)
    [mean] b = ReduceMean<axes=[0]>(a)
    [end] y = Sub(a, b)
}"""
    read = load(model(text))
    assert [node.name for node in run_items_apart(ModelEdit(read, resolve(read)))] == ["relu"]
    alone = load(batched(1))
    assert not run_items_apart(ModelEdit(alone, resolve(alone)))


# Bounds that are computed from the shapes of tensors do not end a run of operators.


HALVES = """
g (float[1,3,32,32] x) => (float[1,4,32,32] y)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[1] axis = {1}> {
    [wide] a = Conv(x, w0)
    [relu] b = Relu(a)
    sizes = Shape(b)
    channels = Gather(sizes, axis)
    half = Div(channels, two)
    end = Mul(half, two)
    [first] c = Slice(b, zero, half, axis)
    [second] d = Slice(b, half, end, axis)
    [conv] e = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(d, w1)
    [joined] f = Concat<axis=1>(c, d, e)
    [narrow] y = Conv(f, w2)
}"""


def test_slices_with_bounds_from_shapes_are_cut() -> None:
    """torch exports `chunk` so, as in the blocks of detectors."""
    made = model(HALVES, w0=(32, 3, 1, 1), w1=(16, 16, 3, 3), w2=(4, 48, 1, 1))
    fitted = onnxtile.fit(made, capacity="64KiB", budget="0%")
    assert fitted.before.arena > 3 * 64 * 1024
    assert fitted.after.arena <= 64 * 1024
    assert any(step.text.endswith("sizes that are known are constants") for step in fitted.steps)
    assert fitted.verdict is not None and fitted.verdict.equal


# An output is made in groups of channels: the strips of a group are joined, and die then.


def map_net(last: str = "Relu(c)", channels: int = 8, rows: int = 64, columns: int = 16) -> onnx.ModelProto:
    """Return two convolutions and an operator that makes a map of some channels."""
    text = f"""
g (float[1,2,64,16] x) => (float[1,{channels},{rows},{columns}] y) {{
    [first] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [wide] b = Relu(a)
    [second] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(b, w1)
    [last] y = {last}
}}"""
    return model(text, w0=(16, 2, 3, 3), w1=(8, 16, 3, 3), w2=(8, 8, 1, 1))


@pytest.mark.parametrize(
    ("last", "sizes"),
    [
        pytest.param("Relu(c)", (8, 64, 16), id="elementwise"),
        pytest.param("Conv(c, w2)", (8, 64, 16), id="product"),
        pytest.param('DepthToSpace<blocksize=2, mode="CRD">(c)', (2, 128, 32), id="blocks of channels"),
    ],
)
def test_the_strips_of_an_output_are_joined_in_groups_of_channels(last: str, sizes: tuple[int, int, int]) -> None:
    made, output = map_net(last, *sizes), 4 * prod(sizes)
    fitted = onnxtile.fit(made, capacity=output * 7 // 4, budget="0%")
    assert ["last"] in [list(step.nodes) for step in fitted.steps if step.text.endswith(GROUPS)]
    assert fitted.after.arena < 2 * output <= fitted.before.arena
    assert fitted.after.macs == fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal
    # Where the copy of the whole map fits, no channels are apart.
    assert not any(
        step.text.endswith(GROUPS) for step in onnxtile.fit(made, capacity=output * 9 // 4, verify=False).steps
    )


GROUPS = "it is made in groups of channels"


@pytest.mark.parametrize(
    ("last", "sizes", "exact"),
    [
        pytest.param("Softmax<axis=1>(c)", (8, 64, 16), False, id="sums over channels"),
        pytest.param("DepthToSpace<blocksize=2>(c)", (2, 128, 32), False, id="channels that are mixed"),
        pytest.param("Conv(c, w2)", (8, 64, 16), True, id="exact"),
    ],
)
def test_an_output_stays_whole_where_no_channel_is_apart(last: str, sizes: tuple[int, int, int], exact: bool) -> None:
    read = load(map_net(last, *sizes))
    assert not group_outputs(ModelEdit(read, resolve(read)), {"y"}, 4, exact=exact)


def test_a_copy_that_joins_pieces_is_named_where_nothing_fits() -> None:
    made = map_net("DepthToSpace<blocksize=2>(c)", 2, 128, 32)
    options = FitOptions(made, capacity=4 * prod((2, 128, 32)) * 7 // 4)
    blocked = attempt(options, read_subject(options)).blocked_by
    assert blocked is not None
    assert "c: a copy joins its pieces, which live beside it" in blocked.reasons


def test_no_groups_are_tried_where_the_output_takes_nearly_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = """
    gate (float[1, 16, 64, 64] x) => (float[1, 16, 64, 64] y) {
      a = Relu(x)
      m = GlobalAveragePool(a)
      s = Sigmoid(m)
      y = Mul(a, s)
    }"""
    monkeypatch.setattr(rewrite, "group_outputs", lambda *_args, **_given: pytest.fail("groups were tried"))
    fitted = onnxtile.fit(parsed(gate), capacity="smallest", budget="0%", verify=False)
    assert fitted.after.arena < 1.01 * 16 * 64 * 64 * 4
