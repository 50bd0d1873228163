"""The mean of a pointwise convolution comes from its operand."""

from __future__ import annotations

import onnx

import onnxtile
from tests.fitting.networks import model


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
    proto = model(text, **weights)
    proto.graph.node[1].input[4] = "variance"
    proto.graph.initializer.append(onnx.helper.make_tensor("variance", onnx.TensorProto.FLOAT, [2], [1, 2]))
    fitted = onnxtile.fit(proto, smallest=True, max_extra_macs="1%")
    steps = {step.kind: step for step in fitted.steps}
    assert steps["rewrite"].nodes == ("mean",)
    assert fitted.before.macs < fitted.after.macs <= 1.01 * fitted.before.macs
    without = onnxtile.fit(proto, smallest=True, max_extra_macs="0%")
    assert without.after.macs <= without.before.macs
    assert "rewrite" not in {step.kind for step in without.steps}
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
    fitted = onnxtile.fit(old, smallest=True, max_extra_macs="0%")
    assert "rewrite" in {step.kind for step in fitted.steps}
    assert [value.name for value in fitted.model.graph.inputs] == ["x"]
    assert fitted.verdict is not None and fitted.verdict.equal
