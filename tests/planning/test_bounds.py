"""Shapes that depend on the data: an upper bound, or a refusal that names what it is."""

from typing import Any

import numpy as np
import onnx.parser
import pytest

from onnxtile import api
from onnxtile.check.sharing import SharedStates, links
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import CheckFailed, UsageError
from tests.planning.conftest import Case, aliases, rows

NONZERO = """
nonzero (float[4,6] x) => (float[2,N] y, float[4,6] z) {
  a = Relu(x)
  i = NonZero(a)
  f = Cast<to = 1>(i)
  t = Transpose(f)
  flat = Constant<value = int64[1] {-1}>()
  v = Reshape(t, flat)
  two = Constant<value = int64[2] {2, -1}>()
  w = Reshape(v, two)
  y = Exp(w)
  z = Neg(a)
}
"""

DETECTOR = """
detector (float[1,20,4] boxes, float[1,2,20] scores) => (float[M,4] kept) {
  most = Constant<value = int64 {5}>()
  overlap = Constant<value = float {0.5}>()
  chosen = NonMaxSuppression(boxes, scores, most, overlap)
  last = Constant<value = int64 {2}>()
  at = Gather<axis = 1>(chosen, last)
  flat = Squeeze(boxes)
  found = Gather(flat, at)
  kept = Sigmoid(found)
}
"""


def case(text: str, **bounds: int) -> Case:
    model = load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}'))
    return Case(model, resolve(model, run=True, bounds=bounds), Constants(model))


def test_a_bound_gives_everything_that_follows_a_place() -> None:
    bounded = case(NONZERO, i=24)
    result = bounded.plan()
    assert result.unplanned == ()
    sizes = {name: row.size for name, row in rows(result).items()}
    assert (sizes["i"], sizes["f"], sizes["t"], sizes["v"], sizes["w"], sizes["y"]) == (384, 192, 192, 192, 192, 192)
    assert aliases(result)["y"] == rows(result)["w"].alias, "Exp keeps the shape, however large"
    verdict = bounded.run(result)
    assert verdict.equal
    full, empty = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    one = np.eye(4, 6, dtype=np.float32)
    assert bounded.run(result, feeds=[{"x": full}, {"x": empty}, {"x": one}]).equal


@pytest.mark.parametrize("order", ["model", "min-peak", "any"])
def test_a_detector(order: str) -> None:
    bounded = case(DETECTOR, chosen=10)
    result = bounded.plan(order=order)
    assert result.unplanned == ()
    assert rows(result)["kept"].shape == (10, 4)
    assert bounded.run(result).equal


def test_more_than_the_bound_in_a_run_is_no_plan() -> None:
    bounded = case(NONZERO, i=3)
    with pytest.raises(CheckFailed, match="'i' is larger in a run than its bound: 384 bytes do not fit into 48"):
        bounded.run(bounded.plan(), feeds=[{"x": np.ones((4, 6), np.float32)}])


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [("NonZero", "(x)"), ("Unique<axis = 0>", "(x)"), ("Compress<axis = 0>", "(x, c)")],
)
def test_without_a_bound_it_is_refused_by_name(operator: str, arguments: str) -> None:
    name = operator.partition("<")[0]
    out = "int64[2,N]" if name == "NonZero" else "float[N,3]"
    text = f"g (float[2,3] x, bool[2] c) => ({out} y) {{ y = {operator}{arguments} }}"
    (row,) = case(text).plan().unplanned
    assert (row.name, row.reason) == ("y", f"its shape depends on the data ({name})")
    assert case(text, N=6).plan().unplanned == ()


ARITHMETIC = """
g (float[6] x) => (float[K] y) {
  i = NonZero(x)
  f = Cast<to = 1>(i)
  n = Shape<start = 1>(i)
  whole = Shape(i)
  zero = Constant<value = int64[1] {0}>()
  one = Constant<value = int64[1] {1}>()
  two = Constant<value = int64[1] {2}>()
  four = Constant<value = int64[1] {4}>()
  six = Constant<value = int64[1] {6}>()
  none = Constant<value = int64[1] {-1}>()
  last = Constant<value = int64[1] {100}>()
  BODY
}
"""


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        # 6 - n is largest where n is smallest.
        ("left = Sub(six, n) y = ConstantOfShape(left)", (6,)),
        ("twice = Add(n, n) y = ConstantOfShape(twice)", (12,)),
        ("half = Div(n, two) y = ConstantOfShape(half)", (3,)),
        ("few = Less(n, four) m = Where(few, two, n) y = ConstantOfShape(m)", (6,)),
        ("few = Less(n, four) m = Where(few, last, two) y = ConstantOfShape(m)", (100,)),
        # A size is never -1, as what follows an Expand asks, and that of an axis without a bound is known.
        ("unset = Equal(n, none) m = Where(unset, last, n) y = ConstantOfShape(m)", (6,)),
        ("row = Gather(whole, zero) m = Sub(two, row) y = ConstantOfShape(m)", (1,)),
        ("left = Sub(six, n) y = Slice(x, left, last, zero)", (6,)),
        ("y = Slice(x, zero, n, zero)", (6,)),
        ("left = Sub(six, n) pads = Concat<axis = 0>(zero, left) y = Pad(x, pads)", (12,)),
        ("w = Cast<to = 1>(n) r = Sqrt(w) y = Add(r, x)", (6,)),
    ],
)
def test_shapes_that_follow_by_arithmetic(body: str, shape: tuple[int, ...]) -> None:
    bounded = case(ARITHMETIC.replace("BODY", body), i=6)
    result = bounded.plan()
    assert result.unplanned == ()
    assert rows(result)["y"].shape == shape
    feeds = [{"x": np.asarray(row, np.float32)} for row in ([1] * 6, [0] * 6, [1, 0, 0, 2, 0, 0])]
    assert bounded.run(result, feeds=feeds).equal


