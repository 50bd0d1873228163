"""Near misses are refused, equal models pass, and nobody has to bind dimensions by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.fusion.fuse import PatternResult
from onnxtile.fusion.fuse import fuse as fuse_graph
from onnxtile.fusion.pattern import Pattern, from_query
from onnxtile.fusion.site_check import check_sites
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Mismatch, ModelError
from onnxtile.verbs.flows import fuse as fusing
from onnxtile.verification.open_sizes import bound_copy, bound_form
from onnxtile.verification.trials import compare_with, run_original
from onnxtile.verification.values import compare_values
from tests.build import parsed as text

INF = float("inf")


LINEAR = """g (float[N,64] x) => (float[N,8] y) { h = MatMul(x, w)  y = Add(h, b) }"""


def linear(
    change: Callable[[np.ndarray[Any, Any]], None] = lambda _w: None, dtype: Any = np.float32
) -> onnx.ModelProto:
    """Return a linear layer with random weights, which `change` may edit."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((64, 8))
    change(weight)
    name = {np.float32: "float", np.float16: "float16", np.float64: "double"}[dtype]
    model = text(LINEAR.replace("float", name))
    model.graph.initializer.append(numpy_helper.from_array(weight.astype(dtype), "w"))
    model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(8).astype(dtype), "b"))
    return model


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_a_model_equals_itself(dtype: Any) -> None:
    verdict = api.verify(linear(dtype=dtype), linear(dtype=dtype))
    assert verdict.equal
    assert verdict.max_rel == 0
    assert verdict.runs == 2
    assert verdict.dims == {"N": 2}


def _one_weight(weight: np.ndarray[Any, Any]) -> None:
    weight[3, 4] *= 1.01


def test_one_weight_off_by_one_percent_is_refused() -> None:
    verdict = api.verify(linear(), linear(_one_weight))
    assert not verdict.equal
    assert verdict.outputs[0].max_abs > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_all_weights_off_by_three_percent_are_refused_in_any_precision(dtype: Any) -> None:
    def change(weight: np.ndarray[Any, Any]) -> None:
        weight *= 1.03

    assert not api.verify(linear(dtype=dtype), linear(change, dtype)).equal


def test_one_weight_of_a_deep_model_is_refused(transformer: Path) -> None:
    other = onnx.load(transformer)
    tensor = max(other.graph.initializer, key=lambda t: len(t.raw_data))
    array = numpy_helper.to_array(tensor).copy()
    array[len(array) // 2] *= 1.01
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert not api.verify(transformer, other).equal


def test_a_missing_output_is_named() -> None:
    both = text("g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x)  z = Abs(x) }")
    one = text("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    for a, b in ((both, one), (one, both)):
        verdict = api.verify(a, b)
        assert not verdict.equal
        assert {output.name: output.equal for output in verdict.outputs} == {"y": True, "z": False}
        assert "only one" in next(output.reason for output in verdict.outputs if not output.equal)


def test_further_outputs_come_in_the_order_of_the_model() -> None:
    names = [f"z{i}" for i in range(12)]
    outputs, nodes = ", ".join(f"float[2] {n}" for n in names), " ".join(f"{n} = Abs(x)" for n in names)
    more = text(f"g (float[2] x) => (float[2] y, {outputs}) {{ y = Neg(x) {nodes} }}")
    verdict = api.verify(text("g (float[2] x) => (float[2] y) { y = Neg(x) }"), more)
    assert [output.name for output in verdict.outputs] == ["y", *names]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("(double[2,3] y) { h = Neg(x)  y = Cast<to = 11>(h) }", "float64"),
        ("(float16[2,3] y) { h = Neg(x)  y = Cast<to = 10>(h) }", "float16"),
        ("(float[3,2] y) { h = Neg(x)  y = Transpose(h) }", "[3, 2]"),
        ("(float[6] y) { h = Neg(x)  s = Constant<value_ints = [6]>()  y = Reshape(h, s) }", "[6]"),
    ],
)
def test_another_type_or_shape_is_refused(other: str, reason: str) -> None:
    verdict = api.verify(
        text("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }"), text(f"g (float[2,3] x) => {other}")
    )
    assert not verdict.equal
    assert reason in verdict.outputs[0].reason


