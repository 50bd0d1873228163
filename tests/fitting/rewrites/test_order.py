"""The order of nodes: those that lower the bytes alive run early, those that raise them late."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.order import delay_nodes, hasten_nodes, order_as_planned
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests import build
from tests.counted import calls
from tests.draws import draws
from tests.fitting.networks import model, run

# Nodes that lower the bytes alive run early, and no other node moves.


def laterals() -> onnx.ModelProto:
    """Return a backbone of two levels; a narrow lateral of the first one is computed only behind the second."""
    return model(
        """
g (float[1,2,32,16] x) => (float[1,2,32,16] y) {
    [stem] a = Conv(x, w0)
    [pool] b = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
    [deep] c = Conv(b, w1)
    [narrow] d = Conv(c, w2)
    [up] e = Resize<mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric">(d, none, scales)
    [lateral] f = Conv(a, w2)
    [add] y = Add(e, f)
}""",
        w0=(16, 2, 1, 1),
        w1=(16, 16, 1, 1),
        w2=(2, 16, 1, 1),
        none=(0,),
    )


def with_scales(proto: onnx.ModelProto) -> onnx.ModelProto:
    proto.graph.initializer.append(onnx.helper.make_tensor("scales", onnx.TensorProto.FLOAT, [4], [1, 1, 2, 2]))
    return proto


def test_a_narrow_lateral_runs_behind_the_other_reader_of_its_operand() -> None:
    made = load(with_scales(laterals()))
    moved = hasten_nodes(ModelEdit(made, resolve(made, run=False)))
    assert [node.name for node in moved] == ["lateral"]
    assert [node.name for node in made.graph] == ["stem", "pool", "lateral", "deep", "narrow", "up", "add"]


def test_nodes_that_make_more_than_they_use_up_stay() -> None:
    text = """g (float[1,2,32,16] x) => (float[n,c,h,w] y)
        { [a] h = Relu(x) [b] i = Conv(h, w0) [c] j = Relu(h) [d] y = Concat<axis=1>(j, i) }"""
    made = load(model(text, w0=(16, 2, 1, 1)))
    assert not hasten_nodes(ModelEdit(made, resolve(made, run=False)))


# Nodes that raise the bytes alive run right before their first reader.


def test_a_wide_node_runs_behind_the_gate_that_is_read_beside_it() -> None:
    text = """
g (float[1,2,8,8] x) => (float[1,2,8,8] y) {
    [small] a = Conv(x, w0)
    [wide] b = Conv(a, w1)
    [mean] c = GlobalAveragePool(a)
    [gate] d = Conv(c, w1)
    [gated] e = Mul(b, d)
    [narrow] y = Conv(e, w2)
}"""
    made = load(model(text, w0=(2, 2, 1, 1), w1=(16, 2, 1, 1), w2=(2, 16, 1, 1)))
    moved = delay_nodes(ModelEdit(made, resolve(made, run=False)))
    assert [node.name for node in moved] == ["wide"]
    assert [node.name for node in made.graph] == ["small", "mean", "gate", "wide", "gated", "narrow"]


@draws(12, 50)
@given(
    widths=st.lists(st.integers(1, 24), min_size=3, max_size=12),
    picks=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=12, max_size=12),
)
@pytest.mark.parametrize("run", [hasten_nodes, delay_nodes])
def test_any_graph_stays_in_order(run: object, widths: list[int], picks: list[tuple[int, int]]) -> None:
    """Each node reads one or two tensors that were made before it; all unread ones are outputs."""
    made, lines, read = [("x", 2)], list[str](), set[str]()
    weights: dict[str, tuple[int, ...]] = {}
    for place, (width, (first, second)) in enumerate(zip(widths, picks, strict=False)):
        (one, own), (other, there) = made[first % len(made)], made[second % len(made)]
        weights |= {f"w{place}": (width, own, 1, 1), f"v{place}": (width, there, 1, 1)}
        lines += [
            f"a{place} = Conv({one}, w{place})",
            f"b{place} = Conv({other}, v{place})",
            f"c{place} = Add(a{place}, b{place})",
        ]
        made += [(f"a{place}", width), (f"c{place}", width)]
        read |= {one, other, f"a{place}", f"b{place}"}
    outputs = ", ".join(f"float[n,c{name},h,w] {name}" for name, _ in made if name not in read and name != "x")
    proto = model(f"g (float[1,2,4,4] x) => ({outputs}) {{ {' '.join(lines)} }}", **weights)
    changed = load(proto)
    assert callable(run)
    run(ModelEdit(changed, resolve(changed, run=False)))
    seen = set(changed.graph.inputs) | set(changed.graph.initializers.values())
    for node in changed.graph:
        assert all(value in seen for value in node.inputs)
        seen.update(node.outputs)


def test_the_order_alone_is_equal_bit_for_bit() -> None:
    text = """
