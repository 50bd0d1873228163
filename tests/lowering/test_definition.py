"""The definitions of operators as terms: onnx's functions and ours, and what is one formula by the laws of sums and exponentials."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxtile.fusion.lower.lowering import definition
from onnxtile.fusion.lower.terms import Poly, Reader, number, power, product, reduced, same, total, variable

X, SCALE, BIAS = variable(0), variable(1), variable(2)
LAST = (-1,)


def read(body: str) -> Poly:
    """Return the terms of y, which `body` computes of x, scale and bias."""
    text = f'<domain: "t", opset_import: ["": 17]> f (x, scale, bias) => (y) {{ {body} }}'
    function = ir.from_proto(onnx.parser.parse_function(text))
    return Reader({}).read(function, [X, SCALE, BIAS], [None] * 3)[0]


def constant(name: str, value: float) -> str:
    return f"{name} = Constant <value_float: float = {value}> ()"


CENTRED = "m = ReduceMean <axes = [-1]> (x) c = Sub (x, m) p = Mul (c, c) v = ReduceMean <axes = [-1]> (p)"
END = f"{constant('e', 0.001)} a = Add (v, e) q = Sqrt (a) n = Div (c, q) s = Mul (n, scale) y = Add (s, bias)"
SQUARES = CENTRED.replace("p = Mul (c, c)", "p = Mul (x, x)")
NORMS = [
    (f"{CENTRED} {END}", True),
    (f"{SQUARES.replace('v =', 'u =')} w = Mul (m, m) v = Sub (u, w) {END}", True),
    (f"{SQUARES} {END}", False),
    (f"{CENTRED.replace('[-1]> (p)', '[-2]> (p)')} {END}", False),
    (f"{CENTRED} {END.replace('0.001', '0.0011')}", False),
    (f"{CENTRED} {END.replace('Mul (n, scale)', 'Mul (n, bias)')}", False),
    (f"{CENTRED} {END.replace('Sqrt (a)', 'Identity (a)')}", False),
]


@pytest.mark.parametrize(("body", "is_norm"), NORMS)
def test_a_norm_is_its_definition_however_its_variance_is_written(body: str, is_norm: bool) -> None:
    settings = (("axis", 1), ("epsilon", 0.001))
    assert same(read(body), definition("LayerNormalization", 17, (X, SCALE, BIAS), settings, LAST), 1e-6) is is_norm


SOFTMAX = "e = Exp (d) axes = Constant <value_ints: ints = [-1]> () z = ReduceSum (e, axes) y = Div (e, z)"
SHIFTS = [
    ("d = Identity (x)", True),
    ("t = ReduceMax <axes = [-1]> (x) d = Sub (x, t)", True),
    ("t = ReduceMax <axes = [-2]> (x) d = Sub (x, t)", False),
    ("d = Sub (x, bias)", False),
    ("d = Add (x, x)", False),
]


@pytest.mark.parametrize(("shift", "is_softmax"), SHIFTS)
def test_a_softmax_may_be_shifted_by_what_is_one_number_for_a_row(shift: str, is_softmax: bool) -> None:
    wanted = definition("Softmax", 13, (X,), (("axis", -1),), LAST)
    assert same(read(f"{shift} {SOFTMAX}"), wanted, 1e-6) is is_softmax


def test_a_length_is_the_root_of_a_sum_of_squares() -> None:
    root = power(reduced("ReduceSum", LAST, 1, power(X, 2.0)), 0.5)
    assert definition("LpNormalization", 1, (X,), axes=LAST) == product(X, power(root, -1.0))
    assert reduced("ReduceL2", LAST, 0, X) != root


def test_a_sum_takes_out_what_is_the_same_along_its_axes_only() -> None:
    row, column = (reduced("ReduceMean", axes, 1, X) for axes in (LAST, (-2,)))
    assert reduced("ReduceMean", LAST, 1, product(row, X)) == product(row, row)
    assert reduced("ReduceMean", LAST, 1, product(column, X)) != product(column, row)
    assert reduced("ReduceMean", LAST, 1, total(row, number(2.0))) == total(row, number(2.0))
    assert reduced("ReduceSum", LAST, 1, number(2.0)) == product(
        number(2.0), reduced("ReduceSum", LAST, 1, number(1.0))
    )
    assert reduced("ReduceMax", LAST, 1, total(X, row)) != total(reduced("ReduceMax", LAST, 1, X), row)


def test_casts_of_a_definition_are_kept_where_they_are_asked_for() -> None:
    half, wide = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    plain, narrow, both = (
        definition("RMSNormalization", 23, (X, SCALE), (("axis", 1), ("epsilon", 0.001)), LAST, casts)
        for casts in ((), (half,), (wide, half))
    )
    assert len({plain, narrow, both}) == 3