def test_nans_are_refused_unless_both_have_them() -> None:
    square, root = (f"g (float[64] x) => (float[64] y) {{ {body} }}" for body in ("y = Mul(x, x)", "y = Sqrt(x)"))
    assert not api.verify(text(square), text(root)).equal
    assert not api.verify(text(root), text(square)).equal
    assert api.verify(text(root), text(root)).equal


@pytest.mark.parametrize(
    ("expected", "got"),
    [([1.0, np.nan], [1.0, 2.0]), ([1.0, 2.0], [1.0, np.nan]), ([INF, 1.0], [-INF, 1.0]), ([1.0, INF], [1.0, 3e38]), ([1.0], [INF])],
)  # fmt: skip
def test_what_is_not_finite_must_be_the_same(expected: list[float], got: list[float]) -> None:
    error = compare_values("y", np.asarray(expected, np.float32), np.asarray(got, np.float32))
    assert not error.equal
    assert "finite" in error.reason
    assert error.to_dict()["max_abs"] is None
    assert compare_values("y", np.asarray(expected, np.float32), np.asarray(expected, np.float32)).equal


FLOATS = {
    np.float64: 1e-4,
    np.float32: 1e-4,
    np.float16: 1e-2,
    ml_dtypes.bfloat16: 3e-2,
    ml_dtypes.float8_e4m3fn: 0.13,
    ml_dtypes.float8_e5m2: 0.26,
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_tolerance_follows_the_precision(dtype: Any) -> None:
    values = np.asarray([1, 2, 4, -8], dtype)
    error = compare_values("y", values, values)
    assert error.equal
    assert error.tolerance <= FLOATS[dtype]
    precision = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    assert error.tolerance >= precision
    off = np.asarray(values.astype(np.float64) * (1 + 0.4 * precision), dtype)
    assert compare_values("y", values, off).equal


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("factor", [0.0, 0.5, -1.0, 2.0])
def test_a_wrong_factor_passes_in_no_precision(dtype: Any, factor: float) -> None:
    values = np.asarray([1, 2, 4, -8], dtype)
    other = (values.astype(np.float64) * factor).astype(dtype)
    assert not compare_values("y", values, other).equal


@pytest.mark.parametrize(("steps", "equal"), [(3, True), (8, False)])
def test_below_the_normal_numbers_a_few_steps_are_rounding(steps: int, equal: bool) -> None:
    """In float16 these are 6e-8 apart, so that a unit in the last place of a value of 1e-6 is smaller than what there is."""
    step = float(np.finfo(np.float16).smallest_subnormal)
    values = np.asarray([5 * step, -17 * step], np.float16)
    error = compare_values("y", values, np.asarray(values + np.float16(steps * step), np.float16))
    assert error.equal == equal
    assert "smallest normal" in error.why


def test_small_values_are_judged_by_the_largest() -> None:
    """A value that comes from cancelling large ones carries their rounding."""
    expected = np.asarray([1000.0, 1e-6], np.float32)
    assert compare_values("y", expected, np.asarray([1000.0, 2e-3], np.float32)).equal
    assert not compare_values("y", expected, np.asarray([1000.0, 2e-2], np.float32)).equal
    assert not compare_values("y", expected[1:], np.asarray([2e-6], np.float32)).equal


def test_an_output_of_zeros() -> None:
    zeros = np.zeros(3, np.float32)
    assert compare_values("y", zeros, zeros).equal
    assert not compare_values("y", zeros, zeros + np.float32(1e-30)).equal
    assert compare_values("y", zeros[:0], zeros[:0]).equal


def _strings(*values: str) -> np.ndarray[Any, Any]:
    return np.asarray(values, object)


@pytest.mark.parametrize(
    ("expected", "got", "max_abs"),
    [
        (np.asarray([1, 2]), np.asarray([1, 3]), 1.0),
        (np.asarray([1, 200], np.uint8), np.asarray([1, 0], np.uint8), 200.0),
        (np.asarray([1, -8], ml_dtypes.int4), np.asarray([1, 7], ml_dtypes.int4), 15.0),
        (np.asarray([True, False]), np.asarray([True, True]), INF),
        (_strings("a", "b"), _strings("a", "c"), INF),
        ([np.ones(2, np.float32)], [np.ones(2, np.float32) * 2], 1.0),
        ([np.ones(2, np.float32)], [], INF),
        ([np.ones(2, np.float32)], [np.ones(3, np.float32)], INF),
        ([], [np.ones(2, np.float32)], INF),
        (np.ones(2, np.float32), None, INF),
        (None, np.ones(2, np.float32), INF),
        (np.ones(2, np.float32), [np.ones(2, np.float32)] * 2, INF),
        ([{1: 0.5}], [{1: 0.25}], INF),
        (np.asarray([1 + 2j], np.complex64), np.asarray([1 - 2j], np.complex64), 4.0),
    ],
)  # fmt: skip
def test_other_kinds_of_values(expected: Any, got: Any, max_abs: float) -> None:
    error = compare_values("y", expected, got)
    assert not error.equal
    assert error.max_abs == max_abs
    same = compare_values("y", expected, expected)
    assert same.equal
    assert same.max_abs == 0


def test_sequences_of_models() -> None:
    graph = (
        "g (float[4] x) => (seq(float[2]) y) { n = Constant<value_int = 2>()  h = %s(x)  y = SplitToSequence(h, n) }"
    )
    assert api.verify(text(graph % "Neg"), text(graph % "Neg")).equal
    assert not api.verify(text(graph % "Neg"), text(graph % "Abs")).equal


def test_strings_and_booleans_of_models() -> None:
    graph = "g (string[2] s, bool c, int32[3] i) => (string[2] y, bool d, int32[3] j) { y = Identity(s)  d = Not(c)  j = %s(i) }"
    assert api.verify(text(graph % "Neg"), text(graph % "Neg")).equal
    assert not api.verify(text(graph % "Neg"), text(graph % "Identity")).equal


@pytest.mark.parametrize(
    ("inputs", "dims", "body"),
    [
        ("float[N, M] x", "P, Q", "y = Neg(x)"),
        ("float[N, 3, H, W] x", "P, Q, R, S", "y = Neg(x)"),
        ("float[N, K] x, float[K, M] w", "P, Q", "y = MatMul(x, w)"),
        ("float[A, B] x, float[C, D] w", "P, Q", "y = MatMul(x, w)"),
        ("float[N] x", "P, Q", "s = Constant<value_ints = [-1, 64]>()  y = Reshape(x, s)"),
        ("float[?, 8] x", "P, Q", "y = Neg(x)"),
    ],
)
def test_symbolic_dimensions_are_chosen(inputs: str, dims: str, body: str) -> None:
    model = text(f"g ({inputs}) => (float[{dims}] y) {{ {body} }}")
    verdict = api.verify(model, model)
    assert verdict.equal
    assert all(size > 0 for size in verdict.dims.values())


def test_bound_dimensions_are_kept() -> None:
    assert api.verify(linear(), linear(), dims={"N": 5}).dims == {}


def test_no_choice_works() -> None:
    model = text("g (float[A] x) => (float[1] y) { s = Constant<value_ints = [17]>()  y = Reshape(x, s) }")
    with pytest.raises(ModelError, match="onnxruntime cannot run") as caught:
        api.verify(model, model)
    assert "dims=" in (caught.value.hint or "")


def test_two_runs_differ_in_their_inputs() -> None:
    """A model that only some inputs tell apart."""
    one = text("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    other = text("g (float[1] x) => (float[1] y) { y = Identity(x) }")
    assert not api.verify(one, other, runs=12).equal


def test_given_inputs_are_what_is_run() -> None:
    """The second model differs on negative inputs only."""
    one, other = (load(text(f"g (float[N] x) => (float[N] y) {{ y = {op}(x) }}")) for op in ("Relu", "Identity"))
    for sign, equal in ((1, True), (-1, False)):
        given = {"x": np.full(5, sign, np.float32)}
        trials, dims = run_original(one, given=given)
        assert dims == {"N": 5}
        assert compare_with(trials, other, dims).equal is equal
        assert bound_copy(one, dims).graph.inputs[0].shape == [5]
        assert bound_form(one, dims).graph.inputs[0].shape == [5]
        assert one.graph.inputs[0].shape == ["N"]


def test_a_model_without_open_sizes_is_not_copied_to_be_bound() -> None:
    model = load(text("g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    assert bound_form(model, {}) is model
    assert bound_copy(model, {}) is not model


def test_a_verdict_is_json() -> None:
    verdict = api.verify(linear(), linear(_one_weight))
    content = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert content["equal"] is False
    assert set(content["outputs"][0]) == {
        "name",
        "max_abs",
        "max_rel",
        "tolerance",
        "floor",
        "why",
        "equal",
        "where",
        "inputs",
    }
    missing = api.verify(
        text("g (float[2] x) => (float[2] y) { y = Neg(x) }"), text("g (float[2] x) => (float[2] z) { z = Neg(x) }")
    )
    assert json.loads(json.dumps(missing.to_dict(), allow_nan=False))["outputs"][0]["max_abs"] is None


GELU = """g (float[2,8] x) => (float[2,8] y) <float r = {1.4142135}, float o = {1.0}, float h = {0.5}> {
    a = Div(x, r)  b = Erf(a)  c = Add(b, o)  d = Mul(x, c)  e = Mul(d, h)  y = Relu(e) }"""


def _tampered(model: ir.Model, patterns: Iterable[Pattern], *further: Any, **how: Any) -> list[PatternResult]:
    """Fuse, and do it wrong by 1 %."""
    results = fuse_graph(model, patterns, *further, **how)
    for function in model.functions.values():
        constant = next(node for node in function if node.op_type == "Constant")
        value = constant.attributes["value"].as_tensor().numpy()
        constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(value * np.float32(1.01)))
    return results


QUERY = "Div->Erf->Add-*>Mul->Mul"


def test_a_site_run_alone_shows_a_function_that_is_wrong() -> None:
    original, fused = load(text(GELU)), load(text(GELU))
    _tampered(fused, [from_query(QUERY)])
    (site,) = check_sites(original, fused, resolve(original))
    assert not site.equal
    assert site.call == "e/MetaOp"
    good = load(text(GELU))
    fuse_graph(good, [from_query(QUERY)])
    assert all(site.equal for site in check_sites(original, good, resolve(original)))


def test_a_fault_that_the_outputs_hide_is_found_at_its_site(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = text(GELU.replace("y = Relu(e)", "n = Abs(e) m = Neg(n) y = Relu(m)"))
    monkeypatch.setattr(fusing, "fuse_graph", _tampered)
    with pytest.raises(Mismatch, match="'e/MetaOp' run alone"):
        api.fuse(hidden, [QUERY])


def test_sites_that_are_the_same_are_run_once() -> None:
    chain = " ".join(f"a{i} = Neg(h{i})  h{i + 1} = Abs(a{i})" for i in range(5))
    result = api.fuse(text(f"g (float[2] h0) => (float[2] h5) {{ {chain} }}"), ["Neg->Abs"])
    assert [(site.equal, site.also) for site in result.sites] == [(True, 4)]


def test_a_model_that_fails_is_not_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from onnxtile import cli

    source = tmp_path / "model.onnx"
    onnx.save(text(GELU), source)
    monkeypatch.setattr(fusing, "fuse_graph", _tampered)
    monkeypatch.setattr("sys.argv", ["onnxtile", "fuse", str(source), "-p", QUERY])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("error: the fused model does not compute what the original does: 'y'")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
