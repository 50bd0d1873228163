"""Shapes in the bodies of If, Loop and Scan, and of what these hand out."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from onnxtile.model.load import load
from onnxtile.shapes.resolve import Shapes, resolve

Text = Callable[..., onnx.ModelProto]


def known(model: ir.Model) -> tuple[Shapes, dict[str, tuple[int, ...] | None]]:
    shapes = resolve(model)
    inner = [value for graph in model.graph.subgraphs() for value in graph.inputs]
    made = [value for node in model.graph.all_nodes() for value in node.outputs]
    return shapes, {value.name or "": shapes.sizes(value) for value in (*inner, *made)}


def test_what_a_loop_carries_has_the_shape_that_it_was_given(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[2,3] x) => (float[A,B] y, float[C,D,E] s) <int64 n = {5}, bool go = {1}> {
              y, s = Loop (n, go, x) <body = step (int64 i, bool c, float[] carried) => (bool d, float[] next, float[] seen)
                { d = Identity(c)  next = Neg(carried)  seen = Transpose(next) }> }""")
        )
    )
    assert (sizes["carried"], sizes["next"], sizes["seen"]) == ((2, 3), (2, 3), (3, 2))
    assert (sizes["y"], sizes["s"], sizes["i"], sizes["c"]) == ((2, 3), (5, 3, 2), (), ())


@pytest.mark.parametrize("condition", ["go", '""'])
def test_a_loop_needs_no_condition(text: Text, condition: str) -> None:
    """Both engines forget the type of the condition in the body of a Loop that has none, and what is made of it."""
    _, sizes = known(
        load(
            text(f"""g (float[2,3] x, float[2,3] k) => (float[A,B] y, float[A,B] z) <int64 n = {{5}}, bool go = {{1}}> {{
              y, z = Loop (n, {condition}, x, k) <body = step (int64 i, bool c, float[2,3] carried, float[2,3] more)
                => (bool d, float[2,3] next, float[2,3] next) {{ d = Identity(c)  next = Neg(carried) }}> }}""")
        )
    )
    assert (sizes["y"], sizes["z"], sizes["d"], sizes["next"]) == ((2, 3), (2, 3), (), (2, 3))


@pytest.mark.parametrize("form", ["value_ints = [2]", "value = int64[1] {2}", "value_int = 2"])
def test_a_number_in_a_body_counts_in_every_form(text: Text, form: str) -> None:
    _, sizes = known(
        load(
            text(f"""g (float[2,8] x) => (float[2,8] y) <int64 n = {{5}}, bool go = {{1}}, int64[1] k = {{7}}, int64[1] one = {{1}}> {{
              y = Loop (n, go, x) <body = step (int64 i, bool c, float[2,8] v) => (bool d, float[2,8] v)
                {{ d = Identity(c)  h = Shape(x)  r = Reshape(x, h)
                  s = Constant<{form}>()  from = Reshape(s, one)  part = Slice(r, from, k, one) }}> }}""")
        )
    )
    assert (sizes["r"], sizes["part"]) == ((2, 8), (2, 5))


def test_several_numbers_say_nothing_of_how_often_a_body_runs(text: Text) -> None:
    """Such a Loop is wrong, and that is for onnxruntime to say."""
    _, sizes = known(
        load(
            text("""g (float[2] x) => (float[2] y, float[A,2] z) <int64[3] n = {1, 2, 3}, bool go = {1}> {
              y, z = Loop (n, go, x) <body = step (int64 i, bool c, float[2] v) => (bool d, float[2] v, float[2] w)
                { d = Identity(c)  w = Neg(v) }> }""")
        )
    )
    assert (sizes["w"], sizes["z"]) == ((2,), None)


def test_what_grows_in_a_loop_has_no_size_but_what_does_not_has_one(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[2,3] x) => (float[A,B] y, float[C,D] z) <int64 n = {5}, bool go = {1}> {
              y, z = Loop (n, go, x, x) <body = step (int64 i, bool c, float[] grows, float[] stays)
                => (bool d, float[] more, float[] same)
                { d = Identity(c)  more = Concat<axis = 0>(grows, x)  same = Add(stays, x)  wide = Transpose(more) }> }""")
        )
    )
    assert (sizes["grows"], sizes["more"], sizes["wide"], sizes["y"]) == (None,) * 4
    assert (sizes["stays"], sizes["same"], sizes["z"]) == ((2, 3),) * 3


@pytest.mark.parametrize(
    ("limit", "goes_on", "expected"), [("n", "Identity(c)", (4, 2)), ("k", "Identity(c)", None), ("n", "Not(c)", None)]
)
def test_how_often_a_loop_runs_decides_what_it_collects(
    limit: str, goes_on: str, expected: tuple[int, ...] | None, text: Text
) -> None:
    graph = f"""g (float[2] x, int64 k) => (float[A] y, float[C,D] s) <int64 n = {{4}}, bool go = {{1}}> {{
      y, s = Loop ({limit}, go, x) <body = step (int64 i, bool c, float[] carried) => (bool d, float[] next, float[] seen)
        {{ d = {goes_on}  next = Neg(carried)  seen = Exp(next) }}> }}"""
    _, sizes = known(load(text(graph)))
    assert (sizes["s"], sizes["seen"]) == (expected, (2,))


def test_the_slices_of_a_scan_and_what_it_collects(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[7] start, float[7,5] x) => (float[A] last, float[B,C] all) {
              last, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
                body = step (float[] sum, float[] slice) => (float[] next, float[] seen) { next = Add(sum, slice)  seen = Exp(next) }>
              (start, x) }""")
        )
    )
    assert {name: sizes[name] for name in ("sum", "slice", "seen", "last", "all")} == {
        **dict.fromkeys(("sum", "slice", "seen", "last"), (7,)),
        "all": (7, 5),
    }


BRANCHES = """g (float[2,COLUMNS] x, bool p) => (float[A] y) <int64[1] one = {1}, int64[1] f = {2}> {
  y = If (p) <
    then_branch = t () => (float[] a) { s = Squeeze(x, one)  a = Expand(s, f) },
    else_branch = e () => (float[] b) { r = ReduceSum<keepdims = 0>(x, one)  b = Neg(r) }> }"""


def test_what_comes_after_a_node_that_cannot_run_is_never_made(text: Text) -> None:
    model = load(text(BRANCHES.replace("COLUMNS", "3")))
    shapes, sizes = known(model)
    never = {value.name: shapes.never(value) for node in model.graph.all_nodes() for value in node.outputs}
    assert never["s"] == never["a"] == "never made: Squeeze cannot run on tensors of these shapes"
    assert (never["y"], never["r"], never["b"]) == (None, None, None)
    assert sizes["y"] == (2,)


def test_both_branches_say_what_comes_out(text: Text) -> None:
    model = load(text(BRANCHES.replace("COLUMNS", "1")))
    shapes, sizes = known(model)
    assert (sizes["a"], sizes["b"], sizes["y"]) == ((2,), (2,), (2,))
    assert not any(shapes.never(value) for node in model.graph.all_nodes() for value in node.outputs)


def test_a_branch_that_is_always_taken_decides(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[2,3] x) => (float[A,B] y) <int64 two = {2}, int64 at = {0}> {
              d = Shape(x)  n = Gather(d, at)  p = Equal(n, two)
              y = If (p) < then_branch = t () => (float[] a) { a = Transpose(x) },
                           else_branch = e () => (float[] b) { b = Neg(x) }> }""")
        )
    )
    assert (sizes["a"], sizes["b"], sizes["y"]) == ((3, 2), (2, 3), (3, 2))
