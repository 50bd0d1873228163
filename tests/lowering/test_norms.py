"""Layer norm and RMS norm: over the last axes, in the precision they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from onnxtile.model.session import session_of
from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]

LAYER = (
    "m = ReduceMean<axes = [AXES]>(x) c = Sub(x, m) p = Pow(c, two) v = ReduceMean<axes = [AXES]>(p) a = Add(v, eps) "
    "q = Sqrt(a) n = Div(c, q) s = Mul(n, scale) y = Add(s, bias)"
)
BARE = LAYER[: LAYER.index("n = Div")] + "y = Div(c, q)"
RMS = (
    "p = Pow(x, two) v = ReduceMean<axes = [AXES], keepdims = 1>(p) a = Add(v, eps) q = Sqrt(a) r = Div(one, q) "
    "n = Mul(x, r) y = Mul(scale, n)"
)
RMS_HALF = (
    "w = Cast<to = 1>(x) p = Pow(w, wide_two) v = ReduceMean<axes = [-1], keepdims = 1>(p) a = Add(v, wide_eps) q = Sqrt(a) "
    "r = Reciprocal(q) n = Mul(w, r) h = Cast<to = 10>(n) y = Mul(h, scale)"
)
VECTOR = np.linspace(0.5, 2.0, 8)
NUMBERS: dict[str, Any] = {
    "two": 2.0, "one": 1.0, "eps": 1e-3, "scale": VECTOR, "bias": VECTOR - 1.0, "wide_two": 2.0, "wide_eps": 1e-3,
}  # fmt: skip


KERAS = (
    "m = GlobalAveragePool(x) c = Sub(x, m) p = Mul(c, c) v = GlobalAveragePool(p) a = Add(v, eps) q = Sqrt(a) r = Reciprocal(q) "
    "i = Mul(r, scale) g = Mul(x, i) k = Neg(m) b = Mul(k, i) o = Add(b, bias) y = Add(g, o)"
)


def over(body: str, axes: str = "-1") -> str:
    return body.replace("AXES", axes)


@pytest.mark.parametrize(
    ("dtype", "axes", "target"), [("float", "-1", "onnx"), ("float16", "2", "ort"), ("float16", "-1", "onnx")]
)
def test_a_layer_norm_becomes_one_operator(bench: Any, operators: Names, dtype: str, axes: str, target: str) -> None:
    result = bench.lower(bench.model(over(LAYER, axes), NUMBERS, dtype=dtype, opset=14), "LayerNorm", target)
    assert operators(result) == ["LayerNormalization"]
    node = next(iter(result.model.graph))
    assert node.attributes["axis"].as_int() == -1
    assert node.attributes["epsilon"].as_float() == pytest.approx(1e-3, rel=1e-3)
    if dtype == "float":  # 16 bytes of scale are small enough to be part of the function
        assert [value.name for value in node.inputs if value is not None] == ["x", "scale", "bias"]
    assert result.model.graph.opset_imports[""] == 17


def test_a_layer_norm_over_two_axes(bench: Any, operators: Names) -> None:
    matrix = np.ones((3, 8)) * VECTOR
    result = bench.lower(bench.model(over(LAYER, "-2, -1"), {**NUMBERS, "scale": matrix, "bias": matrix}), "LayerNorm")
    assert operators(result) == ["LayerNormalization"]
    assert next(iter(result.model.graph)).attributes["axis"].as_int() == -2


def test_the_layer_norm_of_keras_has_its_scale_on_three_axes(bench: Any, operators: Names) -> None:
    cube = {name: NUMBERS[name].reshape(1, 1, 8) for name in ("scale", "bias")}
    result = bench.lower(bench.model(KERAS, NUMBERS | cube), "LayerNorm")
    assert operators(result) == ["LayerNormalization"]
    norm = next(iter(result.model.graph))
    assert norm.attributes["axis"].as_int() == -1
    assert [tuple(value.shape.numpy()) for value in norm.inputs[1:]] == [(8,), (8,)]


def test_a_layer_norm_without_scale_gets_ones(bench: Any, operators: Names) -> None:
    result = bench.lower(bench.model(over(BARE), NUMBERS), "LayerNorm")
    assert operators(result) == ["LayerNormalization"]


def test_what_has_no_kernel_in_bfloat16_is_said(bench: Any, operators: Names) -> None:
    model = bench.model("g = Sigmoid(x) z = Mul(x, g) " + over(LAYER).replace("(x", "(z"), NUMBERS, dtype="bfloat16")
    result = bench.lower(model, None)
    assert operators(result) == ["Swish", "LayerNormalization"]
    assert result.verdict is not None and result.verdict.equal
    swish, norm = sorted(result.sites, key=lambda site: not site.skipped)
    assert "no kernel for Swish of bfloat16" in swish.skipped
    assert norm.outputs and norm.equal and not norm.skipped


def test_bfloat16_is_as_near_as_its_precision(bench: Any, operators: Names) -> None:
    result = bench.lower(bench.model(over(LAYER), NUMBERS, dtype="bfloat16"), "LayerNorm", verify=False)
    assert operators(result) == ["LayerNormalization"]
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(ml_dtypes.bfloat16)
    exact = session_of(bench.lower(bench.model(over(LAYER), NUMBERS), "LayerNorm", verify=False).model)
    expected = exact.run({"x": x.astype(np.float32)})["y"]
    got = session_of(result.model).run({"x": x})["y"].astype(np.float32)
    np.testing.assert_allclose(got, expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize(("dtype", "target"), [("float", "onnx"), ("float16", "ort")])
def test_an_rms_norm_becomes_one_operator(bench: Any, operators: Names, dtype: str, target: str) -> None:
    result = bench.lower(bench.model(over(RMS), NUMBERS, dtype=dtype), "RMSNorm", target)
    assert operators(result) == ["RMSNormalization"]
    assert result.model.graph.opset_imports[""] == 23


def test_half_precision_with_float_inside_is_what_the_operator_does(bench: Any, operators: Names) -> None:
    result = bench.lower(bench.model(RMS_HALF, NUMBERS, dtype="float16"), "RMSNorm")
    assert operators(result) == ["RMSNormalization"]
    node = next(iter(result.model.graph))
    assert node.attributes["stash_type"].as_int() == 1
    assert node.inputs[0] is result.model.graph.inputs[0]


def test_statistics_in_double_are_no_worse_in_float(bench: Any, operators: Names) -> None:
    body = (
        "m = ReduceMean<axes = [-1]>(x) c = Sub(x, m) d = Cast<to = 11>(c) p = Pow(d, wide_two) "
        "v = ReduceMean<axes = [-1]>(p) a = Add(v, wide_eps) q = Sqrt(a) n = Div(d, q) h = Cast<to = 10>(n) "
        "s = Mul(h, scale) y = Add(s, bias)"
    )
    model = bench.model(body, NUMBERS, dtype="float16")
    for tensor in model.graph.initializer:
        if tensor.name.startswith("wide"):
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    result = bench.lower(model, "LayerNorm")
    assert operators(result) == ["LayerNormalization"]
    assert result.verdict is not None and result.verdict.equal


def test_a_cast_that_stays_float_is_not_taken_in(bench: Any, operators: Names) -> None:
    body = RMS_HALF.replace("h = Cast<to = 10>(n) y = Mul(h, scale)", "h = Mul(n, wide_scale) y = Cast<to = 10>(h)")
    result = bench.lower(bench.model(body, {**NUMBERS, "wide_scale": VECTOR}, dtype="float16"), "RMSNorm")
    assert operators(result) == ["Cast", "RMSNormalization", "Cast"]


@pytest.mark.parametrize(("dtype", "target"), [("float", "onnx"), ("float16", "ort")])
def test_an_axis_that_is_not_the_last_is_moved_there(bench: Any, operators: Names, dtype: str, target: str) -> None:
    shape = "float[2,8,3,4]"
    held = {**NUMBERS, "scale": VECTOR.reshape(8, 1, 1), "bias": VECTOR.reshape(8, 1, 1)}
    result = bench.lower(bench.model(over(LAYER, "1"), held, x=shape, y=shape, dtype=dtype), "LayerNorm", target)
    assert operators(result) == ["Transpose", "LayerNormalization", "Transpose"]
    assert result.verdict is not None and result.verdict.equal


NEAR_MISSES = [
    ("a scale of another axis than that of the mean", over(LAYER, "1"), {"scale": np.ones((3, 8))}, "not one element for each"),
    ("over axis 1", over(LAYER, "1"), {"scale": VECTOR[:1], "bias": VECTOR[:1]}, ""),
    ("over axes 0 and 2", over(LAYER, "0, 2"), {}, "not over the last"),
    ("exponent 3", over(LAYER), {"two": 3.0}, ""),
    ("a mean of other axes", over(LAYER).replace("[-1]>(x)", "[1]>(x)"), {}, ""),
    ("epsilon outside of the root", over(LAYER).replace("a = Add(v, eps) q = Sqrt(a)", "a = Sqrt(v) q = Add(a, eps)"), {}, ""),
    ("a scale of another axis", over(LAYER), {"scale": np.ones((3, 1))}, "scale has the shape"),
    ("a scale for each token", over(LAYER), {"scale": np.ones((3, 8))}, "scale has the shape"),
    ("one number as scale", over(LAYER), {"scale": 2.0}, ""),
    ("a bias of another axis", over(LAYER), {"bias": np.ones((2, 1, 1))}, "bias has the shape"),
    ("no square root", over(LAYER).replace("q = Sqrt(a)", "q = Identity(a)"), {}, ""),
    ("double", over(LAYER), {}, "does not take the element type double"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize(("what", "body", "off", "reason"), NEAR_MISSES, ids=[n[0] for n in NEAR_MISSES])
def test_a_near_miss_stays_a_call(
    bench: Any, tmp_path: Any, what: str, body: str, off: dict[str, Any], reason: str, target: str
) -> None:
    file = tmp_path / "loose.toml"
    query = "ReduceMean-1>Sub#c~>Pow->ReduceMean-*>(Add|Sqrt)-*>(Sqrt|Add|Identity)-1>Div#n-*>Mul?-*>Add?;Sub#c~>Div#n"
    file.write_text(f"name = 'LayerNorm'\ndoc = 'matches more than it should'\n[[variants]]\nquery = '{query}'\n")
    model = bench.model(body, {**NUMBERS, **off})
    if what == "double":
        model = doubled(model)
    result = bench.lower(model, str(file), target)
    assert [site.operator for site in result.lowered] == [""]
    assert reason in result.lowered[0].reason
    assert [node.op_type for node in result.model.graph] == ["LayerNorm"]


def doubled(model: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    return model


def test_a_norm_stays_a_call_beside_an_operator_of_a_later_opset(bench: Any) -> None:
    # Axes that are an attribute at opset 13 become a constant operand at 24, which Swish needs; three are too many to be in the function.
    body = over(LAYER, "1, 2, 3").replace("y = Add(s, bias)", "t = Add(s, bias) g = Sigmoid(t) y = Mul(t, g)")
    numbers = NUMBERS | {name: VECTOR.reshape(8, 1, 1) for name in ("scale", "bias")}
    result = bench.lower(bench.model(body, numbers, opset=13, x="float[2,8,3,4]", y="float[2,8,3,4]"), None)
    assert [site.operator for site in result.lowered] == ["", "Swish"]
    assert result.verdict.equal