g (float[1,2,16,16] x) => (float[1,2,16,16] y) {
    [first] a = Conv(x, w0)
    [wide] b = Conv(a, w1)
    [down] c = MaxPool<kernel_shape=[16,1]>(a)
    [deep] d = Conv(c, w1)
    [gated] e = Mul(b, d)
    [narrow] y = Conv(e, w2)
}"""
    proto = model(text, w0=(2, 2, 1, 1), w1=(16, 2, 1, 1), w2=(2, 16, 1, 1))
    fitted = onnxtile.fit(proto, capacity="smallest", tolerance="exact", budget="0%")
    assert fitted.steps[0].kind == "order"
    assert fitted.after.arena < fitted.before.arena


def test_twice_the_readers_of_a_value_take_twice_the_calls() -> None:
    def work(size: int) -> int:
        names = [f"a{place}" for place in range(size)]
        lines = " ".join(f"{name} = Tanh(x)" for name in names)
        made = load(model(f"g (float[8] x) => (float[8] y) {{ {lines} y = Sum({', '.join(names)}) }}"))
        edit = ModelEdit(made, resolve(made, run=False))
        return calls(lambda: delay_nodes(edit))

    small, middle, large = map(work, (50, 100, 200))
    assert large - middle < 1.4 * 2 * (middle - small)


# The nodes of a quantised model in the order of its plan.


CHANNELS = (24, 4)


def wide_branches() -> onnx.ModelProto:
    """Return a quantised model of two branches from wide tensors to narrow ones, with all wide tensors made first."""
    random = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(99),
        "v": np.int8(0),
        "wide": random.integers(-99, 99, (CHANNELS[0], 2, 3, 3)).astype(np.int8),
        "narrow": random.integers(-99, 99, (CHANNELS[1], CHANNELS[0], 1, 1)).astype(np.int8),
    }
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: str, result: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [result], name=f"make {result}", **attributes))

    def dequantise(name: str, zero: str = "z") -> str:
        add("DequantizeLinear", f"{name} s {zero}", f"{name}_of_{len(nodes)}")
        return nodes[-1].output[0]

    add("QuantizeLinear", "x s z", "q")
    for branch in "ab":
        add("Conv", f"{dequantise('q')} {dequantise('wide', 'v')}", f"{branch}1", pads=[1, 1, 1, 1])
        add("QuantizeLinear", f"{branch}1 s z", f"{branch}2")
    for branch in "ab":
        add("Conv", f"{dequantise(branch + '2')} {dequantise('narrow', 'v')}", f"{branch}3")
        add("QuantizeLinear", f"{branch}3 s z", f"{branch}4")
    add("Add", f"{dequantise('a4')} {dequantise('b4')}", "sum")
    add("QuantizeLinear", "sum s z", "y")
    return build.model(
        nodes, {"x": [1, 2, 16, 16]}, {"y": (onnx.TensorProto.UINT8, [1, CHANNELS[1], 16, 16])}, constants
    )


def test_a_quantised_model_is_cut_in_the_order_of_its_plan() -> None:
    proto = wide_branches()
    wide = CHANNELS[0] * 16 * 16
    fitted = onnxtile.fit(proto, capacity=wide, tolerance="exact")
    assert fitted.steps[0].rewrite == "runs as planned"
    assert fitted.after.arena <= wide
    x = np.random.default_rng(1).standard_normal((1, 2, 16, 16)).astype(np.float32)
    assert np.array_equal(run(proto, x), run(ir.to_proto(fitted.model), x))


def test_nodes_stand_behind_those_that_they_wait_for() -> None:
    model = load(wide_branches())
    moved = order_as_planned(model, [["b2"], ["b4"], ["unknown"], ["a2"]])
    names = [node.name for node in model.graph]
    assert moved
    assert names.index("make b4") < names.index("make a2")
    made: set[ir.Value] = set(model.graph.inputs) | set(model.graph.initializers.values())
    for node in model.graph:
        assert made.issuperset(value for value in node.inputs if value is not None)
        made.update(node.outputs)
    assert not order_as_planned(model, [["b2"], ["b4"], ["a2"]])
