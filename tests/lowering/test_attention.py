"""Attention becomes one operator where scale, mask, softmax and head layout are what the operator takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.model.session import session_of
from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]

Q = "x"
INPUTS = ", float[2,4,3,8] k, float[2,4,3,8] v"
BODY = (
    "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(x, t) d = Div(s, scale) "
    "a = Add(d, mask) w = Softmax<axis = -1>(a) y = MatMul(w, v)"
)
MASK = np.where(np.tri(3, 3) > 0, 0.0, -1e4).reshape(1, 1, 3, 3)
NUMBERS: dict[str, Any] = {"scale": 3.0, "mask": MASK}
SHAPE = "float[2,4,3,8]"


def made(
    bench: Any, body: str = BODY, numbers: dict[str, Any] = NUMBERS, dtype: str = "float", inputs: str = INPUTS
) -> Any:
    return bench.model(body, numbers, x=SHAPE, y=SHAPE, inputs=inputs, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "target"), [("float", "onnx"), ("float16", "ort"), pytest.param("float", "ort", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("mask", [MASK, MASK[0], MASK[0, 0], MASK[:, :, :1], np.repeat(MASK, 4, 1), None])
def test_an_attention_becomes_one_operator(bench: Any, operators: Names, mask: Any, dtype: str, target: str) -> None:
    body = BODY if mask is not None else BODY.replace("a = Add(d, mask)", "a = Identity(d)").replace("(a)", "(d)")
    numbers = {**NUMBERS, "mask": mask} if mask is not None else {"scale": 3.0}
    result = bench.lower(
        made(bench, body.replace("a = Identity(d) ", ""), numbers, dtype), "ScaledDotProductAttention", target
    )
    wanted = {"onnx": "Attention", "ort": "com.microsoft.MultiHeadAttention"}[target]
    assert wanted in operators(result)
    assert "Softmax" not in operators(result) and "MatMul" not in operators(result)
    assert result.verdict is not None and result.verdict.equal


def test_the_standard_operator_reads_what_was_transposed(bench: Any, operators: Names) -> None:
    result = bench.lower(made(bench), "ScaledDotProductAttention")
    assert operators(result) == ["Attention"]
    node = next(iter(result.model.graph))
    assert [value.name for value in node.inputs if value is not None] == ["x", "k", "v", "mask"]
    assert node.attributes["scale"].as_float() == pytest.approx(1.0 / 3.0)


PER_HEAD = np.ones((1, 4, 1, 1))
NEAR_MISSES = [
    ("softmax over another axis", BODY.replace("axis = -1", "axis = 2"), {}, INPUTS, "axis 2"),
    ("a scale for each head", BODY, {"scale": PER_HEAD}, INPUTS, "scale is no single number"),
    ("a mask that is multiplied", BODY.replace("Add(d, mask)", "Mul(d, mask)"), {"mask": MASK + 1.0}, INPUTS, ""),
    ("weights that are no number become 1", BODY.replace("w = Softmax<axis = -1>(a) y = MatMul(w, v)",
     "p = Softmax<axis = -1>(a) n = IsNaN(p) w = Where(n, one, p) y = MatMul(w, v)"), {"one": 1.0}, INPUTS, "another number"),
    ("scores that become -1", BODY.replace("a = Add(d, mask)", "a = Where(mask, d, low)"), {"mask": MASK == 0, "low": -1.0}, INPUTS,
     "not low enough"),
    ("one V for all batches", BODY, {}, INPUTS.replace("float[2,4,3,8] v", "float[1,4,3,8] v"), "differ"),
    ("one head of K for all", BODY, {}, INPUTS.replace("float[2,4,3,8] k", "float[2,1,3,8] k"), "differ"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize(("what", "body", "off", "inputs", "reason"), NEAR_MISSES, ids=[n[0] for n in NEAR_MISSES])
def test_a_near_miss_stays_a_call(
    bench: Any, tmp_path: Any, what: str, body: str, off: dict[str, Any], inputs: str, reason: str, target: str
) -> None:
    del what
    file = tmp_path / "loose.toml"
    name = "ScaledDotProductAttention"
    queries = (
        "MatMul-*>Div-*>(Add|Mul)->Softmax#w~2>Where#g->MatMul;Softmax#w~>IsNaN->Where#g",
        "MatMul-*>Div-*>(Add|Mul|Where)->Softmax->MatMul",
    )
    variants = "".join(f"[[variants]]\nquery = '{query}'\n" for query in queries)
    file.write_text(f"name = '{name}'\ndoc = 'matches more than it should'\n{variants}")
    result = bench.lower(made(bench, body, {**NUMBERS, **off}, inputs=inputs), str(file), target)
    assert [site.operator for site in result.lowered] == [""]
    assert reason in result.lowered[0].reason


def test_a_mask_that_widens_the_batch_is_refused(bench: Any) -> None:
    numbers = {**NUMBERS, "mask": np.repeat(MASK, 2, 0)}
    inputs = INPUTS.replace("[2,", "[1,")
    model = bench.model(BODY, numbers, x="float[1,4,3,8]", y=SHAPE, inputs=inputs)
    result = bench.lower(model, "ScaledDotProductAttention")
    assert [site.operator for site in result.lowered] == [""]
    assert "mask's shape [2, 1, 3, 3]" in result.lowered[0].reason


GUARD = "p = Softmax<axis = -1>(a) n = IsNaN(p) w = Where(n, zero, p) y = MatMul(w, v)"
CAUSAL = np.where(np.tri(3) > 0, 0.0, -np.inf).astype(np.float32).reshape(1, 1, 3, 3)


@pytest.mark.parametrize(("dtype", "target"), [("float", "onnx"), ("float16", "ort")])
def test_rows_that_are_masked_as_a_whole_stay_zero(bench: Any, operators: Names, dtype: str, target: str) -> None:
    body = BODY.replace("w = Softmax<axis = -1>(a) y = MatMul(w, v)", GUARD)
    model = bench.model(
        body, {"scale": 3.0, "zero": 0.0}, x=SHAPE, y=SHAPE, inputs=f"{INPUTS}, float[1,1,3,3] mask", dtype=dtype
    )
    result = bench.lower(model, "ScaledDotProductAttention", target)
    assert {"onnx": "Attention", "ort": "com.microsoft.MultiHeadAttention"}[target] in operators(result)
    generator = np.random.default_rng(0)
    kind = {"float": np.float32, "float16": np.float16}[dtype]
    feeds = {name: generator.normal(size=(2, 4, 3, 8)).astype(kind) for name in ("x", "k", "v")}
    feeds["mask"] = CAUSAL.astype(kind)
    feeds["mask"][:, :, 1] = -np.inf
    expected = session_of(ir.from_proto(model)).run(feeds)["y"]
    got = session_of(result.model).run(feeds)["y"]
    assert (expected[:, :, 1] == 0).all()
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=1e-2, atol=2e-3)


def test_a_mask_that_leaves_something_of_each_row_needs_a_guard_against_nan_alone(bench: Any, operators: Names) -> None:
    body = BODY.replace("w = Softmax<axis = -1>(a) y = MatMul(w, v)", GUARD)
    result = bench.lower(made(bench, body, {"scale": 3.0, "zero": 0.0, "mask": CAUSAL}), "ScaledDotProductAttention")
    assert operators(result) == ["Attention", "IsNaN", "Where"]


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("order", ["mask, d, low", "hides, low, d"])
def test_scores_that_are_chosen(bench: Any, operators: Names, order: str, target: str) -> None:
    body = BODY.replace("a = Add(d, mask)", f"a = Where({order})")
    held = {"mask": MASK == 0, "hides": MASK != 0, "low": float(np.finfo(np.float32).min), "scale": 3.0}
    result = bench.lower(made(bench, body, held), "ScaledDotProductAttention", target, edge="any")
    assert {"onnx": "Attention", "ort": "com.microsoft.MultiHeadAttention"}[target] in operators(result)
    assert result.verdict is not None and result.verdict.equal


NAN_TO_NUM = (
    "p = Softmax<axis = -1>(a) n = IsNaN(p) w1 = Where(n, zero, p) i1 = IsInf(w1) g1 = Greater(w1, zero) b1 = And(i1, g1) "
    "w2 = Where(b1, big, w1) i2 = IsInf(w2) g2 = Less(w2, zero) b2 = And(i2, g2) w3 = Where(b2, low, w2) y = MatMul(w3, v)"
)


def test_nan_to_num_is_a_guard(bench: Any, operators: Names) -> None:
    body = BODY.replace("w = Softmax<axis = -1>(a) y = MatMul(w, v)", NAN_TO_NUM)
    held = {"zero": 0.0, "big": 3e38, "low": -3e38, "scale": 3.0, "mask": CAUSAL}
    result = bench.lower(made(bench, body, held), "ScaledDotProductAttention")
    assert operators(result) == ["Attention", "IsNaN", "Where"]


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_row_of_the_lowest_number_is_the_mean_of_all(bench: Any, target: str) -> None:
    model = bench.model(BODY, {"scale": 3.0}, x=SHAPE, y=SHAPE, inputs=f"{INPUTS}, float[1,1,3,3] mask")
    result = bench.lower(model, "ScaledDotProductAttention", target)
    generator = np.random.default_rng(0)
    feeds = {name: generator.normal(size=(2, 4, 3, 8)).astype(np.float32) for name in ("x", "k", "v")}
    feeds["mask"] = np.full((1, 1, 3, 3), np.finfo(np.float32).min)
    feeds["mask"][..., 0, 0] = 0
    expected = session_of(ir.from_proto(model)).run(feeds)["y"]
    got = session_of(result.model).run(feeds)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got[:, :, 1], feeds["v"].mean(2), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_one_head_of_k_and_v_for_all_of_q(bench: Any, operators: Names, target: str) -> None:
    model = made(bench, inputs=", float[2,1,3,8] k, float[2,1,3,8] v")
    result = bench.lower(model, "ScaledDotProductAttention", target)
    assert operators(result) == ["Attention"]
    assert result.verdict is not None and result.verdict.equal


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_weights_that_are_widened_and_narrowed_again(bench: Any, operators: Names, target: str) -> None:
    body = BODY.replace("y = MatMul(w, v)", "f = Cast<to = 1>(w) h = Cast<to = 10>(f) y = MatMul(h, v)")
    result = bench.lower(made(bench, body, dtype="float16"), "ScaledDotProductAttention", target)
    assert {"onnx": "Attention", "ort": "com.microsoft.MultiHeadAttention"}[target] in operators(result)
    assert result.verdict is not None and result.verdict.equal


# Attention whose scores or weights are transposed, or that has no axis of heads, as one operator.


PSA = (
    "t = Transpose <perm = [{turn}]> (q) p = MatMul (t, k) z = Mul (p, scale) w = Softmax <axis = -1> (z)"
    " wt = Transpose <perm = [{turn}]> (w) y = MatMul (v, wt)"
)
PLAIN = "t = Transpose <perm = [0, 2, 1]> (k) p = MatMul (q, t) z = Mul (p, scale) {mask} w = Softmax <axis = -1> (z{m}) y = MatMul (w, v)"
TURNED = (
    "t = Transpose <perm = [0, 1, 3, 2]> (k) p = MatMul (q, t) z = Mul (p, scale)"
    " s = Transpose <perm = [0, 1, 3, 2]> (z) w = Softmax <axis = -1> (s)"
)
MASKED = PLAIN.format(mask="zm = Add (z, mask)", m="m")

FORMS = {
    "V before the weights": (PSA.format(turn="0, 1, 3, 2"), "[1,2,8,5] [1,2,8,7] [1,2,6,7]", "[1,2,6,5]"),
    "V before the weights, no heads": (PSA.format(turn="0, 2, 1"), "[2,8,5] [2,8,7] [2,6,7]", "[2,6,5]"),
    "no heads": (PLAIN.format(mask="", m=""), "[2,5,8] [2,7,8] [2,7,6]", "[2,5,6]"),
    "no heads, a mask": (MASKED, "[2,5,8] [2,7,8] [2,7,6] [5,7]", "[2,5,6]"),
    "no heads, a mask for each batch": (MASKED, "[2,5,8] [2,7,8] [2,7,6] [2,5,7]", "[2,5,6]"),
    "turned scores": (TURNED + " y = MatMul (w, v)", "[1,2,7,8] [1,2,5,8] [1,2,7,6]", "[1,2,5,6]"),
    "turned scores and weights": (
        TURNED + " wt = Transpose <perm = [0, 1, 3, 2]> (w) y = MatMul (v, wt)",
        "[1,2,7,8] [1,2,5,8] [1,2,6,7]",
        "[1,2,6,5]",
    ),
}


def graph(body: str, shapes: str, y: str) -> onnx.ModelProto:
    names = ["q", "k", "v", "mask"]
    given = ", ".join(f"float{shape} {name}" for shape, name in zip(shapes.split(), names, strict=False))
    text = f"<ir_version: 10, opset_import: ['': 17]> g ({given}) => (float{y} y) <float scale = {{0.3}}> {{ {body} }}"
    return onnx.parser.parse_model(text.replace("'", '"'))


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("form", FORMS)
def test_it_becomes_one_operator(form: str, target: str, operators: Callable[[FuseResult], list[str]]) -> None:
    body, shapes, y = FORMS[form]
    result = api.fuse(graph(body, shapes, y), ["ScaledDotProductAttention"], lower=target)
    assert {"onnx": "Attention", "ort": "com.microsoft.MultiHeadAttention"}[target] in operators(result)
    assert not {"Softmax", "MatMul"} & {*operators(result)}
    assert not any(site.skipped for site in result.sites)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_heads_that_are_mixed_stay_a_call(target: str, reasons: Callable[[FuseResult], list[str]]) -> None:
    """Talking heads: no operator mixes the heads."""
    body = (
        "t = Transpose <perm = [0, 1, 3, 2]> (k) p = MatMul (q, t) z = Mul (p, scale) a = Transpose <perm = [0, 2, 3, 1]> (z)"
        " b = MatMul (a, mix) c = Transpose <perm = [0, 3, 1, 2]> (b) w = Softmax <axis = -1> (c)"
        " d = Transpose <perm = [0, 2, 3, 1]> (w) e = MatMul (d, mix) f = Transpose <perm = [0, 3, 1, 2]> (e) y = MatMul (f, v)"
    )
    proto = graph(body, "[1,2,5,8] [1,2,7,8] [1,2,7,6]", "[1,2,5,6]")
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray([[1, 2], [3, 4]], np.float32), "mix"))
    result = api.fuse(proto, ["ScaledDotProductAttention"], lower=target)
    assert "its heads are mixed" in reasons(result)[0]
    assert result.verdict is not None and result.verdict.equal
