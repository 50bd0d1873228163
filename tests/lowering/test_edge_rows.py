"""Lowered sites on values that random draws do not have: what differs is named where the operator is kinder, else refused."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rich.console import Console

from onnxtile import api
from onnxtile.fusion.site_check import EdgeEffect, SiteRuns, edge_rows
from onnxtile.model.session import session_of
from onnxtile.report.tables import for_lowered
from onnxtile.system.errors import UsageError
from tests.bench.special_values import difference, faults
from tests.lowering.special_sites import random_site

LENGTH = "l = ReduceL2<axes = [-1]>(x) y = Div(x, l)"
UNSHIFTED = "e = Exp(x) z = ReduceSum(e, axes) y = Div(e, z)"
HEADS = "float[2,4,3,8]"
SCORES = "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(x, t) d = Div(s, scale)"
WEIGHTS = "w = Softmax<axis = -1>(a) y = MatMul(w, v)"
GUARDED = "p = Softmax<axis = -1>(a) n = IsNaN(p) w = Where(n, zero, p) y = MatMul(w, v)"


def attention(bench: Any, masked: str, weights: str = WEIGHTS, mask: str = "float[1,1,3,3] mask") -> onnx.ModelProto:
    constants, text = {"scale": 3.0, "zero": 0.0, "low": -np.inf}, f"{SCORES} {masked} {weights}"
    held = {name: value for name, value in constants.items() if re.search(rf"\b{name}\b", text)}
    model: onnx.ModelProto = bench.model(text, held, x=HEADS, y=HEADS, inputs=f", {HEADS} k, {HEADS} v, {mask}")
    return model


def results(model: Any, feeds: Mapping[str, Any]) -> Any:
    return session_of(ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model).run(feeds)["y"]


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_a_row_of_zeros_that_has_no_direction(bench: Any, dtype: str) -> None:
    model = bench.model(LENGTH, {}, dtype=dtype)
    result = bench.lower(model, "L2Norm")
    (site,) = result.lowered
    assert site.operator == "LpNormalization"
    assert site.edges["kinder"] == ["0"] and set(site.edges) <= {"kinder", "beyond range"}
    assert site.to_dict()["edges"] == site.edges
    zeros = {"x": np.zeros((2, 3, 8), {"float": np.float32, "float16": np.float16}[dtype])}
    assert np.isnan(results(model, zeros)).all() and not results(result.model, zeros).any()
    (verdict,) = [one for one in result.sites if one.edges]
    assert verdict.equal and verdict.edges
    first = verdict.to_dict()["edges"][0]
    assert first == {
        **{"inputs": {"x": "all 0"}, "effect": "kinder", "output": "y", "elements": 48},
        "where": {"index": [0, 0, 0], "expected": "nan", "got": "0.0"},
    }


def test_strict_refuses_the_kinder_operator_too(bench: Any) -> None:
    (site,) = bench.lower(bench.model(LENGTH, {}), "L2Norm", edge="strict").lowered
    assert site.operator == "" and not site.edges
    assert site.reason == "it differs on an edge row: with all 0 in 'x', 'y' has 0.0 where it had nan"


def test_an_operator_that_spreads_nan_is_refused(bench: Any) -> None:
    """With one infinite element exp(x) / Σ exp(x) has one NaN, and Softmax has them all along."""
    model = bench.model(UNSHIFTED, {"axes": [-1]})
    (site,) = bench.lower(model, "Softmax").lowered
    assert site.operator == ""
    assert site.reason == "it differs on an edge row: with one +inf in 'x', 'y' has nan where it had 0.0"
    (site,) = bench.lower(model, "Softmax", edge="any").lowered
    assert site.operator == "Softmax" and site.edges["worse"] == ["inf"]


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_mask_that_hides_whole_rows(bench: Any, target: str) -> None:
    model = attention(bench, "a = Add(d, mask)")
    (site,) = bench.lower(model, "ScaledDotProductAttention", target).lowered
    strict = bench.lower(model, "ScaledDotProductAttention", target, edge="strict").lowered[0]
    assert site.operator and not strict.operator
    assert ("inf" in site.edges.get("kinder", ())) == (target == "onnx")


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_chosen_scores_hide_what_added_masks_do_not(bench: Any, target: str) -> None:
    """Where hides a score that is NaN; NaN plus the lowest number is NaN."""
    model = attention(bench, "a = Where(mask, d, low)", mask="bool[1,1,3,3] mask")
    (site,) = bench.lower(model, "ScaledDotProductAttention", target).lowered
    assert site.operator == "" and "it differs on an edge row" in site.reason


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_guarded_attention_guards_against_any_nan(bench: Any, target: str) -> None:
    model = attention(bench, "a = Add(d, mask)", GUARDED)
    result = bench.lower(model, "ScaledDotProductAttention", target)
    assert result.lowered[0].operator
    for name, number in product(("x", "k", "mask"), (np.nan, np.inf, -np.inf)):
        generator = np.random.default_rng(0)
        feeds = {one: generator.normal(size=(2, 4, 3, 8)).astype(np.float32) for one in ("x", "k", "v")}
        feeds["mask"] = np.zeros((1, 1, 3, 3), np.float32)
        feeds[name][..., 1, 1] = number
        expected = results(model, feeds)
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(results(result.model, feeds), expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_bfloat16_runs_in_float(bench: Any) -> None:
    """onnxruntime has no kernel of Swish for bfloat16; rows of zeros, NaN and infinities are the same in float."""
    model = bench.model("s = Sigmoid(x) y = Mul(x, s)", {}, dtype="bfloat16")
    result = bench.lower(model, "SiLU", edge="strict")
    assert result.lowered[0].operator == "Swish"
    (verdict,) = result.sites
    assert "no kernel" in verdict.skipped and verdict.edges == ()


def test_without_edge_rows_nothing_is_named(bench: Any) -> None:
    (site,) = bench.lower(bench.model(LENGTH, {}), "L2Norm", verify=False).lowered
    assert site.operator and not site.edges and "edges" not in site.to_dict()


@pytest.mark.parametrize("options", [{"lower": "onnx", "verify": False}, {"lower": "none"}])
def test_strict_needs_a_lowering_and_runs(bench: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="edge='strict'"):
        api.fuse(bench.model(LENGTH, {}), edge="strict", **options)


def test_a_site_that_cannot_be_run_is_refused_by_strict_alone(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtile.fusion.lower import driver as lowered_site_check
    from onnxtile.fusion.site_check import SiteVerdict

    skipped = SiteVerdict("y", (), 0, "its shape is not known")
    monkeypatch.setattr(lowered_site_check.LoweredSites, "check", lambda _, parts, *__: (skipped,) * len(parts))
    model = bench.model(LENGTH, {})
    assert bench.lower(model, "L2Norm").lowered[0].operator
    assert "its edge rows cannot be run: its shape" in bench.lower(model, "L2Norm", edge="strict").lowered[0].reason


TYPES = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.int8, np.uint8, np.bool_)


@pytest.mark.parametrize("dtype", TYPES)
def test_edge_rows_keep_types_and_shapes(dtype: Any) -> None:
    feeds = {"x": np.arange(24).reshape(2, 3, 4).astype(dtype), "n": np.arange(4), "z": np.zeros((0, 3), np.float32)}
    kept = feeds["x"].copy()
    rows = list(edge_rows(feeds, ["x", "n", "z"]))
    assert all(row.feeds["x"].dtype == kept.dtype and row.feeds["x"].shape == kept.shape for row in rows)
    assert len({row.text for row in rows}) > 6
    assert all(row.feeds[name] is feeds[name] for row in rows for name in ("n", "z"))
    assert feeds["x"].tobytes() == kept.tobytes()
    again = edge_rows(feeds, ["x", "n", "z"])
    assert all(
        a.text == b.text and a.feeds["x"].tobytes() == b.feeds["x"].tobytes() for a, b in zip(rows, again, strict=True)
    )


def test_a_vector_that_stands_twice_does_so_on_edge_rows() -> None:
    for row in edge_rows({"x": np.ones((2, 3, 8), np.float32)}, ["x"], {"x"}):
        np.testing.assert_array_equal(row.feeds["x"][..., :4], row.feeds["x"][..., 4:])


def effects(before: str, after: str) -> dict[tuple[str, str], EdgeEffect]:
    """Return the effects on a site x[2,4] -> y that is one text before and another after."""
    head = '<ir_version: 10, opset_import: ["": 20]> g (float[2,4] x) => (float[2,4] y) <float c = {3.0}>'
    first, second = (onnx.parser.parse_model(f"{head} {{ {body} }}") for body in (before, after))
    runs = SiteRuns(session_of(ir.from_proto(first)), session_of(ir.from_proto(second)))
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)}
    return {(one.row.places["x"], one.row.numbers["x"]): one.effect for one in runs.differences(feeds, ["x"])}


def test_what_each_effect_means() -> None:
    assert effects("y = Mul(x, c)", "y = Mul(c, x)") == {}
    assert set(effects("y = Div(x, x)", "r = Div(x, x) n = IsNaN(r) y = Where(n, c, r)").values()) == {
        EdgeEffect.KINDER
    }
    # x / x of the largest number is 1; the square of it is infinite.
    squared = effects("y = Div(x, x)", "s = Mul(x, x) y = Div(s, s)")
    assert squared["all", "huge"] is squared["one", "-huge"] is EdgeEffect.BEYOND_RANGE
    assert set(squared.values()) == {EdgeEffect.BEYOND_RANGE}
    spread = effects("y = Identity(x)", "s = ReduceSum<keepdims = 1>(x) z = Sub(s, s) y = Add(x, z)")
    assert spread["one", "NaN"] is spread["a row of", "+inf"] is EdgeEffect.WORSE
    total = "s = ReduceSum<keepdims = 1>(x)"
    summed = effects(f"{total} y = Add(x, s)", f"{total} z = Sub(s, s) t = Add(x, s) y = Add(t, z)")
    assert summed["all", "+inf"] is summed["one", "-inf"] is EdgeEffect.NO_NUMBER


def test_a_single_number_may_differ() -> None:
    """Below the largest number, (x · c) / c is x; there it is infinite."""
    head = '<ir_version: 10, opset_import: ["": 17]> g (float x) => (float y) <float c = {3.0}>'
    before, after = (f"{head} {{ {body} }}" for body in ("m = Mul(x, c) y = Div(m, c)", "y = Identity(x)"))
    first, second = (session_of(ir.from_proto(onnx.parser.parse_model(text))) for text in (before, after))
    found = SiteRuns(first, second).differences({"x": np.array(1.0, np.float32)}, ["x"])
    largest = next(one.to_dict() for one in found if one.row.numbers["x"] == "huge")
    where = {"index": [], "expected": "inf", "got": "3.4028235e+38"}
    assert largest == {
        "inputs": {"x": "all huge"},
        "effect": "beyond range",
        "output": "y",
        "elements": 1,
        "where": where,
    }


def test_the_same_model_gives_the_same_edges(bench: Any) -> None:
    model = attention(bench, "a = Add(d, mask)")
    first, second = (bench.lower(model, "ScaledDotProductAttention").to_dict() for _ in range(2))
    assert first["sites"] == second["sites"] and first["lowered"] == second["lowered"]


def test_rows_that_the_site_as_it_was_does_not_take_are_left_out() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2,2] x) => (float[2,2,2] y)
      { i = Cast<to = 7>(x) y = Gather(x, i) }"""
    session = session_of(ir.from_proto(onnx.parser.parse_model(text)))
    runs = SiteRuns(session, session)
    assert runs.differences({"x": np.ones((2, 2), np.float32)}, ["x"]) == ()


