"""Nodes that lower the bytes alive run early, and no other node moves."""

from __future__ import annotations

import onnx

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.order import hasten_nodes
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model


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