@pytest.mark.parametrize(
    "body",
    [
        # From which end an axis is counted is not known, nor which way.
        "m = Sub(n, four) y = Slice(x, m, last, zero)",
        "y = Slice(x, n, none, zero, none)",
        "m = Mod(n, four) y = ConstantOfShape(m)",
    ],
)
def test_what_no_bound_follows_for_is_named(body: str) -> None:
    result = case(ARITHMETIC.replace("BODY", body), i=6).plan()
    assert [u.name for u in result.unplanned] == ["y"]


def test_a_branch_that_the_data_choose_is_not_chosen_before() -> None:
    bounded = case(
        """
        g (float[6] x) => (float[K] y) {
          i = NonZero(x)
          n = Shape<start = 1>(i)
          four = Constant<value = int64[1] {4}>()
          few = Less(n, four)
          flat = Squeeze(few)
          y = If(flat) <
            then_branch = a () => (float[P] p) { p = Concat<axis = 0>(x, x) },
            else_branch = b () => (float[Q] q) { q = Relu(x) }>
        }
        """,
        i=6,
        y=12,
    )
    result = bounded.plan()
    assert rows(result)["y"].shape == (12,)
    ones, none = np.ones(6, np.float32), np.zeros(6, np.float32)
    assert bounded.run(result, feeds=[{"x": ones}, {"x": none}]).equal


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"n": 4}, "invalid bound 'n': no open dimension, value or node has this name"),
        ({"a": 4}, "invalid bound 'a': all its dimensions are static"),
        ({"i": 0}, "invalid bound 'i'=0"),
        ({"i": 4, "f": 5, "t": 6}, None),
    ],
)
def test_bounds_that_make_no_sense(bounds: dict[str, int], message: str | None) -> None:
    if message is None:
        assert case(NONZERO, **bounds).plan().unplanned == ()
        return
    with pytest.raises(UsageError, match=message):
        case(NONZERO, **bounds)


def test_two_bounds_for_one_dimension() -> None:
    text = "g (float[2,3] x) => (int64[2,N] y) { y = NonZero(x) }"
    with pytest.raises(UsageError, match="a dimension of 'y' is bound to 6 and, as 'y', to 7"):
        case(text, N=6, y=7)
    assert case(text, N=6, y=6).plan().unplanned == ()


SHARING = """
g (float[6] x, float[6] z) => (float[K] y) {
  i = NonZero(x)
  flat = Constant<value = int64[1] {-1}>()
  row = Reshape(i, flat)
  a = Gather(z, row)
  j = NonZero(z)
  row2 = Reshape(j, flat)
  b = Gather(x, row2)
  BODY
}
"""


@pytest.mark.parametrize(
    ("body", "in_place"),
    [
        ("y = Exp(a)", True),
        ("y = Softmax(a)", True),
        ("two = Constant<value = float[1] {2}>() y = Mul(a, two)", True),
        ("y = Add(a, a)", True),
        # Of one bound: one may have a single element in a run, which is read again and again.
        ("y = Mul(a, b)", False),
        ("y = Mul(a, x)", False),
    ],
)
def test_what_is_written_over_an_operand_of_a_bounded_size(body: str, in_place: bool) -> None:
    bounded = case(SHARING.replace("BODY", body), i=6, j=6)
    result = bounded.plan()
    assert result.unplanned == ()
    assert ("y" in aliases(result)) == in_place
    every, one = np.arange(1, 7, dtype=np.float32), np.eye(1, 6, dtype=np.float32)[0]
    assert bounded.run(result, feeds=[{"x": every, "z": every}]).equal
    if body != "y = Mul(a, x)":
        assert bounded.run(result, feeds=[{"x": one, "z": every}, {"x": every, "z": one}]).equal


@pytest.mark.parametrize(("body", "over"), [("y = Mul(a, b)", set()), ("y = Exp(a)", {"a"}), ("y = Mul(a, a)", {"a"})])
def test_the_check_knows_what_bounds_leave_open(body: str, over: set[str]) -> None:
    bounded = case(SHARING.replace("BODY", body), i=6, j=6)
    maker = bounded.checked.graph.outputs[0].maker
    assert maker is not None
    found = links(maker, SharedStates())
    assert {link.operand.name for link in found} == over


def test_the_plan_tells_its_bounds() -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{NONZERO}')
    result = api.plan(model, dims={"i": ":24"})
    document: dict[str, Any] = result.to_dict()
    assert document["bounds"] == {"i": 24}
    assert result.verdict is not None and result.verdict.equal
