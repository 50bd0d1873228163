"""Small valid models with everything that ONNX has: bodies, functions, sequences, strings, quantised and symbolic tensors."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

_TEXTS = {
    "mlp": """<ir_version: 10, opset_import: ["": 17]>
      g (float[N, 8] x) => (float[N, 4] y) <float[8, 8] w = {1}, float[8] b = {0.5}, float[8, 4] v = {2}, float half = {0.5}> {
        h = MatMul(x, w)  k = Add(h, b)  s = Sigmoid(k)  t = Mul(k, s)  m = MatMul(t, v)  y = Mul(m, half)
      }""",
    "norm": """<ir_version: 10, opset_import: ["": 17]>
      g (float[2, 6, 8] x) => (float[2, 6, 8] y) <float two = {2}, float eps = {1e-5}, float[8] scale = {1}, float[8] bias = {1}> {
        m = ReduceMean <axes = [-1]> (x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean <axes = [-1]> (p)
        e = Add(v, eps)  r = Sqrt(e)  n = Div(d, r)  z = Mul(n, scale)  y = Add(z, bias)
      }""",
    "conv": """<ir_version: 8, opset_import: ["": 13]>
      g (float[1, 3, 8, 8] x) => (float[1, 16] y)
        <float[4, 3, 3, 3] w = {0.1}, float[4] b = {0}, int64[2] s = {1, -1}, float[64, 16] f = {1}> {
        c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)  r = Relu(c)  q = Reshape(r, s)  y = Gemm(q, f)
      }""",
    "heads": """<ir_version: 10, opset_import: ["": 17]>
      g (float[1, 4, 8] x) => (float[1, 4, 8] y) <float[8, 8] q = {1}, float[8, 8] k = {1}, float[8, 8] v = {1}, float c = {2},
        int64[4] s = {0, 0, 2, 4}, int64[3] t = {0, 0, 8}> {
        a = MatMul(x, q)  b = Reshape(a, s)  d = Transpose <perm = [0, 2, 1, 3]> (b)
        e = MatMul(x, k)  f = Reshape(e, s)  h = Transpose <perm = [0, 2, 3, 1]> (f)
        i = MatMul(x, v)  j = Reshape(i, s)  l = Transpose <perm = [0, 2, 1, 3]> (j)
        m = MatMul(d, h)  n = Div(m, c)  o = Softmax <axis = -1> (n)  p = MatMul(o, l)
        r = Transpose <perm = [0, 2, 1, 3]> (p)  y = Reshape(r, t)
      }""",
    "bodies": """<ir_version: 10, opset_import: ["": 17]>
      g (float[2, 3] x, bool c) => (float[2, 3] y, float[L, 2, 3] z) <int64 n = {3}, bool go = {1}> {
        i = If (c) <then_branch = t () => (float[2, 3] a) { a = Relu(x) }, else_branch = e () => (float[2, 3] b) { k = Neg(x) b = Abs(k) }>
        y, z = Loop (n, go, i) <body = l (int64 turn, bool on, float[2, 3] v) => (bool o, float[2, 3] w, float[2, 3] u)
          { o = Identity(on) w = Add(v, x) u = Mul(w, w) }>
      }""",
    "functions": """<ir_version: 10, opset_import: ["": 17, "local": 1]>
      g (float[N, 4] x) => (float[N, 4] y) { a = local.act <slope = 0.5> (x) b = local.twice (a) y = Relu(b) }
      <domain: "local", opset_import: ["": 17]> act <slope> (x) => (y) { h = LeakyRelu <alpha: float = @slope> (x) y = Neg(h) }
      <domain: "local", opset_import: ["": 17, "local": 1]> twice (x) => (y) {
        h = local.act <slope = 0.25> (x) y = local.act <slope = 2.0> (h)
      }""",
    "sequences": """<ir_version: 10, opset_import: ["": 17]>
      g (float[4, 2] x, string[2] s) => (float[4, 2] y, int64 n, string[2] t) <int64 one = {1}> {
        q = SplitToSequence <axis = 0> (x, one)  n = SequenceLength(q)  y = ConcatFromSequence <axis = 0> (q)  t = Identity(s)
      }""",
    "quantised": """<ir_version: 10, opset_import: ["": 17]>
      g (uint8[2, 4] x) => (uint8[2, 3] y) <float s = {0.1}, uint8 z = {3}, int8[4, 3] w = {1}, float ws = {0.2}, int8 wz = {0}> {
        a = DequantizeLinear(x, s, z)  b = DequantizeLinear(w, ws, wz)  c = MatMul(a, b)  y = QuantizeLinear(c, s, z)
      }""",
    "shapes": """<ir_version: 10, opset_import: ["": 17]>
      g (float[N, M] x) => (float[P, Q] y) <int64[1] z = {0}, int64[1] o = {1}, int64[1] u = {-1}> {
        s = Shape(x)  a = Slice(s, z, o)  c = Concat <axis = 0> (u, a)  r = Reshape(x, c)  y = Identity(r)
      }""",
}


def bases() -> dict[str, bytes]:
    """Return each model as the bytes of a file."""
    found = {}
    for name, text in _TEXTS.items():
        model = onnx.parser.parse_model(text)
        for tensor in model.graph.initializer:
            _fill(tensor)
        found[name] = model.SerializeToString()
    return found


def _fill(tensor: onnx.TensorProto) -> None:
    """Repeat the values of a tensor until it has as many as its shape asks for."""
    dims, name = list(tensor.dims), tensor.name
    values = [*tensor.float_data, *tensor.int32_data, *tensor.int64_data]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array = np.resize(np.asarray(values).astype(dtype), math.prod(dims)).reshape(dims)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
