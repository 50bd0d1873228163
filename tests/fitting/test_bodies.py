"""Regions that hold a node with bodies: these read values of the region."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

import onnxtile

NETWORK = """<ir_version: 10, opset_import: ["": 17]>
  g (float[1, 4, 16, 16] x, bool c) => (float[1, 4, 16, 16] y) <float[16, 4, 1, 1] w = {1}, float[4, 16, 1, 1] v = {1}> {
    a = Conv(x, w)  b = Relu(a)  d = Conv(b, v)  e = Sigmoid(d)
    f = If (c) <then_branch = t () => (float[1, 4, 16, 16] p) { q = Abs(e)  p = Add(q, d) },
                else_branch = n () => (float[1, 4, 16, 16] r) { r = Neg(d) }>
    h = Conv(f, w)  i = Relu(h)  y = Conv(i, v)
  }"""


def _network() -> onnx.ModelProto:
    model = onnx.parser.parse_model(NETWORK)
    generator = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        array = generator.standard_normal(tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def test_bodies_read_the_values_of_their_region() -> None:
    model = _network()
    arena = onnxtile.plan(model, verify=False).plan.arena_size
    fitted = onnxtile.fit(model, capacity=int(arena * 0.9))
    assert fitted.verdict is not None and fitted.verdict.equal
    assert fitted.fits
