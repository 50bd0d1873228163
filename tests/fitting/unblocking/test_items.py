"""The items of a batch run one after the other."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.sink_concats import run_items_apart
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model


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
    made = model(text, w0=(16, 4, 3, 3), w1=(512, 6))
    made.graph.initializer.append(numpy_helper.from_array(np.asarray([items, 512], np.int64), "flatten"))
    return made


def test_items_of_a_batch_take_the_bytes_of_one_and_the_results() -> None:
    one, batch = onnxtile.plan(batched(1)).plan.arena_size, 4
    results = batch * (6 + 8 * 8 * 8) * 4
    fitted = onnxtile.fit(batched(batch), capacity=one + results, max_extra_macs="0%")
    assert fitted.steps[0].kind == "batch"
    assert {step.kind for step in fitted.steps} <= {"batch", "order"}
    assert fitted.before.arena > 3 * one
    assert fitted.after.arena <= one + results
    assert fitted.after.macs == fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_one_item_is_cut_further_where_that_is_not_enough() -> None:
    one, batch = onnxtile.plan(batched(1)).plan.arena_size, 4
    fitted = onnxtile.fit(batched(batch), capacity=one * 3 // 4 + batch * (6 + 512) * 4, max_extra_macs="0%")
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
