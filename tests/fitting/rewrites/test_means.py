"""Means and what they scale: of sums, of pointwise convolutions, of gates, and of wide tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.means import mean_before_sum, second_passes
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model, run

# The mean of a sum comes from the means of its summands, and equals it.


ADDED = "[sum] s = Add(a, b)\n [total] u = Sum(s, a)\n [mean] m = GlobalAveragePool(u)\n"
SELECTIVE = """
    [one] ua = Unsqueeze(a, first)
    [other] ub = Unsqueeze(b, first)
    [both] c = Concat<axis=1>(ua, ub)
    [sum] s = ReduceSum<keepdims=0>(c, first)
    [mean] m = ReduceMean<axes=[2,3], keepdims=1>(s)
"""
SPLIT = """
    [both] c = Concat<axis=1>(a, b)
    [radix] r = Reshape(c, groups)
    [sum] s = ReduceSum<keepdims=0>(r, first)
    [flat] f = ReduceMean<axes=[-1,-2], keepdims=0>(s)
    [mean] m = Reshape(f, pixel)
"""


def gated(mean: str) -> onnx.ModelProto:
    """Return two branches that are scaled by the mean of both."""
    text = f"""
g (float[1,4,24,16] x) => (float[1,4,24,16] y) {{
    [left] a = Conv(x, w0)
    [right] b = Conv(x, w1)
    {mean}
    [gate] g = Sigmoid(m)
    [scaled] p = Mul(a, g)
    [narrow0] p0 = Conv(p, w2)
    [narrow1] p1 = Conv(b, w2)
    [add] y = Add(p0, p1)
}}"""
    numbers = {"first": [1], "groups": [1, 2, 8, 24, 16], "pixel": [1, 8, 1, 1]}
    return model(text, w0=(8, 4, 1, 1), w1=(8, 4, 1, 1), w2=(4, 8, 1, 1), **numbers)


@pytest.mark.parametrize("mean", [ADDED, SELECTIVE, SPLIT])
def test_a_mean_of_sums_is_the_sum_of_the_means(mean: str) -> None:
    made = gated(mean)
    x = np.random.default_rng(1).standard_normal((1, 4, 24, 16)).astype(np.float32)
    read = load(made)
    edit = ModelEdit(read, resolve(read))
    assert len(mean_before_sum(edit)) == 1
    edit.drop_unread()
    sums = [node for node in read.graph if node.name in {"sum", "total"}]
    assert not sums
    assert [len(node.inputs) for node in read.graph if node.op_type == "GlobalAveragePool"] == [1, 1]
    np.testing.assert_allclose(run(ir.to_proto(read), x), run(made, x), atol=1e-5)


@pytest.mark.parametrize(
    "mean",
    [
        "[sum] s = Add(a, b)\n [mean] m = GlobalAveragePool(s)\n [other] b2 = Mul(s, m)\n",
        "[sum] s = Mul(a, b)\n [mean] m = GlobalAveragePool(s)\n",
        "[mean] m = GlobalAveragePool(a)\n",
        "[rows] s = Concat<axis=2>(a, b)\n [mean] m = GlobalAveragePool(s)\n",
    ],
)
def test_a_mean_stays_where_its_operand_is_no_sum_or_is_read_elsewhere(mean: str) -> None:
    read = load(gated(mean))
    assert not mean_before_sum(ModelEdit(read, resolve(read)))


def test_selective_kernels_fit_without_the_sum_of_their_branches() -> None:
    fitted = onnxtile.fit(gated(SELECTIVE), capacity="26KiB", budget="0%")
    assert ("mean",) in [step.nodes for step in fitted.steps if step.kind == "rewrite"]
    assert fitted.after.arena <= 26 * 1024 < fitted.before.arena
    assert fitted.verdict is not None and fitted.verdict.equal


# Squeeze-and-excitation: the channels that a gate reads whole are made part by part, and only their result is kept.


def test_the_tensors_before_a_gate_are_made_in_chunks_of_channels() -> None:
    text = """
g (float[1,4,6,16] x) => (float[1,4,6,16] y) {
    [stem] a = Conv<pads=[1,1,1,1]>(x, w0)
    [expand] b = Conv(a, w1)
    [swish0] c = Sigmoid(b)
    [swish1] d = Mul(b, c)
    [depth] e = Conv<group=48, pads=[1,1,1,1]>(d, w2)
    [relu] f = Relu(e)
    [mean] h = GlobalAveragePool(f)
    [down] i = Conv(h, w3)
    [up] j = Conv(i, w4)
    [gate] k = HardSigmoid(j)
    [gated] l = Mul(f, k)
    [narrow] m = Conv(l, w5)
    [residual] y = Add(a, m)
}"""
    weights = {"w0": (4, 4, 3, 3), "w1": (48, 4, 1, 1), "w2": (48, 1, 3, 3), "w3": (8, 48, 1, 1), "w4": (48, 8, 1, 1)}
    proto = model(text, **weights, w5=(4, 48, 1, 1))
    wide = 48 * 6 * 16 * 4
    fitted = onnxtile.fit(proto, capacity=wide * 3 // 2, budget="0%")
    assert fitted.before.arena > 2 * wide
    assert fitted.after.macs == fitted.before.macs
    assert any(step.chunks > 1 for step in fitted.steps)


# The mean of a pointwise convolution comes from its operand.


def test_the_gate_of_a_wide_convolution_comes_from_its_narrow_operand() -> None:
    text = """
