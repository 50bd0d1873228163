"""Inputs of runs: files, random values, and sizes of caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.system import runtime
from onnxtile.system.errors import ModelError, UsageError
from onnxtile.verification.open_sizes import assignments
from onnxtile.verification.trials import run_original
from tests.build import parsed as text

# On what two models are compared: given, random inside a range, at the edges; and models in two forms.


INF = float("inf")


def unary(op: str, kind: str = "float") -> onnx.ModelProto:
    return text(f"g ({kind}[N,3] x) => ({kind}[N,3] y) {{ y = {op}(x) }}")


def test_given_inputs_decide(tmp_path: Path) -> None:
    for sign, equal in ((1, True), (-1, False)):
        np.savez(tmp_path / "x.npz", x=np.full((4, 3), sign, np.float32))
        verdict = api.verify(unary("Relu"), unary("Identity"), inputs=tmp_path / "x.npz")
        assert verdict.equal is equal
        assert (verdict.runs, verdict.inputs, verdict.dims) == (1, ("given",), {"N": 4})
        if not equal:
            where = verdict.outputs[0].where
            assert where is not None
            assert (where.index, where.expected, where.got) == ((0, 0), "0.0", "-1.0")


def test_bad_given_inputs_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((4, 2), np.float32))
    with pytest.raises(UsageError, match=r"takes \[N, 3\]"):
        api.verify(unary("Relu"), unary("Identity"), inputs=tmp_path / "x.npz")


EDGE: dict[str, Any] = {"edge": True}


@pytest.mark.parametrize(
    ("one", "two", "edge"),
    [
        ("y = Div(x, x)", "y = Constant <value = float {1.0}> ()", "zeros"),
        ("y = Sign(x)", "a = Abs(x) y = Div(x, a)", "zeros"),
        ("y = Identity(x)", "y = Clip(x, l, h)", "infinity"),
        (
            "y = Identity(x)",
            "a = Abs(x) o = Greater(a, h) p = IsInf(x) n = Not(p) q = And(o, n) y = Where(q, h, x)",
            "large",
        ),
        ("y = Identity(x)", "o = IsNaN(x) z = Sub(h, h) y = Where(o, z, x)", "NaN"),
        ("y = Identity(x)", "o = IsInf(x) y = Where(o, h, x)", "infinity"),
    ],
)
def test_edges_show_what_random_numbers_do_not(one: str, two: str, edge: str) -> None:
    head = "g (float[3] x) => (float[3] y) <float l = {-1000.0}, float h = {1000.0}>"
    if "Constant" in two:
        two = "o = Constant <value = float {1.0}> () z = Mul(x, l) q = Sub(z, z) y = Add(o, q)"
    pair = [text(f"{head} {{ {body} }}") for body in (one, two)]
    assert api.verify(*pair).equal
    verdict = api.verify(*pair, **EDGE)
    assert not verdict.equal
    assert verdict.outputs[0].inputs == edge
    assert verdict.inputs[:3] == ("random 1", "random 2", "zeros")


@pytest.mark.parametrize("kind", ["float", "float16", "double", "bfloat16"])
def test_every_float_has_edges(kind: str) -> None:
    model = unary("Identity" if kind == "bfloat16" else "Abs", kind)
    verdict = api.verify(model, model, **EDGE)
    assert verdict.equal
    assert set(verdict.inputs) == {
        *("random 1", "random 2", "zeros", "ones", "large", "small", "negative", "NaN", "infinity")
    }


@pytest.mark.parametrize("kind", ["int8", "int32", "int64"])
def test_integers_have_edges_that_they_can_hold(kind: str) -> None:
    verdict = api.verify(unary("Abs", kind), unary("Abs", kind), **EDGE)
    assert verdict.equal
    assert {"zeros", "ones"} <= set(verdict.inputs)
    assert "NaN" not in verdict.inputs


def test_indices_stay_inside_their_axis_at_every_edge(zoo: Callable[[str], Path]) -> None:
    """An embedding refuses an index that is too large; here nothing is skipped."""
    verdict = api.verify(zoo("gpt2_dy20"), api.fuse(zoo("gpt2_dy20"), verify=False).model, **EDGE)
    assert verdict.equal
    assert not verdict.skipped
    assert {"zeros", "large"} <= set(verdict.inputs)


def test_an_edge_that_the_first_model_refuses_is_skipped_and_said() -> None:
    """Which place is looked up is computed from the numbers of x."""
    body = "i = Cast <to = 7> (x)  m = ReduceMax <keepdims = 0> (i)  t = ConstantOfShape(e)  y = Gather(t, m)"
    graph = f"g (float[3] x) => (float y) <int64[1] e = {{4}}> {{ {body} }}"
    verdict = api.verify(text(graph), text(graph), inputs={"x": (0, 1)})
    assert verdict.equal
    loose = api.verify(text(graph), text(graph), inputs=None, edge=True, seed=3)
    assert loose.equal
    assert "large" in loose.skipped


def test_the_user_says_which_numbers() -> None:
    one, two = (
        text("g (int64[9] x) => (int64[9] y) { y = Identity(x) }"),
        text("g (int64[9] x) => (int64[9] y) <int64 t = {50}> { y = Min(x, t) }"),
    )
    assert api.verify(one, two).equal
    assert api.verify(one, two, inputs={"x": (0, 51)}).equal
    assert not api.verify(one, two, inputs={"x": (0, 1000)}).equal
    assert not api.verify(one, two, inputs={"x": (70, 70)}).equal
    with pytest.raises(UsageError, match="no input 'xx'"):
        api.verify(one, two, inputs={"xx": (0, 1)})


@pytest.mark.parametrize("dims", [{}, {"N": 4}])
def test_one_model_free_and_one_fixed(dims: dict[str, int]) -> None:
    free, fixed = unary("Abs"), text("g (float[4,3] x) => (float[4,3] y) { y = Abs(x) }")
    assert api.verify(free, fixed, dims=dims).equal
    assert api.verify(fixed, free, dims=dims).equal
    with pytest.raises(UsageError, match="no dimension 'M'"):
        api.verify(free, fixed, dims={"M": 4})


def test_exports_of_one_model_agree(zoo: Callable[[str], Path]) -> None:
    """Simplified with fixed sizes, and free."""
    verdict = api.verify(zoo("bert_ts14dyn"), zoo("bert_ts14_sim"))
    assert verdict.equal
    assert verdict.dims == {}


def test_other_inputs_are_an_error_that_lists_both() -> None:
    with pytest.raises(ModelError, match="different inputs: x and z"):
        api.verify(unary("Abs"), text("g (float[N,3] z) => (float[N,3] y) { y = Abs(z) }"))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            "g (double[N,3] x) => (double[N,3] y) { y = Abs(x) }",
            r"'x' is float \[2, 3\] in the first and double \[N, 3\]",
        ),
        (
            "g (float[N,4] x) => (float[N,4] y) { y = Abs(x) }",
            r"\[2, 3\] in the first and float \[N, 4\] in the second",
        ),
        ("g (float[N] x) => (float[N] y) { y = Abs(x) }", r"float \[N\] in the second"),
    ],
)
def test_inputs_of_another_form_are_an_error_that_shows_both(graph: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        api.verify(unary("Abs"), text(graph))


def test_a_range_for_inputs_that_are_given_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((4, 3), np.float32))
    how: dict[str, Any] = {"inputs": [tmp_path / "x.npz", {"x": (0, 1)}]}
    with pytest.raises(UsageError, match="nothing is drawn"):
        api.verify(unary("Relu"), unary("Relu"), **how)


def test_nans_in_both_are_equal_and_said() -> None:
    verdict = api.verify(unary("Sqrt"), unary("Sqrt"))
    assert verdict.equal
    assert verdict.outputs[0].reason.endswith("of 6 elements are NaN in both")


def test_integers_have_relative_errors_and_none_is_lost() -> None:
    from onnxtile.verification.values import compare_values

    error = compare_values("y", np.asarray([4, 100], np.int8), np.asarray([5, 98], np.int8))
    assert (error.max_abs, error.max_rel, error.equal) == (2, 0.25, False)
    big = compare_values("y", np.asarray([1, 2**60], np.int64), np.asarray([1, 2**60 + 1], np.int64))
    assert (big.max_abs, big.equal) == (1, False)
    assert big.where is not None
    assert big.where.index == (1,)


def test_outputs_that_differ_in_number() -> None:
    two = text("g (float[N,3] x) => (float[N,3] y, float[N,3] z) { y = Abs(x)  z = Neg(x) }")
    verdict = api.verify(unary("Abs"), two)
    assert [(one.name, one.equal, one.reason) for one in verdict.outputs] == [
        ("y", True, ""),
        ("z", False, "only one of the models has it"),
    ]


@pytest.mark.parametrize(
    ("expected", "got", "index"),
    [
        (np.asarray([[1.0, 2.0], [3.0, 4.0]], np.float32), np.asarray([[1.0, 2.0], [3.5, 4.1]], np.float32), (1, 0)),
        (np.asarray([1.0, np.nan], np.float32), np.asarray([1.0, 2.0], np.float32), (1,)),
        (np.asarray([1.0, INF], np.float32), np.asarray([1.0, -INF], np.float32), (1,)),
        (np.asarray([1, 2, 3], np.int8), np.asarray([1, 4, 9], np.int8), (2,)),
        (np.asarray([True, False]), np.asarray([True, True]), (1,)),
        (np.asarray(["a", "b"], object), np.asarray(["a", "c"], object), (1,)),
        (np.asarray([1, 2], ml_dtypes.bfloat16), np.asarray([1, 3], ml_dtypes.bfloat16), (1,)),
        (np.asarray([1, 2], np.float16), np.asarray([1, 3], np.float16), (1,)),
        ([np.ones(2, np.float32), np.ones(2, np.float32)], [np.ones(2, np.float32), np.full(2, 2, np.float32)], (1, 0)),
    ],
)  # fmt: skip
def test_the_place_of_the_worst_element(expected: Any, got: Any, index: tuple[int, ...]) -> None:
    from onnxtile.verification.values import compare_values

    error = compare_values("y", expected, got)
    assert not error.equal
    assert error.where is not None and error.where.index == index
    assert json.loads(json.dumps(error.to_dict(), allow_nan=False))["where"]["index"] == list(index)
    assert compare_values("y", expected, expected).where is None


def test_the_tolerance_says_why() -> None:
    from onnxtile.verification.values import compare_values

    half = compare_values("y", np.ones(2, np.float16), np.ones(2, np.float16))
    assert half.why.startswith("float16: 0.009")
    assert "equality" in compare_values("y", np.ones(2, np.int8), np.ones(2, np.int8)).why


@pytest.mark.parametrize(
    ("expected", "got", "text"),
    [
        (np.asarray([1, 2], np.float32), np.asarray([1.00001, 2], np.float32), "worst relative error 1e-05"),
        (
            np.asarray([100, 0.2], np.float32),
            np.asarray([100, 0.2005], np.float32),
            "largest error 0.0005: y at [1]: 0.2 became 0.2005",
        ),
        (np.asarray([0, 4], np.int8), np.asarray([1, 4], np.int8), "largest error 1: y at [0]: 0 became 1"),
    ],
)
def test_an_error_near_zero_is_absolute_and_names_the_element(expected: Any, got: Any, text: str) -> None:
    from onnxtile.verification.values import compare_quantised, largest_error

    same = compare_quantised("x", expected, expected)
    error = compare_quantised("y", expected, got)
    assert error.equal
    assert largest_error(output.to_dict() for output in (same, error)) == text


def test_each_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    build = runtime.Session.__init__

    def spy(self: runtime.Session, *args: Any, **how: Any) -> None:
        loaded.append(self)
        build(self, *args, **how)

    monkeypatch.setattr(runtime.Session, "__init__", spy)
    assert api.verify(unary("Relu"), unary("Relu"), **EDGE).equal
    assert len(loaded) == 2


# Open dimensions of a model with a cache of keys get sizes that its attention takes.


HEAD = 24


def _decoder(**attributes: Any) -> onnx.ModelProto:
    """Return a product with packed weights and a GroupQueryAttention whose lengths are sums of a mask."""
    held = [
        numpy_helper.from_array(np.ones((8, 4 * HEAD), np.float32), "w"),
        numpy_helper.from_array(np.asarray([1]), "one"),
        numpy_helper.from_array(np.asarray(1), "axis"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["qkv"]),
        helper.make_node("ReduceSum", ["mask", "one"], ["kept"]),
        helper.make_node("Sub", ["kept", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", ["qkv", "", "", "keys", "values", "lengths", "total"], ["y", "k", "v"],
            domain="com.microsoft", num_heads=2, kv_num_heads=1, **attributes,
        ),
    ]  # fmt: skip
    past: list[int | str] = ["batch", 1, "past", "head"]
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", 8]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "all"]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, past) for name in ("keys", "values")),
    ]
    made = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", 2 * HEAD]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1, "all", HEAD]) for name in "kv"),
    ]
    known = [helper.make_tensor_value_info("qkv", TensorProto.FLOAT, ["batch", "tokens", 4 * HEAD])]
    graph = helper.make_graph(nodes, "g", given, made, held, value_info=known)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_the_first_sizes_are_those_that_the_attention_takes() -> None:
    """No size of the list is 24: the head size comes from the weights, the length of the mask from the tokens and the past."""
    trials, dims = run_original(load(_decoder()))
    assert dims == next(assignments(load(_decoder()))).dims
    assert (dims["batch"], dims["head"]) == (1, HEAD)
    assert dims["all"] == dims["past"] + dims["tokens"]
    assert trials[0].results["k"].shape == (1, 1, dims["all"], HEAD)


@pytest.mark.parametrize("window", [33, 2000])
def test_a_cache_that_slides_holds_its_window(window: int) -> None:
    proto = _decoder(sliding_window_cache=1, local_window_size=window)
    assert next(assignments(load(proto))).dims["past"] == window
