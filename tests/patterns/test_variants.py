"""Each variant of each pattern of the library finds the tiny graphs made for it, whatever the order of operands, and stays right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from onnxtile import api
from tests.build import side_by_side
from tests.patterns.conftest import Tiny

_CENTRED = """
m = ReduceMean<axes=[-1], keepdims=1>(x)
c = Sub(x, m)
"""
_VARIANCE = """
s = Pow(c, 2.0)
v = ReduceMean<axes=[-1], keepdims=1>(s)
"""
_DEVIATION = "e = Add(v, 0.00001)\nd = Sqrt(e)\n"
_MEAN_SQUARE = "s = Pow(x, 2.0)\nv = ReduceMean<axes=[-1], keepdims=1>(s)\n"
_AGAIN = """
mm = ReduceMean<axes=[2], keepdims=1>(x)
cc = Sub(x, mm)
s = Mul(cc, cc)
u = ReduceMean<axes=[2], keepdims=0>(s)
"""
_MOMENTS = (
    _CENTRED
    + """
s = Mul(x, x)
b = ReduceMean<axes=[-1], keepdims=1>(s)
q = Mul(m, m)
v = Sub(b, q)
"""
)
_POOLED = (
    "m = GlobalAveragePool(x)\nc = Sub(x, m)\ns = Mul(c, c)\nv = GlobalAveragePool(s)\n"
    + _DEVIATION
    + "r = Reciprocal(d)\ni = Mul(r, W_1_1_8)\na = Mul(x, i)\n"
)
"""Means over the last of three axes, as tf2onnx writes them."""
_GROUPED = "g = Reshape(x, [2, 6, 2, 4])\nm = ReduceMean<axes=[1, 3], keepdims=1>(g)\nc = Sub(g, m)\n"
_SUMS = """
t = ReduceSum<keepdims=0>(x, [2])
m = Mul(t, 0.125)
s = Mul(x, x)
u = ReduceSum<keepdims=0>(s, [2])
b = Mul(u, 0.125)
q = Mul(m, m)
k = Sub(b, q)
f = Max(k, 0.0)
"""
_FLOORS = ("f = Max(v, 0.0)\n", "f = Relu(v)\n")
_SCALED = "g = Mul(n, W_8)\ny = Add(g, W_8)"

_ERF = ("a = Div(x, 1.4142135623730951)", "a = Mul(x, 0.7071067811865476)")
_HALVES = (
    "h = Mul(x, 0.5)\ny = Mul(h, p)",
    "h = Div(x, 2.0)\ny = Mul(h, p)",
    "h = Mul(x, p)\ny = Mul(h, 0.5)",
    "h = Mul(x, p)\ny = Div(h, 2.0)",
    "h = Mul(p, 0.5)\ny = Mul(x, h)",
    "h = Div(p, 2.0)\ny = Mul(x, h)",
)
_TANH = "t = Tanh(z)\np = Add(t, 1.0)\n"
_ROOT = "b = Add(x, a)\nz = Mul(b, 0.7978845608028654)\n"
_SQUARES = ("s = Mul(x, x)\n", "s = Pow(x, 2.0)\n")

_GATE = "g = MatMul(x, W_8_4)\nu = MatMul(x, W_8_4)\n"
_FLAT = [
    f"r = Reshape(x, [12, 8])\nk = Gemm(r, W_8_4{bias})\nl = Gemm(r, W_8_4{bias})\ng = Reshape(k, [2, 6, 4])\nu = Reshape(l, [2, 6, 4])\n"
    for bias in ("", ", W_4")
]
_FLAT.append(
    "r = Reshape(x, [12, 8])\nk = Gemm(r, W_8_4)\ng = Reshape(k, [2, 6, 4])\n"
    "q = Reshape(x, [-1, 8])\nl = Gemm(q, W_8_4)\nu = Reshape(l, [2, 6, 4])\n"
)
"""A simplifier makes a Gemm of each product over three axes, of the same reshaped input."""
_GATE_BIASED = "k = MatMul(x, W_8_4)\nl = MatMul(x, W_8_4)\ng = Add(k, W_4)\nu = Add(l, W_4)\n"
_SPLIT = "b = MatMul(x, W_8_8)\ng, u = Split<axis=-1>(b)\n"
_CUT = "b = MatMul(x, W_8_8)\ng = Slice(b, [0], [4], [2])\nu = Slice(b, [4], [8], [2])\n"
_SIGMOID = "a = Sigmoid(g)\n f = Mul(a, g)\ny = Mul(f, u)"
_GELU = "a = Div(g, 1.4142135623730951)\ne = Erf(a)\np = Add(e, 1.0)\nh = Mul(g, 0.5)\nf = Mul(h, p)\ny = Mul(f, u)"
_GELU_TANH = """
c = Pow(g, 3.0)
a = Mul(c, 0.044715)
i = Add(g, a)
z = Mul(i, 0.7978845608028654)
t = Tanh(z)
p = Add(t, 1.0)
h = Mul(g, 0.5)
f = Mul(h, p)
y = Mul(f, u)
"""

_HALVES_TURNED = (
    "u = Concat<axis=-1>(x, x)\nco = Cos(z)\nsi = Sin(z)\n{0}\nc = Mul({1}, co)\ns = Mul({2}, si)\nf = Sub(c, s)\n"
    "d = Mul({2}, co)\nt = Mul({1}, si)\ng = Add(d, t)\n"
    "y = Concat<axis=-1>(f, g)"
)
_ROUTED = (
    "z = Reshape(x, [12, 8])\nl = MatMul(z, W_8_4)\ne = Softmax<axis=-1>(l)\nt, i = TopK(e, [2])\n"
    "n = ReduceSum<keepdims=1>(t, [-1])\nu = Div(t, n)\nf = Reshape(u, [-1])\nj = Reshape(i, [-1])\n"
    "o = Unsqueeze(z, [1])\np = Expand(o, [1, 2, 1])\nr = Reshape(p, [24, 8])\n"
)
_CHOSEN_FIRST = _ROUTED.replace("e = Softmax<axis=-1>(l)", "e = Tanh(l)").replace(
    "n = ReduceSum<keepdims=1>(t, [-1])\nu = Div(t, n)", "u = Softmax<axis=-1>(t)"
)
_EXPERTS = (
    "g = Gather(W_4_12_8, j)\nh = Unsqueeze(r, [-1])\nk = MatMul(g, h)\nm = Squeeze(k, [2])\n"
    "a, b = Split<axis=-1>(m)\ns = Sigmoid(a)\nc = Mul(a, s)\nd = Mul(c, b)\n"
    "ga = Gather(W_4_8_6, j)\nha = Unsqueeze(d, [-1])\nka = MatMul(ga, ha)\nma = Squeeze(ka, [2])\n"
)
_BOUNDED = (
    "g = Gather(W_4_8_12, j)\nw = Gather(W_4_12, j)\nh = Unsqueeze(r, [1])\nk = MatMul(h, g)\nm = Squeeze(k, [1])\nq = Add(m, w)\n"
    "a = Slice(q, [0], [12], [1], [2])\nb = Slice(q, [1], [12], [1], [2])\naa = Clip(a, , 7.0)\nbb = Clip(b, -7.0, 7.0)\n"
    "s = Mul(aa, 1.702)\nc = Sigmoid(s)\nd = Mul(aa, c)\nv = Add(bb, 1.0)\nda = Mul(v, d)\n"
    "ga = Gather(W_4_6_8, j)\nwa = Gather(W_4_8, j)\nha = Unsqueeze(da, [1])\nka = MatMul(ha, ga)\nla = Squeeze(ka, [1])\n"
    "ma = Add(la, wa)\n"
)
_SUMMED = "fa = Unsqueeze(f, [1])\nna = Mul(ma, fa)\noa = Reshape(na, [12, 2, 8])\ny = ReduceSum<keepdims=0>(oa, [1])"
_SCORES = "t = Transpose<perm=[0, 2, 1]>(k)\nr = MatMul(q, t)\n"
_WEIGHTS = "w = Softmax<axis=-1>(r)\ny = MatMul(w, v)"
_COLUMNS = "vt = Transpose<perm=[0, 2, 1]>(v)\nwt = Transpose<perm=[0, 2, 1]>(w)\ny = MatMul(vt, wt)"
_FOUR = "q = Reshape(x, [2, 2, 3, 8])\nk = Reshape(z, [2, 2, 3, 8])\nt = Transpose<perm=[0, 1, 3, 2]>(k)\nr = MatMul(q, t)\n"
_MIX = """
{0}a = Transpose<perm=[0, 2, 3, 1]>({1})
{0}b = MatMul({0}a, W_2_2)
{0}c = Add({0}b, W_2)
{0} = Transpose<perm=[0, 3, 1, 2]>({0}c)
"""
_SUM = "s = ReduceSum<keepdims=1>(x, [2])\nm = {0}\nc = Sub(x, m)\n"
_SUM_OF_SQUARES = "p = Mul(c, c)\nu = ReduceSum<keepdims=1>(p, [2])\nv = {0}\n"
_HEADS = "{0}a = MatMul(x, W_8_8)\n{0}b = Reshape({0}a, [2, 6, 2, 4])\n{0} = Transpose<perm=[0, 2, 1, 3]>({0}b)\n"
_MERGED = "j = Transpose<perm=[0, 2, 1, 3]>(i)\nl = Reshape(j, [2, 6, 8])\ny = MatMul(l, W_8_8)"
_WINDOWS = (
    "j = Transpose<perm=[0, 2, 1, 3]>(i)\nl = Reshape(j, [2, 2, 3, 8])\n"
    "m = Transpose<perm=[0, 2, 1, 3]>(l)\nu = Reshape(m, [2, 6, 8])\ny = MatMul(u, W_8_8)"
)
_CORE = "t = Transpose<perm=[0, 1, 3, 2]>(k)\nr = MatMul(q, t)\nw = Softmax<axis=-1>(r)\ni = MatMul(w, v)\n"
_BIASED = "{0}c = Add({0}s, W_8)\n{0}b = Reshape({0}c, [2, 6, 2, 4])\n{0} = Transpose<perm=[0, 2, 1, 3]>({0}b)\n"
_PART = (
    "a = Slice(p, [0], [2], [2])\nb = Slice(p, [2], [4], [2])\nn = Neg(b)\nr = Concat<axis=-1>(n, a)\n"
    "s = Mul(r, W_6_4)\nc = Mul(p, W_6_4)\no = Add(c, s)\n"
)

CASES: dict[tuple[str, int], list[str]] = {
    ("LayerNorm", 1): [
        _CENTRED + _VARIANCE + _DEVIATION + "n = Div(c, d)\n" + _SCALED,
        _CENTRED + _VARIANCE + _DEVIATION + "y = Div(c, d)",
        _CENTRED + _VARIANCE + _DEVIATION + "n = Div(c, d)\ny = Mul(n, W_8)",
        _CENTRED + _VARIANCE + _DEVIATION + "n = Mul(W_8, c)\ng = Div(n, d)\ny = Add(g, W_8)",
        _CENTRED + _VARIANCE + "e = Sqrt(v)\nd = Add(e, 0.00001)\nn = Div(c, d)\n" + _SCALED,
        _CENTRED
        + "s = Mul(c, c)\nv = ReduceMean<axes=[-1], keepdims=1>(s)\n"
        + _DEVIATION
        + "n = Div(c, d)\n"
        + _SCALED,
        _CENTRED.replace("-1", "1")
        + _VARIANCE.replace("-1", "1")
        + _DEVIATION
        + "n = Div(c, d)\ng = Mul(n, W_6_1)\ny = Add(g, W_6_1)",
        _CENTRED
        + "o = Cast<to=11>(c)\ntwo = Cast<to=11>(2.0)\ntiny = Cast<to=11>(0.00001)\n"
        + "s = Pow(o, two)\nv = ReduceMean<axes=[-1], keepdims=1>(s)\ne = Add(v, tiny)\nd = Sqrt(e)\nf = Div(o, d)\nn = Cast<to=1>(f)\n"
        + _SCALED,
    ],
    ("LayerNorm", 2): [
        _CENTRED + _VARIANCE + _DEVIATION + way + "n = Mul(c, i)\n" + _SCALED
        for way in ("i = Reciprocal(d)\n", "i = Div(1.0, d)\n")
    ]
    + [_CENTRED + _VARIANCE + "e = Add(v, 0.00001)\ni = Pow(e, -0.5)\nn = Mul(c, i)\n" + _SCALED],
    ("LayerNorm", 3): [
        _CENTRED
        + "mm = ReduceMean<axes=[-1], keepdims=1>(x)\ncc = Sub(x, mm)\ns = Mul(cc, cc)\nv = ReduceMean<axes=[-1], keepdims=1>(s)\n"
        + deviation
        + "n = Div(c, d)\n"
        + _SCALED
        for deviation in (_DEVIATION, "e = Sqrt(v)\nd = Add(e, 0.00001)\n")
    ],
    ("LayerNorm", 4): [
        _CENTRED + _AGAIN + "w = Mul(u, 8.0)\na = Div(w, 7.0)\n" + back + deviation + "n = Div(c, d)\n" + _SCALED
        for back, deviation in product(
            ("v = Reshape(a, [2, 6, 1])\n", "v = Unsqueeze(a, [2])\n"),
            (_DEVIATION, "e = Sqrt(v)\nd = Add(e, 0.00001)\n"),
        )
    ]
    + [_CENTRED + _AGAIN + "v = Reshape(u, [2, 6, 1])\n" + _DEVIATION + "n = Div(c, d)\n" + _SCALED],
    ("LayerNorm", 8): [
        _SUMS + back + "e = Add(v, 0.00001)\nd = Sqrt(e)\ni = Reciprocal(d)\nc = Sub(x, o)\n" + scaled
        for back, scaled in product(
            (
                "v = Reshape(f, [2, 6, 1])\no = Reshape(m, [2, 6, 1])\n",
                "l = Reshape(f, [2, 6, 1])\nv = Expand(l, [2, 6, 1])\np = Reshape(m, [2, 6, 1])\no = Expand(p, [2, 6, 1])\n",
                "v = Unsqueeze(f, [2])\no = Unsqueeze(m, [2])\n",
            ),
            ("n = Mul(c, i)\n" + _SCALED, "j = Mul(i, W_8)\nn = Mul(c, j)\ny = Add(n, W_8)"),
        )
    ],
    ("LayerNorm", 5): [
        _MOMENTS + floor + _DEVIATION.replace("v,", "f,") + "n = Div(c, d)\n" + _SCALED for floor in _FLOORS
    ],
    ("LayerNorm", 6): [
        _MOMENTS + floor + _DEVIATION.replace("v,", "f,") + way
        for floor, way in product(
            _FLOORS,
            (
                "i = Reciprocal(d)\nn = Mul(c, i)\n" + _SCALED,
                "r = Div(1.0, d)\ni = Mul(r, W_8)\nn = Mul(c, i)\ny = Add(n, W_8)",
            ),
        )
    ],
    ("LayerNorm", 7): [
        _CENTRED
        + square
        + "v = ReduceMean<axes=[-1], keepdims=1>(s)\n"
        + _DEVIATION
        + "r = Reciprocal(d)\ni = Mul(r, W_8)\na = Mul(x, i)\nb = Mul(m, i)\no = Sub(W_8, b)\ny = Add(a, o)"
        for square in ("s = Mul(c, c)\n", "s = Pow(c, 2.0)\n")
    ]
    + [_POOLED + "b = Mul(m, i)\no = Sub(W_8, b)\ny = Add(a, o)"],
    ("LayerNorm", 11): [
        _POOLED + "k = Neg(m)\nb = Mul(k, i)\no = Add(b, W_1_1_8)\ny = Add(a, o)",
        _CENTRED
        + _VARIANCE
        + _DEVIATION
        + "r = Div(1.0, d)\ni = Mul(r, W_8)\na = Mul(x, i)\nk = Neg(m)\nb = Mul(k, i)\no = Add(b, W_8)\ny = Add(a, o)",
    ],
    ("RMSNorm", 1): [
        _MEAN_SQUARE + "e = Add(v, 0.00001)\n" + way + "n = Mul(x, i)\n" + last
        for way, last in product(
            ("d = Sqrt(e)\ni = Reciprocal(d)\n", "d = Sqrt(e)\ni = Div(1.0, d)\n", "i = Pow(e, -0.5)\n"),
            ("y = Mul(n, W_8)", "y = Identity(n)"),
        )
    ]
    + [
        "s = Mul(x, x)\nt = ReduceSum<keepdims=1>(s, [-1])\nv = Div(t, 8.0)\n"
        + _DEVIATION
        + "i = Reciprocal(d)\ny = Mul(x, i)",
        _MEAN_SQUARE + _DEVIATION + "r = Reciprocal(d)\ni = Mul(r, W_8)\ny = Mul(x, i)",
        _MEAN_SQUARE + "d = Sqrt(v)\ni = Reciprocal(d)\nn = Mul(x, i)\ny = Mul(n, W_8)",
        "p = Sub(u, z)\n" + _MEAN_SQUARE.replace("(x,", "(p,") + _DEVIATION + "i = Reciprocal(d)\ny = Mul(p, i)",
    ]
    + [
        "s = Mul(x, x)\nv = GlobalAveragePool(s)\ne = Add(v, 0.00001)\nd = Sqrt(e)\nr = Reciprocal(d)\ni = Mul(r, W_8)\ny = Mul(x, i)"
    ],
    ("RMSNorm", 2): [
        _MEAN_SQUARE + deviation + "n = Div(x, d)\ny = Mul(n, W_8)"
        for deviation in (_DEVIATION, "e = Sqrt(v)\nd = Add(e, 0.00001)\n")
    ],
    ("RMSNorm", 3): [_MEAN_SQUARE + _DEVIATION + "n = Mul(x, W_8)\ny = Div(n, d)"],
    ("RMSNorm", 4): [
        f"l = ReduceL2<axes=[-1], keepdims=1>(x)\na = {root}\nd = {bound}\nn = Div(x, d)\ny = Mul(n, W_8)"
        for root, bound in product(
            ("Mul(l, 0.35355339)", "Div(l, 2.8284271)"), ("Add(a, 0.00001)", "Clip(a, 0.00001)", "Max(a, 0.00001)")
        )
    ],
    ("RMSNorm", 5): [
        "l = ReduceL2<axes=[-1], keepdims=1>(x)\nd = Clip(l, 0.00001)\n"
        + divided
        + "g = Mul(n, 2.8284271)\ny = Mul(g, W_8)"
        for divided in ("n = Div(x, d)\n", "e = Expand(d, [2, 6, 8])\nn = Div(x, e)\n")
    ],
    ("RMSNorm", 6): [
        "a = Cast<to=1>(x)\nb = Cast<to=1>(x)\n"
        + _MEAN_SQUARE.replace("(x,", "(a,")
        + f"{_DEVIATION}{inverse}\nn = Mul(b, i)\ny = Mul(n, W_8)"
        for inverse in ("i = Reciprocal(d)", "i = Div(1.0, d)")
    ],
    ("GeLU", 1): [f"{scale}\ne = Erf(a)\np = Add(e, 1.0)\n{half}" for scale, half in product(_ERF, _HALVES)],
    ("GeLU", 2): [
        f"{scale}\ne = Erf(a)\nb = {half}\np = Add(b, 0.5)\ny = Mul(x, p)"
        for scale, half in product(_ERF, ("Mul(e, 0.5)", "Div(e, 2.0)"))
    ],
    ("GeLU", 3): [
        f"m = Neg(x)\n{scale.replace('x', 'm')}\ne = Erf(a)\np = Sub(1.0, e)\n{half}"
        for scale, half in product(_ERF, _HALVES)
    ],
    ("GeLUTanh", 1): ["c = Pow(x, 3.0)\na = Mul(c, 0.044715)\n" + _ROOT + _TANH + half for half in _HALVES],
    ("GeLUTanh", 2): [
        square + "c = Mul(s, x)\na = Mul(c, 0.044715)\n" + _ROOT + _TANH + half
        for square, half in product(_SQUARES, _HALVES)
    ],
    ("GeLUTanh", 3): [
        square + "c = Mul(s, 0.044715)\na = Mul(c, x)\n" + _ROOT + _TANH + half
        for square, half in product(_SQUARES, _HALVES)
    ],
    ("GeLUTanh", 4): [
        "c = Mul(x, 0.044715)\ns = Mul(c, x)\na = Mul(s, x)\n" + _ROOT + _TANH + half for half in _HALVES
    ],
    ("GeLUTanh", 5): [
        square + "c = Mul(s, 0.044715)\nb = Add(c, 1.0)\nr = Mul(x, 0.7978845608028654)\nz = Mul(r, b)\n" + _TANH + half
        for square, half in product(_SQUARES, _HALVES)
    ],
    ("GeLUTanh", 6): [
        "c = Mul(x, 0.044715)\ns = Mul(c, x)\nb = Add(s, 1.0)\nr = Mul(x, 0.7978845608028654)\nz = Mul(r, b)\n"
        + _TANH
        + half
        for half in _HALVES
    ],
    ("GeLUTanh", 7): [
        square + "a = Mul(s, 0.035677408136300125)\nb = Add(a, 0.7978845608028654)\nz = Mul(x, b)\n" + _TANH + half
        for square, half in product(_SQUARES, _HALVES)
    ],
    ("GeLUTanh", 8): [
        "a = Mul(x, 0.035677408136300125)\ns = Mul(a, x)\nb = Add(s, 0.7978845608028654)\nz = Mul(x, b)\n"
        + _TANH
        + half
        for half in _HALVES
    ],
    ("GeLUTanh", 9): [
        "c = Pow(x, 3.0)\na = Mul(c, 0.044715)\nb = Add(x, a)\nz = Mul(b, 1.5957691216057308)\nt = Sigmoid(z)\ny = Mul(x, t)"
    ],
    ("GeLUTanh", 10): [
        square
        + "c = Mul(s, x)\na = Mul(c, 0.044715)\nb = Add(x, a)\nz = Mul(b, 1.5957691216057308)\nt = Sigmoid(z)\ny = Mul(x, t)"
        for square in _SQUARES
    ],
    ("QuickGeLU", 1): ["a = Mul(x, 1.702)\ns = Sigmoid(a)\ny = Mul(x, s)"],
    ("GroupNorm", 2): [
        _GROUPED
        + "s = Mul(c, c)\nv = ReduceMean<axes=[1, 3], keepdims=1>(s)\n"
        + _DEVIATION
        + "r = Reciprocal(d)\ni = Mul(r, W_1_1_2_4)\na = Mul(g, i)\nk = Neg(m)\nb = Mul(k, i)\no = Add(b, W_1_1_2_4)\np = Add(a, o)\n"
        "y = Reshape(p, [2, 6, 8])"
    ],
    ("GroupNorm", 3): [
        _GROUPED
        + square
        + "b = ReduceMean<axes=[1, 3], keepdims=1>(s)\nq = Mul(m, m)\nw = Sub(b, q)\nv = Max(w, 0.0)\n"
        + _DEVIATION
        + "n = Div(c, d)\np = Reshape(n, [2, 6, 8])\nt = Mul(p, W_8)\ny = Add(t, W_8)"
        for square in ("s = Mul(g, g)\n", "s = Pow(g, 2.0)\n")
    ],
    ("SiLU", 1): ["s = Sigmoid(x)\ny = Mul(x, s)"],
    ("SiLU", 2): ["m = Neg(x)\ne = Exp(m)\np = Add(e, 1.0)\ny = Div(x, p)"],
    ("SiLU", 3): ["b = Mul(x, 1.0)\ns = Sigmoid(b)\ny = Mul(x, s)"],
    ("Mish", 1): ["s = Softplus(x)\nt = Tanh(s)\ny = Mul(x, t)"],
    ("Mish", 2): ["s = Softplus(x)\nb = Greater(x, 20.0)\nc = Where(b, x, s)\nt = Tanh(c)\ny = Mul(x, t)"],
    ("Mish", 3): ["e = Exp(x)\np = Add(e, 1.0)\ns = Log(p)\nt = Tanh(s)\ny = Mul(x, t)"],
    ("HardSwish", 1): [
        "a = Add(x, 3.0)\nc = Clip(a, 0.0, 6.0)\n" + last
        for last in (
            "g = Mul(x, c)\ny = Div(g, 6.0)",
            "g = Mul(x, c)\ny = Mul(g, 0.16666666666666666)",
            "g = Div(c, 6.0)\ny = Mul(x, g)",
            "g = Mul(c, 0.16666666666666666)\ny = Mul(x, g)",
        )
    ],
    ("HardSwish", 2): [
        f"s = {sixth}\na = Add(s, 0.5)\nc = Clip(a, 0.0, 1.0)\ny = Mul(x, c)"
        for sixth in ("Div(x, 6.0)", "Mul(x, 0.16666666666666666)")
    ],
    ("HardSwish", 3): ["s = HardSigmoid<alpha=0.1666666716337204>(x)\ny = Mul(x, s)"],
    ("L2Norm", 1): [
        f"l = ReduceL2<axes=[-1], keepdims=1>(x)\n{bound}\ny = Div(x, b)"
        for bound in (
            "b = Clip(l, 0.000001)",
            "b = Max(l, 0.000001)",
            "b = Add(l, 0.000001)",
            "c = Clip(l, 0.000001)\nb = Expand(c, [2, 6, 8])",
        )
    ],
    ("L2Norm", 2): [
        f"s = Mul(x, x)\na = ReduceSum<keepdims=1>(s, [-1])\n{length}\ny = Div(x, l)"
        for length in ("b = Add(a, 0.000001)\nl = Sqrt(b)", "b = Sqrt(a)\nl = Add(b, 0.000001)")
    ],
    ("L2Norm", 3): [
        f"s = Mul(x, x)\na = ReduceSum<keepdims=1>(s, [-1])\nb = Add(a, 0.000001)\n{length}\ny = Mul(x, l)"
        for length in ("r = Sqrt(b)\nl = Reciprocal(r)", "r = Sqrt(b)\nl = Div(1.0, r)", "l = Pow(b, -0.5)")
    ],
    ("Softmax", 1): [
        "m = ReduceMax<axes=[-1], keepdims=1>(x)\nc = Sub(x, m)\ne = Exp(c)\ns = ReduceSum<keepdims=1>(e, [-1])\ny = Div(e, s)"
    ],
    ("Softmax", 2): ["e = Exp(x)\ns = ReduceSum<keepdims=1>(e, [-1])\ny = Div(e, s)"],
    ("Linear", 1): ["a = Reshape(x, [12, 8])\nb = Gemm(a, W_8_4, W_4)\ny = Reshape(b, [2, 6, 4])"],
    ("Linear", 2): ["a = Flatten(x)\nb = Gemm(a, W_48_4, W_4)\ny = Relu(b)"],
    ("Linear", 3): [f"a = MatMul(x, W_8_4)\ny = Add(a, {bias})" for bias in ("W_4", "W_1_4")],
    ("SwiGLU", 1): [gate + _SIGMOID for gate in (_GATE, _GATE_BIASED, *_FLAT)],
    ("SwiGLU", 2): [_SPLIT + _SIGMOID],
    ("SwiGLU", 3): [_CUT + _SIGMOID],
    ("GeGLU", 1): [gate + _GELU for gate in (_GATE, _GATE_BIASED, *_FLAT)],
    ("GeGLU", 2): [gate + _GELU_TANH for gate in (_GATE, _GATE_BIASED, *_FLAT)],
    ("GeGLU", 3): [_SPLIT + _GELU, _SPLIT + _GELU_TANH],
    ("GeGLU", 4): [_CUT + _GELU, _CUT + _GELU_TANH],
    ("SkipLayerNorm", 1): [
        "x = Add(a, b)\n" + _CENTRED + _VARIANCE + _DEVIATION + "n = Div(c, d)\n" + _SCALED,
    ],
    ("SkipRMSNorm", 1): [
        "x = Add(a, b)\n" + _MEAN_SQUARE + _DEVIATION + "n = Div(x, d)\ny = Mul(n, W_8)",
    ],
    ("TwiceGeLU", 1): [f"{erf}\ne = Erf(a)\nf = Add(e, 1.0)\ny = Mul(x, f)" for erf in _ERF],
    ("TwiceGeLUTanh", 1): ["c = Pow(x, 3.0)\na = Mul(c, 0.044715)\n" + _ROOT + _TANH + "y = Mul(x, p)"],
    ("TwiceGeLUTanh", 2): [
        square + "c = Mul(s, x)\na = Mul(c, 0.044715)\n" + _ROOT + _TANH + "y = Mul(x, p)" for square in _SQUARES
    ],
    ("TwiceGeLUTanh", 3): [
        square + "c = Mul(s, 0.044715)\na = Mul(c, x)\n" + _ROOT + _TANH + "y = Mul(x, p)" for square in _SQUARES
    ],
    ("TwiceGeLUTanh", 4): ["c = Mul(x, 0.044715)\ns = Mul(c, x)\na = Mul(s, x)\n" + _ROOT + _TANH + "y = Mul(x, p)"],
    ("TwiceGeLUTanh", 5): [
        square
        + "c = Mul(s, 0.044715)\nb = Add(c, 1.0)\nr = Mul(x, 0.7978845608028654)\nz = Mul(r, b)\n"
        + _TANH
        + "y = Mul(x, p)"
        for square in _SQUARES
    ],
    ("TwiceGeLUTanh", 6): [
        square
        + "a = Mul(s, 0.035677408136300125)\nb = Add(a, 0.7978845608028654)\nz = Mul(x, b)\n"
        + _TANH
        + "y = Mul(x, p)"
        for square in _SQUARES
    ],
    ("LayerNorm", 9): [
        _SUM.format(mean) + _SUM_OF_SQUARES.format(variance) + _DEVIATION + end + _SCALED
        for (mean, variance), end in product(
            (("Mul(s, 0.125)", "Mul(u, 0.125)"), ("Div(s, 8.0)", "Div(u, 8.0)")),
            ("n = Div(c, d)\n", "i = Reciprocal(d)\nn = Mul(c, i)\n"),
        )
    ],
    ("LayerNorm", 10): [
        _SUM.format("Mul(s, 0.125)")
        + "mm = Mul(m, m)\np = Mul(x, x)\nu = ReduceSum<keepdims=1>(p, [2])\nf = Mul(u, 0.125)\nv = Sub(f, mm)\n"
        + _DEVIATION
        + end
        + _SCALED
        for end in ("n = Div(c, d)\n", "i = Reciprocal(d)\nn = Mul(c, i)\n")
    ],
    ("ScaledDotProductAttention", 1): [
        _SCORES + _WEIGHTS,
        _SCORES + "a = Mul(r, 0.25)\nb = Add(a, W_6_6)\nw = Softmax<axis=-1>(b)\ny = MatMul(w, v)",
        _SCORES
        + "a = Div(r, 4.0)\nc = Equal(W_6_6, 0.0)\nb = Where(c, -9.0, a)\nw = Softmax<axis=-1>(b)\ny = MatMul(w, v)",
        _SCORES + "a = Div(r, 30.0)\nb = Tanh(a)\nc = Mul(b, 30.0)\nw = Softmax<axis=-1>(c)\ny = MatMul(w, v)",
        _SCORES + "a = Mul(r, W_6_6)\nb = Sub(a, W_6_6)\nw = Softmax<axis=-1>(b)\ny = MatMul(w, v)",
        _SCORES
        + "m = Greater(W_6_6, 0.5)\na = Where(m, W_6_6, r)\nw = Softmax<axis=-1>(a)\nn = Where(m, 0.0, w)\ny = MatMul(n, v)",
        _SCORES + "a = Clip(r, -50.0, 50.0)\nb = Max(a, -40.0)\nw = Softmax<axis=-1>(b)\ny = MatMul(w, v)",
        _SCORES + "a = Cast<to=1>(r)\nw = Softmax<axis=-1>(a)\nb = Cast<to=1>(w)\ny = MatMul(b, v)",
        "j = Mul(q, 0.5)\nt = Transpose<perm=[0, 2, 1]>(k)\nl = Mul(t, 0.5)\nr = MatMul(j, l)\n" + _WEIGHTS,
        _SCORES
        + "a = Reshape(r, [1, 2, 6, 6])\nb = Add(a, W_1_1_6_6)\nw = Softmax<axis=3>(b)\nc = Reshape(w, [2, 6, 6])\ny = MatMul(c, v)",
        "t = Transpose<perm=[0, 2, 1]>(k)\nr = MatMul(W_2_3_8, t)\n" + _WEIGHTS,
        _SCORES
        + "n = Shape(r)\nm = Expand(W_1_6, n)\nb = Cast<to=9>(m)\na = Where(b, -9.0, r)\nw = Softmax<axis=-1>(a)\ny = MatMul(w, v)",
        _SCORES + "n = Shape(r)\nm = Reshape(W_72, n)\na = Add(r, m)\nw = Softmax<axis=-1>(a)\ny = MatMul(w, v)",
        _SCORES
        + "a = Mul(r, 0.25)\nm = ReduceMax<axes=[-1], keepdims=1>(a)\nb = Sub(a, m)\nw = Softmax<axis=-1>(b)\ny = MatMul(w, v)",
        _SCORES
        + "a = Mul(r, 0.25)\nc = Concat<axis=-1>(a, W_2_6_1)\nb = Softmax<axis=-1>(c)\nw = Slice(b, [0], [6], [2])\ny = MatMul(w, v)",
        _SCORES + "a = Mul(r, 0.25)\nw = Softmax<axis=-1>(a)\n" + _COLUMNS,
        _SCORES + "a = Add(r, W_6_6)\nw = Softmax<axis=2>(a)\n" + _COLUMNS,
        _SCORES + "a = Mul(r, 0.25)\nb = Transpose<perm=[0, 2, 1]>(a)\nw = Softmax<axis=-1>(b)\ny = MatMul(w, v)",
        _SCORES + "a = Transpose<perm=[0, 2, 1]>(r)\nb = Add(a, W_6_6)\nw = Softmax<axis=-1>(b)\n" + _COLUMNS,
    ],
    ("ScaledDotProductAttention", 2): [
        _SCORES + "a = Add(r, W_6_6)\nw = Softmax<axis=-1>(a)\nb = IsNaN(w)\ng = Where(b, 0.0, w)\ny = MatMul(g, v)",
    ],
    ("ScaledDotProductAttention", 3): [
        _SCORES + "w = Softmax<axis=2>(r)\ny = MatMul(w, v)",
        "t = Transpose<perm=[0, 2, 1]>(k)\nl = Mul(t, 0.5)\nr = MatMul(q, l)\nw = Softmax<axis=2>(r)\ny = MatMul(w, v)",
    ],
    ("ScaledDotProductAttention", 4): [
        'r = Einsum<equation="bid,bjd->bij">(q, k)\na = Mul(r, 0.25)\nw = Softmax<axis=-1>(a)\n' + last
        for last in ('y = Einsum<equation="bij,bjd->bid">(w, v)', "y = MatMul(w, v)")
    ],
    ("ScaledDotProductAttention", 5): [
        _SCORES
        + "a = Mul(r, 0.25)\nw = Softmax<axis=-1>(a)\nin = IsNaN(w)\nn = Where(in, 0.0, w)\n"
        + "nd = Cast<to=11>(n)\nia = IsInf(nd)\nga = Greater(n, 0.0)\nib = Cast<to=9>(ia)\ngb = Cast<to=9>(ga)\nla = And(ib, gb)\n"
        + "b = Where(la, 1000.0, n)\n"
        + "bd = Cast<to=11>(b)\nja = IsInf(bd)\nha = Less(b, 0.0)\njb = Cast<to=9>(ja)\nhb = Cast<to=9>(ha)\nma = And(jb, hb)\n"
        + "f = Where(ma, -1000.0, b)\ny = MatMul(f, v)",
    ],
    ("ScaledDotProductAttention", 6): [
        _SCORES
        + "a = Mul(r, 0.25)\nw = Softmax<axis=-1>(a)\nin = IsNaN(w)\nn = Where(in, 0.0, w)\n"
        + "l = Less(w, 0.0)\ni = IsInf(w)\np = And(l, i)\nb = Where(p, -1000.0, n)\n"
        + "g = Greater(w, 0.0)\nq2 = And(g, i)\nf = Where(q2, 1000.0, b)\ny = MatMul(f, v)",
    ],
    ("ScaledDotProductAttention", 7): [
        _SCORES
        + "n = Shape(r)\nl = Gather(n, [2])\nb = Slice(W_6_6, [0], l, [1])\na = Add(r, b)\nw = Softmax<axis=-1>(a)\ny = MatMul(w, v)",
        _SCORES
        + "n = Shape(r)\np = Reshape(r, n)\nw = Softmax<axis=-1>(p)\no = Shape(w)\nh = Reshape(w, o)\ny = MatMul(h, v)",
    ],
    ("ScaledDotProductAttention", 8): [
        _FOUR + _MIX.format("e", "r") + "w = Softmax<axis=-1>(e)\n" + _MIX.format("f", "w") + "y = MatMul(f, q)",
        _FOUR
        + "e = Conv<kernel_shape=[1, 1]>(r, W_2_2_1_1)\nw = Softmax<axis=-1>(e)\n"
        + "f = Conv<kernel_shape=[1, 1]>(w, W_2_2_1_1)\ny = MatMul(f, q)",
    ],
    ("ScaledDotProductAttention", 9): [
        _SCORES
        + "b = Reshape(r, [2, 6, 2, 3])\na = Add(b, W_6_1_3)\nd = Add(a, W_6_2_1)\nc = Reshape(d, [2, 6, 6])\n"
        + "i = Reshape([0, 1], [2, 1])\nu = ScatterND(r, i, c)\nw = Softmax<axis=-1>(u)\ny = MatMul(w, v)",
    ],
    ("RotaryEmbedding", 4): [_HALVES_TURNED.format("a, b = Split<axis=-1>(u)", "a", "b")],
    ("RotaryEmbedding", 5): [
        _HALVES_TURNED.format("a = Slice(u, [0], [8], [2])\nb = Slice(u, [8], [16], [2])", "a", "b")
    ],
    ("MixtureOfExperts", 1): [routed + _EXPERTS + _SUMMED for routed in (_ROUTED, _CHOSEN_FIRST)],
    ("MixtureOfExperts", 2): [
        _ROUTED.replace("u = Div(t, n)", "u = GatherElements<axis=1>(e, i)") + _EXPERTS + _SUMMED
    ],
    ("MixtureOfExperts", 3): [_ROUTED + _BOUNDED + _SUMMED],
    ("MultiHeadAttention", 1): ["".join(map(_HEADS.format, "qkv")) + _CORE + _MERGED],
    ("MultiHeadAttention", 3): [
        "o = MatMul(x, W_8_24)\n"
        + "".join(f"{n}s = Slice(o, [{8 * i}], [{8 * i + 8}], [2])\n" for i, n in enumerate("qkv"))
        + "".join(map(_BIASED.format, "qkv"))
        + _CORE
        + _MERGED
    ],
    ("MultiHeadAttention", 2): [
        "o = MatMul(x, W_8_24)\nqs, ks, vs = Split<axis=-1>(o)\n"
        + "".join(map(_BIASED.format, "qkv"))
        + _CORE
        + _MERGED.replace("y = MatMul(l, W_8_8)", "z = MatMul(l, W_8_8)\ny = Add(z, W_8)")
    ],
    ("MultiHeadAttention", 4): [
        _HEADS.format("q")
        + "o = MatMul(x, W_8_16)\nks, vs = Split<axis=-1>(o)\n"
        + "".join(map(_BIASED.format, "kv"))
        + _CORE
        + end
        for end in (_MERGED, _WINDOWS)
    ],
    ("MultiHeadAttention", 5): [
        _HEADS.format("q")
        + "o = MatMul(x, W_8_16)\n"
        + "".join(f"{n}s = Slice(o, [{8 * i}], [{8 * i + 8}], [2])\n" for i, n in enumerate("kv"))
        + "".join(map(_BIASED.format, "kv"))
        + _CORE
        + _MERGED
    ],
    ("RotaryEmbedding", 1): [
        "a = Slice(x, [0], [4], [2])\nb = Slice(x, [4], [8], [2])\nn = Neg(b)\nr = Concat<axis=-1>(n, a)\n"
        + "s = Mul(r, W_6_8)\nc = Mul(x, W_6_8)\ny = Add(c, s)"
    ],
    ("RotaryEmbedding", 3): [
        "a = Slice(x, [0], [8], [2], [2])\nb = Slice(x, [1], [8], [2], [2])\nn = Neg(b)\nu = Unsqueeze(n, [-1])\nv = Unsqueeze(a, [-1])\n"
        + "p = Concat<axis=-1>(u, v)\nr = Reshape(p, [2, 6, 8])\ns = Mul(r, W_6_8)\nc = Mul(x, W_6_8)\ny = Add(c, s)"
    ],
    ("PartialRotaryEmbedding", 1): [
        "p = Slice(x, [0], [4], [2])\nq = Slice(x, [4], [8], [2])\n" + _PART + "y = Concat<axis=-1>(o, q)"
    ],
    ("PartialRotaryEmbedding", 2): ["p, q = Split<axis=-1>(x)\n" + _PART + "y = Concat<axis=-1>(o, q)"],
    ("RotaryEmbedding", 2): [
        "a, b = Split<axis=-1>(x)\nn = Neg(b)\nr = Concat<axis=-1>(n, a)\ns = Mul(r, W_6_8)\nc = Mul(x, W_6_8)\ny = Add(c, s)"
    ],
}

_PICTURES: dict[tuple[str, int], list[str]] = {
    ("GroupNorm", 1): [
        "a = Reshape(x, [0, 2, -1])\nb = InstanceNormalization(a, W_2, W_2)\nc = Reshape(b, [2, 4, 6, 6])\n" + last
        for last in ("d = Mul(c, W_4_1_1)\ny = Add(d, W_4_1_1)", "y = Relu(c)")
    ],
    ("InstanceNorm", 1): [
        (_CENTRED + _VARIANCE).replace("[-1]", "[2, 3]")
        + _DEVIATION
        + "n = Div(c, d)\ng = Mul(n, W_4_1_1)\ny = Add(g, W_4_1_1)"
    ],
    ("InstanceNorm", 2): [
        "n = InstanceNormalization(x, W_4, W_4)\n" + last
        for last in ("g = Mul(n, W_4_1_1)\ny = Add(g, W_4_1_1)", "y = Mul(n, W_4_1_1)")
    ],
    ("ConvBatchNorm", 1): [
        f"a = {convolution}(x, W_4_4_3_3)\ny = BatchNormalization(a, W_4, W_4, W_4, W_4)"
        for convolution in ("Conv", "ConvTranspose")
    ],
    ("ConvAddActivation", 1): [
        f"a = Conv<pads=[1, 1, 1, 1]>(x, W_4_4_3_3)\n{middle}\ny = Relu(s)"
        for middle in (
            "s = Add(a, u)",
            "s = Sum(a, u)",
            "s = Add(a, x)",
            "b = BatchNormalization(a, W_4, W_4, W_4, W_4)\ns = Add(b, u)",
        )
    ],
    ("ConvActivation", 1): [
        "a = Conv(x, W_4_4_3_3)\n" + last
        for last in ("y = Relu(a)", "y = Clip(a, 0.0, 6.0)", "s = Sigmoid(a)\ny = Mul(a, s)")
    ]
    + ["a = ConvTranspose<strides=[2, 2]>(x, W_4_4_3_3)\ny = Relu(a)"],
    ("DepthwiseSeparable", 1): [
        "a = Conv<group=4, kernel_shape=[3, 3]>(x, W_4_1_3_3)\n"
        + middle
        + "y = Conv<kernel_shape=[1, 1]>(c, W_8_4_1_1)"
        for middle in (
            "c = Relu(a)\n",
            "b = BatchNormalization(a, W_4, W_4, W_4, W_4)\nc = Clip(b, 0.0, 6.0)\n",
        )
    ],
}


def test_a_variant_finds_its_graphs(tiny: Tiny, variant: tuple[str, int]) -> None:
    name, index = variant
    key = (name, index + 1)
    bodies, shape = (CASES[key], "2,6,8") if key in CASES else (_PICTURES.get(key, []), "2,4,6,6")
    assert bodies, f"variant {index + 1} of {name} has no graph here"
    library = tiny.patterns[name]
    pattern = replace(library, programs=library.programs[index : index + 1])
    graphs = [(body, model) for body in bodies for model in tiny.turned(tiny.model(body, shape=shape))]
    whole = side_by_side(model for _, model in graphs)
    fused = api.fuse(whole, [*tiny.before(pattern), pattern], verify=False)
    calls = [node for node in fused.model.graph if node.name in fused.patterns[-1].calls]
    found = Counter(str(node.outputs[0].name).partition("_")[0] for node in calls)
    assert [body for number, (body, _) in enumerate(graphs) if found[f"m{number}"] != 1] == []


@pytest.mark.parametrize("key", [*CASES, *_PICTURES], ids=lambda key: f"{key[0]}-{key[1]}")
def test_what_the_library_makes_of_them_computes_the_same(tiny: Tiny, key: tuple[str, int]) -> None:
    name, index = key
    assert name in tiny.patterns and index <= len(tiny.patterns[name].programs), "there is no such variant"
    bodies, shape = (CASES[key], "2,6,8") if key in CASES else (_PICTURES[key], "2,4,6,6")
    for body in bodies[:1]:
        assert tiny.fused(tiny.model(body, shape=shape)), body