def test_large_inputs_get_one_place_for_each_number() -> None:
    rows = list(edge_rows({"x": np.ones((1024, 4097), np.float32)}, ["x"]))
    numbers = [row.numbers["x"] for row in rows]
    assert len(numbers) == len(set(numbers)) == 10


def test_what_differs_is_printed(bench: Any) -> None:
    result = bench.lower(bench.model(LENGTH, {}), "L2Norm")
    printed = io.StringIO()
    Console(file=printed, width=200).print(*for_lowered(result.to_dict()))
    assert "lowered, and different on edge rows" in printed.getvalue()
    shown = " ".join(printed.getvalue().replace("│", " ").split())
    assert "L2Norm LpNormalization the operator is kinder: a number where the meta-op has none 0 1" in shown


# A few seeds of `tests.bench.special_values`: what differs on special values is named by the result, or refused.


SEEDS, BLOCK = 60, 20


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_differences_are_named(first: int) -> None:
    found = [(seed, text) for seed in range(first, first + BLOCK) for text in faults(seed)[1]]
    assert not found, "\n".join(f"seed {seed}: {text}" for seed, text in found)


@pytest.mark.parametrize("seed", [39, 46, 50, 404, 513, 1889])
def test_seeds_that_found_faults(seed: int) -> None:
    assert faults(seed)[1] == []


def test_sites_are_of_every_kind_and_the_same_again() -> None:
    names = Counter(random_site(seed).name.partition(":")[0] for seed in range(150))
    assert len(names) > 20 and names["ScaledDotProductAttention"] > 10
    assert random_site(3).model == random_site(3).model


def test_what_counts_as_a_difference() -> None:
    number, nan, inf = (np.array([1.0, value], np.float32) for value in (2.0, np.nan, np.inf))
    assert difference(number, number * 1.0001, number, 1e-3) == ""
    assert difference(number, number * 1.1, number, 1e-3).startswith("worse")
    assert difference(nan, number, number, 1e-3) == "kinder"
    assert difference(number, nan, number, 1e-3).startswith("worse")
    assert difference(inf, nan, inf, 1e-3).startswith("worse")
    assert difference(inf[1:], nan[1:], inf[1:], 1e-3) == "no number"