g (float[1,3,32,16] x) => (float[1,2,32,16] y) {
    [stem] a = Conv(x, w0)
    [norm0] n = BatchNormalization(a, s, s, s, s)
    [wide] b = Conv<kernel_shape=[1,1]>(n, w1, b1)
    [mean] c = GlobalAveragePool(b)
    [gate] d = Sigmoid(c)
    [gated] e = Mul(b, d)
    [narrow] y = Conv(e, w2)
}"""
    weights = {"w0": (2, 3, 1, 1), "s": (2,), "w1": (16, 2, 1, 1), "b1": (16,), "w2": (2, 16, 1, 1)}
    proto = model(text, **weights, variance=np.asarray([1, 2], np.float32))
    proto.graph.node[1].input[4] = "variance"
    fitted = onnxtile.fit(proto, capacity="smallest", budget="1%")
    text = "the mean is taken before the pointwise convolution"
    assert [step.nodes for step in fitted.steps if step.text.endswith(text)] == [("mean",)]
    assert fitted.before.macs < fitted.after.macs <= 1.01 * fitted.before.macs
    without = onnxtile.fit(proto, capacity="smallest", budget="0%")
    assert without.after.macs <= without.before.macs
    assert not any(step.text.endswith(text) for step in without.steps)
    assert fitted.after.arena < without.after.arena
    assert fitted.verdict is not None and fitted.verdict.equal


def test_constants_that_are_listed_as_inputs_are_no_inputs_after_a_rewrite() -> None:
    old = model(
        """
g (float[1,2,32,16] x) => (float[1,4,1,1] y) {
    [stem] a = Conv(x, w0)
    [wide] b = Conv(a, w1)
    [mean] y = GlobalAveragePool(b)
}""",
        w0=(2, 2, 1, 1),
        w1=(4, 2, 1, 1),
    )
    old.ir_version = 3
    old.graph.initializer.append(onnx.helper.make_tensor("unread", onnx.TensorProto.INT64, [1], [4]))
    for tensor in old.graph.initializer:
        old.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    fitted = onnxtile.fit(old, capacity="smallest", budget="0%")
    assert "rewrite" in {step.kind for step in fitted.steps}
    assert [value.name for value in fitted.model.graph.inputs] == ["x"]
    assert fitted.verdict is not None and fitted.verdict.equal


# A wide tensor that its own means scale is made twice, and never exists as a whole.


EXCITATION = """
    [mean] m = GlobalAveragePool(b)
    [less] n = Conv(m, w2)
    [gate] o = Sigmoid(n)
    [gated] p = Mul(b, o)
"""
RESPONSE = """
    [mean] m = ReduceL2<axes=[2,3]>(b)
    [over] n = ReduceMean<axes=[1]>(m)
    [gate] o = Div(m, n)
    [gated] p = Mul(b, o)
"""


def scaled_by_its_means(gate: str) -> onnx.ModelProto:
    """Return a wide tensor between two narrow ones, which a gate made of its means scales."""
    text = f"""
g (float[1,4,32,32] x) => (float[1,4,32,32] y) {{
    [stem] s = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [wide] a = Conv(s, w1)
    [relu] b = Relu(a)
    {gate}
    [narrow] q = Conv(p, w3)
    [add] y = Add(q, s)
}}"""
    weights = {"w0": (4, 4, 3, 3), "w1": (32, 4, 1, 1), "w3": (4, 32, 1, 1)}
    return model(text, **(weights | ({"w2": (32, 32, 1, 1)} if "w2" in gate else {})))


@pytest.mark.parametrize("gate", [EXCITATION, RESPONSE])
def test_a_tensor_that_its_means_scale_is_made_twice(gate: str) -> None:
    made = scaled_by_its_means(gate)
    fitted = onnxtile.fit(made, capacity="80KiB", budget="40%")
    assert [step.nodes for step in fitted.steps if step.kind == "rewrite"] == [("mean",)] * 2
    assert fitted.before.arena > 150 * 1024
    assert fitted.after.arena <= 80 * 1024
    assert 1.05 * fitted.before.macs < fitted.after.macs <= 1.4 * fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_nothing_is_made_twice_beyond_the_budget_or_where_it_must_be_exact() -> None:
    tried: tuple[dict[str, Any], ...] = ({"budget": "20%"}, {"budget": "40%", "tolerance": "exact"})
    for options in tried:
        with pytest.raises(onnxtile.Infeasible):
            onnxtile.fit(scaled_by_its_means(EXCITATION), capacity="80KiB", **options)


def test_nothing_is_made_twice_where_the_whole_fits() -> None:
    fitted = onnxtile.fit(scaled_by_its_means(EXCITATION), capacity="200KiB", budget="40%")
    assert "rewrite" not in {step.kind for step in fitted.steps}


@pytest.mark.parametrize(
    "tail",
    [
        "[early] t = Neg(b)\n [mean] m = GlobalAveragePool(b)\n [gated] p = Mul(b, m)\n [other] u = Add(p, t)\n",
        "[mean] u = GlobalAveragePool(b)\n",
    ],
)
def test_a_tensor_that_lives_or_ends_anyway_is_made_once(tail: str) -> None:
    text = f"""
g (float[1,4,32,32] x) => (float[1,4,N,M] y) {{
    [wide] a = Conv(x, w1)
    [relu] b = Relu(a)
    {tail}
    [narrow] y = Conv(u, w3)
}}"""
    read = load(model(text, w1=(32, 4, 1, 1), w3=(4, 32, 1, 1)))
    edit = ModelEdit(read, resolve(read))
    assert not list(second_passes(edit, set(read.graph)))
