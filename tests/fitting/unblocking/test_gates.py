"""Squeeze-and-excitation: the channels that a gate reads whole are made part by part, and only their result is kept."""

from __future__ import annotations

import onnxtile
from tests.fitting.networks import model


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
    fitted = onnxtile.fit(proto, capacity=wide * 3 // 2, max_extra_macs="0%")
    assert fitted.before.arena > 2 * wide
    assert fitted.after.macs == fitted.before.macs
    assert any(step.chunks > 1 for step in fitted.steps)
